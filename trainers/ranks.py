"""Runs on several devices or machines: one process for each, which torch's launcher starts."""

import gc
import logging
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from multiprocessing import resource_tracker
from typing import Any, Final

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.errors import (
    ChildFailedError,
    ProcessFailure,
    get_error_handler,
)
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from torchrl_gpu.devices.device import resolve_devices
from torchrl_gpu.devices.host import share_cores
from torchrl_gpu.distributed import joined
from torchrl_gpu.errors import (
    FAILED,
    INTERRUPTED,
    REFUSED,
    START_AGAIN,
    ConfigurationError,
    ProcessLostError,
    WorkerError,
)
from torchrl_gpu.place import local_place
from torchrl_gpu.place import rank as own_rank
from torchrl_gpu.signals import (
    exit_code_after,
    ignore_stop_signals,
    release_stop_signals,
    stop_signals_held,
)
from trainers.command_line.failures import print_exception
from trainers.command_line.settings import Settings
from trainers.modes.dispatch import run_mode
from trainers.modes.outcome import RunOutcome, command_of
from trainers.runs.folders import newest_run, trained_since
from trainers.signals import Interruption, cleans_up, handled_first, leave, program_ends

# Time in which the launcher finds out which process has ended first, before those that miss it end.
_SECONDS_TO_NAME_THE_LOST: Final = 3.0

_LOGGERS: Final = [
    "torch.distributed.elastic.agent.server.api",
    "torch.distributed.elastic.multiprocessing.api",
    "torch.multiprocessing.spawn",
]


def start(settings: Settings) -> RunOutcome:
    """Train in one process for each of the devices, and return the outcome.

    Signals go on to all processes. One that ends ends the run.

    Raises:
        ConfigurationError: a process refuses the run.
        WorkerError: a process has ended; the message names it, and says how to resume.
        KeyboardInterrupt: a signal ended the training; the message says how to continue it.
    """
    began = time.time()
    for name in _LOGGERS:  # all failures are reported below
        logging.getLogger(name).setLevel(logging.CRITICAL)
    # In another thread, because the launcher handles signals itself in the main thread: it would
    # kill processes that take more than 30 s to save.
    with (
        cleans_up(),
        tempfile.TemporaryDirectory(prefix="torchrl_gpu_") as reports,
        ThreadPoolExecutor(1, "launcher") as thread,
        handled_first(partial(_signal_children, reports, multiprocessing.active_children())),
    ):
        config = launch_config(len(settings.devices), reports)
        with stop_signals_held():
            # The start of the first process would start the tracker, which releases the signals.
            if os.name == "posix":
                resource_tracker.ensure_running()
        with stop_signals_held():
            ends = thread.submit(elastic_launch(config, _as_rank), replace(settings, state=None))
        try:
            outcome: RunOutcome | Interruption | Exception = ends.result()[0]
        except ChildFailedError as error:
            outcome = _failure(error, settings, began)
        if isinstance(outcome, Exception):
            raise outcome
    if isinstance(outcome, Interruption):
        raise outcome
    return outcome


def run_launched(settings_of: Callable[[], Settings]) -> RunOutcome:
    """Train as one of the processes that torchrun has started; all return the same outcome.

    Args:
        settings_of: function that returns the settings, called by the process of rank 0.

    Raises:
        ConfigurationError: as for `settings_of`, in the process of rank 0; all others exit.
    """
    with cleans_up(), joined() as processes:
        settings: Settings | None = None
        if processes.is_writer:
            try:
                settings = replace(settings_of(), state=None)
            except ConfigurationError:
                processes.agree(None)
                raise
        else:
            _name_messages(processes.rank)
        settings = processes.agree(settings)
        if settings is None:
            raise SystemExit(REFUSED)
        number, count = local_place()
        devices = settings.devices
        if len(devices) < count:
            devices = resolve_devices(settings.general.device, count)
        share_cores(number, count)
        processes.compute_on(devices[number])
        try:
            return run_mode(settings.share(processes.count, devices[number]), processes)
        except KeyboardInterrupt as stop:
            if processes.is_writer:
                raise
            raise Interruption.of(stop, "") from None  # one process says how to go on


def launch_config(count: int, folder: str) -> LaunchConfig:
    """Return the configuration of processes on this machine, which report into a folder."""
    return LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=count,
        run_id=str(uuid.uuid4()),
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        logs_specs=DefaultLogsSpecs(log_dir=folder),
    )


def _as_rank(settings: Settings) -> RunOutcome | Interruption:
    """Be one of the processes of `start`; return the outcome, or the signal that ended the run."""
    launcher = os.getppid()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    with program_ends():
        try:
            with cleans_up():
                release_stop_signals()
                outcome: RunOutcome | Interruption = run_launched(lambda: settings)
        except KeyboardInterrupt as stop:
            outcome = Interruption.of(stop, str(stop))
            if not outcome.agreed:  # others may wait for this process: the launcher ends them
                leave(outcome)
        except Exception as error:
            get_error_handler().record_exception(error)
            if isinstance(error, ConfigurationError):
                sys.exit(REFUSED)
            if isinstance(error, ProcessLostError):
                with suppress(KeyboardInterrupt):
                    time.sleep(_SECONDS_TO_NAME_THE_LOST)
            else:
                print(f"rank {own_rank()}:", file=sys.stderr)
                print_exception(error)
            sys.exit(FAILED)
    ignore_stop_signals()  # nothing is left to stop
    gc.collect()  # ends the connections that the traceback of a signal holds: others may wait there
    gc.freeze()  # Python's own collection at exit would take a second
    if os.getppid() != launcher:
        os._exit(FAILED)  # nobody waits for the outcome
    return outcome


def _failure(error: ChildFailedError, settings: Settings, began: float) -> Interruption | Exception:
    """Return the exception that ends a run whose processes have failed.

    The run began at the time `began`; an older one may have the same settings.
    """
    rank, first = error.get_first_failure()
    folder = settings.checkpoint.parent.parent if settings.checkpoint is not None else None
    if not settings.in_place:
        folder = newest_run(settings.folder, settings.config)
        if folder is not None and not trained_since(folder, began):
            folder = None
    resume = command_of(settings, f"checkpoint={folder}") if folder is not None else ""
    if first.exitcode in (INTERRUPTED, START_AGAIN):
        number = signal.SIGINT if first.exitcode == INTERRUPTED else signal.SIGTERM
        return Interruption(number, f"\nEnded at once. To resume:\n  {resume}" if resume else "")
    failure = ConfigurationError if first.exitcode == REFUSED else WorkerError
    hint = f"to resume: {resume}" if resume else "nothing has been saved"
    return failure(f"rank {rank} {_reason(first)}; {hint}")


def _reason(failure: ProcessFailure) -> str:
    """Return in words why a process has ended."""
    if failure.exitcode < 0:
        return f"was ended by {failure.signal_name()}"
    recorded = failure.error_file_data.get("message")
    if not isinstance(recorded, dict):
        return f"ended with code {failure.exitcode}"
    _, _, message = str(recorded["message"]).partition(": ")
    message = message.partition("; to resume: ")[0]  # which follows in any case
    return f"refused: {message}" if failure.exitcode == REFUSED else f"ended: {message}"


def _signal_children(reports: str, others: Collection[Any], number: int, since: float) -> None:
    """Send a signal on to the processes that this one has started, but for others.

    If there are none, end the program, and delete the folder of their reports.
    """
    children = set(multiprocessing.active_children()).difference(others)
    if not children:
        shutil.rmtree(reports, ignore_errors=True)
        os._exit(exit_code_after(number))
    for child in children:
        if child.pid is not None:
            os.kill(child.pid, number)


def _name_messages(rank: int) -> None:
    """Let this process print warnings alone, with its rank."""
    root = logging.getLogger()
    root.setLevel(logging.WARNING)
    for handler in root.handlers:
        handler.setFormatter(logging.Formatter(f"rank {rank}: %(message)s"))
