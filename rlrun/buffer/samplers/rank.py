"""Rank-based prioritized sampling."""

from typing import Any

import numpy as np

from rlrun.buffer import saved
from rlrun.buffer.samplers import heap as heaps
from rlrun.buffer.samplers.base import PROBES, HostSampler, probe_quantiles
from rlrun.buffer.samplers.priority import ALPHA_STEP, finite_priorities
from rlrun.buffer.storage.layout import rank_arrays
from rlrun.schedule import Schedule, make_schedule
from rlrun.schema import RankConfig


class Rank(HostSampler):
    """P(i) = p_i^alpha / sum p^alpha with p_i = 1 / rank(i); stratified draws.

    rank(i) is the index of slot i, from 1, in the array of a binary max-heap over |delta|, which
    approximates the array sorted by |delta| descending; every ``resort_every`` environment steps it
    is sorted fully (ties: lower slots first). The k equal-probability segments are equal ranges of
    the cumulative distribution over ranks, split within a rank where needed, so the frequencies are
    exactly P(i) for any number of live slots. Weights are w_i = (N P(i))^-beta / max w.

    Cost for N live slots: update O(log N), draw O(log N) (search in the cumulative table), re-sort
    O(N log N), a change of alpha by 0.01 O(capacity). Memory: 20 bytes per slot.

    Source: Schaul et al. 2016, section 3.3 and its implementation appendix (heap, re-sort).
    """

    def __init__(
        self,
        config: RankConfig,
        capacity: int,
        *,
        generator: np.random.Generator,
        total_steps: int,
    ) -> None:
        self.config, self.generator = config, generator
        self.alpha_at: Schedule = make_schedule(config.alpha, total_steps=total_steps)
        self.beta_at: Schedule = make_schedule(config.beta, total_steps=total_steps)
        own = {name: np.empty(*like) for name, like in rank_arrays(capacity).items()}
        self.heap, self.position = own["heap"], own["position"]
        self.priority = own["priority"]  # |delta| of live slots, NaN elsewhere
        self.cdf = own["cdf"]  # sum of rank^-alpha over ranks 1..i+1
        self.heap.fill(-1)
        self.position.fill(-1)
        self.priority.fill(np.nan)
        self.count = 0
        self.largest = 1.0  # the largest |delta| ever seen
        self.sorted_at = 0  # env steps of the last full sort
        self._tabulate(self.alpha_at(0))

    def replace_slots(self, dead: np.ndarray, new: np.ndarray) -> None:
        """``new`` slots get the largest priority seen so far (1 at first)."""
        arrays = self.heap, self.position, self.priority
        self.count = heaps.remove(*arrays, self.count, dead)
        self.count = heaps.push(*arrays, self.count, new, self.largest)

    def draw(self, index: object, batch: int, env_steps: int) -> tuple[np.ndarray, np.ndarray]:
        """(slots int64 [B], weights float32 [B]), one slot from each of B equal segments.

        N and the normalising sum cancel in w_i / max w, which leaves (rank_i / rank_max)^(alpha
        beta), where rank_max is the largest rank of the batch or, for ``weight_norm: buffer``, N.
        """
        assert self.count > 0, "a draw from an empty buffer"
        alpha = self.alpha_at(env_steps)
        if abs(alpha - self.alpha) >= ALPHA_STEP:
            self._tabulate(alpha)
        if env_steps - self.sorted_at >= self.config.resort_every:
            self.resort(env_steps)
        mass = np.arange(batch) + self.generator.random(batch)
        mass *= self.cdf[self.count - 1] / batch
        at = self.cdf[: self.count].searchsorted(mass, side="right")
        np.minimum(at, self.count - 1, out=at)  # rounding may carry a mass past the total
        rank = at + 1
        most = self.count if self.config.weight_norm == "buffer" else rank.max()
        weight = (rank / most) ** (self.alpha * self.beta_at(env_steps))
        return self.heap[at].astype(np.int64), weight.astype(np.float32)

    def update(self, slots: np.ndarray, priority: np.ndarray) -> None:
        """Set |delta| of live slots (int64 [n], float [n]); of duplicates the last wins.

        Raises: NumericError on NaN, inf or negative priorities.
        """
        finite_priorities(priority)
        arrays = self.heap, self.position, self.priority
        values = np.ascontiguousarray(priority, np.float64)  # one compiled kernel for all dtypes
        self.largest = heaps.update(*arrays, self.count, slots, values, self.largest)

    def priorities(self, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.priority[slots], (self.position[slots] + 1.0) ** -self.alpha

    def resort(self, env_steps: int) -> None:
        """Make every rank exact."""
        heaps.resort(self.heap, self.position, self.priority, self.count)
        self.sorted_at = env_steps

    def _tabulate(self, alpha: float) -> None:
        """Compute the cumulative table for ``alpha`` over all possible ranks."""
        self.alpha = alpha
        self.cdf[:] = np.arange(1, len(self.cdf) + 1)
        np.power(self.cdf, -alpha, out=self.cdf)
        np.cumsum(self.cdf, out=self.cdf)

    def metrics(self, env_steps: int) -> dict[str, float]:
        total = np.nansum(self.priority, dtype=np.float64)
        return {
            "buffer/alpha": self.alpha,
            "buffer/beta": self.beta_at(env_steps),
            "buffer/priority_max": self.largest,
            "buffer/priority_mean": float(total) / max(self.count, 1),
        }

    def probe(self, index: object) -> tuple[np.ndarray, np.ndarray]:
        total = self.cdf[self.count - 1]
        mass = (np.arange(PROBES) + probe_quantiles()) * (total / PROBES)
        at = self.cdf[: self.count].searchsorted(mass, side="right")
        np.minimum(at, self.count - 1, out=at)
        return self.heap[at].astype(np.int64), (at + 1.0) ** -self.alpha * (self.count / total)

    def check(self, live: np.ndarray) -> str | None:
        mass = np.arange(1, len(self.cdf) + 1) ** -self.alpha
        if not np.allclose(np.diff(self.cdf, prepend=0), mass, rtol=1e-6):
            return "the cumulative table is not that of alpha"
        problem = heaps.check(self.heap, self.position, self.priority, self.count, live)
        if problem is None and self.count and float(np.nanmax(self.priority)) > self.largest:
            return "a priority is larger than the largest seen"
        return problem

    def arrays(self) -> list[np.ndarray]:
        """Every array owned, in the order of ``rank_arrays``."""
        return [self.heap, self.position, self.priority, self.cdf]

    def state_dict(self) -> dict[str, Any]:
        """Includes the order of the heap: ranks depend on its history."""
        heap = self.heap[: self.count]
        return {
            "heap": heap,
            "priority": self.priority[heap],
            "alpha": self.alpha,
            "largest": self.largest,
            "sorted_at": self.sorted_at,
            "rng": self.generator.bit_generator.state,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        heap: np.ndarray = state["heap"]
        saved.like("sampler.heap", heap, self.heap, skip=0)
        saved.check_heap(heap, len(self.heap))
        saved.like("sampler.priority", state["priority"], self.priority[heap])
        saved.check_priorities("sampler.priority", state["priority"])
        self.count = len(heap)
        self.heap[: self.count], self.heap[self.count :] = heap, -1
        self.priority.fill(np.nan)
        self.priority[heap] = state["priority"]
        self.largest = saved.largest(state["largest"])
        self.sorted_at = saved.integer("sampler.sorted_at", state["sorted_at"], 0, saved.MOST_ROWS)
        self.generator.bit_generator.state = state["rng"]
        self.position.fill(-1)
        self.position[self.heap[: self.count]] = np.arange(self.count)
        self._tabulate(saved.number("sampler.alpha", state["alpha"], 0, 1))
