"""Outcome of a call of the program, and the commands that go on from it."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torchrl_gpu.arguments import AS_TYPED
from torchrl_gpu.commands import command_line
from trainers.command_line.schema import GeneralSettings
from trainers.command_line.settings import Settings
from trainers.components.choices import choices_of, path_of
from trainers.components.component import Component
from trainers.components.sections import TARGET
from trainers.components.trust import trust_arguments
from trainers.evaluation.evaluation import Evaluation


@dataclass(frozen=True)
class RunOutcome:
    """Result of a call of the program.

    Attributes:
        folder: run folder, or folder of the evaluation, the film or the dataset.
        evaluation: result of the best checkpoint after training, of the evaluated policy, or of
            the filmed or recorded episodes.
        report: result as lines of text.
        seconds: duration of the call in seconds.
        evaluations: evaluations during the training, by number of frames.
        newest: newest checkpoint of the run; None without training.
        best: checkpoint of the best evaluation, or the newest one without evaluations; None without
            training.
        film: path of the film; None if none was made.
        dataset: folder of the recorded dataset; None if none was made.
    """

    folder: Path
    evaluation: Evaluation
    report: str
    seconds: float = 0.0
    evaluations: Mapping[int, Evaluation] = field(default_factory=dict)
    newest: Path | None = None
    best: Path | None = None
    film: Path | None = None
    dataset: Path | None = None


def command_of(settings: Settings, *arguments: str) -> str:
    """Return a command as it is typed, with the settings for the machine that differ.

    Only a training has several devices, and collectors; other commands are without a viewer.
    """
    trains = not any(argument.startswith("mode=") for argument in arguments)
    given, default = settings.general, GeneralSettings()
    values, defaults = given.of_machine(), default.of_machine()
    if trains:
        values, defaults = values | given.of_viewer(), defaults | default.of_viewer()
    kept = [
        f"{name}={AS_TYPED.get(str(value), value)}"
        for name, value in values.items()
        if value != defaults[name] and (trains or name != "devices")
    ]
    kept += _collectors_as_typed(settings.collectors) if trains else []
    script = "torchrl-gpu"
    program = script if Path(sys.argv[0]).stem == script else "python -m trainers.run"
    if any(argument.startswith(("checkpoint=", "policy=")) for argument in arguments):
        arguments = (*arguments, *trust_arguments(settings.config))
    return f"{program} {command_line([*arguments, *kept])}"


def _collectors_as_typed(collectors: Component) -> list[str]:
    """Return the settings of collectors that differ from the default as they are typed."""
    known = {path_of("collectors", choice): choice for choice in choices_of("collectors")}
    choice = known.get(collectors.path)
    chosen = f"collectors={choice}" if choice else f"collectors.{TARGET}={collectors.path}"
    differing = [
        f"collectors.{name}={AS_TYPED.get(str(value), value)}"
        for name, value in collectors.differing().items()
    ]
    return differing if choice == "local" else [chosen, *differing]
