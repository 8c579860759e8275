"""Intervals of one quantity: mean over seeds, the next seed, a success rate.

A *score* is one number of one run: seeds are the independent trials, episodes of a run are not.
With fewer than five seeds no interval is claimed: ``low`` and ``high`` are None, ``why`` says it.
Nothing here draws random numbers.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rlrun.errors import ConfigError
from rlrun.reports.quantiles import beta_quantile, chi2_quantile, normal_quantile, t_quantile

Floats = NDArray[np.floating[Any]]

LEVEL = 0.95  # confidence of an interval
CONTENT = 0.9  # share of seeds inside a tolerance interval; Patterson et al. 2024
MIN_SEEDS = 5  # with fewer, a failure of 20 % of seeds is absent in 4 experiments of 10 or more

Bounds = tuple[float, float]  # the least and the largest score that are possible
UNBOUNDED: Bounds = (-math.inf, math.inf)


@dataclass(frozen=True, slots=True)
class Estimate:
    """An estimated quantity with its interval.

    value: the point estimate.
    low, high: ends of the interval; both None where the data allow no interval.
    level: confidence of the interval, e.g. 0.95.
    method: name of the method, for a table's footnote.
    why: one sentence on what the interval can and cannot say, for the reader of a report.
    """

    value: float
    low: float | None
    high: float | None
    level: float
    method: str
    why: str

    @property
    def claimed(self) -> bool:
        """Whether there is an interval."""
        return self.low is not None


def score_array(scores: ArrayLike, ndim: int = 1) -> Floats:
    """Return ``scores`` as float64.

    Raises: ConfigError when there is none, one is not finite, or the shape is another.
    """
    array = np.asarray(scores, np.float64)
    if array.ndim != ndim or array.size == 0:
        raise ConfigError(
            f"scores = array of shape {array.shape}: cannot be summarised; "
            f"{ndim} axes with one score per seed or more are allowed; give the scores of runs"
        )
    if not np.isfinite(array).all():
        raise ConfigError(
            "scores = nan or inf: a run without a finite score; finite scores are allowed; "
            "give a failed run the lowest score of its environment, or name it as left out"
        )
    return array


def few_seeds(n: int) -> str:
    """Return why ``n`` < MIN_SEEDS seeds get no interval."""
    seeds = "1 seed is" if n == 1 else f"{n} seeds are"
    return f"{seeds} fewer than {MIN_SEEDS}: every seed is shown and no interval is claimed."


def _points(x: Floats, value: float, level: float) -> Estimate | None:
    """Return ``value`` without interval where ``x`` [R] allows none: few seeds, or all equal."""
    n = len(x)
    if n < MIN_SEEDS:
        return Estimate(value, None, None, level, "points", few_seeds(n))
    if not _equal(x):
        return None
    why = f"All {n} seeds score the same, so their spread is unknown: up to "
    why += f"{missed_share(n, level):.0%} of further seeds may differ ({level:.0%} confidence)."
    return Estimate(value, None, None, level, "points", why)


def _equal(x: Floats) -> NDArray[np.bool_]:
    """Return whether the scores [R, ...] are equal but for rounding."""
    equal: NDArray[np.bool_] = np.ptp(x, axis=0) <= 1e-12 * np.abs(x).max(0)
    return equal


def missed_share(n: int, level: float = LEVEL) -> float:
    """Return the largest share of seeds that ``n`` seeds miss with P >= 1 - ``level``."""
    return float(1.0 - (1.0 - level) ** (1.0 / n))


def _without_skew(y: float, k: Floats) -> Floats:
    """Inverse of Hall's transformation g(T) = T + k T²/3 + k² T³/27 + k/6, at ``y``."""
    safe = np.where(np.abs(k) < 1e-6, 1.0, k)
    return np.where(np.abs(k) < 1e-6, y, 3.0 * (np.cbrt(1.0 + k * (y - k / 6.0)) - 1.0) / safe)


def within(x: Floats, low: Floats, high: Floats, bounds: Bounds) -> tuple[Floats, Floats]:
    """Return an interval of ``x`` cut to the scores that are possible.

    To cut costs no coverage, since the truth lies within. Scores may exceed ``bounds`` by the
    rounding of returns; where they do by more, the bounds are wrong and nothing is cut.
    """
    least, most = float(x.min()), float(x.max())
    slack = 1e-5 * max([1.0, *(abs(edge) for edge in bounds if math.isfinite(edge))])
    if least < bounds[0] - slack or most > bounds[1] + slack:
        return low, high
    return np.maximum(low, min(bounds[0], least)), np.minimum(high, max(bounds[1], most))


def mean_band(
    scores: ArrayLike, *, bounds: Bounds = UNBOUNDED, level: float = LEVEL
) -> tuple[Floats, Floats, Floats]:
    """Return mean, low and high [K] of ``scores`` [R, K], over the R seeds at each of K points.

    Student's t interval corrected for the skewness of the scores. The statistic
    T = (mean - mu) / (s / sqrt(R)) is transformed to g(T) = T + k T²/3 + k² T³/27 + k/6 with
    k = skewness / sqrt(R), which removes the skewness of T; g is monotone and inverted in closed
    form. Low and high are NaN where the interval is undefined: R < 5, or all seeds equal.

    Coverage of the 95 % interval is measured in tests/reports/test_coverage.py.

    Source: Hall 1992, "On the removal of skewness by transformation".
    """
    x = score_array(scores, 2)
    n = x.shape[0]
    mean = x.mean(0)
    if n < MIN_SEEDS:
        return mean, np.full_like(mean, np.nan), np.full_like(mean, np.nan)
    equal = _equal(x)
    deviation = x - mean
    scale = np.where(equal, 1.0, np.abs(deviation).max(0))  # cubes of scores may overflow
    deviation /= scale
    variance = np.where(equal, 1.0, np.square(deviation).mean(0))
    k = np.where(equal, 0.0, (deviation**3).mean(0) / variance**1.5) / math.sqrt(n)
    error = np.where(equal, np.nan, scale * np.sqrt(variance / (n - 1)))
    t = t_quantile(0.5 + 0.5 * level, n - 1)
    low, high = mean - _without_skew(t, k) * error, mean - _without_skew(-t, k) * error
    return mean, *within(x, low, high, bounds)


def mean_interval(
    scores: ArrayLike, *, bounds: Bounds = UNBOUNDED, level: float = LEVEL
) -> Estimate:
    """Return the mean of ``scores`` [R] over seeds, with its interval; see ``mean_band``.

    Of the interval methods measured at 5 to 50 seeds (t, percentile, BCa, expanded BCa,
    studentised bootstrap, Hall's transformation with t and with bootstrap quantiles), only this
    one and the studentised bootstrap stay at 93 % or more on skewed scores from 10 seeds and, from
    20, on bimodal ones of which either group holds 20 % of seeds; the bootstrap's interval becomes
    endless when scores form tight groups. No method covers for failures that no seed shows: of 20
    seeds that fail with P = 0.05 or 0.1, the intervals of 63 and 87 % hold the mean.
    """
    x = score_array(scores)
    n = len(x)
    mean = float(x.mean())
    if (points := _points(x, mean, level)) is not None:
        return points
    _, lows, highs = mean_band(x[:, None], bounds=bounds, level=level)
    missed = missed_share(n, level)
    bound = "from 10 seeds on skewed scores and " if n < 10 else ""
    where = "from 20 where" if n < 20 else "on skewed scores and where"
    why = (
        f"Mean of {n} seeds. A failure that hits fewer than {missed:.0%} of seeds may be absent; "
        f"the interval misses it then. The {level:.0%} hold {bound}{where} scores form groups of "
        "20% of seeds or more. Coverage is lower with heavy tails (a few scores far from all "
        "others): 88% at 5 and 92% at 20 seeds."
    )
    return Estimate(mean, float(lows[0]), float(highs[0]), level, "t, corrected for skewness", why)


def _order_statistics(n: int, content: float, level: float) -> int:
    """Return how many scores to drop at each end; -1 when even [min, max] is not enough.

    The share of the population between the r-th and the s-th of n scores is Beta(s - r, n - s + r
    + 1): with d dropped at each end, P(share >= content) = P(Beta >= content).
    """
    dropped = -1
    while n - 2 * dropped > 3:
        inside = n - 1 - 2 * (dropped + 1)  # s - r
        if beta_quantile(1.0 - level, inside, n - inside + 1) < content:
            break
        dropped += 1
    return dropped


def tolerance_interval(
    scores: ArrayLike,
    *,
    bounds: Bounds = UNBOUNDED,
    content: float = CONTENT,
    level: float = LEVEL,
) -> Estimate:
    """Return where the next seed falls: an interval with ``content`` of all seeds in it.

    Holds with confidence ``level``. ``value`` is the median of ``scores`` [R]. Order statistics
    without assumption where R allows (46 seeds for 90 % with 95 % confidence), else the normal
    interval mean ± k s, widened to hold every score seen and cut to ``bounds``. On scores that are
    not normal the confidence of the latter is lower: 56 % where 15 % of seeds fail far from the
    others (5 seeds), 66 % with 10 % (10 seeds), 85 % on exponential scores. The next seed still
    falls inside with P = 0.9 or nearly so (0.896 on lognormal scores of sigma 2, 5 seeds), see
    tests/reports/test_coverage.py.

    Source: Wilks 1941, "Determination of sample sizes for setting tolerance limits"; Howe 1969,
    "Two-sided tolerance limits for normal populations"; Patterson et al. 2024.
    """
    x = np.sort(score_array(scores))
    n = len(x)
    median = float(np.median(x))
    if (points := _points(x, median, level)) is not None:
        return points
    dropped = _order_statistics(n, content, level)
    claim = f"At least {content:.0%} of seeds fall inside ({level:.0%} confidence)"
    if dropped >= 0:
        method = f"tolerance {content:.0%}, order statistics"
        why = f"{claim}, whatever the distribution of scores."
        return Estimate(median, float(x[dropped]), float(x[-1 - dropped]), level, method, why)
    factor = normal_quantile(0.5 + 0.5 * content) * math.sqrt(
        (n - 1) * (1 + 1 / n) / chi2_quantile(1.0 - level, n - 1)
    )
    mean = float(x.mean())
    scale = max(mean - float(x[0]), float(x[-1]) - mean)  # squares of scores may overflow
    reach = factor * scale * float(np.std((x - mean) / scale, ddof=1))
    method = f"tolerance {content:.0%}, normal"
    why = f"{claim} if scores are normal; {n} seeds are too few to drop that assumption. Failures "
    why += "far from the other scores lower the confidence, to 56% in simulations."
    low, high = np.minimum(mean - reach, x[0]), np.maximum(mean + reach, x[-1])
    low, high = within(x, low, high, bounds)
    return Estimate(median, float(low), float(high), level, method, why)


def success_interval(successes: int, trials: int, *, level: float = LEVEL) -> Estimate:
    """Return the success rate ``successes`` / ``trials`` with its exact binomial interval.

    The trials must be independent: seeds that solved a task, or episodes of *one* trained
    policy. Episodes of several seeds are not; take each seed's rate as its score there. The
    interval covers at least ``level`` for every rate and number of trials.

    Raises: ConfigError when ``successes`` is not in 0..``trials`` or there is no trial.

    Source: Clopper & Pearson 1934.
    """
    k, n = successes, trials
    if not 0 <= k <= n or n < 1:
        raise ConfigError(
            f"successes = {k}: cannot be a count out of {n}; 0 to the number of trials, of which "
            "there is at least one, is allowed; count trials that ended"
        )
    tail = 0.5 * (1.0 - level)
    low = beta_quantile(tail, k, n - k + 1) if k else 0.0
    high = beta_quantile(1.0 - tail, k + 1, n - k) if k < n else 1.0
    why = f"{k} of {n} independent trials; covers at least {level:.0%} for every true rate."
    return Estimate(k / n, low, high, level, "binomial, Clopper-Pearson", why)
