"""Uniform sampling and proportional prioritized sampling."""

from typing import Any

import numpy as np

from rlrun.buffer import saved
from rlrun.buffer.samplers.base import (
    HostSampler,
    WindowIndex,
    probe_quantiles,
    uniform_probe,
)
from rlrun.buffer.samplers.priority import (
    ALPHA_STEP,
    divide_by_min,
    finite_priorities,
    store_priorities,
)
from rlrun.buffer.samplers.sumtree import SumTree
from rlrun.errors import NumericError
from rlrun.schedule import Schedule, make_schedule
from rlrun.schema import PrioritizedConfig


class Uniform(HostSampler):
    """Uniform sampling with replacement over live windows; weights are 1."""

    def __init__(self, generator: np.random.Generator) -> None:
        self.generator = generator

    def replace_slots(self, dead: np.ndarray, new: np.ndarray) -> None:
        """Nothing: the window index has the live slots."""

    def draw(self, index: WindowIndex, batch: int, env_steps: int) -> tuple[np.ndarray, np.ndarray]:
        """Slots int64 [batch] and weights float32 [batch]; dead candidates are redrawn."""
        slots, live = index.candidates(self.generator.integers(index.num_candidates, size=batch))
        while not live.all():
            missing = np.flatnonzero(~live)
            number = self.generator.integers(index.num_candidates, size=len(missing))
            slots[missing], live[missing] = index.candidates(number)
        return slots, np.ones(batch, np.float32)

    def update(self, slots: np.ndarray, priority: np.ndarray) -> None:
        """Nothing: uniform sampling has no priorities."""

    def metrics(self, env_steps: int) -> dict[str, float]:
        return {}

    def probe(self, index: WindowIndex) -> tuple[np.ndarray, None]:
        return uniform_probe(index)

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

    Weights are w_i = (N P(i))^-beta / max w. The tree holds p^alpha for the current alpha, which
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
        self.sum_tree = SumTree(capacity)
        self.min_tree = SumTree(capacity, minimum=True) if config.weight_norm == "buffer" else None
        self.largest = 1.0  # the largest p ever seen
        self.new_mass = (0.0, -1.0), 0.0  # cached: (largest, alpha), p^alpha of a new slot
        self.count = 0
        self.beta = -1, 0.0  # cached: env steps of the last draw, beta

    def replace_slots(self, dead: np.ndarray, new: np.ndarray) -> None:
        """``new`` slots get the largest priority seen so far (1 at first)."""
        self.count += len(new) - len(dead)
        mass = self.initial_mass()
        self.sum_tree.replace_slots(dead, new, mass, self.raw, self.largest)
        if self.min_tree is not None:
            self.min_tree.replace_slots(
                dead, new, mass if mass > 0 else np.inf, self.raw, self.largest
            )

    def initial_mass(self) -> float:
        """p^alpha of a new slot."""
        known, mass = self.new_mass
        if known != (self.largest, self.alpha):
            mass = float((np.full(1, self.largest) ** self.alpha)[0])
            self.new_mass = (self.largest, self.alpha), mass
        return mass

    def draw(self, index: WindowIndex, batch: int, env_steps: int) -> tuple[np.ndarray, np.ndarray]:
        """Slots int64 [batch], one from each of ``batch`` equal ranges, and weights float32."""
        if env_steps != self.beta[0]:
            self._update_alpha(env_steps)
            self.beta = env_steps, self.beta_at(env_steps)
        beta, total = self.beta[1], self.sum_tree.root
        if not total > 0:
            raise NumericError(
                "buffer.priority_eps = 0: every stored priority is 0, nothing can be drawn; "
                "allowed is any number > 0; set buffer.priority_eps=1e-6"
            )
        slots, weight = self.sum_tree.draw(self.generator.random(batch))
        # N and the sum cancel in w_i / max w: what is left is (p_i / min p)^-beta.
        if self.min_tree is not None:
            weight /= self.min_tree.root
        else:
            divide_by_min(weight)
        weight **= -beta
        return slots, weight.astype(np.float32)

    def update(self, slots: np.ndarray, priority: np.ndarray) -> None:
        """Raises: NumericError on NaN, inf or negative priorities."""
        mass = np.empty(len(slots))
        largest = store_priorities(priority, self.config.priority_eps, slots, self.raw, mass)
        if largest < 0:
            finite_priorities(priority)  # raises
        self.largest = max(self.largest, largest)
        mass **= self.alpha
        self.sum_tree.set(slots, mass)
        if self.min_tree is not None:
            self.min_tree.set(slots, _positive(mass))

    def priorities(self, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        raw = self.raw[slots]
        return raw, raw.astype(np.float64) ** self.alpha

    def _update_alpha(self, env_steps: int) -> None:
        """Rebuild the tree when alpha has changed by ALPHA_STEP."""
        alpha = self.alpha_at(env_steps)
        if abs(alpha - self.alpha) < ALPHA_STEP:
            return
        self.alpha = alpha
        self._rebuild()

    def _rebuild(self) -> None:
        live = ~np.isnan(self.raw)
        mass = np.where(live, self.raw, 1.0).astype(np.float64) ** self.alpha
        self.sum_tree.fill(np.where(live, mass, 0.0))
        if self.min_tree is not None:
            self.min_tree.fill(np.where(live, _positive(mass), np.inf))

    def metrics(self, env_steps: int) -> dict[str, float]:
        return {
            "buffer/alpha": self.alpha,
            "buffer/beta": self.beta_at(env_steps),
            "buffer/priority_max": self.largest,
            "buffer/priority_mean": float(np.nanmean(self.raw, dtype=float)) if self.count else 0.0,
        }

    def probe(self, index: object) -> tuple[np.ndarray, np.ndarray]:
        slots, mass = self.sum_tree.draw(probe_quantiles())
        drawn = mass > 0  # all of them, unless every priority is 0
        return slots[drawn], mass[drawn] * (self.count / max(self.sum_tree.root, 1e-300))

    def check(self, live: np.ndarray) -> str | None:
        known = np.flatnonzero(~np.isnan(self.raw))
        if not np.array_equal(known, np.sort(live)):
            return "the slots that have a priority differ from the stored windows"
        leaves = self.sum_tree.get(np.arange(self.sum_tree.capacity))
        if np.delete(leaves, known).any():
            return "a slot without a window has a priority in the tree"
        if not np.allclose(leaves[known], self.raw[known].astype(float) ** self.alpha, rtol=1e-12):
            return "a leaf differs from p^alpha"
        if self.count != len(known):
            return "the count of windows is wrong"
        return self.sum_tree.check() or (
            self.min_tree.check() if self.min_tree is not None else None
        )

    def arrays(self) -> list[np.ndarray]:
        """Every array owned."""
        return [
            self.raw,
            self.sum_tree.nodes,
            *([self.min_tree.nodes] if self.min_tree is not None else []),
        ]

    def state_dict(self) -> dict[str, Any]:
        """Priorities of live slots, one bit for every slot: few bytes while few are live."""
        live = ~np.isnan(self.raw)
        return {
            "live": np.packbits(live),
            "raw": self.raw[live],
            "alpha": self.alpha,
            "largest": self.largest,
            "rng": self.generator.bit_generator.state,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Parents are recomputed from leaves, so the tree is the saved one bit for bit."""
        saved.like("sampler.live", state["live"], np.packbits(np.isnan(self.raw)))
        live = np.unpackbits(state["live"], count=self.capacity).astype(bool)
        saved.like("sampler.raw", state["raw"], self.raw[live])
        saved.check_priorities("sampler.raw", state["raw"])
        self.raw.fill(np.nan)
        self.raw[live] = state["raw"]
        self.alpha = saved.number("sampler.alpha", state["alpha"], 0, 1)
        self.largest = saved.largest(state["largest"])
        self.count = int((~np.isnan(self.raw)).sum())
        self.generator.bit_generator.state = state["rng"]
        self.beta = -1, 0.0
        self._rebuild()


def _positive(mass: np.ndarray) -> np.ndarray:
    """Masses with 0 (never drawn, so without a weight) replaced by infinity."""
    return np.where(mass > 0, mass, np.inf)
