"""Which windows a batch is made of, decided where the priorities lie: samplers in torch ops.

``draw`` and ``update`` never wait for the device: no number is read, no shape depends on data. A
bad priority is therefore noted on the device and raised by ``synchronize``, which ``metrics`` and
``state_dict`` of the replay call.
"""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlrun.buffer.device.sumtree import DeviceTree
from rlrun.buffer.samplers.priority import ALPHA_STEP, LARGEST, finite_priorities
from rlrun.errors import NumericError
from rlrun.schedule import Schedule, make_schedule
from rlrun.schema import PrioritizedConfig


def upload(array: np.ndarray, device: torch.device) -> Tensor:
    """The array on ``device``, not waited for; on the host it shares the array's memory.

    CUDA has copied ordinary memory aside when this returns; pinned memory it reads later, so an
    array in pinned memory must not be written to again.
    """
    return torch.from_numpy(np.ascontiguousarray(array)).to(device, non_blocking=True)


class DeviceSampler(ABC):
    """What all samplers on a device share: which slots are live, and the notes.

    Slot ``slots`` is nobody's: what must not be kept is written there, because leaving it out would
    make shapes depend on data.
    """

    def __init__(self, slots: int, *, generator: torch.Generator, device: torch.device) -> None:
        self.slots, self.generator, self.device = slots, generator, device
        self.alive = torch.zeros(slots + 1, dtype=torch.bool, device=device)
        self.count = 0
        self.notes = torch.zeros(3, dtype=torch.float64, device=device)
        self.late, self.worst, self.total = self.notes.unbind()  # views
        self.total.fill_(np.inf)

    # -- life ------------------------------------------------------------------------------------

    def exchange(self, dead: np.ndarray, new: np.ndarray) -> None:
        """Take live slots away (they are never drawn again) and make others live.

        A slot in both stays, as a new one.
        """
        self.count += len(new) - len(dead)
        if len(dead) and len(new):
            dead = dead[~np.isin(dead, new)]
        gone, came = upload(dead, self.device), upload(new, self.device)
        self.alive.index_fill_(0, gone, False)
        self.alive.index_fill_(0, came, True)
        if len(dead) or len(new):
            self._exchange(gone, came)

    def set_live(self, live: np.ndarray) -> None:
        """After a state was loaded: exactly these slots are live."""
        self.count = len(live)
        self.alive.fill_(False)
        self.alive.index_fill_(0, upload(live, self.device), True)

    def synchronize(self) -> int:
        """Late priorities since the last call. This reads from the device.

        Raises: NumericError when a priority was NaN, infinite or negative, or all of them were 0.
        """
        late, worst, total = self.notes.tolist()
        finite_priorities(np.array([worst]))
        if not total > 0:
            raise NumericError(
                "buffer.priority_eps = 0: every stored priority was 0, nothing could be drawn; "
                "allowed is any number > 0; set buffer.priority_eps=1e-6"
            )
        self.late.zero_()
        return int(late)

    def update(self, slots: Tensor, priority: Tensor) -> None:
        """Set |delta| of live slots; bad priorities are dropped and noted."""
        if len(slots):
            self._update(slots, priority, None)

    def update_found(self, slots: Tensor, priority: Tensor, alive: Tensor) -> int:
        """``update`` where ``alive``. Returns 0: ``synchronize`` counts the others."""
        if len(slots):
            self.late += (~alive).sum()
            self._update(slots, priority, alive)
        return 0

    def _checked(self, slots: Tensor, priority: Tensor, alive: Tensor | None) -> tuple[Tensor, ...]:
        """(slots, priority, whether to keep it): nobody's slot and 0 where it is not kept."""
        fault = torch.where(priority < 0, priority, priority - priority)  # NaN - NaN, inf - inf
        self.worst.copy_(torch.minimum(self.worst, fault.amin()))
        keep = fault == 0 if alive is None else (fault == 0) & alive
        return torch.where(keep, slots, self.slots), torch.where(keep, priority, 0), keep

    def _places(self, batch: int, total: Tensor) -> Tensor:
        """A number from each of ``batch`` equal ranges of [0, total), float64 [batch]."""
        random, device = self.generator, self.device
        place = torch.rand(batch, generator=random, dtype=torch.float64, device=device)
        place += torch.arange(batch, device=device)
        return place.mul_(total / batch)

    # -- what a sampler is -----------------------------------------------------------------------

    @abstractmethod
    def draw(self, index: object, batch: int, env_steps: int) -> tuple[Tensor, Tensor]:
        """Live slots int64 [batch] and weights float32 [batch]."""

    @abstractmethod
    def _exchange(self, gone: Tensor, came: Tensor) -> None:
        """``alive`` knows already; no slot is in both."""

    @abstractmethod
    def _update(self, slots: Tensor, priority: Tensor, alive: Tensor | None) -> None:
        """``update`` of at least one slot; what is not ``alive`` has been counted."""

    def metrics(self, env_steps: int) -> dict[str, float]:
        return {}

    def check(self, live: np.ndarray) -> str | None:
        """None, or the broken invariant in words; ``live``: the slots of the stored windows."""
        known = np.flatnonzero(self.alive.numpy(force=True))
        if self.count != len(known):
            return "the count of windows is wrong"
        if not np.array_equal(known, np.sort(live)):
            return "the slots that can be drawn differ from the stored windows"
        return None

    def arrays(self) -> list[Tensor]:
        """Every array owned (the notes, three numbers, are not counted)."""
        return [self.alive]

    def state_dict(self) -> dict[str, Any]:
        return {"rng": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.generator.set_state(state["rng"])
        self.notes.zero_()
        self.total.fill_(np.inf)


class DeviceUniform(DeviceSampler):
    """Every live window with the same probability, with replacement; weights are 1.

    The i-th live slot is found in the running count of live ones, which is made anew by the first
    draw after rows came: O(slots) then, O(log slots) for a draw.
    """

    def __init__(self, slots: int, *, generator: torch.Generator, device: torch.device) -> None:
        super().__init__(slots, generator=generator, device=device)
        self.upto = torch.zeros(slots, dtype=torch.int32, device=device)
        self.stale = False

    def _exchange(self, gone: Tensor, came: Tensor) -> None:
        self.stale = True

    def set_live(self, live: np.ndarray) -> None:
        super().set_live(live)
        self.stale = True

    def draw(self, index: object, batch: int, env_steps: int) -> tuple[Tensor, Tensor]:
        assert self.count > 0, "a draw from an empty buffer"
        if self.stale:
            torch.cumsum(self.alive[:-1], 0, dtype=torch.int32, out=self.upto)
            self.stale = False
        random, device = self.generator, self.device
        number = torch.randint(
            self.count, (batch,), generator=random, dtype=torch.int32, device=device
        )
        slots = torch.searchsorted(self.upto, number, right=True)
        return slots, torch.ones(batch, device=device)

    def _update(self, slots: Tensor, priority: Tensor, alive: Tensor | None) -> None:
        """Priorities have no meaning here."""

    def arrays(self) -> list[Tensor]:
        return [*super().arrays(), self.upto]


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
        self.sum = DeviceTree(slots + 1, device=device)
        self.least: DeviceTree | None = None
        if config.weight_norm == "buffer":
            self.least = DeviceTree(slots + 1, least=True, device=device)
        self.largest = torch.ones((), device=device)  # the largest p ever seen

    def _exchange(self, gone: Tensor, came: Tensor) -> None:
        """New ones get the largest priority seen so far (1 at first)."""
        new = self.largest.expand(len(came))
        slots = torch.cat([gone, came])
        self._write(slots, torch.cat([new.new_zeros(len(gone)), new]), self.alive[slots])

    def _write(self, slots: Tensor, raw: Tensor, live: Tensor) -> None:
        """p of slots; where they are not ``live`` no mass. Duplicates must agree."""
        self.raw.index_copy_(0, slots, raw)
        mass = torch.where(live, raw.double() ** self.alpha, 0)
        self.sum.set(slots, mass)
        if self.least is not None:
            self.least.set(slots, _positive(mass))

    def draw(self, index: object, batch: int, env_steps: int) -> tuple[Tensor, Tensor]:
        """One slot from each of ``batch`` equal ranges; weights (N P(i))^-beta / max w."""
        assert self.count > 0, "a draw from an empty buffer"
        alpha, beta, total = self.alpha_at(env_steps), self.beta_at(env_steps), self.sum.root
        if abs(alpha - self.alpha) >= ALPHA_STEP:
            self.alpha = alpha
            self._fill(torch.where(self.alive, self.raw.double() ** alpha, 0))
        self.total.copy_(torch.minimum(self.total, total[0]))
        slots, mass = self.sum.find(self._places(batch, total))
        weight = (mass / total * self.count) ** -beta
        if self.least is not None:
            weight /= (self.least.root / total * self.count) ** -beta
        else:
            weight /= weight.amax()
        return slots, weight.float()

    def _fill(self, mass: Tensor) -> None:
        self.sum.fill(mass)
        if self.least is not None:
            self.least.fill(_positive(mass))

    def _update(self, slots: Tensor, priority: Tensor, alive: Tensor | None) -> None:
        slots, priority, keep = self._checked(slots, priority, alive)
        raw = (priority.double() + self.config.priority_eps).float()
        raw = raw.clamp(max=LARGEST).masked_fill(~keep, 0)
        self.largest.copy_(torch.maximum(self.largest, raw.amax()))
        raw = last_wins(slots, raw, self.last)
        self._write(slots, raw, keep)

    def metrics(self, env_steps: int) -> dict[str, float]:
        mean = self.raw.sum(dtype=torch.float64).item() / max(self.count, 1)
        return {
            "buffer/alpha": self.alpha,
            "buffer/beta": self.beta_at(env_steps),
            "buffer/priority_max": self.largest.item(),
            "buffer/priority_mean": mean,
        }

    def check(self, live: np.ndarray) -> str | None:
        mass = torch.where(self.alive, self.raw.double() ** self.alpha, 0)
        if not torch.allclose(self.sum.leaves[: len(mass)], mass, rtol=1e-12, atol=0):
            return "a leaf differs from p^alpha, or a slot without a window has one"
        trees = [self.sum] if self.least is None else [self.sum, self.least]
        problems = [super().check(live), *(tree.check() for tree in trees)]
        return next((p for p in problems if p), None)

    def arrays(self) -> list[Tensor]:
        least = [] if self.least is None else [self.least.nodes]
        return [*super().arrays(), self.last, self.raw, self.sum.nodes, *least]

    def state_dict(self) -> dict[str, Any]:
        """The sums too: neither p^alpha nor a sum of many has the same last bit in every shape."""
        return super().state_dict() | {
            "raw": self.raw,
            "sum": self.sum.nodes,
            "alpha": self.alpha,
            "largest": self.largest.item(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.raw.copy_(state["raw"])
        self.sum.nodes.copy_(state["sum"])
        self.alpha = float(state["alpha"])
        self.largest.fill_(float(state["largest"]))
        if self.least is not None:
            self.least.fill(_positive(self.sum.leaves))


def last_wins(slots: Tensor, values: Tensor, last: Tensor) -> Tensor:
    """For every entry the value of the last one with its slot; ``last`` int32 [slots], -1 all over.

    Where duplicates agree it does not matter which of them an index write takes.
    """
    order = torch.arange(len(slots), dtype=torch.int32, device=slots.device)
    last.scatter_reduce_(0, slots, order, "amax")
    values = values.index_select(0, last.index_select(0, slots))
    last.index_fill_(0, slots, -1)
    return values


def _positive(mass: Tensor) -> Tensor:
    """Masses with 0 (never drawn, so without a weight) as infinity."""
    return mass.masked_fill(mass <= 0, torch.inf)
