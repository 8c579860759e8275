"""Comparison of two groups of runs: difference, probability of improvement, many comparisons.

The verdict on two groups uses the interval of their *difference*, because two overlapping intervals
prove nothing. It is an inverted permutation test, so it excludes 0 exactly when the test rejects.
If the groups are equal in distribution, its false positives are bounded at any number of seeds.
Groups of equal mean but unequal shape are declared different more often. Generators are seeded by
the argument ``seed``, so equal input gives equal output.

Sequential comparison adds seeds until it is decided or the budget is spent. Testing after every few
seeds and stopping at a rejection would inflate the false positives. Here the error is spent over
the planned looks and over the pairs of agents, so the probability of *any* wrong "differs" in the
whole study is at most 1 - level.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from rlrun.reports.intervals import (
    LEVEL,
    MIN_SEEDS,
    RESAMPLES,
    Estimate,
    Floats,
    aggregate_iqm,
    few_seeds,
    improvement,
    stratified_bootstrap,
)

PERMUTATIONS = 5000  # exhaustive up to 7 against 7 seeds, or 12 pairs
MIN_PAIRS = 6  # five pairs have 32 sign patterns: no two-sided p below 0.0625
CAVEAT = (
    "The interval of a difference contains the differences that its test does not reject; the test "
    "rejects equal means too often when seeds fail on one side only."
)
_ALPHA = 1.0 - LEVEL
_TIE = 1.0 - 1e-9  # equal statistics differ by rounding


@dataclass(frozen=True, slots=True)
class Difference(Estimate):
    """The difference a - b. ``p``: two-sided permutation test of none; None below 5 seeds."""

    p: float | None

    @property
    def decided(self) -> bool:
        """Return whether a and b differ at ``LEVEL``; the sign of ``value`` says how."""
        if self.p is None or self.p > 1.0 - LEVEL + 1e-12:
            return False
        return self.low is None or self.high is None or not self.low <= 0.0 <= self.high


def difference(
    a: ArrayLike,
    b: ArrayLike,
    *,
    paired: bool = False,
    permutations: int = PERMUTATIONS,
    seed: int = 0,
) -> Difference:
    """Return mean(a) - mean(b) of scores [Ra] and [Rb] with its interval and p.

    The interval is within the differences that the observed scores can have. Exchanging a and b
    only changes signs.

    paired: a[i] and b[i] share a seed, and the signs of their differences are permuted. With 5
    pairs that cannot reach p = 0.05, so they are compared as unpaired, and ``method`` says so.
    Unpaired: labels are permuted, and the statistic is Welch's t, which keeps the level when the
    variances differ.

    Groups without spread have an exact p but no interval, and p alone decides.

    The hypothesis is equality in distribution. If seeds that fail with P = 0.1 (0.2) are compared
    with seeds of the same mean that never fail, 59 (34) % of comparisons "differ" at 5 seeds, 36
    (13) % at 10 and 13 (9) % at 20, paired or not. The groups do differ then, in particular if no
    seed shows the failure.

    Source: Janssen 1997; Chung & Romano 2013 (studentised permutation test); Colas et al. 2019, "A
    Hitchhiker's Guide to Statistical Comparisons of RL Algorithms".
    """
    x, y = (np.asarray(scores, np.float64) for scores in (a, b))
    value = float(x.mean() - y.mean())
    fewest = min(len(x), len(y))
    if fewest < MIN_SEEDS:
        return Difference(value, None, None, "points", few_seeds(fewest), None)
    against = f"{len(x)} against {len(y)} seeds"
    mirrored = (value, *x) < (0.0, *y)  # the same order, whichever side is first
    if mirrored:
        x, y, value = y, x, 0.0 - value
    p_of, scale, pairs = p_of_gap(x, y, paired, permutations, seed)
    p = p_of(0.0)
    if pairs:
        method, why = "permutation of signs", f"{fewest} pairs of equal seed"
        ties, spread = np.add.outer(x - y, x - y) / 2.0, float(np.ptp(x - y))
    else:
        method = "permutation of labels" + (", unpaired: fewer than 6 pairs" if paired else "")
        why = against
        ties, spread = np.subtract.outer(x, y), float(np.ptp(x) + np.ptp(y))
    if spread <= 1e-12 * scale:
        why += ", equal within each group: their spread is unknown and no interval is claimed."
        return Difference(-value if mirrored else value, None, None, method, why, p)
    ends = [scale * _end(p_of, value / scale, side, p) for side in (-1.0, 1.0)]
    isolated = np.unique(ties)  # with few distinct scores ties make p jump up
    if len(isolated) <= ties.size // 4:
        ends += [float(d) for d in isolated if d and p_of(d / scale) > _ALPHA]
    low, high = min(ends), max(ends)
    if mirrored:
        value, low, high = -value, -high, -low
    return Difference(value, low, high, method, f"{why}.", p)


def p_of_gap(
    x: Floats, y: Floats, paired: bool, limit: int, seed: int
) -> tuple[Callable[[float], float], float, bool]:
    """Return p of a difference in units of a scale, the scale, and whether pairs are tested."""
    rng = np.random.default_rng(seed)
    if paired and len(x) >= MIN_PAIRS:
        scale = float(np.abs(x - y).max()) or 1.0
        return _signs_p((x - y) / scale, limit, rng), scale, True
    scale = float(np.ptp(np.concatenate([x, y]))) or 1.0
    return _labels_p(x, y, scale, limit, rng), scale, False


def _end(p_of: Callable[[float], float], value: float, side: float, p_zero: float) -> float:
    """Return where ``p_of`` falls to 1 - ``LEVEL`` going from ``value`` to ``side`` (-1, 1).

    Differences are scaled so that the scores span 1. Zero is outside exactly when its p is at most
    that, so interval and p agree even if p is not monotone.
    """
    accepted, step = value, 0.125
    if side * value < 0.0:  # zero is on this side
        if p_zero <= _ALPHA + 1e-12:
            return _bisected(p_of, accepted, 0.0)
        accepted = 0.0
    while p_of(accepted + side * step) > _ALPHA:  # ends, as MIN_SEEDS allow such a p
        accepted += side * step
        step *= 2.0
    return _bisected(p_of, accepted, accepted + side * step)


def _bisected(p_of: Callable[[float], float], accepted: float, rejected: float) -> float:
    while abs(rejected - accepted) > 1e-7:
        middle = 0.5 * (accepted + rejected)
        accepted, rejected = (middle, rejected) if p_of(middle) > _ALPHA else (accepted, middle)
    return accepted


def label_permutations(n: int, chosen: int, limit: int, rng: np.random.Generator) -> Floats:
    """Return which of ``n`` scores get the first label: [P, n] of 0 and 1, ``chosen`` ones each.

    Row 0 is the identity. Returns all C(n, chosen) rows if these are at most ``limit``, else
    ``limit`` random ones. Including the identity makes p valid (Hemerik & Goeman 2018, theorem 2).
    """
    if math.comb(n, chosen) <= limit:
        rows = np.array(list(itertools.combinations(range(n), chosen)))
        labels = np.zeros((len(rows), n))
        np.put_along_axis(labels, rows, 1.0, axis=1)
        return labels
    first = np.zeros((limit, n))
    first[:, :chosen] = 1.0
    labels = rng.permuted(first, axis=1)
    labels[0] = first[0]
    return labels


def _labels_p(
    x: Floats, y: Floats, scale: float, limit: int, rng: np.random.Generator
) -> Callable[[float], float]:
    """Return p(delta) of the hypothesis that x - delta and y are equal in distribution."""
    na, nb = len(x), len(y)
    pooled = np.concatenate([x, y])
    z = (pooled - pooled.mean()) / scale
    labels = label_permutations(na + nb, na, limit, rng)

    def p_of(delta: float) -> float:
        moved = z - delta * (np.arange(na + nb) < na)
        s, q = labels @ moved, labels @ moved**2
        rest, rest_q = moved.sum() - s, (moved**2).sum() - q
        variance = np.maximum(q - s * s / na, 0.0) / (na * (na - 1))
        variance += np.maximum(rest_q - rest * rest / nb, 0.0) / (nb * (nb - 1))
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


def probability_of_improvement(a: ArrayLike, b: ArrayLike) -> Estimate:
    """Return P(a seed of ``a`` beats one of ``b``), averaged over environments.

    a: [Ra] or [Ra, T]; b: [Rb] or [Rb, T]. Ties count half. Several environments: stratified
    bootstrap. One environment, or groups that do not overlap (so that all resamples are equal): the
    score interval, which has a positive width in this case, too.

    Source: Agarwal et al. 2021, section 4.3; Newcombe 2006, "Confidence intervals for an effect
    size measure based on the Mann-Whitney statistic", part 2, method 5.
    """
    x, y = (np.asarray(scores, np.float64) for scores in (a, b))
    x, y = (s[:, None] if s.ndim == 1 else s for s in (x, y))
    estimate = stratified_bootstrap(improvement, x, y)
    tasks = x.shape[1]
    if not estimate.claimed or (tasks > 1 and estimate.low != estimate.high):
        return estimate
    low = _improvement_end(estimate.value, len(x), len(y), tasks)
    high = 1.0 - _improvement_end(1.0 - estimate.value, len(x), len(y), tasks)
    why = f"{len(x)} against {len(y)} seeds; it says how often a beats b, not by how much."
    return Estimate(estimate.value, low, high, "Mann-Whitney, score interval", why)


def _improvement_end(value: float, n: int, m: int, tasks: int) -> float:
    """Return the lower theta at which value - theta = z sqrt(V(theta) / tasks)."""
    z = float(scipy.special.ndtri(0.5 + 0.5 * LEVEL))
    low, high = 0.0, value
    for _ in range(60):
        theta = 0.5 * (low + high)
        spread = 1.0 + (0.5 * (n + m) - 1.0) * ((1 - theta) / (2 - theta) + theta / (1 + theta))
        variance = theta * (1.0 - theta) * spread / (n * m * tasks)
        inside = value - theta <= z * math.sqrt(variance)
        low, high = (low, theta) if inside else (theta, high)
    return high


def aggregate_difference(
    a: ArrayLike, b: ArrayLike, *, resamples: int = RESAMPLES, seed: int = 0
) -> Difference:
    """Return IQM(a) - IQM(b) of score matrices [Ra, T] and [Rb, T].

    Interval: stratified bootstrap of both. p: labels permuted within each environment, exact if a
    and b are equal in distribution in every one. ``decided`` requires that both agree.
    """
    estimate = stratified_bootstrap(
        lambda x, y: aggregate_iqm(x) - aggregate_iqm(y), a, b, resamples=resamples, seed=seed
    )
    p = None
    if estimate.claimed:
        x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
        p = _shuffled_p(x, y, resamples, np.random.default_rng(seed))
    return Difference(estimate.value, estimate.low, estimate.high, estimate.method, estimate.why, p)


def _shuffled_p(x: Floats, y: Floats, count: int, rng: np.random.Generator) -> float:
    """Return the p of equal IQMs, with labels permuted within each environment."""
    pooled = np.concatenate([x, y])
    parts: list[Floats] = [np.abs(aggregate_iqm(x) - aggregate_iqm(y)).reshape(1)]
    while (left := count - sum(map(len, parts))) > 0:  # in blocks, for memory
        mixed = rng.permuted(np.tile(pooled, (min(left, 200), 1, 1)), axis=1)
        a, b = mixed[:, : len(x)], mixed[:, len(x) :]
        parts.append(np.abs(aggregate_iqm(a) - aggregate_iqm(b)))
    t = np.concatenate(parts)
    return float(np.mean(t >= t[0] * _TIE))


def holm(p: Sequence[float]) -> list[float]:
    """Return p values adjusted for their number. Rejecting those <= alpha controls the family-wise
    error.

    The i-th smallest of m is multiplied by m - i + 1, raised to the previous one if smaller, and
    capped at 1. Source: Holm 1979.
    """
    adjusted, largest = [0.0] * len(p), 0.0
    for rank, i in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        largest = max(largest, min(1.0, (len(p) - rank) * p[i]))
        adjusted[i] = largest
    return adjusted


SEQUENTIAL_PERMUTATIONS = 10_000  # fewest per pair
_COARSE = 4  # fewest permutations that may reject at a look at the smallest level
_MOST = 1e10  # permuted scores of a look; 50 settings, 4 looks of 5 seeds: 20 to 49 s, 213 MB
_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1) * 1.0  # [256, 8]

Pair = tuple[int, int]  # of agents, by index


@dataclass(frozen=True, slots=True)
class Decision:
    """The decisions of a look.

    status: "decided" (every pair differs), "undecided" (more seeds may follow), or "budget spent"
    (no look is left and a pair is undecided).
    winners: for each pair of agents the better one; None: undecided.
    looks: for each decided pair the look whose scores decided it, from 1 on. It may be earlier than
    ``look`` if the pair could only be decided after others.
    seeds: for each decided pair the seeds of each agent at that look (of the one that had fewer).
    active: agents in an undecided pair, the only ones that need more seeds.
    why: one sentence for a report.
    """

    status: str
    look: int
    winners: dict[Pair, int | None]
    looks: dict[Pair, int]
    seeds: dict[Pair, int]
    active: tuple[int, ...]
    why: str


class Comparison:
    """Group-sequential permutation test of several agents with family-wise error control.

    Every look adds a block of seeds for each active agent. Under the hypothesis that two agents are
    equal, labels may be permuted within each block. The statistic of a pair is abs(mean a - mean b)
    over all blocks so far. At each of K looks a pair may reject in a share alpha / K of the
    permutations, among those that did not reject at an earlier look. All permutations, including
    the identity, are followed through all looks, so the level is exact at any number of seeds, for
    any distribution (Hemerik & Goeman 2018, theorem 2).

    Several pairs: Holm's step-down at each look, alpha / r with r pairs undecided. The rejections
    at alpha / r contain those at smaller levels, which makes the step-down valid for looks as well.
    A pair that rejected at alpha / r at an earlier look is decided as soon as r are undecided. The
    better agent is that with the higher mean at the look that rejected.

    The hypothesis is equality in distribution: agents of equal mean are declared different more
    often if only one of them has failing seeds, as measured in tests/reports/test_coverage.py.

    agents: their number, or their names. looks: K, how often ``update`` may be called.
    pairs: of agents to compare, by index; default all. level: 1 - family-wise error.
    permutations: of each pair's labels; None: ``permutations_needed``.
    Five against five seeds reach p = 0.008 at best, so with five looks or fewer a single pair can
    be decided at the first look.

    Source: Mathieu et al. 2024, "AdaStop: adaptive statistical testing for sound comparisons of
    Deep RL agents", TMLR (blocks, permutations, spending); Maurer & Bretz 2013 (Holm with
    group-sequential tests) instead of AdaStop's maximum over pairs.
    """

    def __init__(
        self,
        agents: int | Sequence[str] = 2,
        *,
        looks: int = 5,
        pairs: Sequence[Pair] | None = None,
        level: float = LEVEL,
        permutations: int | None = None,
        seed: int = 0,
    ) -> None:
        names = [f"agent {i}" for i in range(agents)] if isinstance(agents, int) else list(agents)
        self.names, self.looks, self.level, self.look = names, looks, level, 0
        every = itertools.combinations(range(len(names)), 2)
        chosen = list(every if pairs is None else pairs)
        self.winners: dict[Pair, int | None] = dict.fromkeys(chosen)
        self._decided_at: dict[Pair, int] = {}
        self._seed, self._blocks = seed, list[list[Floats]]()  # [look][agent] scores
        self._labels: dict[tuple[int, int, int], NDArray[np.uint8]] = {}
        self._permutations = permutations or permutations_needed(len(chosen), looks, 1.0 - level)
        share = (1.0 - level) / (looks * np.arange(1, len(chosen) + 1))
        allowed = np.floor(share * self._permutations + 1e-9).astype(int)
        budgets, self._level_of = np.unique(-allowed, return_inverse=True)
        self._tests = {pair: _PairTest(-budgets) for pair in chosen}

    def update(self, *scores: ArrayLike) -> Decision:
        """Add the new ``scores`` [n] of each agent since the last look, and decide.

        Inactive agents get an empty array. A pair is not tested before both agents have 5 seeds. To
        continue after an interruption, give the same blocks in the same order.
        """
        assert self.look < self.looks
        self.look += 1
        self._blocks.append([np.asarray(x, np.float64) for x in scores])
        open_pairs = [pair for pair, winner in self.winners.items() if winner is None]
        for pair in open_pairs:
            if self._seeds(pair, self.look) >= MIN_SEEDS:
                self._tests[pair].add(self._differences(pair), self.look)
        self._step_down(open_pairs)
        return self._decision()

    def _seeds(self, pair: Pair, look: int) -> int:
        """Return the seeds of each agent at a look, those of the one that has fewer."""
        return min(sum(len(block[agent]) for block in self._blocks[:look]) for agent in pair)

    def _differences(self, pair: Pair) -> Floats:
        """Return mean a - mean b of all blocks under every permutation [P]; [0] is the observed
        one.

        Differences within rounding errors are set to 0.
        """
        blocks = [(block[pair[0]], block[pair[1]]) for block in self._blocks]
        every = np.concatenate([x for block in blocks for x in block])
        center = every.mean()  # otherwise sums of large scores would round differences
        sums = np.zeros(self._permutations)
        for look, (a, b) in enumerate(blocks):
            labels = self._labels_of(look, len(a), len(b))
            scores = np.zeros(8 * len(labels))
            scores[: len(a) + len(b)] = np.concatenate([a, b]) - center
            for eight, part in zip(labels, scores.reshape(-1, 8), strict=True):
                sums += (_BITS @ part).take(eight)  # a table of sums is faster than a product
        n = sum(len(a) for a, _ in blocks)
        rest = (every - center).sum() - sums
        differences: Floats = sums / n - rest / (len(every) - n)
        differences[np.abs(differences) <= 1e-12 * np.abs(every).max()] = 0.0
        return differences

    def _labels_of(self, look: int, a: int, b: int) -> NDArray[np.uint8]:
        """Return which of a + b scores of a block get the first label: one bit each [bytes, P].

        Permutation 0 is the identity. All pairs share the permutations, because each test only
        needs its own to be uniform.
        """
        key = (look, a, b)
        if key not in self._labels:
            observed = np.arange(a + b) < a
            rng = np.random.default_rng([self._seed, *key])
            labels = rng.permuted(np.tile(observed, (self._permutations, 1)), axis=1)
            labels[0] = observed
            self._labels[key] = np.ascontiguousarray(np.packbits(labels, axis=1).T)
        return self._labels[key]

    def _step_down(self, open_pairs: list[Pair]) -> None:
        """Reject by Holm: those that cross at alpha / r, then the others at alpha / (r - 1)."""
        while open_pairs:
            level = self._level_of[len(open_pairs) - 1]
            crossed = [pair for pair in open_pairs if level < len(self._tests[pair].rejections)]
            if not crossed:
                return
            for pair in crossed:
                self._decided_at[pair], sign = self._tests[pair].rejections[level]
                self.winners[pair] = pair[0] if sign > 0 else pair[1]
            open_pairs = [pair for pair in open_pairs if pair not in crossed]

    def _decision(self) -> Decision:
        undecided = [pair for pair, winner in self.winners.items() if winner is None]
        last = self.look == self.looks
        status = ("budget spent" if last else "undecided") if undecided else "decided"
        names = self.names
        texts = [f"{names[w]} > {names[b if w == a else a]}"
                 for (a, b), w in self.winners.items() if w is not None]  # fmt: skip
        texts += [f"{names[a]} and {names[b]} undecided" for a, b in undecided]
        why = f"Look {self.look} of {self.looks}: {', '.join(texts)}; probability of any false "
        why += f"difference in the whole study at most {1.0 - self.level:.0%}."
        active = tuple(sorted({agent for pair in undecided for agent in pair}))
        looks = dict(self._decided_at)
        seeds = {pair: self._seeds(pair, look) for pair, look in looks.items()}
        return Decision(status, self.look, dict(self.winners), looks, seeds, active, why)


def permutations_needed(pairs: int, looks: int, alpha: float) -> int:
    """Return the number of permutations that the smallest level, alpha / (pairs * looks), needs."""
    return max(SEQUENTIAL_PERMUTATIONS, int(_COARSE * pairs * looks / alpha) + 1)


def can_compare(pairs: int, *, looks: int, seeds: int, alpha: float) -> bool:
    """Return whether a look at ``pairs`` of agents with ``seeds`` seeds takes minutes at most."""
    return permutations_needed(pairs, looks, alpha) * seeds * max(pairs, 20) <= _MOST


class _PairTest:
    """The permutations of a pair that have rejected, at every level, with the identity's look.

    A permutation that rejects at a level also rejects at all larger ones, by induction over looks:
    fewer have not rejected before, so fewer are above it, and more may reject. Hence one number per
    permutation is enough, and permutations below the largest statistics never need one.

    budgets [L]: permutations that may reject at a look, at each level, the largest level first.
    """

    def __init__(self, budgets: NDArray[np.integer[Any]]) -> None:
        self.budgets = budgets
        self.rows = np.empty(0, np.int32)  # indices of permutations that have rejected
        self.levels = np.empty(0, np.int16)  # number of levels at which each rejects
        # of the observed labels: (look, sign of a - b) for each level that rejects
        self.rejections: list[tuple[int, int]] = []

    def add(self, differences: Floats, look: int) -> None:
        """Spend the error of a look. ``differences`` [P]: mean a - mean b; row 0: the identity."""
        size = np.abs(differences)
        window = min(len(size), len(self.rows) + int(self.budgets[0]) + 1)
        top = np.argpartition(size, len(size) - window)[len(size) - window :]
        top = top[np.argsort(-size[top], kind="stable")]
        level = np.zeros(len(size), np.int16)
        level[self.rows] = self.levels
        rising, before = size[top][::-1], level[top]
        ends = window - np.searchsorted(rising, size[top] * _TIE)  # with ties
        waiting = before <= np.arange(len(self.budgets))[:, None]  # [L, window]
        at_least = waiting.cumsum(1, dtype=np.int32)[:, ends - 1]
        rejects = (at_least <= self.budgets[:, None]) & (size[top] > 0.0)
        level[top] = (~waiting | rejects).sum(0)
        self.rows = np.flatnonzero(level).astype(np.int32)
        self.levels = level[self.rows]
        new = int(level[0]) - len(self.rejections)
        self.rejections += [(look, int(np.sign(differences[0])))] * new
