"""Callback of a trial: evaluates at moments of its budget, and ends it once its value is known."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from torchrl_gpu.errors import ConfigurationError, one_line
from trainers.training.callbacks import Callback
from trainers.tuning.options import Objective

if TYPE_CHECKING:
    from trainers.evaluation.evaluation import Evaluation
    from trainers.training.trainer import TorchRLTrainer

# Shares of the budget of a trial after which it is evaluated: each a quarter more than the one
# before, so that the seconds to a success are known to a quarter, however many they are.
MOMENTS = (*(0.05 * 1.25**number for number in range(14)), 1.0)

_SUCCESS_RATE = 0.95
# Multiple of the best value after which a trial without success is hopeless.
_HOPELESS = 3.0


@dataclass(frozen=True)
class Goal:
    """The goal of a trial, see `Tuning`."""

    objective: Objective
    typed: float | None  # success of `Tuning`
    seconds: float | None  # most seconds of training; None for no limit

    @property
    def success(self) -> float:
        """Score to reach."""
        return _SUCCESS_RATE if self.typed is None else self.typed

    @property
    def direction(self) -> Literal["minimize", "maximize"]:
        """Direction of the values, in the words of Optuna."""
        return "maximize" if self.objective == "score" else "minimize"

    def check(self, *, reports_success: bool) -> None:
        """Refuse a success that does not fit an environment, which may report success or not."""
        if self.objective == "score":
            return
        if not reports_success and self.typed is None:
            raise ConfigurationError(
                "tune.success is missing: the environment reports no success; give the mean return "
                "to reach, or tune.objective=score"
            )
        if reports_success and self.success > 1.0:
            raise ConfigurationError(
                f"tune.success={self.success:g}: the environment reports a success rate, 0 to 1"
            )

    def reached(self, score: float) -> bool:
        """Return whether a score is the success."""
        return self.objective != "score" and score >= self.success

    def used(self, seconds: float, frames: int, total_frames: int) -> tuple[float, bool]:
        """Return the used share of the budget of a trial, and whether it is over.

        The share is in the unit of the objective; the limits of seconds and frames both hold.
        """
        shares = {"frames": frames / total_frames, "seconds": seconds / (self.seconds or math.inf)}
        most = max(shares.values())
        return shares.get(self.objective, most), most >= 1.0

    def value(self, score: float, seconds: float, frames: int, total_frames: int) -> float:
        """Return the value of a trial that ends after an evaluation.

        Without success it is one to two times the limit, the less the higher the score.
        """
        if self.objective == "score":
            return score
        in_frames = self.objective == "frames"
        if self.reached(score):
            return float(frames) if in_frames else seconds
        limit = float(total_frames) if in_frames else self.seconds or math.inf
        lack = self.success - score
        return limit * (1.0 + lack / (lack + abs(self.success) + 1.0))

    def text(self, value: float) -> str:
        """Return a value in words."""
        match self.objective:
            case "seconds":
                return f"{value:.1f} s to {self.success:g}"
            case "frames":
                return f"{value:,.0f} frames to {self.success:g}"
        return f"score {value:.3f}"


class TrialWatch(Callback):
    """Follows a trial.

    Args:
        goal: goal of the trial.
        report: function of the number of a moment and the value if the trial ended there; it
            returns whether to prune the trial. Called once for each moment.
        deadline: time of `time.perf_counter` at which the trial is cut.
        best: value of the best trial with success, of which a multiple prunes this one; None for
            no such limit.

    Attributes:
        value: value of the trial after its last evaluation; None before the first.
        score: its best score.
        reached: whether it has reached the success; true without one, for the objective `score`.
        pruned: whether it was pruned.
        cut: whether it was cut before its budget was used.
        seconds: seconds of training until the last evaluation, without the evaluations.
        frames: environment steps until the last evaluation.
        error: exception that has ended the trial, as text; empty for none.
    """

    def __init__(
        self,
        goal: Goal,
        report: Callable[[int, float], bool] = lambda moment, value: False,
        deadline: float = math.inf,
        best: float | None = None,
    ) -> None:
        self.goal, self._report, self._deadline = goal, report, deadline
        self._patience = math.inf if best is None else _HOPELESS * best
        self.value: float | None = None
        self.score = -math.inf
        self.reached = self.pruned = self.cut = False
        self.seconds, self.frames = 0.0, 0
        self.error = ""
        self._moment = 0  # the next one

    @property
    def end(self) -> str:
        """How the trial has ended, in words."""
        if self.error:
            return f"failed, {self.error}"
        if self.value is None:
            return "cut before its first evaluation; a later one repeats it"
        if self.reached and not self.pruned and not self.cut:
            return self.goal.text(self.value)
        how = "pruned" if self.pruned else "cut" if self.cut else "ended"
        return f"{how} after {self.seconds:.1f} s and {self.frames:,} frames at {self.score:.3g}"

    def fail(self, error: Exception) -> None:
        """Note the exception that has ended the trial."""
        self.error = f"{type(error).__name__}: {one_line(error)}"

    def on_step(self, trainer: TorchRLTrainer) -> None:
        """Ask for an evaluation at each moment, or cut the trial."""
        if trainer.stop_requested:
            return
        if time.perf_counter() > self._deadline:
            self.cut = trainer.stop_requested = True
            return
        used, is_over = self.goal.used(_seconds(trainer), trainer.frames, trainer.total_frames)
        trainer.evaluation_requested = is_over or self._is_due(used)

    def on_evaluation(self, trainer: TorchRLTrainer, evaluation: Evaluation) -> None:
        """Report the value, and end the trial if it has its value or is pruned."""
        goal = self.goal
        self.seconds, self.frames = _seconds(trainer), trainer.frames
        self.score = max(self.score, evaluation.score)
        reached = goal.reached(self.score)
        self.reached = reached or goal.objective == "score"
        spent = self.seconds, self.frames, trainer.total_frames
        self.value = goal.value(self.score, *spent)
        used, is_over = goal.used(*spent)
        ends = reached or is_over
        while self._is_due(math.inf if ends else used):
            pruned = self._report(self._moment, self.value)
            spent_on = self.seconds if goal.objective == "seconds" else self.frames
            self.pruned = (pruned or spent_on > self._patience) and not ends
            self._moment += 1
        if ends or self.pruned:
            trainer.stop_requested = True

    def _is_due(self, used: float) -> bool:
        return self._moment < len(MOMENTS) and used >= MOMENTS[self._moment]


def _seconds(trainer: TorchRLTrainer) -> float:
    """Return the seconds of training so far, without the evaluations."""
    return time.perf_counter() - trainer.started - trainer.evaluation_seconds
