"""Confidence intervals: of a success rate over episodes, and of scores over runs.

Those of runs follow Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical
Precipice", NeurIPS 2021: few runs, whose scores are not normally distributed. Runs of several tasks
come as strata, one array of scores for each task, and each task is resampled by itself.
"""

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import NDArray

# Standard normal quantile of an interval that covers the true proportion with 95 % probability.
Z = NormalDist().inv_cdf(0.975)

Scores = NDArray[np.float64]

_SAMPLES: Final = 2000  # of the bootstrap
_BOUNDS: Final = (2.5, 97.5)  # percentiles of a 95 % interval


def wilson_interval(successes: int, trials: int) -> tuple[float, float]:
    """Return the bounds of the 95 % Wilson score interval of a binomial proportion.

    The interval stays inside [0, 1] and keeps a positive width at 0 and at `trials` successes; the
    normal approximation shrinks to a point there. Source: E. B. Wilson, "Probable inference,
    the law of succession, and statistical inference", J. Am. Stat. Assoc. 22 (1927), 209-212.

    Args:
        successes: number of successes, 0 to `trials`.
        trials: number of trials, at least 0; the interval of 0 trials is (0, 1).
    """
    if trials == 0:
        return 0.0, 1.0
    proportion = successes / trials
    # (p + z^2/2n -+ z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n)
    scale = 1 + Z**2 / trials
    centre = (proportion + Z**2 / (2 * trials)) / scale
    variance = proportion * (1 - proportion) / trials + Z**2 / (4 * trials**2)
    margin = Z * math.sqrt(variance) / scale
    lower = 0.0 if successes == 0 else centre - margin
    upper = 1.0 if successes == trials else centre + margin
    return lower, upper


def interquartile_mean(scores: Scores) -> Scores:
    """Return the mean `[...]` of the middle half of scores `[..., N]`.

    A quarter of N, rounded down, is left out at each end: up to 3 scores count in full.
    """
    cut = scores.shape[-1] // 4
    middle = np.sort(scores, axis=-1)[..., cut : scores.shape[-1] - cut]
    return np.asarray(middle.mean(axis=-1))


def bootstrap_interval(strata: Sequence[Scores]) -> tuple[Scores, Scores]:
    """Return the 95 % stratified bootstrap interval of the interquartile mean, by percentiles.

    Args:
        strata: scores of the runs of each task, `[..., N]`, with equal leading dimensions.

    Returns:
        Lower and upper bounds, each `[...]`; NaN if a task has a single run, which says nothing
        about others. Equal calls return equal bounds.
    """
    if min(runs.shape[-1] for runs in strata) == 1:
        unknown = np.full(strata[0].shape[:-1], np.nan)
        return unknown, unknown
    generator = np.random.default_rng(0)
    drawn = [runs[..., _draws(generator, runs.shape[-1])] for runs in strata]
    low, high = np.percentile(interquartile_mean(np.concatenate(drawn, axis=-1)), _BOUNDS, axis=-1)
    return low, high


def probability_of_improvement(
    ours: Sequence[Scores], others: Sequence[Scores]
) -> tuple[float, float, float]:
    """Return the probability that a run of ours scores higher than one of the others.

    It is the mean over the tasks; equal scores count one half, as in the Mann-Whitney U statistic.

    Args:
        ours: scores of our runs of each task, `[N]`.
        others: scores of the other runs of each task, `[M]`.

    Returns:
        The probability, and the bounds of its 95 % stratified bootstrap interval; they are NaN if a
        task has a single run on a side.
    """
    generator = np.random.default_rng(0)
    means, samples = [], []
    for our, other in zip(ours, others, strict=True):
        wins = (our[:, None] > other) + 0.5 * (our[:, None] == other)  # [N, M]
        means.append(wins.mean())
        rows = _draws(generator, len(our))[:, :, None]
        samples.append(wins[rows, _draws(generator, len(other))[:, None, :]].mean(axis=(1, 2)))
    low, high = np.percentile(np.mean(samples, axis=0), _BOUNDS)
    if min(map(len, (*ours, *others))) == 1:
        low = high = math.nan
    return float(np.mean(means)), float(low), float(high)


def _draws(generator: np.random.Generator, count: int) -> NDArray[np.int64]:
    """Return indices of runs, drawn with replacement: `[S, count]`."""
    return generator.integers(count, size=(_SAMPLES, count))
