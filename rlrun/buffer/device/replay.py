"""A replay whose rows, windows, states and priorities lie on a device and never leave it.

Rows come from the host, and what is decided while they come (which windows they complete, which
slots die) is decided there by the same ``Cutter``, ``Cells`` and ``Table``; ``add`` uploads the
outcome. ``sample`` and ``prioritize`` are torch ops that never wait for the device.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlrun.buffer.device.proportional import DeviceSampler, upload
from rlrun.buffer.device.ring import DeviceGather, DeviceRing, Lie, to_host, torch_dtype
from rlrun.buffer.replay import Replay
from rlrun.buffer.storage.accept import Accept
from rlrun.buffer.storage.layout import Block, Layout, in_memory
from rlrun.buffer.storage.ring import FIRST, TERMINATED, TRUNCATED, VALID
from rlrun.buffer.windows.cutter import Cutter, Windows
from rlrun.buffer.windows.single_row import Cells
from rlrun.buffer.windows.spans import Spans
from rlrun.buffer.windows.table import Table
from rlrun.types import Chunk, Sample, Segment, Tree, Window, tree_map

_SEEN = FIRST | TERMINATED | TRUNCATED | VALID  # flags that are the same on both sides


class DeviceTable(Table):
    """``Table`` whose recurrent states lie on a device."""

    def _keep_states(self, windows: Windows, states: Tree, slots: np.ndarray, skip: int) -> None:
        kept = self.states
        self.states = tree_map(lambda x: np.empty((len(slots), *x.shape[2:]), x.dtype), states)
        super()._keep_states(windows, states, np.arange(len(slots)), skip)

        def put(store: Tensor, new: np.ndarray) -> None:
            store.index_copy_(0, upload(slots, store.device), upload(new, store.device))

        tree_map(put, kept, self.states)
        self.states = kept

    def state_dict(self) -> dict[str, Any]:
        """That of a ``Table``."""
        state: dict[str, Any] = to_host(super().state_dict())
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state | {"states": tree_map(torch.from_numpy, state["states"])})


class DeviceReplay(Replay):
    """``Replay`` on a device: the same windows, bit for bit, under the same keys.

    Differences: samples lie on the device, their ``key`` is an int64 tensor that ``prioritize``
    takes as it is; random numbers are the device's; ``Segment.partial`` names every length there
    can be instead of those in the batch; bad priorities are dropped, and raised by ``metrics`` or
    ``state_dict``, which wait for the device anyway. ``counts["late"]`` is as of then, too.
    """

    sampler: DeviceSampler  # type: ignore[assignment]
    gather: DeviceGather  # type: ignore[assignment]
    drawn: tuple[Any, Any]  # tensors: keys and slots of the last sample, while nothing is added

    def __init__(
        self,
        layout: Layout,
        *,
        window: Window,
        cutter: Cutter,
        close: bool,
        sampler: DeviceSampler,
        stack: int = 1,
    ) -> None:
        """``layout``: from ``with_device``; the device is the sampler's."""
        reach = max(1, stack - 1)
        layout.require_rows(window.rows, reach)
        assert not layout.goals, "hindsight goals are found in host memory"
        assert layout.columns * layout.rows < 2**31, "cells are numbered in int32"
        self.layout, self.window, self.close, self.sampler = layout, window, close, sampler
        self.stack = stack
        self.device = device = sampler.notes.device  # its index, too
        self.ring: DeviceRing = DeviceRing(layout, device)
        self.most = layout.rows - window.rows - reach
        if layout.windows is None:
            self.windows = Cells(self.ring, window, close=close, reach=reach)
        else:
            self.windows = DeviceTable(
                self.ring, window, layout, self._allocate, cutter=cutter, close=close, reach=reach
            )
        block = layout.sampler["spans"]
        self.spans = torch.zeros(block.shape, dtype=torch.int32, device=device)
        self.gather = DeviceGather(self.ring, stack=stack)
        self.accept, self.append = Accept(layout), None
        self.counts = {"rows": 0, "learned": 0, "late": 0}
        self.hindsight = None
        self.drawn = None, None
        bs, stride = window.burnin, cutter.stride
        self.partial = () if cutter.plain else tuple(range(stride, bs, stride))

    def _allocate(self, name: str, block: Block) -> Any:
        """Recurrent states on the device; the window table where it is kept up to date."""
        if not name.startswith("states"):
            return in_memory(name, block)
        return torch.zeros(block.shape, dtype=torch_dtype(block.dtype), device=self.device)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays owned: ``layout.nbytes``, of which ``host_bytes`` on the host."""
        return super().nbytes + self.spans.nbytes

    # -- writing ---------------------------------------------------------------------------------

    def _add(self, chunk: Chunk, given: list[np.ndarray], *, close: bool) -> np.ndarray:
        keys = super()._add(chunk, given, close=close)
        self._place(self.windows.find(keys)[0])
        return keys

    def _place(self, slots: np.ndarray) -> None:
        """Upload where new windows lie."""
        w = self.windows.spans(slots)
        numbers = [w.last - w.first, w.stop - w.first]
        if isinstance(self.windows, Table):
            numbers = [w.cell, w.first - w.learn + self.window.burnin, *numbers]
        new = upload(np.stack(numbers, 1).astype(np.int32), self.device)
        self.spans.index_copy_(0, upload(slots, self.device), new)

    # -- reading ---------------------------------------------------------------------------------

    def sample(self, batch: int, env_steps: int) -> Sample:
        """As ``Replay.sample``; nothing is waited for unless ``batch`` is 0."""
        if batch == 0 or not len(self):
            return super().sample(batch, env_steps)
        self._require_windows(batch)
        slots, weight = self.sampler.draw(batch, env_steps)
        windows: Any = self.windows
        key = windows.keys(slots)
        self.drawn = key, slots
        return Sample(self._show(slots), weight, key, env_steps)

    def get(self, key: np.ndarray | Tensor, env_steps: int) -> Sample:
        """As ``Replay.get``; a tensor of keys is read from the device."""
        named = key.numpy(force=True) if isinstance(key, Tensor) else key
        slots, there = self.windows.find(named)
        assert there.all(), "a window that is asked for by name is gone"
        shown: Any = upload(named, self.device).clone()  # the caller's array stays his own
        weight = torch.ones(len(named), device=self.device)
        return Sample(self._show(upload(slots, self.device)), weight, shown, env_steps)

    def prioritize(self, key: np.ndarray | Tensor, priority: np.ndarray | Tensor) -> None:
        """As ``Replay.prioritize``; nothing is waited for."""
        if key.shape != priority.shape:
            super().prioritize(np.empty(key.shape, np.int64), priority)  # says so
        if isinstance(priority, np.ndarray):
            priority = upload(priority, self.device)
        priority = priority.detach().to(self.device, non_blocking=True)
        if key is self.drawn[0]:  # nothing was added since: the common case
            self.sampler.update(self.drawn[1], priority)
            return
        slots, there = self._find(key)
        self.sampler.update(slots, priority, there)

    def _find(self, key: np.ndarray | Tensor) -> tuple[Tensor, Tensor]:
        """(slots, whether the window is still there) of named windows."""
        if isinstance(key, np.ndarray):
            key = upload(key, self.device)
        windows: Any = self.windows  # its arithmetic holds for tensors as well
        if isinstance(windows, Table):
            slots = key % windows.capacity
        else:
            slots = windows.ring.cells(key // self.ring.columns, key % self.ring.columns)
        return slots, self.sampler.alive[slots] & (windows.keys(slots) == key)

    def _gather(self, slots: np.ndarray, spans: Spans, *, keep: bool = True) -> Segment:
        return self._show(upload(slots, self.device))

    def _show(self, slots: Tensor) -> Segment:
        found = self.spans.index_select(0, slots).long().unbind(1)
        if isinstance(self.windows, Cells):
            return self.gather.show(Lie(slots, 0, *found), self.window.rows)
        segment = self.gather.show(Lie(*found), self.window.rows)
        state = tree_map(lambda store: store.index_select(0, slots), self.windows.states)
        return replace(segment, state=state, partial=self.partial)

    def stored(self, rows: int, *, skip: int = 0) -> Iterator[Segment]:
        """As ``Replay.stored``: segments in host memory."""
        ring = self.ring
        column = np.arange(ring.columns)
        for start in range(ring.oldest + skip, ring.head, rows):
            row = np.arange(start, min(start + rows, ring.head) + 1)[:, None]
            at = upload(ring.cells(row, column), self.device)
            first, *ends = (torch.from_numpy(x) for x in ring.flags_of(row, column))
            taken = {name: field.take(at[:-1]).cpu() for name, field in ring.noted_fields.items()}
            terminated, truncated, valid = (x[:-1] for x in ends)
            yield Segment(
                tree_map(lambda field, at=at: field.take(at).cpu(), ring.obs_fields),
                first,
                taken.pop("action"),
                ring.rewards[at[:-1]].cpu(),
                terminated,
                truncated,
                valid,
                {name[7:]: x for name, x in taken.items()},
            )

    def stored_states(self) -> tuple[np.ndarray, np.ndarray, Tree]:
        """As ``Replay.stored_states``: arrays in host memory."""
        row, column, states = super().stored_states()
        return row, column, to_host(states)

    # -- accounts --------------------------------------------------------------------------------

    def metrics(self, env_steps: int) -> dict[str, float]:
        """buffer/ metrics. Raises: NumericError for priorities given since the last call."""
        self.counts["late"] += self.sampler.settle()
        return super().metrics(env_steps)

    def check(self) -> None:
        """As ``Replay.check``, and the device knows what the host knows."""
        super().check()
        flags = upload(self.ring.flags & _SEEN, self.device)
        assert torch.equal(self.ring.marks & _SEEN, flags), "flags differ on device and host"
        slots = self.windows.all()
        before = self.spans.clone()
        self._place(slots)
        assert torch.equal(before, self.spans), "windows lie elsewhere on device and host"

    def state_dict(self) -> dict[str, Any]:
        """As ``Replay.state_dict``. Raises: NumericError, as ``metrics``."""
        self.counts["late"] += self.sampler.settle()
        return super().state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._place(self.windows.all())
        self.sampler.revive(self.windows.all())
