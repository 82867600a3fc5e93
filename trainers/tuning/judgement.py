"""The judgement of a search: trainings by fresh seeds, kept in a file of the study."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torchrl_gpu.checkpoints.files import write_text
from torchrl_gpu.errors import ConfigurationError, one_line
from trainers.evaluation.evaluation import Evaluation
from trainers.tuning.watch import Goal


@dataclass(frozen=True)
class Judged:
    """A training by a fresh seed, and the closing evaluation of its best checkpoint.

    `side` is `best`, or names the settings that it is compared with. `value`, `reached`, `seconds`,
    `frames` and `error` are those of a `TrialWatch`. `evaluation` is None after a failure.
    """

    side: str
    seed: int
    value: float | None
    reached: bool
    seconds: float
    frames: int
    evaluation: Evaluation | None
    error: str = ""

    def end(self, goal: Goal) -> str:
        """Return in words how the run has ended."""
        if self.error:
            return f"failed, {self.error}"
        if self.reached and self.value is not None:
            return goal.text(self.value)
        in_frames = goal.objective == "frames"
        spent = f"{self.frames:,} frames" if in_frames else f"{self.seconds:.1f} s"
        return f"not reached in {spent}"


def read_judged(path: Path, of: Mapping[str, Any]) -> list[Judged]:
    """Return the runs of a judgement that was stopped, or has ended; an empty list without a file.

    Args:
        path: `judged.json` of the study.
        of: seeds and settings, plain values; the runs of another judgement do not count.
    """
    try:
        known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        runs = known["runs"] if known.get("of") == of else []
        return [Judged(**{**run, "evaluation": Evaluation(**run["evaluation"])}) for run in runs]
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigurationError(
            f"{path} cannot be read: {one_line(error)}; delete it to judge anew"
        ) from None


def write_judged(path: Path, of: Mapping[str, Any], judged: Sequence[Judged]) -> None:
    """Write the runs of a judgement without those that have failed, which the next call repeats."""
    runs = [asdict(each) for each in judged if not each.error]
    for run in runs:
        del run["error"]
    write_text(path, json.dumps({"of": of, "runs": runs}, indent=2))
