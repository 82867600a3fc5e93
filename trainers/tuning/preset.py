"""A preset of settings: the file that `experiment=` chooses."""

from statistics import fmean
from typing import Any

from omegaconf import OmegaConf

from torchrl_gpu.checkpoints.files import write_text
from trainers.command_line.schema import GeneralSettings
from trainers.command_line.settings import Settings
from trainers.components.choices import SAVED_GROUPS, choices_of
from trainers.components.component import Component
from trainers.components.sections import TARGET
from trainers.tuning.study import Candidate, Study
from trainers.tuning.trainings import training_settings

# Name of the preset, and the folder of the study that has it.
_NAME, _FOLDER = "tuned", "presets"


def write_preset(study: Study, settings: Settings, best: Candidate) -> list[str]:
    """Write the best settings as a preset, and return the arguments that train with it.

    The preset has the settings that differ from the defaults, and ends at the success. Fewer frames
    would change schedules that refer to their number.
    """
    changed = dict(best.settings)
    if study.goal.objective != "score":
        frames = round(fmean(trial.user_attrs["frames"] for trial in best.trials))
        of_run = {
            "trainer.evaluation_interval": max(1, frames // 4),
            "trainer.stop_at_score": study.goal.success,
        }
        changed |= {name: value for name, value in of_run.items() if name not in settings.typed}
    numbers = ", ".join(str(trial.number) for trial in best.trials)
    comment = f"Found by mode=tune, trials {numbers}: {best.text(study.goal)}"
    folder = study.folder / _FOLDER
    preset = _preset_of(training_settings(settings, changed))
    text = f"# @package _global_\n# {comment}\n{OmegaConf.to_yaml(OmegaConf.create(preset))}"
    write_text(folder / "experiment" / f"{_NAME}.yaml", text)
    return [f"experiment={_NAME}", f'hydra.searchpath=["file://{folder}"]']


def _preset_of(settings: Settings) -> dict[str, Any]:
    """Return the settings of a training that differ from the defaults, as plain values."""
    choices = settings.config["choices"]
    defaults: list[Any] = []
    tree: dict[str, Any] = {
        name: value
        for name, value in settings.general.saved().items()
        if name != "seed" and value != getattr(GeneralSettings(), name)
    }
    for group in SAVED_GROUPS:
        component: Component = getattr(settings, group)
        section = component.differing()
        if group != "trainer" and choices[group] in choices_of(group):
            defaults.append({f"override /{group}": choices[group]})
        elif group != "trainer":
            section = {TARGET: component.path, **section}
        if section:
            tree[group] = section
    return {"defaults": [*defaults, "_self_"], **tree}
