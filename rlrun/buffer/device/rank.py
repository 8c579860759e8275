"""Rank-based prioritized sampling on a device, in torch ops."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlrun.buffer import saved
from rlrun.buffer.device.proportional import DeviceSampler, last_wins, upload
from rlrun.buffer.samplers.priority import ALPHA_STEP, LARGEST
from rlrun.schedule import Schedule, make_schedule
from rlrun.schema import RankConfig


class DeviceRank(DeviceSampler):
    """P(i) = p_i^alpha / sum p^alpha with p_i = 1 / rank(i), as ``Rank``; stratified draws.

    Every rank is exact: the first draw after a change sorts (ties: lower slots first), where
    ``Rank`` keeps a heap between sorts, so ``resort_every`` has no effect. A heap would need a
    kernel launch per step of every slot; a radix sort needs a few.

    Source: Schaul et al. 2016, section 3.3.
    """

    def __init__(
        self,
        config: RankConfig,
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
        self.raw = torch.full((slots + 1,), -1.0, device=device)  # |delta| of live slots, else -1
        self.last = torch.full((slots + 1,), -1, dtype=torch.int32, device=device)
        self.sorted_raw = torch.empty_like(self.raw)
        self.order = torch.zeros(slots + 1, dtype=torch.int64, device=device)  # slots by rank
        self.stale = True
        self.cdf = torch.empty(slots, dtype=torch.float64, device=device)
        self.largest = torch.ones((), device=device)  # the largest |delta| ever seen
        self._tabulate(self.alpha_at(0))

    def _tabulate(self, alpha: float) -> None:
        """Compute the cumulative table on the host: the rounding of a parallel scan varies."""
        self.alpha = alpha
        table = np.cumsum(np.arange(1, self.slots + 1, dtype=np.float64) ** -alpha)
        self.cdf.copy_(upload(table, self.device))

    def _replace_slots(self, removed: Tensor, inserted: Tensor) -> None:
        """New ones get the largest priority seen so far (1 at first)."""
        self.raw.index_fill_(0, removed, -1)
        self.raw.index_copy_(0, inserted, self.largest.expand(len(inserted)))
        self.stale = True

    def set_live(self, live: np.ndarray) -> None:
        super().set_live(live)
        self.stale = True

    def draw(self, index: object, batch: int, env_steps: int) -> tuple[Tensor, Tensor]:
        """One slot from each of ``batch`` equal ranges; weights (rank / max rank)^(alpha beta)."""
        assert self.count > 0, "a draw from an empty buffer"
        alpha, beta = self.alpha_at(env_steps), self.beta_at(env_steps)
        if abs(alpha - self.alpha) >= ALPHA_STEP:
            self._tabulate(alpha)
        at = self._find(self._stratified(batch, self.cdf[self.count - 1]))
        rank = (at + 1).double()
        most = self.count if self.config.weight_norm == "buffer" else rank.amax()
        weight = (rank / most) ** (self.alpha * beta)
        return self.order.index_select(0, at), weight.float()

    def _find(self, mass: Tensor) -> Tensor:
        """Indices in ``order``, which is brought up to date, of cumulative masses; int64 [n]."""
        if self.stale:
            torch.sort(self.raw, descending=True, stable=True, out=(self.sorted_raw, self.order))
            self.stale = False
        at = torch.searchsorted(self.cdf[: self.count], mass, right=True)
        return at.clamp_(max=self.count - 1)  # rounding may carry a mass past the total

    def _update(self, slots: Tensor, priority: Tensor, alive: Tensor | None) -> None:
        slots, priority, keep = self._masked(slots, priority, alive)
        raw = priority.float().clamp(max=LARGEST) + 0.0  # turns -0.0 into 0.0
        self.largest.copy_(torch.maximum(self.largest, raw.amax()))
        raw = last_wins(slots, raw.masked_fill(~keep, -1), self.last)
        self.raw.index_copy_(0, slots, raw)
        self.stale = True

    def priorities(self, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        raw = self.raw.numpy(force=True)[slots]
        rank = np.empty(len(slots))
        rank[np.lexsort((slots, -raw))] = np.arange(1, len(slots) + 1)  # as ``draw`` sorts
        return raw, rank**-self.alpha

    def metrics(self, env_steps: int) -> dict[str, float]:
        total = self.raw.clamp(min=0).sum(dtype=torch.float64).item()
        return {
            "buffer/alpha": self.alpha,
            "buffer/beta": self.beta_at(env_steps),
            "buffer/priority_max": self.largest.item(),
            "buffer/priority_mean": total / max(self.count, 1),
        }

    def probe(self, index: object) -> tuple[np.ndarray, np.ndarray]:
        total = self.cdf[self.count - 1]
        at = self._find(self._probe_mass(total))
        probability = (at + 1).double() ** -self.alpha * (self.count / total)
        return self.order.index_select(0, at).numpy(force=True), probability.numpy(force=True)

    def check(self, live: np.ndarray) -> str | None:
        if not torch.equal(self.raw >= 0, self.alive):
            return "the slots that have a priority differ from the stored windows"
        if bool((self.raw > self.largest).any()):
            return "a priority is larger than the largest seen"
        return super().check(live)

    def arrays(self) -> list[Tensor]:
        return [*super().arrays(), self.last, self.raw, self.sorted_raw, self.order, self.cdf]

    def state_dict(self) -> dict[str, Any]:
        largest = self.largest.item()
        return super().state_dict() | {"raw": self.raw, "alpha": self.alpha, "largest": largest}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        saved.like("sampler.raw", state["raw"], self.raw)
        self.raw.copy_(state["raw"])
        self.largest.fill_(saved.largest(state["largest"]))
        self._tabulate(saved.number("sampler.alpha", state["alpha"], 0, 1))
