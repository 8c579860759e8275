"""Uniform and proportional samplers in torch ops, on the device that holds the priorities.

The same samplers on the host: ``buffer/samplers/``.

``draw`` and ``update`` never wait for the device: no number is read, no shape depends on data. A
bad priority is therefore noted on the device and raised by ``synchronize``, which ``metrics`` and
``state_dict`` of the replay call.
"""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlrun.buffer import saved
from rlrun.buffer.device.sumtree import DeviceSumTree
from rlrun.buffer.samplers.base import PROBES, WindowIndex, probe_quantiles, uniform_probe
from rlrun.buffer.samplers.priority import ALPHA_STEP, LARGEST, finite_priorities
from rlrun.errors import NumericError
from rlrun.schedule import Schedule, make_schedule
from rlrun.schema import PrioritizedConfig


def upload(array: np.ndarray, device: torch.device) -> Tensor:
    """Copy the array to ``device`` asynchronously; on the CPU the tensor shares its memory.

    CUDA stages pageable memory before this returns, but reads pinned memory later: a pinned array
    must not be written to again.
    """
    return torch.from_numpy(np.ascontiguousarray(array)).to(device, non_blocking=True)


class DeviceSampler(ABC):
    """Base class of samplers on a device: the live slots, and errors deferred to ``synchronize``.

    Slot number ``slots`` is a dummy: values that must not be kept are written there, because
    leaving them out would make shapes depend on data.
    """

    def __init__(self, slots: int, *, generator: torch.Generator, device: torch.device) -> None:
        self.slots, self.generator, self.device = slots, generator, device
        self.alive = torch.zeros(slots + 1, dtype=torch.bool, device=device)
        self.count = 0
        self.deferred = torch.zeros(3, dtype=torch.float64, device=device)
        self.late, self.worst_priority, self.smallest_total = self.deferred.unbind()  # views
        self.smallest_total.fill_(np.inf)

    # -- live slots --------------------------------------------------------------------------------

    def replace_slots(self, dead: np.ndarray, new: np.ndarray) -> None:
        self.count += len(new) - len(dead)
        if len(dead) and len(new):
            dead = dead[~np.isin(dead, new)]
        removed, inserted = upload(dead, self.device), upload(new, self.device)
        self.alive.index_fill_(0, removed, False)
        self.alive.index_fill_(0, inserted, True)
        if len(dead) or len(new):
            self._replace_slots(removed, inserted)

    def set_live(self, live: np.ndarray) -> None:
        self.count = len(live)
        self.alive.fill_(False)
        self.alive.index_fill_(0, upload(live, self.device), True)

    def synchronize(self) -> int:
        """Return the late priorities since the last call; waits for the device.

        Raises: NumericError when a priority was NaN, infinite or negative, or all of them were 0.
        """
        late, worst, total = self.deferred.tolist()
        finite_priorities(np.array([worst]))
        if not total > 0:
            raise NumericError(
                "buffer.priority_eps = 0: every stored priority was 0, so none could be drawn; "
                "allowed is any number > 0; set buffer.priority_eps=1e-6"
            )
        self.late.zero_()
        return int(late)

    def update(self, slots: Tensor, priority: Tensor) -> None:
        """Set |delta| of live slots; bad priorities are dropped and raised by ``synchronize``."""
        if len(slots):
            self._update(slots, priority, None)

    def update_found(self, slots: Tensor, priority: Tensor, alive: Tensor) -> int:
        """``update`` where ``alive``. Returns 0: ``synchronize`` counts the others."""
        if len(slots):
            self.late += (~alive).sum()
            self._update(slots, priority, alive)
        return 0

    def _masked(self, slots: Tensor, priority: Tensor, alive: Tensor | None) -> tuple[Tensor, ...]:
        """(slots, priority, keep): the dummy slot and priority 0 where ``keep`` is False."""
        fault = torch.where(priority < 0, priority, priority - priority)  # NaN - NaN, inf - inf
        self.worst_priority.copy_(torch.minimum(self.worst_priority, fault.amin()))
        keep = fault == 0 if alive is None else (fault == 0) & alive
        return torch.where(keep, slots, self.slots), torch.where(keep, priority, 0), keep

    def _stratified(self, batch: int, total: Tensor) -> Tensor:
        """One number from each of ``batch`` equal ranges of [0, total), float64 [batch]."""
        random, device = self.generator, self.device
        mass = torch.rand(batch, generator=random, dtype=torch.float64, device=device)
        mass += torch.arange(batch, device=device)
        return mass.mul_(total / batch)

    # -- implemented by each sampler ---------------------------------------------------------------

    @abstractmethod
    def draw(self, index: object, batch: int, env_steps: int) -> tuple[Tensor, Tensor]:
        """Live slots int64 [batch] and weights float32 [batch]."""

    @abstractmethod
    def _replace_slots(self, removed: Tensor, inserted: Tensor) -> None:
        """Update the priorities; ``alive`` is up to date and no slot is in both."""

    @abstractmethod
    def _update(self, slots: Tensor, priority: Tensor, alive: Tensor | None) -> None:
        """``update`` of at least one slot where ``alive``; None: everywhere."""

    def priorities(self, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        return None

    def metrics(self, env_steps: int) -> dict[str, float]:
        return {}

    def probe(self, index: WindowIndex) -> tuple[np.ndarray, np.ndarray | None]:
        """See ``Sampler.probe``; ``index`` is the one in host memory."""
        return uniform_probe(index)

    def _probe_mass(self, total: Tensor) -> Tensor:
        """The probe's quantiles of [0, total), float64 [PROBES]."""
        mass = upload(np.arange(PROBES) + probe_quantiles(), self.device)
        return mass.mul_(total / PROBES)

    def check(self, live: np.ndarray) -> str | None:
        known = np.flatnonzero(self.alive.numpy(force=True))
        if self.count != len(known):
            return "the count of windows is wrong"
        if not np.array_equal(known, np.sort(live)):
            return "the slots that can be drawn differ from the stored windows"
        return None

    def arrays(self) -> list[Tensor]:
        """Every array owned but ``deferred`` (three numbers)."""
        return [self.alive]

    def state_dict(self) -> dict[str, Any]:
        return {"rng": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.generator.set_state(state["rng"])
        self.deferred.zero_()
        self.smallest_total.fill_(np.inf)


class DeviceUniform(DeviceSampler):
    """Every live window with the same probability, with replacement; weights are 1.

    The i-th live slot is found in the running count of live ones, which is made anew by the first
    draw after rows new_slots: O(slots) then, O(log slots) for a draw.
    """

    def __init__(self, slots: int, *, generator: torch.Generator, device: torch.device) -> None:
        super().__init__(slots, generator=generator, device=device)
        self.cumulative = torch.zeros(slots, dtype=torch.int32, device=device)
        self.stale = False

    def _replace_slots(self, removed: Tensor, inserted: Tensor) -> None:
        self.stale = True

    def set_live(self, live: np.ndarray) -> None:
        super().set_live(live)
        self.stale = True

    def draw(self, index: object, batch: int, env_steps: int) -> tuple[Tensor, Tensor]:
        assert self.count > 0, "a draw from an empty buffer"
        if self.stale:
            torch.cumsum(self.alive[:-1], 0, dtype=torch.int32, out=self.cumulative)
            self.stale = False
        random, device = self.generator, self.device
        number = torch.randint(
            self.count, (batch,), generator=random, dtype=torch.int32, device=device
        )
        slots = torch.searchsorted(self.cumulative, number, right=True)
        return slots, torch.ones(batch, device=device)

    def _update(self, slots: Tensor, priority: Tensor, alive: Tensor | None) -> None:
        """Nothing: uniform sampling has no priorities."""

    def arrays(self) -> list[Tensor]:
        return [*super().arrays(), self.cumulative]


class DeviceProportional(DeviceSampler):
    """P(i) = p_i^alpha / sum p^alpha with p = |delta| + eps; stratified draws, as ``Proportional``.

    Source: Schaul et al. 2016, section 3.
    """

    def __init__(
        self,
        config: PrioritizedConfig,
        slots: int,
        *,
        generator: torch.Generator,
        total_steps: int,
        device: torch.device,
    ) -> None:
        super().__init__(slots, generator=generator, device=device)
        self.config = config
        self.alpha_at: Schedule = make_schedule(config.alpha, total_steps=total_steps)
        self.beta_at: Schedule = make_schedule(config.beta, total_steps=total_steps)
        self.alpha = self.alpha_at(0)
        self.raw = torch.zeros(slots + 1, device=device)  # p of live slots, 0 elsewhere
        self.last = torch.full((slots + 1,), -1, dtype=torch.int32, device=device)
        self.sum_tree = DeviceSumTree(slots + 1, device=device)
        self.min_tree: DeviceSumTree | None = None
        if config.weight_norm == "buffer":
            self.min_tree = DeviceSumTree(slots + 1, minimum=True, device=device)
        self.largest = torch.ones((), device=device)  # the largest p ever seen

    def _replace_slots(self, removed: Tensor, inserted: Tensor) -> None:
        """New ones get the largest priority seen so far (1 at first)."""
        new = self.largest.expand(len(inserted))
        slots = torch.cat([removed, inserted])
        self._write(slots, torch.cat([new.new_zeros(len(removed)), new]), self.alive[slots])

    def _write(self, slots: Tensor, raw: Tensor, live: Tensor) -> None:
        """Set p of slots, and mass 0 where not ``live``. Duplicates must agree."""
        self.raw.index_copy_(0, slots, raw)
        mass = torch.where(live, raw.double() ** self.alpha, 0)
        self.sum_tree.set(slots, mass)
        if self.min_tree is not None:
            self.min_tree.set(slots, _positive(mass))

    def draw(self, index: object, batch: int, env_steps: int) -> tuple[Tensor, Tensor]:
        """One slot from each of ``batch`` equal ranges; weights (N P(i))^-beta / max w."""
        assert self.count > 0, "a draw from an empty buffer"
        alpha, beta, total = self.alpha_at(env_steps), self.beta_at(env_steps), self.sum_tree.root
        if abs(alpha - self.alpha) >= ALPHA_STEP:
            self.alpha = alpha
            self._fill(torch.where(self.alive, self.raw.double() ** alpha, 0))
        self.smallest_total.copy_(torch.minimum(self.smallest_total, total[0]))
        slots, mass = self.sum_tree.find(self._stratified(batch, total))
        weight = (mass / total * self.count) ** -beta
        if self.min_tree is not None:
            weight /= (self.min_tree.root / total * self.count) ** -beta
        else:
            weight /= weight.amax()
        return slots, weight.float()

    def _fill(self, mass: Tensor) -> None:
        self.sum_tree.fill(mass)
        if self.min_tree is not None:
            self.min_tree.fill(_positive(mass))

    def _update(self, slots: Tensor, priority: Tensor, alive: Tensor | None) -> None:
        slots, priority, keep = self._masked(slots, priority, alive)
        raw = (priority.double() + self.config.priority_eps).float()
        raw = raw.clamp(max=LARGEST).masked_fill(~keep, 0)
        self.largest.copy_(torch.maximum(self.largest, raw.amax()))
        raw = last_wins(slots, raw, self.last)
        self._write(slots, raw, keep)

    def priorities(self, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        raw = self.raw.numpy(force=True)[slots]
        return raw, raw.astype(np.float64) ** self.alpha

    def metrics(self, env_steps: int) -> dict[str, float]:
        mean = self.raw.sum(dtype=torch.float64).item() / max(self.count, 1)
        return {
            "buffer/alpha": self.alpha,
            "buffer/beta": self.beta_at(env_steps),
            "buffer/priority_max": self.largest.item(),
            "buffer/priority_mean": mean,
        }

    def probe(self, index: object) -> tuple[np.ndarray, np.ndarray]:
        total = self.sum_tree.root
        slots, mass = self.sum_tree.find(self._probe_mass(total))
        drawn = mass > 0  # all of them, unless every priority is 0
        slots, probability = slots[drawn], mass[drawn] / total * self.count
        return slots.numpy(force=True), probability.numpy(force=True)

    def check(self, live: np.ndarray) -> str | None:
        mass = torch.where(self.alive, self.raw.double() ** self.alpha, 0)
        if not torch.allclose(self.sum_tree.leaves[: len(mass)], mass, rtol=1e-12, atol=0):
            return "a leaf differs from p^alpha, or a slot without a window has one"
        trees = [self.sum_tree] if self.min_tree is None else [self.sum_tree, self.min_tree]
        problems = [super().check(live), *(tree.check() for tree in trees)]
        return next((p for p in problems if p), None)

    def arrays(self) -> list[Tensor]:
        min_nodes = [] if self.min_tree is None else [self.min_tree.nodes]
        return [*super().arrays(), self.last, self.raw, self.sum_tree.nodes, *min_nodes]

    def state_dict(self) -> dict[str, Any]:
        """Includes the sums: their last bits depend on the shapes they were computed in."""
        return super().state_dict() | {
            "raw": self.raw,
            "sum": self.sum_tree.nodes,
            "alpha": self.alpha,
            "largest": self.largest.item(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        saved.like("sampler.raw", state["raw"], self.raw)
        saved.like("sampler.sum", state["sum"], self.sum_tree.nodes)
        self.raw.copy_(state["raw"])
        self.sum_tree.nodes.copy_(state["sum"])
        self.alpha = saved.number("sampler.alpha", state["alpha"], 0, 1)
        self.largest.fill_(saved.largest(state["largest"]))
        if self.min_tree is not None:
            self.min_tree.fill(_positive(self.sum_tree.leaves))


def last_wins(slots: Tensor, values: Tensor, last: Tensor) -> Tensor:
    """For every entry the value of the last entry with the same slot, so that duplicates agree.

    ``last``: scratch int32 [slots], filled with -1 before and after.
    """
    order = torch.arange(len(slots), dtype=torch.int32, device=slots.device)
    last.scatter_reduce_(0, slots, order, "amax")
    values = values.index_select(0, last.index_select(0, slots))
    last.index_fill_(0, slots, -1)
    return values


def _positive(mass: Tensor) -> Tensor:
    """Masses with 0 (never drawn, so without a weight) replaced by infinity."""
    return mass.masked_fill(mass <= 0, torch.inf)
