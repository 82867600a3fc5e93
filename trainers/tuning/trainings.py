"""Settings of the trainings of a search, and where their output goes."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from torchrl_gpu.errors import ConfigurationError
from trainers.command_line.checking import check
from trainers.command_line.composition import compose
from trainers.command_line.failures import print_exception
from trainers.command_line.settings import Settings
from trainers.components.pairing import capabilities_of
from trainers.evaluation.evaluator import default_num_envs

# Settings of every trial: its watch asks for the evaluations, and no run resumes from it.
_OF_TRIAL: Final[Mapping[str, Any]] = {
    "trainer.evaluation_interval": 10**15,
    "trainer.checkpoint_interval": None,
    "trainer.checkpoints_kept": 1,
    "trainer.save_replay": False,
    "trainer.evaluate_untrained": False,
    "trainer.stop_at_score": None,
    "trainer.loggers": ["csv"],
    "trainer.show_progress": False,
}


def trial_settings(settings: Settings, changed: Mapping[str, Any]) -> Settings:
    """Return the settings of a trial: see `training_settings`."""
    # The same number of evaluation environments in all trials: they may try `env.num_envs`.
    limit = capabilities_of(settings.env, settings.device).max_evaluation_envs
    num_envs = settings.evaluation["num_envs"] or default_num_envs(limit)
    return training_settings(settings, {**_OF_TRIAL, "evaluation.num_envs": num_envs, **changed})


def training_settings(settings: Settings, changed: Mapping[str, Any]) -> Settings:
    """Return the settings of a training, those of the search with some changed, and check them.

    The changed settings are given by dotted name. Updates are not compiled unless the command says
    so: that takes longer than a trial has.
    """
    device = str(settings.device)
    typed = {"compile": "off", **_typed(settings), "mode": "train", "device": device, **changed}
    return check(typed, compose(typed))


def rival_of(settings: Settings) -> tuple[str, Settings]:
    """Return the rival of the best settings: its name, and the settings of its trials.

    It is the preset of the library, or without one the command.
    """
    typed = {name: value for name, value in settings.typed.items() if name != "experiment"}
    preset = replace(settings, typed=typed)
    name = compose(_typed(preset)).choices["experiment"]
    if name is None:
        return "command", trial_settings(settings, {})
    episodes = settings.trainer.settings["evaluation_episodes"]
    try:
        return name, trial_settings(preset, {"trainer.evaluation_episodes": episodes})
    except ConfigurationError as error:
        raise ConfigurationError(f"experiment={name}, which judges the search: {error}") from None


def _typed(settings: Settings) -> dict[str, Any]:
    """Return the typed settings of a command without those of the search."""
    return {n: value for n, value in settings.typed.items() if n.partition(".")[0] != "tune"}


@contextmanager
def output_to(path: Path) -> Iterator[None]:
    """Append the prints, the log and the exception of a training to a file, not the terminal."""
    handlers = [h for h in logging.root.handlers if isinstance(h, logging.StreamHandler)]
    with (
        path.open("a", encoding="utf-8") as output,
        redirect_stdout(output),
        redirect_stderr(output),
    ):
        before = [(handler, handler.setStream(output)) for handler in handlers]
        try:
            yield
        except Exception as error:
            print_exception(error)
            raise
        finally:
            for handler, stream in before:
                handler.setStream(stream)
