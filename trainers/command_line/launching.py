"""Runs of a sweep as jobs of a launcher of Hydra, such as submitit's, on other machines."""

import contextlib
import importlib
import importlib.util
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import hydra
from hydra._internal.callbacks import Callbacks
from hydra.core.plugins import Plugins
from hydra.core.utils import setup_globals
from hydra.types import HydraContext
from omegaconf import DictConfig

from torchrl_gpu.errors import FAILED, ConfigurationError, WorkerError, one_line, shortened
from trainers.command_line.composition import hydra_ready

logger = logging.getLogger(__name__)

_LAUNCHER = "hydra/launcher="
_SETTINGS = (_LAUNCHER, "hydra.launcher.", "hydra.sweep.")

# Packages by the beginning of the names of their launchers.
_PACKAGES = {"submitit": '"torchrl-gpu[cluster]"', "ray": "hydra-ray-launcher"}

# Hydra writes the logs of the launcher alone: each run has its folder.
_DEFAULTS = (
    *("hydra/job_logging=none", "hydra/hydra_logging=none", "hydra.output_subdir=null"),
    *("hydra.sweep.dir='runs/sweeps/${now:%Y%m%d_%H%M%S}'", "hydra.sweep.subdir=."),
)


class JobEnd(NamedTuple):
    """End of a run in a job.

    Attributes:
        code: exit code of the program for such an end.
        text: report of the run, or the reason for its failure.
        result: result in the table of the sweep.
        folder: run folder; empty without a result.
    """

    code: int
    text: str
    result: str
    folder: str = ""


class Jobs:
    """The task of all jobs: each of them takes one run.

    Launchers forget all ends if one job dies, so each job also writes its own to a file.

    Args:
        runs: settings of each run as typed.
        folder: folder of these files, of use where the jobs share its disk.
    """

    def __init__(self, runs: Sequence[Sequence[str]], folder: Path) -> None:
        self._runs = runs
        self._files = [folder / f"end_{number}.json" for number in range(len(runs))]

    def __call__(self, config: DictConfig) -> JobEnd:
        """Train, evaluate or film in a job, whose number is the entry `run`."""
        # By name: a function of the program, which is `__main__`, would be copied into the job.
        program = importlib.import_module("trainers.run")
        end: JobEnd = program.end_of_job(self._runs[config.run], alone=len(self._runs) == 1)
        with contextlib.suppress(OSError):
            self._files[config.run].write_text(json.dumps(end), encoding="utf-8")
        return end

    def ends(self) -> list[JobEnd | None]:
        """Return the end of each run; None for a job that has not ended, or has died."""
        return [
            JobEnd(*json.loads(f.read_text(encoding="utf-8"))) if f.exists() else None
            for f in self._files
        ]

    def forget_ends(self) -> None:
        """Remove the files of an earlier sweep in this folder."""
        for file in self._files:
            file.unlink(missing_ok=True)


def is_of_launcher(argument: str) -> bool:
    """Return whether an argument is a setting of the launcher of a sweep."""
    return argument.lstrip("+~").startswith(_SETTINGS)


def divided(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the settings of the runs of a sweep, and those of its launcher."""
    of_launcher = [each for each in arguments if is_of_launcher(each)]
    names = [each.removeprefix(_LAUNCHER) for each in of_launcher if each.startswith(_LAUNCHER)]
    if of_launcher and not names:
        raise ConfigurationError(f"{of_launcher[0]}: the launcher is missing, as in {_LAUNCHER}...")
    for name in names:
        plugin = name.partition("_")[0]
        package = _PACKAGES.get(plugin)
        if package and not _is_installed(f"hydra_{plugin}_launcher"):
            raise ConfigurationError(f"{_LAUNCHER}{name}: it needs pip install {package}")
    return [each for each in arguments if each not in of_launcher], of_launcher


def launch(of_launcher: Sequence[str], runs: Sequence[Sequence[str]]) -> list[JobEnd]:
    """Let a launcher of Hydra run the jobs, and wait for all of them, or until one has died.

    Its settings, and those of each run, are as typed: see `divided`.

    Raises:
        ConfigurationError: Hydra does not know the launcher or one of its settings.
        WorkerError: the launcher cannot start the jobs, or one has died before any has ended.
    """
    with hydra_ready() as ready:
        typed = {each.partition("=")[0] for each in of_launcher}
        overrides = [each for each in _DEFAULTS if each.partition("=")[0] not in typed]
        overrides += of_launcher
        config = hydra.compose(overrides=overrides, return_hydra_config=True)
        task = Jobs(runs, Path(config.hydra.sweep.dir).absolute())
        launcher = Plugins.instance().instantiate_launcher(
            HydraContext(ready.config_loader(), Callbacks(config)), task, config
        )
    setup_globals()
    try:
        task.forget_ends()
        numbers = [[f"+run={number}"] for number in range(len(runs))]
        jobs = launcher.launch(numbers, initial_job_idx=0)
    except Exception as error:
        reason = shortened(f"{type(error).__name__}: {one_line(error)}", 1000)
        ends = task.ends()
        if not any(ends):
            raise WorkerError(f"the launcher of the jobs has failed: {reason}") from error
        logger.error("error: a job has died, and others may go on: %s", reason)
        return [end or JobEnd(FAILED, "", "not finished") for end in ends]
    return [job.return_value for job in jobs]


def _is_installed(plugin: str) -> bool:
    """Return whether a plugin of Hydra is installed; without any, their package is missing too."""
    try:
        return importlib.util.find_spec(f"hydra_plugins.{plugin}") is not None
    except ModuleNotFoundError:
        return False
