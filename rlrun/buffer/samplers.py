"""Samplers: choose the windows of a batch and their importance weights.

A window is identified by its slot, 0..capacity-1. Some slots hold a live window.
"""

from typing import Any

import numpy as np

from rlrun.buffer import kernels, saved
from rlrun.buffer.kernels import LARGEST
from rlrun.buffer.layout import ArraySpec, in_memory, num_leaves, sampler_blocks
from rlrun.errors import NumericError
from rlrun.functional.schedule import Schedule, make_schedule
from rlrun.schema import PrioritizedConfig, PriorityConfig, RankConfig

ALPHA_STEP = 0.01  # change of alpha at which p^alpha is recomputed
PROBES = 1024
_OFFSETS = np.random.default_rng(0).random(PROBES)  # in [0, 1), in each of PROBES equal ranges


class Uniform:
    """Uniform sampling with replacement over live windows, weights 1. Base class of samplers."""

    def __init__(self, generator: np.random.Generator) -> None:
        self.generator = generator

    def replace_slots(self, dead: np.ndarray, new: np.ndarray) -> None:
        """Remove live slots ``dead``, which are never drawn again, and insert slots ``new``.

        A slot in both is new.
        """

    def draw(self, table: Any, batch: int, env_steps: int) -> tuple[np.ndarray, np.ndarray]:
        """Return slots int64 [batch] and importance weights float32 [batch].

        Numbers that fall on slots without a window are redrawn.
        """
        slots, found = np.empty(batch, np.int64), 0
        while found < batch:
            found = table.live_slots(self.generator.random(batch - found), slots, found)
        return slots, np.ones(batch, np.float32)

    def update(self, slots: np.ndarray, priority: np.ndarray) -> None:
        """Set |delta| (float [n]) of live slots (int64 [n]); of duplicates the last wins.

        Raises: NumericError on NaN, inf or negative priorities.
        """

    def priorities(self, slots: np.ndarray) -> np.ndarray | None:
        """Return |delta| [n] of live slots; None: uniform sampling."""
        return None

    def metrics(self, env_steps: int) -> dict[str, float]:
        """Return buffer/ metrics of the priorities."""
        return {}

    def probe(self, table: Any) -> tuple[np.ndarray, np.ndarray | None]:
        """Return (live slots int64 [n], N P(slot) float64 [n]; None: all are equally likely).

        The slots are those at fixed quantiles of the sampling distribution. Metrics of sampled
        windows are then a function of the stored windows, without random numbers.
        """
        slots = np.empty(PROBES, np.int64)
        return slots[: table.live_slots((np.arange(PROBES) + _OFFSETS) / PROBES, slots)], None

    def check(self, live: np.ndarray) -> str | None:
        """Return a broken invariant, or None. ``live``: the slots of the stored windows."""
        return None

    def state_dict(self) -> dict[str, Any]:
        return {"rng": self.generator.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a ``state_dict``. Raises: CheckpointError."""
        self.generator.bit_generator.state = state["rng"]


class Prioritized(Uniform):
    """Base class of prioritized samplers: schedules of alpha and beta, and the largest p.

    New slots get the largest priority seen so far (1 at first). Alpha follows its schedule in steps
    of 0.01. Source: Schaul et al. 2016, section 3.
    """

    def __init__(
        self, config: PriorityConfig, capacity: int, generator: np.random.Generator, *,
        total_steps: int,
    ) -> None:  # fmt: skip
        super().__init__(generator)
        self.capacity = capacity
        self.alpha_at: Schedule = make_schedule(config.alpha, total_steps=total_steps)
        self.beta_at: Schedule = make_schedule(config.beta, total_steps=total_steps)
        self.alpha = self.alpha_at(0)
        self.raw = np.full(capacity, np.nan, np.float32)  # p of live slots, NaN elsewhere
        self.largest = 1.0  # the largest p ever seen
        self.count = 0

    def follow_alpha(self, env_steps: int) -> None:
        """Recompute p^alpha if alpha has changed by ``ALPHA_STEP``."""
        alpha = self.alpha_at(env_steps)
        if abs(alpha - self.alpha) >= ALPHA_STEP:
            self.alpha = alpha
            self._tabulate()

    def _tabulate(self) -> None:
        """Recompute p^alpha."""
        raise NotImplementedError

    def priorities(self, slots: np.ndarray) -> np.ndarray:
        raw: np.ndarray = self.raw[slots]
        return raw

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
        if self.count != len(known):
            return "the number of priorities differs from the number of windows"
        p = self.raw[known]
        if (p < 0).any() or (p > self.largest).any():
            return "a priority is negative, or larger than the largest seen"
        return None

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"alpha": self.alpha, "largest": self.largest}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.alpha = saved.number("sampler.alpha", state["alpha"], 0, 1)
        self.largest = saved.largest(state["largest"])
        self.count = int((~np.isnan(self.raw)).sum())
        self._tabulate()


class Proportional(Prioritized):
    """P(i) = p_i^alpha / sum p^alpha with p = |delta| + eps; stratified draws.

    Weights are w_i = (N P(i))^-beta / max w. The tree holds p^alpha for the current alpha.
    """

    def __init__(
        self, config: PrioritizedConfig, capacity: int, *, generator: np.random.Generator,
        total_steps: int,
    ) -> None:  # fmt: skip
        super().__init__(config, capacity, generator, total_steps=total_steps)
        self.eps = config.priority_eps
        self.sum_tree = SumTree(capacity)
        self.new_mass = (0.0, -1.0), 0.0  # cached: (largest, alpha), p^alpha of a new slot
        self.beta = -1, 0.0  # cached: env steps of the last draw, beta

    def replace_slots(self, dead: np.ndarray, new: np.ndarray) -> None:
        self.count += len(new) - len(dead)
        known, mass = self.new_mass
        if known != (self.largest, self.alpha):
            mass = float((np.full(1, self.largest) ** self.alpha)[0])
            self.new_mass = (self.largest, self.alpha), mass
        kernels.replace_leaves(self.sum_tree.arrays, dead, new, mass, self.raw, self.largest)

    def draw(self, table: object, batch: int, env_steps: int) -> tuple[np.ndarray, np.ndarray]:
        """Return slots int64 [batch], one from each equal range, and weights float32."""
        if env_steps != self.beta[0]:
            self.follow_alpha(env_steps)
            self.beta = env_steps, self.beta_at(env_steps)
        if not self.sum_tree.nodes[1] > 0:  # the sum of all
            raise NumericError(
                "buffer.priority_eps = 0: every stored priority is 0, nothing can be drawn; "
                "allowed is any number > 0; set buffer.priority_eps=1e-6"
            )
        weight = self.generator.random(batch)  # overwritten with p^alpha
        slots, least = kernels.draw_leaves(self.sum_tree.arrays, weight)
        # N and the sum cancel in w_i / max w, which leaves (p_i / min p)^-beta.
        weight /= least
        weight **= -self.beta[1]
        return slots, weight.astype(np.float32)

    def update(self, slots: np.ndarray, priority: np.ndarray) -> None:
        mass = np.empty(len(slots))
        largest = kernels.store_priorities(priority, self.eps, slots, self.raw, mass)
        if largest < 0:
            require_finite(priority)
        self.largest = max(self.largest, largest)
        mass **= self.alpha
        kernels.set_leaves(self.sum_tree.arrays, slots, mass)

    def _tabulate(self) -> None:
        live = ~np.isnan(self.raw)
        mass = np.where(live, self.raw, 1.0).astype(np.float64) ** self.alpha
        self.sum_tree.fill(np.where(live, mass, 0.0))

    def probe(self, table: object) -> tuple[np.ndarray, np.ndarray]:
        mass = _OFFSETS.copy()  # overwritten with p^alpha
        slots, _ = kernels.draw_leaves(self.sum_tree.arrays, mass)
        drawn = mass > 0  # all, unless every priority is 0
        return slots[drawn], mass[drawn] * (self.count / max(self.sum_tree.root, 1e-300))

    def check(self, live: np.ndarray) -> str | None:
        if (problem := super().check(live)) is not None:
            return problem
        leaves = self.sum_tree.nodes[self.sum_tree.leaves :][: self.capacity]
        if np.delete(leaves, live).any():
            return "a slot without a window has a priority in the tree"
        if not np.allclose(leaves[live], self.raw[live].astype(float) ** self.alpha, rtol=1e-12):
            return "a leaf differs from p^alpha"
        return self.sum_tree.check()

    def state_dict(self) -> dict[str, Any]:
        """Return the priorities of live slots and a bit per slot, small while few are live."""
        live = ~np.isnan(self.raw)
        return super().state_dict() | {"live": np.packbits(live), "raw": self.raw[live]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a ``state_dict``. Parents are recomputed, bit for bit as they were."""
        saved.like("sampler.live", state["live"], np.packbits(np.isnan(self.raw)))
        live = np.unpackbits(state["live"], count=self.capacity).astype(bool)
        saved.like("sampler.raw", state["raw"], self.raw[live])
        saved.check_priorities("sampler.raw", state["raw"])
        self.raw.fill(np.nan)
        self.raw[live] = state["raw"]
        self.beta = -1, 0.0
        super().load_state_dict(state)


class Rank(Prioritized):
    """P(i) = p_i^alpha / sum p^alpha with p_i = 1 / rank(i) and rank by |delta|; stratified draws.

    A full sort (ties: lower slots first) computes the ranks every ``resort_every`` env steps, and
    when more than a sixteenth of the windows has a new |delta|. Until then a window keeps its rank,
    and new windows, whose |delta| is the largest seen, come first. The k equal-probability segments
    are equal ranges of the cumulative distribution over ranks, so the frequencies are exactly P(i)
    for any number of live slots. Ranks of dropped windows are redrawn. Weights are w_i = (N
    P(i))^-beta / max w.

    Cost for N live slots: update O(1), draw O(log N) (search in the cumulative table), sort O(N log
    N), a change of alpha by 0.01 O(N). Memory: 21 bytes per slot.

    Source: Schaul et al. 2016, section 3.3, which approximates the order by an array-based heap.
    """

    def __init__(
        self, config: RankConfig, capacity: int, *, generator: np.random.Generator,
        total_steps: int,
    ) -> None:  # fmt: skip
        super().__init__(config, capacity, generator, total_steps=total_steps)
        self.resort_every = config.resort_every
        arrays = {
            n: np.zeros(b.shape, b.dtype) for n, b in sampler_blocks("rank", capacity).items()
        }
        # Slots by rank from ``begin`` on, best first; -1 where a window was dropped. It grows to
        # the left: new windows rank before all others.
        self.order, self.begin = arrays["order"], len(arrays["order"])
        self.position = arrays["position"]  # index in ``order`` of every live slot
        self.cdf = arrays["cdf"]  # sum of rank^-alpha over ranks 1..i+1
        self.sorted_at = 0  # env steps of the last full sort
        self.changed = 0  # |delta| set since
        self._tabulate()

    def replace_slots(self, dead: np.ndarray, new: np.ndarray) -> None:
        self.order[self.position[dead]] = -1
        self.raw[dead] = np.nan
        if len(new) > self.begin:
            self.sort()
        end, self.begin = self.begin, self.begin - len(new)
        self.order[self.begin : end] = new
        self.position[new] = np.arange(self.begin, end)
        self.raw[new] = self.largest
        self.count += len(new) - len(dead)

    def sort(self) -> None:
        """Make every rank exact.

        Priority and slot are packed into one integer, because the bits of non-negative floats order
        as the floats do. Sorting by value is 9 times faster than ``argsort`` (13 ms instead of 114
        for 1e6).
        """
        assert self.capacity <= 1 << 32
        slots = np.flatnonzero(~np.isnan(self.raw))
        falling = ~self.raw[slots].view(np.uint32)
        both = (falling.astype(np.uint64) << np.uint64(32)) | slots.astype(np.uint64)
        both.sort()
        self._rank((both & np.uint64(0xFFFFFFFF)).astype(self.order.dtype))

    def _rank(self, order: np.ndarray) -> None:
        """Rank the slots of ``order``, best first; -1 is no slot."""
        self.begin = len(self.order) - len(order)
        self.order[self.begin :] = order
        live = np.flatnonzero(order >= 0)
        self.position[order[live]] = self.begin + live

    def draw(self, table: object, batch: int, env_steps: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (slots int64 [B], weights float32 [B]), one slot from each of B equal segments.

        N and the normalising sum cancel in w_i / max w, which leaves (rank_i / rank_max)^(alpha
        beta). rank_max is the largest rank of the batch.
        """
        assert self.count > 0, "a draw from an empty buffer"
        self.follow_alpha(env_steps)
        due = env_steps - self.sorted_at >= self.resort_every
        if due or self.changed > self.count // 16:
            self.sort()
            self.sorted_at, self.changed = env_steps, 0
        rank = self._find((np.arange(batch) + self.generator.random(batch)) / batch)
        slots = self._slots(rank)
        while (slots < 0).any():
            missing = np.flatnonzero(slots < 0)
            rank[missing] = self._find(self.generator.random(len(missing)))
            slots[missing] = self._slots(rank[missing])
        weight = (rank / rank.max()) ** (self.alpha * self.beta_at(env_steps))
        return slots, weight.astype(np.float32)

    def _find(self, share: np.ndarray) -> np.ndarray:
        """Return the ranks, int64, at ``share`` (in [0, 1)) of the cumulative distribution."""
        used = len(self.order) - self.begin
        rank = self.cdf[:used].searchsorted(share * self.cdf[used - 1], side="right") + 1
        ranks: np.ndarray = np.minimum(rank, used)  # rounding may exceed the total
        return ranks

    def _slots(self, rank: np.ndarray) -> np.ndarray:
        """Return the slots of these ranks, int64; -1: the window was dropped."""
        slots: np.ndarray = self.order[self.begin + rank - 1].astype(np.int64)
        return slots

    def update(self, slots: np.ndarray, priority: np.ndarray) -> None:
        require_finite(priority)
        p = np.minimum(priority.astype(np.float64), LARGEST).astype(np.float32) + np.float32(0)
        self.changed += len(slots)
        self.raw[slots] = p  # + 0.0 turned -0.0 into 0.0; its bits would sort it last
        self.largest = max(self.largest, float(p.max(initial=0)))

    def _total(self) -> float:
        """Return the sum of rank^-alpha over live slots."""
        if self.count == len(self.order) - self.begin:
            return float(self.cdf[self.count - 1])
        rank = np.flatnonzero(self.order[self.begin :] >= 0) + 1.0
        return float((rank**-self.alpha).sum())

    def _tabulate(self) -> None:
        """Compute the cumulative table for alpha over all possible ranks."""
        self.cdf[:] = np.arange(1, len(self.cdf) + 1)
        np.power(self.cdf, -self.alpha, out=self.cdf)
        np.cumsum(self.cdf, out=self.cdf)

    def probe(self, table: object) -> tuple[np.ndarray, np.ndarray]:
        rank = self._find((np.arange(PROBES) + _OFFSETS) / PROBES)
        slots = self._slots(rank)
        probability = rank[slots >= 0] ** -self.alpha * (self.count / self._total())
        return slots[slots >= 0], probability

    def check(self, live: np.ndarray) -> str | None:
        mass = np.arange(1, len(self.cdf) + 1) ** -self.alpha
        if not np.allclose(np.diff(self.cdf, prepend=0), mass, rtol=1e-6):
            return "the cumulative table is not that of alpha"
        order = self.order[self.begin :]
        if not np.array_equal(np.sort(order[order >= 0]), np.sort(live)):
            return "the slots that have a rank differ from the stored windows"
        if not np.array_equal(self.order[self.position[live]], live):
            return "a position is not where its slot has its rank"
        return super().check(live)

    def state_dict(self) -> dict[str, Any]:
        """Return the state with the order, on which ranks depend until the next sort."""
        order = self.order[self.begin :]
        raw = self.raw[order[order >= 0]]
        clock = {"sorted_at": self.sorted_at, "changed": self.changed}
        return super().state_dict() | clock | {"order": order, "raw": raw}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        order: np.ndarray = state["order"]
        saved.like("sampler.order", order, self.order, skip=0)
        saved.require(len(order) <= len(self.order), "sampler.order", "has more entries than ranks")
        live = order[order != -1]
        once = len(np.unique(live)) == len(live)
        good = once and ((live >= 0) & (live < self.capacity)).all()
        saved.require(good, "sampler.order", "is not a permutation of slots")
        saved.like("sampler.raw", state["raw"], self.raw[live])
        saved.check_priorities("sampler.raw", state["raw"])
        self.raw.fill(np.nan)
        self.raw[live] = state["raw"]
        self._rank(order)
        for name in ("sorted_at", "changed"):
            setattr(self, name, saved.integer(f"sampler.{name}", state[name], 0, saved.MOST_ROWS))
        super().load_state_dict(state)


def require_finite(priority: np.ndarray) -> None:
    """Raise NumericError for the first |delta| [n] that is NaN, infinite or negative."""
    good = (priority >= 0) & (priority < np.inf)
    if not good.all():
        raise NumericError(
            f"priority = {priority[~good][0]}: the loss has diverged; finite numbers >= 0 are "
            "allowed; lower policy.lr or set policy.reward_clip"
        )


def probe_metrics(probability: np.ndarray | None, beta: float | None) -> dict[str, float]:
    """Return buffer/ metrics of N P(i) [n] at the quantiles of P over N windows; {} if uniform.

    priority_ess   1 / (N sum_i P(i)^2) = 1 / E_P[N P(i)], Kish's effective sample size over N
    weight_spread  standard deviation over mean of the importance weights (N P(i))^-beta; the
                   quantiles miss the large weights of windows that are almost never sampled

    Source: Kish 1965, Survey Sampling, section 11.7; Schaul et al. 2016, section 3.4.
    """
    if probability is None or beta is None or not len(probability):
        return {}
    weight = probability**-beta
    return {
        "buffer/priority_ess": min(1.0, 1.0 / float(probability.mean())),
        "buffer/weight_spread": float(weight.std() / weight.mean()),
    }


class SumTree:
    """Binary tree of sums over leaves 0..capacity-1.

    Updates and searches are O(log N). Parents are recomputed from children in float64. Adjusting
    them by differences drifts (2.7e-4 relative after 2e5 updates in the reference scheme of Schaul
    et al. 2016).
    """

    def __init__(self, capacity: int) -> None:
        assert capacity >= 1
        self.leaves = num_leaves(capacity)
        # Node i has children 2i and 2i + 1.
        self.nodes = in_memory(ArraySpec((2 * self.leaves,), np.dtype(np.float64)))
        self.arrays = self.nodes, self.leaves  # as kernels take them

    @property
    def root(self) -> float:
        """The sum of all leaves."""
        return float(self.nodes[1])

    def fill(self, values: np.ndarray) -> None:
        """Write leaves 0..len(values)-1 and clear the rest, in one vectorised pass."""
        self.nodes[self.leaves :] = 0.0
        self.nodes[self.leaves : self.leaves + len(values)] = values
        size = self.leaves
        while size > 1:
            level = self.nodes[size : 2 * size]
            size >>= 1
            self.nodes[size : 2 * size] = level[0::2] + level[1::2]

    def check(self) -> str | None:
        """Return a broken invariant, or None."""
        level = self.nodes[2:]
        if not np.array_equal(level[0::2] + level[1::2], self.nodes[1 : self.leaves]):
            return "a parent differs from the reduction of its children"
        return None
