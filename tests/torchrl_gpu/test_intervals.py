import math

import pytest

from torchrl_gpu.intervals import wilson_interval


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
