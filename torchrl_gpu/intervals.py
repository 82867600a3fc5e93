"""Confidence interval of a success rate that was measured over a number of episodes."""

import math
from statistics import NormalDist

# Standard normal quantile of an interval that covers the true proportion with 95 % probability.
Z = NormalDist().inv_cdf(0.975)


def wilson_interval(successes: int, trials: int) -> tuple[float, float]:
    """Return the 95 % Wilson score interval of a binomial proportion.

    The interval stays inside [0, 1] and keeps a positive width at 0 and at `trials` successes; the
    normal approximation shrinks to a point there. Source: E. B. Wilson, "Probable inference,
    the law of succession, and statistical inference", J. Am. Stat. Assoc. 22 (1927), 209-212.

    Args:
        successes: number of successes, 0 to `trials`.
        trials: number of trials, at least 0; the interval of 0 trials is (0, 1).

    Returns:
        Lower and upper bound, each in [0, 1].
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
