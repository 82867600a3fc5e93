"""Call of a mode of the program."""

import time
from dataclasses import replace
from pkgutil import resolve_name

from torchrl_gpu.devices.host import cpu_threads, keep_freed_memory
from torchrl_gpu.devices.memory import limited_memory
from torchrl_gpu.processes import ONE_PROCESS, Processes
from trainers.command_line.settings import Settings
from trainers.modes.demo import show_policy
from trainers.modes.evaluate import evaluate
from trainers.modes.export import export
from trainers.modes.outcome import RunOutcome
from trainers.modes.record import record_policy
from trainers.modes.train import train
from trainers.signals import cleans_up

_MODES = {"eval": evaluate, "demo": show_policy, "record": record_policy, "export": export}
# A result that was complete, such as a film whose environment was being closed, stays.
_INTERRUPTED = "\nmode={} was interrupted; nothing unfinished is left."


def run_mode(settings: Settings, processes: Processes = ONE_PROCESS) -> RunOutcome:
    """Train, evaluate, film, record, export or tune; all processes return the same outcome."""
    keep_freed_memory()
    mode = settings.general.mode
    is_short = mode in _MODES and settings.general.viewer == "off"  # which only a signal ends
    with (
        cleans_up(_INTERRUPTED.format(mode) if is_short else ""),
        cpu_threads(settings.general.threads),
        limited_memory(settings.device, settings.memory_limit),
    ):
        if mode == "train":
            return train(settings, processes)
        if mode == "tune":  # imports Optuna, which may be missing
            outcome: RunOutcome = resolve_name("trainers.modes.tune:tune")(settings)
            return outcome
        started = time.perf_counter()
        return replace(_MODES[mode](settings), seconds=time.perf_counter() - started)
