import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest

from torchrl_gpu.intervals import (
    bootstrap_interval,
    interquartile_mean,
    probability_of_improvement,
    wilson_interval,
)


@pytest.mark.parametrize(
    ("successes", "trials", "lower", "upper"),
    [
        (81, 263, 0.2553, 0.3662),  # Newcombe, Statistics in Medicine 17 (1998), table I, method 3
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_published_intervals(successes: int, trials: int, lower: float, upper: float) -> None:
    assert wilson_interval(successes, trials) == pytest.approx((lower, upper), abs=5e-5)


@pytest.mark.parametrize("trials", [1, 10, 500, 10**6])
def test_bounds_satisfy_the_score_equation(trials: int) -> None:
    for successes in {0, 1, trials // 3, trials}:
        lower, upper = wilson_interval(successes, trials)
        assert 0 <= lower <= successes / trials <= upper <= 1
        # |p_hat - p| = z sqrt(p (1 - p) / n) at both bounds inside (0, 1)
        deviations = [
            abs(successes / trials - p) / math.sqrt(p * (1 - p) / trials)
            for p in (lower, upper)
            if 0 < p < 1
        ]
        assert max(deviations) == pytest.approx(min(deviations), rel=1e-6)
        assert math.erf(deviations[0] / math.sqrt(2)) == pytest.approx(0.95, rel=1e-6)


def test_bounds_without_trials_and_at_0_and_100_percent() -> None:
    assert wilson_interval(0, 0) == (0.0, 1.0)
    assert wilson_interval(500, 500)[1] == 1.0
    assert wilson_interval(500, 500)[0] == pytest.approx(0.9924, abs=5e-5)
    assert wilson_interval(0, 500)[0] == 0.0


def trimmed_mean(scores: Sequence[float]) -> float:
    """Return the interquartile mean by a plain loop."""
    ordered = sorted(scores)
    middle = ordered[len(ordered) // 4 : len(ordered) - len(ordered) // 4]
    return sum(middle) / len(middle)


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([0.3], 0.3),
        ([0.0, 1.0, 5.0], 2.0),
        ([0.0, 2.0, 4.0, 100.0], 3.0),
        ([7.0, 1.0, 6.0, 2.0, 5.0, 3.0, 4.0, 8.0], 4.5),
        ([-100.0, 1.0, 2.0, 3.0, 100.0], 2.0),
    ],
)
def test_interquartile_mean_leaves_out_a_quarter_at_each_end(
    scores: list[float], expected: float
) -> None:
    assert interquartile_mean(np.array(scores)) == pytest.approx(expected)
    assert trimmed_mean(scores) == pytest.approx(expected)


def test_interval_of_three_runs_agrees_with_all_their_resamples() -> None:
    scores = [0.1, 0.4, 1.0]
    exact = sorted(trimmed_mean(drawn) for drawn in itertools.product(scores, repeat=3))
    low, high = bootstrap_interval([np.array(scores)])
    # 1 of 27 resamples is all lowest: more than 2.5 %. The same holds for the highest.
    assert [low, high] == pytest.approx([exact[0], exact[-1]])


def test_intervals_agree_with_a_plain_loop_over_strata() -> None:
    random = np.random.default_rng(7)
    tasks = [random.random(5), 10 + random.random(9)]
    loop = np.random.default_rng(3)
    means = []
    for _ in range(5_000):
        drawn = [task[loop.integers(len(task))] for task in tasks for _ in task]
        means.append(trimmed_mean(drawn))
    low, high = bootstrap_interval(tasks)
    assert low == pytest.approx(np.percentile(means, 2.5), abs=0.15)
    assert high == pytest.approx(np.percentile(means, 97.5), abs=0.15)
    # Tasks that are not resampled by themselves would swing by the share of each.
    assert 5 < low < high < 11


def test_intervals_at_many_positions_are_those_of_each() -> None:
    scores = np.random.default_rng(0).random((4, 6))
    low, high = bootstrap_interval([scores])
    for row in range(4):
        assert bootstrap_interval([scores[row]]) == (low[row], high[row])


@pytest.mark.parametrize(
    ("ours", "others", "expected"),
    [
        ([[2.0, 3.0]], [[0.0, 1.0]], (1.0, 1.0, 1.0)),
        ([[0.0]], [[1.0]], (0.0, math.nan, math.nan)),
        ([[1.0, 1.0]], [[1.0]], (0.5, math.nan, math.nan)),
        ([[1.0, 1.0]], [[1.0, 1.0]], (0.5, 0.5, 0.5)),
        ([[2.0, 2.0], [0.0, 0.0]], [[1.0, 1.0], [1.0, 1.0]], (0.5, 0.5, 0.5)),  # mean over tasks
    ],
)
def test_probability_of_improvement_of_known_scores(
    ours: list[list[float]], others: list[list[float]], expected: tuple[float, float, float]
) -> None:
    assert probability_of_improvement(
        [np.array(each) for each in ours], [np.array(each) for each in others]
    ) == pytest.approx(expected, nan_ok=True)


def test_a_task_with_a_single_run_has_no_interval() -> None:
    low, high = bootstrap_interval([np.ones((4, 3)), np.ones((4, 1))])
    assert low.shape == high.shape == (4,)
    assert np.isnan([low, high]).all()


def test_probability_of_improvement_agrees_with_a_plain_loop() -> None:
    random = np.random.default_rng(5)
    ours, others = (random.random(12) + 0.2).tolist(), random.random(10).tolist()

    def probability(first: Sequence[float], second: Sequence[float]) -> float:
        wins = [0.5 if a == b else float(a > b) for a in first for b in second]
        return sum(wins) / len(wins)

    loop = np.random.default_rng(1)
    samples = [
        probability(
            [ours[loop.integers(12)] for _ in ours], [others[loop.integers(10)] for _ in others]
        )
        for _ in range(5_000)
    ]
    found, low, high = probability_of_improvement([np.array(ours)], [np.array(others)])
    assert found == pytest.approx(probability(ours, others))
    assert low == pytest.approx(np.percentile(samples, 2.5), abs=0.03)
    assert high == pytest.approx(np.percentile(samples, 97.5), abs=0.03)
