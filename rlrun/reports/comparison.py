"""Comparison of two groups of runs: difference, probability of improvement, many comparisons.

The verdict on two groups is the interval of their *difference*: two intervals that overlap prove
nothing. That interval is an inverted permutation test, so it excludes 0 exactly when the test
rejects, and its false positives are bounded at any number of seeds if the groups are equal in
distribution. Groups of equal mean and unlike shape are told apart more often. Generators are seeded
by the argument ``seed``: equal input gives equal output.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from rlrun.errors import ConfigError
from rlrun.reports.aggregates import (
    RESAMPLES,
    Statistic,
    aggregate_iqm,
    improvement,
    stratified_bootstrap,
)
from rlrun.reports.intervals import (
    LEVEL,
    MIN_SEEDS,
    UNBOUNDED,
    Bounds,
    Estimate,
    Floats,
    few_seeds,
    score_array,
    within,
)
from rlrun.reports.quantiles import normal_quantile

PERMUTATIONS = 5000  # all of them where there are no more: up to 7 against 7 seeds, 12 pairs
MIN_PAIRS = 6  # five pairs have 32 sign patterns: no two-sided p below 0.0625
SHAPE = "the test rejects equal means too often when seeds fail on one side only"
_TIE = 1.0 - 1e-9  # equal statistics differ by rounding


@dataclass(frozen=True, slots=True)
class Difference(Estimate):
    """Difference a - b. ``p``: two-sided permutation test of no difference; None below 5 seeds."""

    p: float | None

    @property
    def decided(self) -> bool:
        """True if a and b differ at ``level``; the sign of ``value`` says which is higher."""
        if self.p is None or self.p > 1.0 - self.level + 1e-12:
            return False
        return self.low is None or self.high is None or not self.low <= 0.0 <= self.high


def difference(
    a: ArrayLike,
    b: ArrayLike,
    *,
    paired: bool = False,
    bounds: Bounds = UNBOUNDED,
    level: float = LEVEL,
    permutations: int = PERMUTATIONS,
    seed: int = 0,
) -> Difference:
    """Return mean(a) - mean(b) of scores [Ra] and [Rb] with its interval and p.

    The interval is cut to the differences that scores within ``bounds`` can have. Exchanging a and
    b changes signs, no digits.

    paired: a[i] and b[i] share a seed; the signs of their differences are permuted. With 5 pairs
    that cannot reach p = 0.05, so they are compared as unpaired, and ``method`` says so.
    Unpaired: labels are permuted, the statistic is Welch's t, which keeps the level when the
    variances differ.

    Groups without spread have a p, which is exact, and no interval: p alone decides then.

    Equal means equal in distribution. Of comparisons of seeds that fail with P = 0.1 (0.2) with
    seeds of the same mean that never fail, 59 (34) % "differ" at 5 seeds, 36 (13) % at 10 and 13
    (9) % at 20, paired or not: where no seed shows the failure the groups do differ.

    Raises: ConfigError for scores that are not finite, or pairs of unequal number.

    Source: Janssen 1997; Chung & Romano 2013 (studentised permutation test);
    Colas et al. 2019, "A Hitchhiker's Guide to Statistical Comparisons of RL Algorithms".
    """
    x, y = score_array(a), score_array(b)
    if paired and len(x) != len(y):
        raise ConfigError(
            f"scores = {len(x)} and {len(y)} seeds: cannot be paired; the same seeds in both "
            "are allowed; leave out those that only one has"
        )
    value = float(x.mean() - y.mean())
    fewest = min(len(x), len(y))
    if fewest < MIN_SEEDS:
        return Difference(value, None, None, level, "points", few_seeds(fewest), None)
    against = f"{len(x)} against {len(y)} seeds"
    mirrored = (value, *x) < (0.0, *y)  # one order, whichever side comes first
    if mirrored:
        x, y, value = y, x, 0.0 - value
    p_of, scale, pairs = _p_of(x, y, paired, permutations, seed)
    p = p_of(0.0)
    if pairs:
        method, why = "permutation of signs", f"{fewest} pairs of equal seed"
        ties, spread = np.add.outer(x - y, x - y) / 2.0, float(np.ptp(x - y))
    else:
        method = "permutation of labels" + (", unpaired: fewer than 6 pairs" if paired else "")
        why = against
        ties, spread = np.subtract.outer(x, y), float(np.ptp(x) + np.ptp(y))
    if spread <= 1e-12 * scale:
        why += ", equal within each group: their spread is unknown and no interval is claimed"
        why += f"; {SHAPE}."
        return Difference(-value if mirrored else value, None, None, level, method, why, p)
    alpha = 1.0 - level
    ends = [scale * _end(p_of, value / scale, side, alpha, p) for side in (-1.0, 1.0)]
    isolated = np.unique(ties)  # on scores of few values, where ties make p jump up
    if len(isolated) <= ties.size // 4:
        ends += [float(d) for d in isolated if d and p_of(d / scale) > alpha]
    why += "; the interval holds every difference that the permutation test does not reject"
    low, high = _possible(x, y, min(ends), max(ends), bounds)
    if mirrored:
        value, low, high = -value, -high, -low
    return Difference(value, low, high, level, method, f"{why}; {SHAPE}.", p)


def _possible(x: Floats, y: Floats, low: float, high: float, bounds: Bounds) -> tuple[float, float]:
    """Return the ends of the interval of a difference, cut to those of scores within ``bounds``."""
    gaps = np.array([x.min() - y.max(), x.max() - y.min()])
    reach = (bounds[0] - bounds[1], bounds[1] - bounds[0])
    lows, highs = within(gaps, np.array(low), np.array(high), reach)
    return float(lows), float(highs)


def permutation_p(
    a: ArrayLike,
    b: ArrayLike,
    *,
    paired: bool = False,
    permutations: int = PERMUTATIONS,
    seed: int = 0,
) -> float:
    """Return the p of ``difference(a, b)`` without its interval, in a tenth of the time."""
    return _p_of(score_array(a), score_array(b), paired, permutations, seed)[0](0.0)


def _p_of(
    x: Floats, y: Floats, paired: bool, limit: int, seed: int
) -> tuple[Callable[[float], float], float, bool]:
    """Return p as a function of the difference in units of a scale, the scale, whether paired."""
    rng = np.random.default_rng(seed)
    if paired and len(x) >= MIN_PAIRS:
        scale = float(np.abs(x - y).max()) or 1.0
        return _signs_p((x - y) / scale, limit, rng), scale, True
    scale = float(np.ptp(np.concatenate([x, y]))) or 1.0
    return _labels_p(x, y, scale, limit, rng), scale, False


def _end(
    p_of: Callable[[float], float], value: float, side: float, alpha: float, p_zero: float
) -> float:
    """Return where ``p_of`` falls to ``alpha`` when going from ``value`` to ``side`` (-1, 1).

    Differences are scaled so that the scores span 1. Zero is on the outer side exactly when its p
    is at most alpha, so that interval and p agree also where p is not monotone.
    """
    accepted, step = value, 0.125
    if side * value < 0.0:  # zero lies on this side
        if p_zero <= alpha + 1e-12:
            return _bisected(p_of, accepted, 0.0, alpha)
        accepted = 0.0
    while p_of(accepted + side * step) > alpha:
        accepted += side * step
        step *= 2.0
        if step > 1e6:  # too few permutations for this level: no end
            return side * math.inf
    return _bisected(p_of, accepted, accepted + side * step, alpha)


def _bisected(
    p_of: Callable[[float], float], accepted: float, rejected: float, alpha: float
) -> float:
    while abs(rejected - accepted) > 1e-7:
        middle = 0.5 * (accepted + rejected)
        if p_of(middle) > alpha:
            accepted = middle
        else:
            rejected = middle
    return accepted


def label_permutations(n: int, chosen: int, limit: int, rng: np.random.Generator) -> Floats:
    """Return which of ``n`` scores get the first label: [P, n] of 0 and 1, ``chosen`` ones each.

    Row 0 is the identity. All C(n, chosen) rows where that is at most ``limit``, else ``limit``
    random ones: with the identity among them p is valid (Hemerik & Goeman 2018, theorem 2).
    """
    if math.comb(n, chosen) <= limit:
        return _all_labels(n, chosen)
    first = np.zeros((limit, n))
    first[:, :chosen] = 1.0
    labels = rng.permuted(first, axis=1)
    labels[0] = first[0]
    return labels


@lru_cache(maxsize=16)
def _all_labels(n: int, chosen: int) -> Floats:
    rows = np.array(list(itertools.combinations(range(n), chosen)))
    labels = np.zeros((len(rows), n))
    np.put_along_axis(labels, rows, 1.0, axis=1)
    return labels


def _labels_p(
    x: Floats, y: Floats, scale: float, limit: int, rng: np.random.Generator
) -> Callable[[float], float]:
    """Return p(delta) of the hypothesis that x - delta and y are equal in distribution.

    The sums that Welch's t needs are quadratic in delta: each p costs O(permutations).
    """
    na, nb = len(x), len(y)
    pooled = np.concatenate([x, y])
    z = (pooled - pooled.mean()) / scale
    moved = np.concatenate([np.ones(na), np.zeros(nb)])
    labels = label_permutations(na + nb, na, limit, rng)
    sums, counts = labels @ z, labels @ moved
    squares, crosses = labels @ z**2, labels @ (z * moved)
    total = (z.sum(), float(na), (z**2).sum(), (z * moved).sum())

    def p_of(delta: float) -> float:
        s = sums - delta * counts
        q = squares - 2.0 * delta * crosses + delta**2 * counts
        s_all = total[0] - delta * total[1]
        q_all = total[2] - 2.0 * delta * total[3] + delta**2 * total[1]
        rest = s_all - s
        variance = np.maximum(q - s * s / na, 0.0) / (na * (na - 1))
        variance += np.maximum(q_all - q - rest * rest / nb, 0.0) / (nb * (nb - 1))
        gap = np.abs(s / na - rest / nb)
        floor = 1e-12 * (1.0 + delta * delta)  # rounding of the sums
        t = np.where(gap * gap <= floor, 0.0, gap / np.sqrt(np.maximum(variance, floor**2)))
        return float(np.mean(t >= t[0] * _TIE))

    return p_of


def _signs_p(d: Floats, limit: int, rng: np.random.Generator) -> Callable[[float], float]:
    """Return p(delta) of the hypothesis that the differences d - delta are symmetric about 0."""
    n = len(d)
    if 2**n <= limit:
        signs = 1.0 - 2.0 * ((np.arange(2**n)[:, None] >> np.arange(n)) & 1)
    else:
        signs = rng.choice([-1.0, 1.0], (limit, n))
        signs[0] = 1.0
    sums, counts = signs @ d, signs.sum(1)

    def p_of(delta: float) -> float:
        t = np.abs(sums - delta * counts)
        t[t < 1e-12 * (1.0 + abs(delta))] = 0.0
        return float(np.mean(t >= t[0] * _TIE))

    return p_of


def probability_of_improvement(
    a: ArrayLike, b: ArrayLike, *, level: float = LEVEL, seed: int = 0
) -> Estimate:
    """Return P(a seed of ``a`` beats one of ``b``), averaged over environments.

    a: [Ra] or [Ra, T]; b: [Rb] or [Rb, T]. Ties count half. Several environments: stratified
    bootstrap. One environment, or groups that do not overlap (where every resample is equal): the
    score interval, which has a width also there.

    Source: Agarwal et al. 2021, section 4.3; Newcombe 2006, "Confidence intervals for an effect
    size measure based on the Mann-Whitney statistic", part 2, method 5.
    """
    x, y = (score_array(s, 2 if np.ndim(s) == 2 else 1) for s in (a, b))
    x, y = (s[:, None] if s.ndim == 1 else s for s in (x, y))
    got = stratified_bootstrap(improvement, x, y, level=level, seed=seed)
    tasks = x.shape[1]
    if not got.claimed or (tasks > 1 and got.low != got.high):
        return got
    low = _improvement_end(got.value, len(x), len(y), tasks, level)
    high = 1.0 - _improvement_end(1.0 - got.value, len(x), len(y), tasks, level)
    why = f"{len(x)} against {len(y)} seeds; says how often a beats b, not by how much."
    return Estimate(got.value, low, high, level, "Mann-Whitney, score interval", why)


def _improvement_end(value: float, n: int, m: int, tasks: int, level: float) -> float:
    """Return the lower theta at which value - theta = z sqrt(V(theta) / tasks)."""
    z = normal_quantile(0.5 + 0.5 * level)
    low, high = 0.0, value
    for _ in range(60):
        theta = 0.5 * (low + high)
        spread = 1.0 + (0.5 * (n + m) - 1.0) * ((1 - theta) / (2 - theta) + theta / (1 + theta))
        variance = theta * (1.0 - theta) * spread / (n * m * tasks)
        inside = value - theta <= z * math.sqrt(variance)
        low, high = (low, theta) if inside else (theta, high)
    return high


def aggregate_difference(
    a: ArrayLike,
    b: ArrayLike,
    statistic: Statistic = aggregate_iqm,
    *,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Difference:
    """Return statistic(a) - statistic(b) of score matrices [Ra, T] and [Rb, T].

    Interval: stratified bootstrap of both. p: labels permuted within each environment, exact if
    a and b are equal in distribution in every one. ``decided`` needs both to agree.
    """
    got = stratified_bootstrap(
        lambda x, y: statistic(x) - statistic(y),
        a,
        b,
        level=level,
        resamples=resamples,
        seed=seed,
    )
    p, why = None, got.why
    if got.claimed:
        x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
        p = _shuffled_p(x, y, statistic, resamples, np.random.default_rng(seed))
        why = f"{why.rstrip('.')}; {SHAPE}."
    return Difference(got.value, got.low, got.high, level, got.method, why, p)


def _shuffled_p(
    x: Floats, y: Floats, statistic: Statistic, count: int, rng: np.random.Generator
) -> float:
    """Return the p of equal ``statistic`` with labels permuted within each environment."""
    pooled = np.concatenate([x, y])
    parts: list[Floats] = [np.abs(statistic(x) - statistic(y)).reshape(1)]
    while (left := count - sum(map(len, parts))) > 0:  # in blocks, for memory
        mixed = rng.permuted(np.tile(pooled, (min(left, 200), 1, 1)), axis=1)
        parts.append(np.abs(statistic(mixed[:, : len(x)]) - statistic(mixed[:, len(x) :])))
    t = np.concatenate(parts)
    return float(np.mean(t >= t[0] * _TIE))


def holm(p: Sequence[float]) -> list[float]:
    """Return p values adjusted for their number: reject those at most alpha, family-wise.

    The i-th smallest of m is multiplied by m - i + 1, never falls below a smaller one's, and is
    capped at 1. Source: Holm 1979.
    """
    adjusted, largest = [0.0] * len(p), 0.0
    for rank, i in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        largest = max(largest, min(1.0, (len(p) - rank) * p[i]))
        adjusted[i] = largest
    return adjusted


def selection_bias(selection: ArrayLike, fresh: ArrayLike) -> Estimate:
    """Return by how much the score that won a selection exceeds its score on fresh seeds.

    selection: [S] scores of the winner on the seeds it was selected by. fresh: [F] scores of the
    same setting on seeds that no selection saw. Only the mean of ``fresh`` is an honest score of
    the winner: the maximum of noisy scores is biased upwards by construction. There is no
    interval: after a selection the scores it saw are no sample.

    Source: Patterson et al. 2024; Cawley & Talbot 2010.
    """
    chosen, new = score_array(selection), score_array(fresh)
    why = f"Selected by {len(chosen)} seeds, re-run on {len(new)} fresh ones; report the latter."
    value = float(chosen.mean() - new.mean())
    return Estimate(value, None, None, LEVEL, "selection minus re-run", why)
