"""Sequential comparison of agents: add seeds until it is decided or the budget is spent.

Looking at a test after every few seeds and stopping when it rejects inflates its false positives.
Here the error is spent over the planned looks and over the pairs of agents, so that the chance of
*any* wrong "differs" in the whole study is at most 1 - level.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from rlrun.errors import ConfigError
from rlrun.report.intervals import LEVEL, MIN_SEEDS, Floats, score_array

PERMUTATIONS = 10_000  # of each pair's labels, at least
_COARSE = 4  # permutations that may reject at a look at the smallest level, at least
_TIE = 1.0 - 1e-9


@dataclass(frozen=True, slots=True)
class Decision:
    """What a look decided.

    status: "decided" (every pair differs), "undecided" (more seeds may follow), or "budget spent"
    (no look is left and a pair is undecided).
    winners: for each pair of agents the one with the higher mean; None: undecided.
    active: agents in an undecided pair, the only ones that need more seeds.
    why: one sentence for a report.
    """

    status: str
    look: int
    winners: dict[tuple[int, int], int | None]
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

    agents: their number, or their names. looks: K, how often ``update`` may be called.
    pairs: of agents to compare by index; default all. level: 1 - family-wise error.
    permutations: of each pair's labels; None: 10000, or more where pairs and looks are many.
    Five against five seeds reach p = 0.008 at best: with five looks or fewer a single pair can be
    decided at the first. Raises: ConfigError for fewer than two agents or less than one look.

    Source: Mathieu et al. 2023, "AdaStop: adaptive statistical testing for sound comparisons of
    Deep RL agents" (blocks, permutations, spending); Maurer & Bretz 2013
    (Holm with group-sequential tests) instead of AdaStop's maximum over pairs.
    """

    def __init__(
        self,
        agents: int | Sequence[str] = 2,
        *,
        looks: int = 5,
        pairs: Sequence[tuple[int, int]] | None = None,
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
        self.scores: list[Floats] = [np.empty(0) for _ in names]
        every = list(itertools.combinations(range(len(names)), 2))
        chosen = every if pairs is None else list(pairs)
        self.winners: dict[tuple[int, int], int | None] = dict.fromkeys(chosen)
        alpha = 1.0 - level
        count = permutations or max(PERMUTATIONS, int(_COARSE * len(chosen) * looks / alpha) + 1)
        self._tests = {
            pair: _PairTest(len(chosen), looks, alpha, count, [seed, *pair]) for pair in chosen
        }

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
        blocks = [score_array(x) if np.size(x) else np.empty(0) for x in scores]
        self.look += 1
        self.scores = [np.append(x, y) for x, y in zip(self.scores, blocks, strict=True)]
        open_pairs = [pair for pair, winner in self.winners.items() if winner is None]
        for a, b in open_pairs:
            enough = min(len(self.scores[a]), len(self.scores[b])) >= MIN_SEEDS
            self._tests[a, b].add(blocks[a], blocks[b], test=enough)
        self._step_down(open_pairs)
        return self._decision()

    def _step_down(self, open_pairs: list[tuple[int, int]]) -> None:
        """Holm: reject what crosses at alpha / r, then test the others at alpha / (r - 1)."""
        while open_pairs:
            crossed = [p for p in open_pairs if self._tests[p].rejects(len(open_pairs))]
            if not crossed:
                return
            for a, b in crossed:
                higher = self.scores[a].mean() > self.scores[b].mean()
                self.winners[a, b] = a if higher else b
            open_pairs = [p for p in open_pairs if p not in crossed]

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
        return Decision(status, self.look, dict(self.winners), active, why)


class _PairTest:
    """The permutations of one pair through all looks. Row 0 is the identity."""

    def __init__(
        self, pairs: int, looks: int, alpha: float, permutations: int, seed: list[int]
    ) -> None:
        self.rng = np.random.default_rng(seed)
        self.sums = np.zeros((2, permutations))
        self.counts = np.zeros(2)
        # Permutations that rejected by now, at alpha / r for r = 1..pairs.
        self.crossed = np.zeros((pairs, permutations), np.bool_)
        share = alpha / (looks * np.arange(1, pairs + 1))
        self.budget = np.floor(share * permutations + 1e-9).astype(int)

    def add(self, a: Floats, b: Floats, *, test: bool) -> None:
        """Add a block of scores; ``test``: spend this look's error on it."""
        n = len(self.sums[0])
        block = self.rng.permuted(np.tile(np.concatenate([a, b]), (n, 1)), axis=1)
        block[0] = np.concatenate([a, b])
        self.sums += block[:, : len(a)].sum(1), block[:, len(a) :].sum(1)
        self.counts += len(a), len(b)
        if not test:
            return
        statistic = np.abs(self.sums[0] / self.counts[0] - self.sums[1] / self.counts[1])
        statistic[statistic <= 1e-12 * np.abs(self.sums).max()] = 0.0
        for crossed, budget in zip(self.crossed, self.budget, strict=True):
            rest = np.sort(statistic[~crossed])
            at_least = len(rest) - np.searchsorted(rest, statistic * _TIE)
            crossed |= (at_least <= budget) & (statistic > 0.0)

    def rejects(self, undecided: int) -> bool:
        """Return whether the pair differs at alpha / ``undecided``."""
        return bool(self.crossed[undecided - 1, 0])
