"""Figures of the benchmark of runs of several processes."""

import pytest

from benchmarks.scale.exchange import Recording, Share, Span, share_of
from benchmarks.scale.learning import Learned, overlap, spread


def test_a_process_waits_for_the_last_one_and_exchanges_from_then_on() -> None:
    training = Span(0.0, 10.0)
    before, after = Span(-2.0, -1.0), Span(11.0, 12.0)
    one = [before, Span(1.0, 4.0), Span(5.0, 6.0), after]
    two = [before, Span(3.0, 4.0), Span(5.0, 6.0), after]
    share = share_of([Recording(calls, training, 4) for calls in (one, two)])
    assert share == pytest.approx(Share(0.1, 0.2, 0.5, 1e3, 2.5e3))


@pytest.mark.parametrize(
    ("successes", "interval"),
    [
        ([40, 50, 60], (0.5 - 0.2484, 0.5 + 0.2484)),  # 4.303 * 0.1 / sqrt(3)
        ([50, 50, 50], (0.5, 0.5)),
        ([0, 100, 100], (0.0, 1.0)),
        ([50], (0.0, 1.0)),
    ],
)
def test_interval_of_the_mean_success_covers_the_spread_of_the_seeds(
    successes: list[int], interval: tuple[float, float]
) -> None:
    assert spread([Learned(1.0, 100, each) for each in successes]) == pytest.approx(
        interval, abs=1e-4
    )


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ((0.1, 0.3), (0.2, 0.4), True),
        ((0.1, 0.4), (0.2, 0.3), True),
        ((0.1, 0.2), (0.3, 0.4), False),
    ],
)
def test_intervals_overlap(
    one: tuple[float, float], other: tuple[float, float], expected: bool
) -> None:
    assert overlap(one, other) is overlap(other, one) is expected
