"""The cluster of Ray: this machine alone, or one that runs; and the processes of collectors in it.

This module imports Ray, so it is imported only where collectors are those of Ray.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing about a run leaves the cluster
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # silences a warning

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from torchrl_gpu.devices.host import num_cores
from torchrl_gpu.errors import ConfigurationError, WorkerError, one_line
from torchrl_gpu.signals import STOP_SIGNALS
from trainers.collecting.actor import CollectorActor, Description, Order, Place, Weights

logger = logging.getLogger(__name__)

# Seconds within which Ray has to start the process of a collector.
START_SECONDS: Final = 120.0

# Processes of a collector in a row that end without a chunk: another one would not help.
MAX_LOSSES: Final = 3

# Exceptions of which this process cannot make an object again; not in all versions of Ray.
_UNREADABLE: Final = getattr(ray.exceptions, "UnserializableException", RayTaskError)

# Seconds that collectors have to close their environments at the end of the run.
_SECONDS_TO_END: Final = 10.0


def connect(address: str | None, cores: int) -> Callable[[], object]:
    """Start Ray on this machine, or join a cluster, without its output and its handlers of signals.

    Args:
        address: see `RayCollectors`.
        cores: number of cores that Ray may reserve where it is started.

    Returns:
        Function that leaves the cluster, and removes the folder of a Ray that was started; it does
        nothing if this process had connected before.

    Raises:
        ConfigurationError: there is no cluster at the address, or one of another version.
    """
    leaving = contextlib.ExitStack()
    if ray.is_initialized():
        return leaving.close
    options: dict[str, Any] = {"address": address}
    if address is None:
        folder = leaving.enter_context(
            TemporaryDirectory(prefix="ray_", ignore_cleanup_errors=True)
        )
        number = max(cores, num_cores())
        options = {"address": "local", "num_cpus": number, "include_dashboard": False}
        options["_temp_dir"] = folder
    leaving.callback(ray.shutdown)
    try:
        with _undisturbed(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
            # It would print a thousand characters about each lost process, besides our one line.
            vars(import_module("ray._private.worker"))["print_to_stdstream"] = _print_nothing
    except (ConnectionError, RuntimeError, ValueError) as error:
        leaving.close()
        reason = one_line(error).rstrip(".")
        raise ConfigurationError(
            f"collectors.address={address}: {reason}; start one by ray start --head, or leave "
            "collectors.address out for this machine; a head that asks for a token needs "
            "RAY_AUTH_MODE=token here"
        ) from None
    return leaving.close


def _print_nothing(*_: object, **__: object) -> None:
    pass


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Keep the handlers of signals of this program, some of which Ray replaces.

    The processes that Ray starts ignore signals for the whole group of processes, as Ctrl-C and
    the warning of a scheduler, except SIGTERM, by which they end each other.
    """
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    held = set(STOP_SIGNALS) - {signal.SIGTERM}
    can_hold = hasattr(signal, "pthread_sigmask")  # not on Windows
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, held) if can_hold else set()
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is not handler:
                signal.signal(number, handler)
        if can_hold:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)


class CollectorProcess:
    """One collector: its process, which is replaced when it dies.

    Args:
        number: number of the collector among those of the run.
        count: number of all of them.
        cores: number of cores that Ray reserves.
        build: pickled function of a seed, which builds its environments.

    Attributes:
        place: process and machine.
        description: see `Description`.
        losses: number of its processes in a row that ended without a chunk.
    """

    place: Place
    description: Description

    def __init__(self, number: int, count: int, cores: int, build: bytes) -> None:
        self.number = number
        self._count = count
        self.losses = 0
        self._cores = cores
        self._build = build
        self._actor: Any = None
        self._is_built = False

    def launch(self) -> None:
        """Ask Ray for a process; `build` waits for it."""
        self._is_built = False
        actor = ray.remote(CollectorActor)
        self._actor = actor.options(num_cpus=self._cores, max_restarts=0).remote(self._cores)

    def build(self, seed: int) -> None:
        """Build the environments in the process.

        Raises:
            WorkerError: Ray has not started the process in time, its machine lacks this library,
                or the environment raised an exception.
            RayError: the process ended.
        """
        place = self._actor.place.remote()
        if not ray.wait([place], timeout=START_SECONDS)[0]:
            free, cores = (
                resources.get("CPU", 0)
                for resources in (ray.available_resources(), ray.cluster_resources())
            )
            raise WorkerError(
                f"collector {self.number}: Ray has not started its process within "
                f"{START_SECONDS:.0f} s; {free:g} of {cores:g} cores of the cluster are free, and "
                f"it needs {self._cores}"
            )
        try:
            self.place = ray.get(place)
        except RayActorError as error:
            if not error.actor_init_failed:
                raise
            reason = str(error).strip().rpartition("\n")[2]
            raise WorkerError(
                f"collector {self.number} cannot start ({reason}); all machines need the same "
                "versions of Python, Ray and this library"
            ) from None
        folder = str(Path.cwd())
        paths = [path or folder for path in sys.path]
        self.description = self.result(
            self._actor.build.remote(folder, paths, self._build, seed, self.number, self._count)
        )
        self._is_built = True

    def set_policy(self, policy: bytes) -> None:
        """Act with a copy of a pickled policy."""
        self.result(self._actor.set_policy.remote(policy))

    def collect(self, weights: ray.ObjectRef[Weights], order: Order) -> Any:
        """Begin to collect, and return the reference of the chunk."""
        return self._actor.collect.remote(weights, order)

    def restart(self, seed: int) -> Any:
        """Begin new episodes, and return the reference of the end of it."""
        return self._actor.restart.remote(seed)

    def progress(self) -> Any:
        """Return what the environments keep beyond episodes, or None; see `CollectorActor`."""
        return self.result(self._actor.progress.remote())

    def load_progress(self, state: Mapping[str, Any]) -> None:
        """Take over the progress of another collector."""
        self.result(self._actor.load_progress.remote(state))

    def metrics(self) -> Any:
        """Return the reference of the metrics of the environments."""
        return self._actor.metrics.remote()

    def result(self, reference: Any) -> Any:
        """Wait for what a reference stands for.

        Raises:
            WorkerError: the environment or the policy raised an exception.
            ConfigurationError: the same, for what cannot be used.
            RayError: the process, or its machine, is lost.
        """
        try:
            return ray.get(reference)
        except (RayTaskError, _UNREADABLE) as error:
            cause = getattr(error, "cause", error)
            if isinstance(cause, ConfigurationError | WorkerError):
                raise type(cause)(str(cause)) from None
            # The error derives from its cause as well, and has the attributes of the cause alone.
            heading = f"{type(cause).__name__} in collector {self.number} ({self.place})"
            raise WorkerError(f"{heading}\n{error}") from None

    def replace(
        self,
        error: RayError,
        seed: int,
        policy: bytes | None,
        progress: Mapping[str, Any] | None = None,
    ) -> str:
        """Start another process in place of a lost one, and return what happened in words.

        Args:
            error: error by which the loss was noticed.
            seed: seed of the new environments.
            policy: pickled policy; None before there is one.
            progress: progress of the collectors; None at their beginning.

        Raises:
            WorkerError: too many processes were lost in a row, or none could be started.
        """
        before, cause = self._whereabouts(), error
        while self.losses < MAX_LOSSES:
            self.losses += 1
            self.end()
            self.launch()
            try:
                self.build(seed)
                if progress is not None:
                    self.load_progress(progress)
                if policy is not None:
                    self.set_policy(policy)
            except RayError as failure:
                cause = failure
            else:
                return f"collector {self.number} ({before}) died ({_reason(error)})"
        raise WorkerError(
            f"collector {self.number} ({self._whereabouts()}) died ({_reason(cause)}), the last of "
            f"{self.losses + 1} processes in a row that collected nothing"
        )

    def _whereabouts(self) -> str:
        """Return the place in words, also before there is one."""
        return str(self.place) if hasattr(self, "place") else "not started"

    def closing(self) -> list[Any]:
        """Begin to close the environments, if there are any; return the references to wait for."""
        return [self._actor.close.remote()] if self._is_built else []

    def end(self) -> None:
        """End the process at once."""
        with contextlib.suppress(RayError, ValueError):
            ray.kill(self._actor)


def end(processes: list[CollectorProcess], leave: Callable[[], object]) -> None:
    """Let collectors close their environments, end them, and leave the cluster.

    Args:
        processes: collectors that have been launched.
        leave: return value of `connect`.
    """
    if not ray.is_initialized():
        return
    with contextlib.suppress(RayError):
        closing = [reference for process in processes for reference in process.closing()]
        if closing:
            ray.wait(closing, num_returns=len(closing), timeout=_SECONDS_TO_END)
    for process in processes:
        process.end()
    leave()


def _reason(error: RayError) -> str:
    """Return the cause of a loss in a few words."""
    text = one_line(error)
    for sign in ("Worker exit detail: ", "The actor is dead because "):
        text = text.partition(sign)[2] or text
    return text.partition(". ")[0].rstrip(".")
