"""Intervals of one quantity and of aggregates over environments.

One quantity: mean over seeds, the next seed, a success rate. These use no random numbers. A *score*
is one number of one run: seeds are the independent trials, episodes of a run are not. With fewer
than five seeds no interval is claimed: ``low`` and ``high`` are None, and ``why`` gives the reason.

Aggregates: IQM, optimality gap, performance profile. Score matrices are [R, T]: R seeds on each of
T environments, normalised so that scores of different environments can be averaged (e.g. 0 random,
1 solved). A *statistic* is a function of matrices [..., R, T] to [...]. Those named ``aggregate_*``
are the quantities of rliable.

Source: Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice".
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.floating[Any]]

LEVEL = 0.95  # confidence of an interval
CONTENT = 0.9  # share of seeds inside a tolerance interval; Patterson et al. 2024
MIN_SEEDS = 5  # with fewer, 4 of 10 experiments or more miss a failure of 20 % of seeds

Bounds = tuple[float, float]  # the smallest and the largest possible score
UNBOUNDED: Bounds = (-math.inf, math.inf)


@dataclass(frozen=True, slots=True)
class Estimate:
    """An estimated quantity with its interval of confidence ``LEVEL``.

    value: the point estimate.
    low, high: ends of the interval; both None if the data allow no interval.
    method: name of the method, for a table's footnote.
    why: one sentence for a report's reader on what the interval can and cannot say.
    """

    value: float
    low: float | None
    high: float | None
    method: str
    why: str

    @property
    def claimed(self) -> bool:
        """Whether there is an interval."""
        return self.low is not None

    def __str__(self) -> str:
        """Return ``0.3 [0.0136909, 0.776019]``, or the value alone."""
        interval = f" [{self.low:.6g}, {self.high:.6g}]" if self.low is not None else ""
        return f"{self.value:.6g}{interval}"


def few_seeds(n: int) -> str:
    """Return why ``n`` < MIN_SEEDS seeds get no interval."""
    seeds = "1 seed is" if n == 1 else f"{n} seeds are"
    return f"{seeds} fewer than {MIN_SEEDS}: every seed is shown and no interval is claimed."


def _points(x: Floats, value: float) -> Estimate | None:
    """Return ``value`` without interval if ``x`` [R] is few or all equal, else None."""
    n, why = len(x), few_seeds(len(x))
    if n >= MIN_SEEDS and not _equal(x):
        return None
    if n >= MIN_SEEDS:
        why = f"All {n} seeds score the same, so their spread is unknown: up to "
        why += f"{missed_share(n):.0%} of further seeds may differ ({LEVEL:.0%} confidence)."
    return Estimate(value, None, None, "points", why)


def _equal(x: Floats) -> NDArray[np.bool_]:
    """Return whether the scores [R, ...] are equal up to rounding."""
    equal: NDArray[np.bool_] = np.ptp(x, axis=0) <= 1e-12 * np.abs(x).max(0)
    return equal


def missed_share(n: int) -> float:
    """Return the largest share of seeds that ``n`` seeds miss with P >= 1 - ``LEVEL``."""
    return float(1.0 - (1.0 - LEVEL) ** (1.0 / n))


def _without_skew(y: float, k: Floats) -> Floats:
    """Invert Hall's transformation g(T) = T + k T²/3 + k² T³/27 + k/6 at ``y``."""
    safe = np.where(np.abs(k) < 1e-6, 1.0, k)
    return np.where(np.abs(k) < 1e-6, y, 3.0 * (np.cbrt(1.0 + k * (y - k / 6.0)) - 1.0) / safe)


def within(x: Floats, low: Floats, high: Floats, bounds: Bounds) -> tuple[Floats, Floats]:
    """Return an interval of ``x`` cut to the possible scores.

    Cutting costs no coverage, because the truth lies within. Scores may exceed ``bounds`` by the
    rounding of returns. If they exceed them by more, the bounds are wrong and nothing is cut.
    """
    least, most = float(x.min()), float(x.max())
    slack = 1e-5 * max([1.0, *(abs(edge) for edge in bounds if math.isfinite(edge))])
    if least < bounds[0] - slack or most > bounds[1] + slack:
        return low, high
    return np.maximum(low, min(bounds[0], least)), np.minimum(high, max(bounds[1], most))


def mean_band(scores: ArrayLike, *, bounds: Bounds = UNBOUNDED) -> tuple[Floats, Floats, Floats]:
    """Return mean, low and high [K] of ``scores`` [R, K], over the R seeds at each of K points.

    Student's t interval corrected for the skewness of the scores. The statistic T = (mean - mu) /
    (s / sqrt(R)) is transformed to g(T) = T + k T²/3 + k² T³/27 + k/6 with k = skewness / sqrt(R),
    which removes the skewness of T. g is monotone and inverted in closed form. Low and high are NaN
    if the interval is undefined: R < 5, or all seeds equal.

    Coverage of the 95 % interval is measured in tests/reports/test_coverage.py.

    Source: Hall 1992, "On the removal of skewness by transformation".
    """
    x = np.asarray(scores, np.float64)
    n, mean = len(x), x.mean(0)
    if n < MIN_SEEDS:
        return mean, np.full_like(mean, np.nan), np.full_like(mean, np.nan)
    equal = _equal(x)
    deviation = x - mean
    scale = np.where(equal, 1.0, np.abs(deviation).max(0))  # cubes of scores may overflow
    deviation /= scale
    variance = np.where(equal, 1.0, np.square(deviation).mean(0))
    k = np.where(equal, 0.0, (deviation**3).mean(0) / variance**1.5) / math.sqrt(n)
    error = np.where(equal, np.nan, scale * np.sqrt(variance / (n - 1)))
    t = float(scipy.special.stdtrit(n - 1, 0.5 + 0.5 * LEVEL))
    low, high = mean - _without_skew(t, k) * error, mean - _without_skew(-t, k) * error
    return mean, *within(x, low, high, bounds)


def mean_interval(scores: ArrayLike, *, bounds: Bounds = UNBOUNDED) -> Estimate:
    """Return the mean of ``scores`` [R] over seeds, with its interval; see ``mean_band``.

    Of the interval methods measured at 5 to 50 seeds (t, percentile, BCa, expanded BCa, studentised
    bootstrap, Hall's transformation with t and with bootstrap quantiles), only this one and the
    studentised bootstrap keep 93 % coverage or more on skewed scores from 10 seeds on, and from 20
    seeds on for bimodal scores with 20 % of seeds or more in each group. The bootstrap's interval
    becomes unbounded if scores form tight groups. No method covers failures that no seed shows: of
    20 seeds that fail with P = 0.05 or 0.1, the intervals of 63 and 87 % contain the mean.
    """
    x = np.asarray(scores, np.float64)
    n = len(x)
    mean = float(x.mean())
    if (points := _points(x, mean)) is not None:
        return points
    _, lows, highs = mean_band(x[:, None], bounds=bounds)
    missed = missed_share(n)
    bound = "from 10 seeds on skewed scores and " if n < 10 else ""
    where = "from 20 where" if n < 20 else "on skewed scores and where"
    why = (
        f"Mean of {n} seeds. A failure of fewer than {missed:.0%} of seeds may be absent; "
        f"the interval misses it then. The {LEVEL:.0%} hold {bound}{where} scores form groups of "
        "20% of seeds or more. Coverage is lower with heavy tails (a few scores far from all "
        "others): 88% at 5 and 92% at 20 seeds."
    )
    return Estimate(mean, float(lows[0]), float(highs[0]), "t, corrected for skewness", why)


def _order_statistics(n: int) -> int:
    """Return how many scores to drop at each end; -1 if even [min, max] is not enough.

    The share of the population between the r-th and the s-th of n scores is Beta(s - r, n - s + r +
    1). With d dropped at each end, P(share >= CONTENT) = P(Beta >= CONTENT).
    """
    for dropped in range(n // 2):
        inside = n - 1 - 2 * dropped  # s - r
        if scipy.special.betaincinv(inside, n - inside + 1, 1.0 - LEVEL) < CONTENT:
            return dropped - 1
    return n // 2 - 1


def tolerance_interval(scores: ArrayLike, *, bounds: Bounds = UNBOUNDED) -> Estimate:
    """Return an interval for the next seed: it contains ``CONTENT`` of all seeds.

    Holds with confidence ``LEVEL``. ``value`` is the median of ``scores`` [R]. If R is large enough
    (46 seeds for 90 % with 95 % confidence), it uses order statistics, without assumptions.
    Otherwise it is the normal interval mean ± k s, widened to contain every score seen and cut to
    ``bounds``. On scores that are not normal its confidence is lower: 56 % if 15 % of seeds fail
    far from the others (5 seeds), 66 % with 10 % (10 seeds), 85 % on exponential scores. The next
    seed still falls inside with P = 0.9 or nearly so (0.896 on lognormal scores of sigma 2, 5
    seeds), see tests/reports/test_coverage.py.

    Source: Wilks 1941, "Determination of sample sizes for setting tolerance limits"; Howe 1969,
    "Two-sided tolerance limits for normal populations"; Patterson et al. 2024.
    """
    x = np.sort(np.asarray(scores, np.float64))
    n = len(x)
    median = float(np.median(x))
    if (points := _points(x, median)) is not None:
        return points
    dropped = _order_statistics(n)
    claim = f"At least {CONTENT:.0%} of seeds fall inside ({LEVEL:.0%} confidence)"
    if dropped >= 0:
        method = f"tolerance {CONTENT:.0%}, order statistics"
        why = f"{claim}, whatever the distribution of scores."
        return Estimate(median, float(x[dropped]), float(x[-1 - dropped]), method, why)
    factor = scipy.special.ndtri(0.5 + 0.5 * CONTENT) * math.sqrt(
        (n - 1) * (1 + 1 / n) / scipy.special.chdtri(n - 1, LEVEL)
    )
    mean = float(x.mean())
    scale = max(mean - float(x[0]), float(x[-1]) - mean)  # squares of scores may overflow
    reach = factor * scale * float(np.std((x - mean) / scale, ddof=1))
    method = f"tolerance {CONTENT:.0%}, normal"
    why = f"{claim} if scores are normal; {n} seeds are too few to drop that assumption. Failures "
    why += "far from the other scores lower the confidence, to 56% in simulations."
    low, high = np.minimum(mean - reach, x[0]), np.maximum(mean + reach, x[-1])
    low, high = within(x, low, high, bounds)
    return Estimate(median, float(low), float(high), method, why)


def success_interval(successes: int, trials: int) -> Estimate:
    """Return the success rate ``successes`` / ``trials`` with its exact binomial interval.

    The trials must be independent: seeds that solved a task, or episodes of *one* trained policy.
    Episodes of several seeds are not; use each seed's rate as its score instead. The interval
    covers at least ``LEVEL`` for every rate and number of trials.

    Source: Clopper & Pearson 1934.
    """
    k, n = successes, trials
    tail = 0.5 * (1.0 - LEVEL)
    low = float(scipy.special.betaincinv(k, n - k + 1, tail)) if k else 0.0
    high = float(scipy.special.betaincinv(k + 1, n - k, 1.0 - tail)) if k < n else 1.0
    why = f"{k} of {n} independent trials; covers at least {LEVEL:.0%} for every true rate."
    return Estimate(k / n, low, high, "binomial, Clopper-Pearson", why)


RESAMPLES = 2000  # of a bootstrap; as in rliable's examples for point estimates
FEW_SCORES = 50  # R T below which the interval was measured to cover less than its level
_BLOCK = 4_000_000  # scores in memory at once

Statistic = Callable[..., Floats]


def aggregate_iqm(scores: Floats) -> Floats:
    """Return the interquartile mean: the mean of the middle half of all R T scores.

    Equal to ``scipy.stats.trim_mean(scores, 0.25, axis=None)``: R T // 4 scores are cut at each
    end. Source: Agarwal et al. 2021, section 4.3.
    """
    pooled = np.sort(scores.reshape(*scores.shape[:-2], -1), axis=-1)
    cut = pooled.shape[-1] // 4
    return np.asarray(pooled[..., cut : pooled.shape[-1] - cut].mean(-1))


def aggregate_optimality_gap(scores: Floats) -> Floats:
    """Return by how much scores fall short of 1 on average. Scores above count as 1.

    Source: Agarwal et al. 2021, section 4.3.
    """
    return np.asarray(1.0 - np.minimum(scores, 1.0).mean((-2, -1)))


def improvement(a: Floats, b: Floats) -> Floats:
    """Return P(a seed of ``a`` beats one of ``b``), averaged over environments; a tie counts half.

    a: [..., Ra, T]. b: [..., Rb, T]. The Mann-Whitney U statistic divided by Ra Rb.
    Source: Agarwal et al. 2021, section 4.3.
    """
    x, y = a[..., :, None, :], b[..., None, :, :]
    return np.asarray(((x > y) + 0.5 * (x == y)).mean((-3, -2, -1)))


def resampled(statistic: Statistic, *scores: Floats, resamples: int, seed: int = 0) -> Floats:
    """Return ``statistic`` of ``resamples`` stratified bootstrap samples: [resamples, ...].

    Each environment's R seeds are resampled separately (environments are fixed strata), by drawing
    R - 1 of them with replacement. R draws would make the variance too small by (R - 1) / R, 20 %
    at 5 seeds. Deterministic in ``seed``.

    Source: Agarwal et al. 2021, section 4.1; Rao & Wu 1988 (R - 1 draws in small strata).
    """
    rng, tasks = np.random.default_rng(seed), np.arange(scores[0].shape[1])
    block = max(1, _BLOCK // (math.prod(map(len, scores)) * len(tasks)))

    def draw(x: Floats, count: int) -> Floats:
        return x[rng.integers(0, len(x), (count, len(x) - 1, len(tasks))), tasks]

    counts = [min(block, resamples - start) for start in range(0, resamples, block)]
    return np.concatenate([statistic(*(draw(x, count) for x in scores)) for count in counts])


def percentile_interval(samples: Floats) -> tuple[Floats, Floats]:
    """Return the ends of the central ``LEVEL`` of ``samples`` over axis 0."""
    tail = 0.5 * (1.0 - LEVEL)
    low, high = np.quantile(samples, [tail, 1.0 - tail], axis=0)
    return low, high


def stratified_bootstrap(
    statistic: Statistic, *scores: ArrayLike, resamples: int = RESAMPLES, seed: int = 0
) -> Estimate:
    """Return ``statistic`` of score matrices [R, T] with its stratified bootstrap interval.

    Percentile interval of ``resampled``; no interval below 5 seeds per environment. Measured
    coverage of 95 % intervals of the IQM, the mean and the optimality gap: 92-96 % from R T = 50 on
    (with R draws instead of R - 1: 88-93 %), see tests/reports/test_coverage.py.
    """
    arrays = [np.asarray(x, np.float64) for x in scores]
    value = float(statistic(*arrays))
    runs, tasks = min(len(x) for x in arrays), arrays[0].shape[1]
    if runs < MIN_SEEDS:
        return Estimate(value, None, None, "points", few_seeds(runs))
    samples = resampled(statistic, *arrays, resamples=resamples, seed=seed)
    low, high = percentile_interval(samples)
    why = f"{runs} seeds on each of {tasks} environments, resampled within each; says nothing "
    why += "about other environments"
    if runs * tasks < FEW_SCORES:
        why += f"; too narrow below {FEW_SCORES} scores (here {runs * tasks})"
    return Estimate(value, float(low), float(high), "stratified bootstrap", f"{why}.")


def performance_profile(scores: ArrayLike, thresholds: ArrayLike) -> tuple[Floats, Floats, Floats]:
    """Return the share of runs of ``scores`` [R, T] above each of ``thresholds`` [K], low and high.

    The run-score distribution, which never rises. The band is pointwise, by stratified bootstrap,
    NaN with fewer than 5 seeds. Source: Agarwal et al. 2021, section 4.2.
    """
    matrix, taus = np.asarray(scores, np.float64), np.asarray(thresholds, np.float64)

    def above(x: Floats) -> Floats:
        return np.stack([(x > tau).mean((-2, -1)) for tau in taus], axis=-1)

    value = above(matrix)
    if len(matrix) < MIN_SEEDS:
        return value, np.full_like(value, np.nan), np.full_like(value, np.nan)
    return value, *percentile_interval(resampled(above, matrix, resamples=RESAMPLES))


def balanced(scores: Sequence[ArrayLike]) -> tuple[Floats, str]:
    """Return scores of each environment as a matrix [R, T], R the fewest seeds of any.

    The first R scores of each environment are used. Give them in order of the seed, so that no
    choice depends on a score. Also returns a sentence on what was left out, or "".
    """
    arrays = [np.asarray(x, np.float64) for x in scores]
    fewest = min(map(len, arrays))
    matrix = np.stack([x[:fewest] for x in arrays], axis=1)
    left_out = sum(map(len, arrays)) - matrix.size
    why = f"The first {fewest} seeds of each environment; {left_out} runs are left out."
    return matrix, why if left_out else ""
