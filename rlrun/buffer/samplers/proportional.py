"""Which stored windows a batch is made of: uniform, or in proportion to priority.

A sampler knows slots 0..capacity-1, of which those inserted and not removed are live.
"""

from typing import Any

import numpy as np

from rlrun.buffer.samplers.base import HostSampler, WindowIndex
from rlrun.buffer.samplers.priority import ALPHA_STEP, by_least, finite_priorities, raise_priorities
from rlrun.buffer.samplers.sumtree import Tree
from rlrun.errors import NumericError
from rlrun.schedule import Schedule, make_schedule
from rlrun.schema import PrioritizedConfig


class Uniform(HostSampler):
    """Every live window with the same probability, with replacement; weights are 1."""

    def __init__(self, generator: np.random.Generator) -> None:
        self.generator = generator

    def exchange(self, dead: np.ndarray, new: np.ndarray) -> None:
        """Nothing to note: the index knows what is live."""

    def draw(self, index: WindowIndex, batch: int, env_steps: int) -> tuple[np.ndarray, np.ndarray]:
        """Slots int64 [batch] and weights float32 [batch]; a dead place is drawn again."""
        slots, live = index.pick(self.generator.integers(index.extent, size=batch))
        while not live.all():
            missing = np.flatnonzero(~live)
            place = self.generator.integers(index.extent, size=len(missing))
            slots[missing], live[missing] = index.pick(place)
        return slots, np.ones(batch, np.float32)

    def update(self, slots: np.ndarray, priority: np.ndarray) -> None:
        """Priorities have no meaning here."""

    def metrics(self, env_steps: int) -> dict[str, float]:
        return {}

    def check(self, live: np.ndarray) -> str | None:
        return None

    def arrays(self) -> list[np.ndarray]:
        return []

    def state_dict(self) -> dict[str, Any]:
        return {"rng": self.generator.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.generator.bit_generator.state = state["rng"]


class Proportional(HostSampler):
    """P(i) = p_i^alpha / sum p^alpha with p = |delta| + eps; stratified draws.

    Weights are w_i = (N P(i))^-beta / max w. The tree holds p^alpha for the alpha in force, which
    follows its schedule in steps of 0.01. Source: Schaul et al. 2016, section 3.
    """

    def __init__(
        self,
        config: PrioritizedConfig,
        capacity: int,
        *,
        generator: np.random.Generator,
        total_steps: int,
    ) -> None:
        self.config, self.generator, self.capacity = config, generator, capacity
        self.alpha_at: Schedule = make_schedule(config.alpha, total_steps=total_steps)
        self.beta_at: Schedule = make_schedule(config.beta, total_steps=total_steps)
        self.alpha = self.alpha_at(0)
        self.raw = np.full(capacity, np.nan, np.float32)  # p of live slots, NaN elsewhere
        self.sum = Tree(capacity)
        self.least = Tree(capacity, least=True) if config.weight_norm == "buffer" else None
        self.largest = 1.0  # the largest p ever seen
        self.newest = (0.0, -1.0), 0.0  # what a new slot's mass was last computed from, and it
        self.count = 0
        self.clock = -1, 0.0  # env steps of the last draw, and beta then

    def exchange(self, dead: np.ndarray, new: np.ndarray) -> None:
        """Slots ``dead`` go; ``new`` ones get the largest priority seen so far (1 at first).

        A slot in both stays, as a new one.
        """
        self.count += len(new) - len(dead)
        mass = self.entry()
        self.sum.exchange(dead, new, mass, self.raw, self.largest)
        if self.least is not None:
            self.least.exchange(dead, new, mass if mass > 0 else np.inf, self.raw, self.largest)

    def entry(self) -> float:
        """p^alpha of a new slot."""
        known, mass = self.newest
        if known != (self.largest, self.alpha):
            mass = float((np.full(1, self.largest) ** self.alpha)[0])
            self.newest = (self.largest, self.alpha), mass
        return mass

    def draw(self, index: WindowIndex, batch: int, env_steps: int) -> tuple[np.ndarray, np.ndarray]:
        """Slots int64 [batch], one from each of ``batch`` equal ranges, and weights float32."""
        if env_steps != self.clock[0]:
            self._follow(env_steps)
            self.clock = env_steps, self.beta_at(env_steps)
        beta, total = self.clock[1], self.sum.root
        if not total > 0:
            raise NumericError(
                "buffer.priority_eps = 0: every stored priority is 0, nothing can be drawn; "
                "allowed is any number > 0; set buffer.priority_eps=1e-6"
            )
        slots, weight = self.sum.draw(self.generator.random(batch))
        # N and the sum cancel in w_i / max w: what is left is (p_i / min p)^-beta.
        if self.least is not None:
            weight /= self.least.root
        else:
            by_least(weight)
        weight **= -beta
        return slots, weight.astype(np.float32)

    def update(self, slots: np.ndarray, priority: np.ndarray) -> None:
        """Set |delta| of live slots; of duplicates the last wins.

        Raises: NumericError on NaN, inf or negative priorities.
        """
        mass = np.empty(len(slots))
        largest = raise_priorities(priority, self.config.priority_eps, slots, self.raw, mass)
        if largest < 0:
            finite_priorities(priority)  # says which
        self.largest = max(self.largest, largest)
        mass **= self.alpha
        self.sum.set(slots, mass)
        if self.least is not None:
            self.least.set(slots, _positive(mass))

    def _follow(self, env_steps: int) -> None:
        """Rebuild the tree when alpha's schedule has moved far enough."""
        alpha = self.alpha_at(env_steps)
        if abs(alpha - self.alpha) < ALPHA_STEP:
            return
        self.alpha = alpha
        self._rebuild()

    def _rebuild(self) -> None:
        live = ~np.isnan(self.raw)
        mass = np.where(live, self.raw, 1.0).astype(np.float64) ** self.alpha
        self.sum.fill(np.where(live, mass, 0.0))
        if self.least is not None:
            self.least.fill(np.where(live, _positive(mass), np.inf))

    def metrics(self, env_steps: int) -> dict[str, float]:
        return {
            "buffer/alpha": self.alpha,
            "buffer/beta": self.beta_at(env_steps),
            "buffer/priority_max": self.largest,
            "buffer/priority_mean": float(np.nanmean(self.raw, dtype=float)) if self.count else 0.0,
        }

    def check(self, live: np.ndarray) -> str | None:
        known = np.flatnonzero(~np.isnan(self.raw))
        if not np.array_equal(known, np.sort(live)):
            return "the slots that have a priority differ from the stored windows"
        leaves = self.sum.get(np.arange(self.sum.capacity))
        if np.delete(leaves, known).any():
            return "a slot without a window has a priority in the tree"
        if not np.allclose(leaves[known], self.raw[known].astype(float) ** self.alpha, rtol=1e-12):
            return "a leaf differs from p^alpha"
        if self.count != len(known):
            return "the count of windows is wrong"
        return self.sum.check() or (self.least.check() if self.least is not None else None)

    def arrays(self) -> list[np.ndarray]:
        """Every array owned."""
        return [self.raw, self.sum.nodes, *([self.least.nodes] if self.least is not None else [])]

    def state_dict(self) -> dict[str, Any]:
        return {
            "raw": self.raw,
            "alpha": self.alpha,
            "largest": self.largest,
            "rng": self.generator.bit_generator.state,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Parents are recomputed from leaves, so the tree is the saved one bit for bit."""
        self.raw[:] = state["raw"]
        self.alpha, self.largest = float(state["alpha"]), float(state["largest"])
        self.count = int((~np.isnan(self.raw)).sum())
        self.generator.bit_generator.state = state["rng"]
        self.clock = -1, 0.0
        self._rebuild()


def _positive(mass: np.ndarray) -> np.ndarray:
    """Masses with 0 (never drawn, so without a weight) as infinity."""
    return np.where(mass > 0, mass, np.inf)
