"""Values of trials."""

import itertools
import math
import time
from types import SimpleNamespace
from typing import Any

import pytest

from torchrl_gpu.errors import ConfigurationError
from trainers.evaluation.evaluation import Evaluation
from trainers.tuning.watch import MOMENTS, Goal, TrialWatch


@pytest.mark.parametrize(("objective", "limit"), [("seconds", 60.0), ("frames", 1000.0)])
@pytest.mark.parametrize("success", [0.95, 475.0, -200.0])
def test_a_trial_without_success_is_worse_the_lower_its_score(
    objective: str, limit: float, success: float
) -> None:
    goal = Goal(objective, success, 60.0)  # type: ignore[arg-type]
    scores = [success - lack for lack in (1e-3, 0.1, 0.5, 10.0, 1000.0)]
    values = [goal.value(score, 60.0, 1000, 1000) for score in scores]
    assert values == sorted(values)
    assert limit < values[0] < values[-1] < 2 * limit
    reached = goal.value(success, 12.5, 300, 1000)
    assert reached == {"seconds": 12.5, "frames": 300.0}[objective]


def test_the_score_is_its_own_value() -> None:
    goal = Goal("score", None, None)
    assert goal.value(-3.0, 1.0, 1, 10) == -3.0
    assert goal.direction == "maximize"
    assert not goal.reached(math.inf)


def test_a_success_rate_above_one_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"tune.success=95: .* success rate, 0 to 1"):
        Goal("seconds", 95.0, 60.0).check(reports_success=True)


def test_a_trial_with_its_result_is_not_cut() -> None:
    trainer: Any = SimpleNamespace(stop_requested=False, frames=10, total_frames=100)
    trainer.started, trainer.evaluation_seconds = time.perf_counter(), 0.0
    watch = TrialWatch(Goal("frames", 5.0, 60.0), deadline=time.perf_counter())
    watch.on_evaluation(trainer, Evaluation(10, 5.0, 5.0))
    watch.on_step(trainer)
    assert trainer.stop_requested
    assert (watch.cut, watch.end) == (False, "10 frames to 5")


def test_moments_are_a_quarter_apart() -> None:
    assert MOMENTS[-1] == 1.0
    assert all(1.0 < after / before <= 1.25 + 1e-9 for before, after in itertools.pairwise(MOMENTS))
