"""Sequential comparison of agents: add seeds until it is decided or the budget is spent.

Looking at a test after every few seeds and stopping when it rejects inflates its false positives.
Here the error is spent over the planned looks and over the pairs of agents, so that the chance of
*any* wrong "differs" in the whole study is at most 1 - level.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rlrun.errors import ConfigError
from rlrun.reports.intervals import LEVEL, MIN_SEEDS, Floats, score_array

PERMUTATIONS = 10_000  # of each pair's labels, at least
_COARSE = 4  # permutations that may reject at a look at the smallest level, at least
_MOST = 1e10  # permuted scores of a look; 50 settings, 4 looks of 5 seeds: 20 to 49 s, 213 MB
_TIE = 1.0 - 1e-9
_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).astype(
    np.float64
)  # [256, 8]

Pair = tuple[int, int]  # of agents, by index


@dataclass(frozen=True, slots=True)
class Decision:
    """What a look decided.

    status: "decided" (every pair differs), "undecided" (more seeds may follow), or "budget spent"
    (no look is left and a pair is undecided).
    winners: for each pair of agents the better one; None: undecided.
    looks: for each decided pair the look whose scores decided it, from 1 on. It is earlier than
    ``look`` where that pair came to differ once others were decided.
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

    Every look adds a block of seeds for each agent that is still active. Under the hypothesis that
    two agents are equal, labels may be permuted within each block; the statistic of a pair is
    abs(mean a - mean b) over all blocks so far. At each of K looks a pair may reject in a share
    alpha / K of the permutations, among those that did not reject at an earlier look. A permutation
    is followed through all looks with the identity among them, so that the level is exact at any
    number of seeds, for any distribution (Hemerik & Goeman 2018, theorem 2).

    Several pairs: Holm's step-down at each look, alpha / r with r pairs undecided. The rejections
    at alpha / r contain those at smaller levels, which makes the step-down valid for looks as well.
    A pair that rejected at alpha / r at an earlier look is decided as soon as r are undecided; the
    better agent is that with the higher mean at the look that rejected.

    Equal means equal in distribution: agents of equal mean are told apart more often where only
    one of them has failing seeds; measured in tests/reports/test_coverage.py.

    agents: their number, or their names. looks: K, how often ``update`` may be called.
    pairs: of agents to compare by index; default all. level: 1 - family-wise error.
    permutations: of each pair's labels; None: ``permutations_needed``.
    Five against five seeds reach p = 0.008 at best: with five looks or fewer a single pair can be
    decided at the first. Raises: ConfigError for fewer than two agents or less than one look.

    Source: Mathieu et al. 2024, "AdaStop: adaptive statistical testing for sound comparisons of
    Deep RL agents", TMLR (blocks, permutations, spending); Maurer & Bretz 2013
    (Holm with group-sequential tests) instead of AdaStop's maximum over pairs.
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
        if len(names) < 2 or looks < 1:
            raise ConfigError(
                f"seeds = auto with {len(names)} agents and {looks} looks: cannot be compared; "
                "two agents or more and one look or more are allowed; name another agent"
            )
        self.names, self.looks, self.level = names, looks, level
        self.look = 0
        every = list(itertools.combinations(range(len(names)), 2))
        chosen = every if pairs is None else list(pairs)
        self.winners: dict[Pair, int | None] = dict.fromkeys(chosen)
        self._decided_at: dict[Pair, int] = {}
        self._seed, self._blocks = seed, list[list[Floats]]()  # [look][agent] scores
        self._labels: dict[tuple[int, int, int], NDArray[np.uint8]] = {}
        count = permutations or permutations_needed(len(chosen), looks, 1.0 - level)
        self._permutations = count
        share = (1.0 - level) / (looks * np.arange(1, len(chosen) + 1))
        budgets, self._level_of = np.unique(
            -np.floor(share * count + 1e-9).astype(int), return_inverse=True
        )
        self._tests = {pair: _PairTest(-budgets) for pair in chosen}

    @property
    def scores(self) -> list[Floats]:
        """All scores of each agent so far, in their order."""
        return [
            np.concatenate([np.empty(0), *blocks]) for blocks in zip(*self._blocks, strict=True)
        ]

    def update(self, *scores: ArrayLike) -> Decision:
        """Add the new ``scores`` [n] of each agent since the last look and decide.

        An agent that is no longer active gets an empty array. A pair is not tested before both
        have 5 seeds. To go on after an interruption, give the same blocks in the same order.

        Raises: ConfigError for another number of agents, or when all looks are used.
        """
        if len(scores) != len(self.names) or self.look == self.looks:
            raise ConfigError(
                f"look {self.look + 1} = scores of {len(scores)} agents: cannot be added; "
                f"{self.looks} looks of {len(self.names)} agents are allowed; "
                "plan more looks before the first"
            )
        self.look += 1
        self._blocks.append([score_array(x) if np.size(x) else np.empty(0) for x in scores])
        open_pairs = [pair for pair, winner in self.winners.items() if winner is None]
        for pair in open_pairs:
            if self._seeds(pair, self.look) >= MIN_SEEDS:
                self._tests[pair].add(self._differences(pair), self.look)
        self._step_down(open_pairs)
        return self._decision()

    def _seeds(self, pair: Pair, look: int) -> int:
        """Seeds of each agent at a look; of the one that has fewer."""
        return min(sum(len(block[agent]) for block in self._blocks[:look]) for agent in pair)

    def _differences(self, pair: Pair) -> Floats:
        """Return mean a - mean b of all blocks under every permutation [P]; [0]: as observed.

        Differences that are rounding errors are 0.
        """
        blocks = [(block[pair[0]], block[pair[1]]) for block in self._blocks]
        every = np.concatenate([x for block in blocks for x in block])
        center = every.mean()  # without it sums of large scores would round their differences
        sums = np.zeros(self._permutations)
        for look, (a, b) in enumerate(blocks):
            labels = self._labels_of(look, len(a), len(b))
            scores = np.zeros(8 * len(labels))
            scores[: len(a) + len(b)] = np.concatenate([a, b]) - center
            for eight, part in zip(labels, scores.reshape(-1, 8), strict=True):
                sums += (_BITS @ part).take(eight)  # a table of sums is faster than a product
        n = sum(len(a) for a, _ in blocks)
        rest = (every - center).sum() - sums
        found: Floats = sums / n - rest / (len(every) - n)
        found[np.abs(found) <= 1e-12 * np.abs(every).max()] = 0.0
        return found

    def _labels_of(self, look: int, a: int, b: int) -> NDArray[np.uint8]:
        """Return which of a + b scores of a block get the first label: one bit each [bytes, P].

        Permutation 0 is the identity. All pairs share them: each test needs its own permutations
        to be uniform, no more.
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
        """Holm: reject what crosses at alpha / r, then test the others at alpha / (r - 1)."""
        while open_pairs:
            level = self._level_of[len(open_pairs) - 1]
            crossed = [pair for pair in open_pairs if self._tests[pair].rejects(level)]
            if not crossed:
                return
            for pair in crossed:
                self._decided_at[pair], sign = self._tests[pair].rejected_at(level)
                self.winners[pair] = pair[0] if sign > 0 else pair[1]
            open_pairs = [pair for pair in open_pairs if pair not in crossed]

    def _decision(self) -> Decision:
        undecided = [pair for pair, winner in self.winners.items() if winner is None]
        status = "decided"
        if undecided:
            status = "budget spent" if self.look == self.looks else "undecided"
        found = [
            f"{self.names[w]} > {self.names[b if w == a else a]}"
            for (a, b), w in self.winners.items()
            if w is not None
        ]
        found += [f"{self.names[a]} and {self.names[b]} undecided" for a, b in undecided]
        why = f"Look {self.look} of {self.looks}: {', '.join(found)}; chance of any false "
        why += f"difference in the whole study at most {1.0 - self.level:.0%}."
        active = tuple(sorted({agent for pair in undecided for agent in pair}))
        seeds = {pair: self._seeds(pair, look) for pair, look in self._decided_at.items()}
        return Decision(
            status, self.look, dict(self.winners), dict(self._decided_at), seeds, active, why
        )


def permutations_needed(pairs: int, looks: int, alpha: float) -> int:
    """Return how many permutations the smallest level, alpha / (pairs * looks), needs."""
    return max(PERMUTATIONS, int(_COARSE * pairs * looks / alpha) + 1)


def can_compare(pairs: int, *, looks: int, seeds: int, alpha: float) -> bool:
    """Return whether a look at ``pairs`` of agents of ``seeds`` seeds takes minutes at most."""
    return permutations_needed(pairs, looks, alpha) * seeds * max(pairs, 20) <= _MOST


class _PairTest:
    """Which permutations of a pair have rejected, at every level, with the look of the identity.

    A permutation that rejects at a level does so at all larger ones, by induction over looks: among
    fewer that did not reject before, it has fewer above it, and more may. Hence one number for each
    permutation is enough, and permutations below the largest statistics never need one.

    budgets [L]: permutations that may reject at a look, at each level, the largest level first.
    """

    def __init__(self, budgets: NDArray[np.integer[Any]]) -> None:
        self.budgets = budgets
        self.rows = np.empty(0, np.int32)  # permutations that have rejected
        self.levels = np.empty(0, np.int16)  # at how many levels, each of them
        self._identity: list[tuple[int, int]] = []  # (look, sign of a - b) for each level

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
        new = int(level[0]) - len(self._identity)
        self._identity += [(look, int(np.sign(differences[0])))] * new

    def rejects(self, level: int) -> bool:
        """Return whether the pair differs at a level, by its index in ``budgets``."""
        return level < len(self._identity)

    def rejected_at(self, level: int) -> tuple[int, int]:
        """Return the look at which it came to differ at a level, and the sign of a - b there."""
        return self._identity[level]
