"""Which stored windows a batch is made of: uniform, or in proportion to priority.

A sampler knows slots 0..capacity-1, of which those inserted and not removed are live.
"""

from typing import Any, Protocol

import numpy as np

from rlrun.buffer.sumtree import Tree
from rlrun.errors import NumericError
from rlrun.schedule import Schedule, make_schedule
from rlrun.schema import PrioritizedConfig

_ALPHA_STEP = 0.01  # how far alpha may move before the tree is rebuilt from raw priorities


class Sampler(Protocol):
    def insert(self, slots: np.ndarray) -> None: ...
    def remove(self, slots: np.ndarray) -> None: ...
    def draw(self, batch: int, env_steps: int) -> tuple[np.ndarray, np.ndarray]: ...
    def update(self, slots: np.ndarray, priority: np.ndarray) -> None: ...
    def metrics(self, env_steps: int) -> dict[str, float]: ...
    def check(self, live: np.ndarray) -> str | None: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Uniform:
    """Every live slot with the same probability, with replacement; weights are 1."""

    def __init__(self, capacity: int, generator: np.random.Generator) -> None:
        self.generator = generator
        self.live = np.zeros(capacity, bool)
        self.newest = 0  # live slots lie within ``span`` behind it, with few dead between them
        self.span = 0

    def insert(self, slots: np.ndarray) -> None:
        self.live[slots] = True
        if len(slots):
            self.newest = int(slots[-1])
            self.span = min(self.span + len(slots), len(self.live))

    def remove(self, slots: np.ndarray) -> None:
        self.live[slots] = False
        while self.span and not self.live[(self.newest + 1 - self.span) % len(self.live)]:
            self.span -= 1

    def draw(self, batch: int, env_steps: int) -> tuple[np.ndarray, np.ndarray]:
        slots = np.empty(batch, np.int64)
        missing = np.arange(batch)
        while len(missing):  # a dead slot within the span is drawn again
            back = self.generator.integers(self.span, size=len(missing))
            slots[missing] = (self.newest - back) % len(self.live)
            missing = missing[~self.live[slots[missing]]]
        return slots, np.ones(batch, np.float32)

    def update(self, slots: np.ndarray, priority: np.ndarray) -> None:
        """Priorities have no meaning here."""

    def metrics(self, env_steps: int) -> dict[str, float]:
        return {}

    def check(self, live: np.ndarray) -> str | None:
        same = np.array_equal(np.flatnonzero(self.live), np.sort(live))
        return None if same else "the live slots differ from the stored windows"

    def state_dict(self) -> dict[str, Any]:
        rng = self.generator.bit_generator.state
        return {"live": self.live, "newest": self.newest, "span": self.span, "rng": rng}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.live[:] = state["live"]
        self.newest, self.span = int(state["newest"]), int(state["span"])
        self.generator.bit_generator.state = state["rng"]


class Proportional:
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
        self.config, self.generator = config, generator
        self.alpha_at: Schedule = make_schedule(config.alpha, total_steps=total_steps)
        self.beta_at: Schedule = make_schedule(config.beta, total_steps=total_steps)
        self.alpha = self.alpha_at(0)
        self.raw = np.full(capacity, np.nan)  # p of live slots, NaN elsewhere
        self.sum = Tree(capacity)
        self.least = Tree(capacity, np.minimum, np.inf)
        self.largest = 1.0  # the largest p ever seen
        self.count = 0

    def insert(self, slots: np.ndarray) -> None:
        """New slots get the largest priority seen so far (1 at first)."""
        self.count += len(slots)
        self._write(slots, np.full(len(slots), self.largest))

    def remove(self, slots: np.ndarray) -> None:
        self.count -= len(slots)
        self.raw[slots] = np.nan
        self.sum.set(slots, np.zeros(len(slots)))
        if self.config.weight_norm == "buffer":
            self.least.set(slots, np.full(len(slots), np.inf))

    def draw(self, batch: int, env_steps: int) -> tuple[np.ndarray, np.ndarray]:
        self._follow(env_steps)
        total = self.sum.root
        if not total > 0:
            raise NumericError(
                "buffer.priority_eps = 0: every stored priority is 0, nothing can be drawn; "
                "allowed is any number > 0; set buffer.priority_eps=1e-6"
            )
        place = np.arange(batch) + self.generator.random(batch)
        slots = self.sum.find(place * (total / batch))
        scaled = (self.count / total) * self.sum.get(slots)
        beta = self.beta_at(env_steps)
        weight = scaled**-beta
        if self.config.weight_norm == "buffer":
            weight /= (self.count / total * self.least.root) ** -beta
        else:
            weight /= weight.max()
        return slots, weight.astype(np.float32)

    def update(self, slots: np.ndarray, priority: np.ndarray) -> None:
        """Set |delta| of live slots; of duplicates the last wins.

        Raises: NumericError on NaN, inf or negative priorities.
        """
        if not (np.isfinite(priority).all() and (priority >= 0).all()):
            bad = priority[~(np.isfinite(priority) & (priority >= 0))][0]
            raise NumericError(
                f"priority = {bad}: priorities must be finite and >= 0; the loss has diverged; "
                "lower policy.lr or set policy.reward_clip"
            )
        self._write(slots, priority.astype(np.float64) + self.config.priority_eps)

    def _write(self, slots: np.ndarray, raw: np.ndarray) -> None:
        if not len(slots):
            return
        self.largest = max(self.largest, float(raw.max()))
        self.raw[slots] = raw
        self.sum.set(slots, raw**self.alpha)
        if self.config.weight_norm == "buffer":
            self.least.set(slots, _positive(raw**self.alpha))

    def _follow(self, env_steps: int) -> None:
        """Rebuild the tree when alpha's schedule has moved far enough."""
        alpha = self.alpha_at(env_steps)
        if abs(alpha - self.alpha) < _ALPHA_STEP:
            return
        self.alpha = alpha
        self._rebuild()

    def _rebuild(self) -> None:
        live = ~np.isnan(self.raw)
        mass = np.where(live, self.raw, 1.0) ** self.alpha
        self.sum.fill(np.where(live, mass, 0.0))
        if self.config.weight_norm == "buffer":
            self.least.fill(np.where(live, _positive(mass), np.inf))

    def metrics(self, env_steps: int) -> dict[str, float]:
        return {
            "buffer/alpha": self.alpha,
            "buffer/beta": self.beta_at(env_steps),
            "buffer/priority_max": self.largest,
            "buffer/priority_mean": float(np.nanmean(self.raw)) if self.count else 0.0,
        }

    def check(self, live: np.ndarray) -> str | None:
        known = np.flatnonzero(~np.isnan(self.raw))
        if not np.array_equal(known, np.sort(live)):
            return "the slots that have a priority differ from the stored windows"
        leaves = self.sum.get(np.arange(self.sum.capacity))
        if np.delete(leaves, known).any():
            return "a slot without a window has a priority in the tree"
        if not np.allclose(leaves[known], self.raw[known] ** self.alpha, rtol=1e-12):
            return "a leaf differs from p^alpha"
        if self.count != len(known):
            return "the count of windows is wrong"
        return self.sum.check() or self.least.check()

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
        self._rebuild()


def _positive(mass: np.ndarray) -> np.ndarray:
    """Masses with 0 (never drawn, so without a weight) as infinity."""
    return np.where(mass > 0, mass, np.inf)
