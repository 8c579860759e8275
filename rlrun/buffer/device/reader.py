"""Reading windows on a device, in torch ops that never wait for it."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlrun.buffer.device.proportional import upload
from rlrun.buffer.device.ring import DeviceGather, DeviceRing, DeviceSpans
from rlrun.buffer.device.states import DeviceStates
from rlrun.buffer.storage.base import FIRST, TERMINATED, TRUNCATED, VALID
from rlrun.buffer.storage.layout import ArraySpec
from rlrun.buffer.windows.single_row import SingleRowWindows
from rlrun.buffer.windows.spans import Spans
from rlrun.buffer.windows.table import WindowTable
from rlrun.types import Segment, Window, tree_map

_SHARED = FIRST | TERMINATED | TRUNCATED | VALID  # flags that host and device both have


class DeviceReader:
    """``WindowReader`` of rows on a device; ``index`` is the device's copy of the windows' rows."""

    def __init__(
        self,
        ring: DeviceRing,
        windows: SingleRowWindows | WindowTable,
        states: DeviceStates,
        index: ArraySpec,
        window: Window,
        *,
        alive: Tensor,
        stack: int,
        partial: tuple[int, ...],
    ) -> None:
        """``alive``: bool [slots + 1], kept by the sampler; ``partial``: of every segment."""
        self.ring, self.windows, self.states, self.window = ring, windows, states, window
        self.device, self.alive, self.partial = ring.device, alive, partial
        self.index = torch.zeros(index.shape, dtype=torch.int32, device=ring.device)
        self.gather = DeviceGather(ring, stack=stack)

    def insert(self, slots: np.ndarray) -> None:
        """Upload the rows of the windows now in ``slots``."""
        w = self.windows.spans(slots)
        numbers = [w.last - w.first, w.stop - w.first]
        if isinstance(self.windows, WindowTable):
            numbers = [w.cell, w.first - w.learn + self.window.burnin, *numbers]
        new = upload(np.stack(numbers, 1).astype(np.int32), self.device)
        self.index.index_copy_(0, upload(slots, self.device), new)

    def priorities(self, priority: np.ndarray | Tensor) -> Tensor:
        if isinstance(priority, np.ndarray):
            priority = upload(priority, self.device)
        return priority.detach().to(self.device, non_blocking=True)

    def find(self, key: np.ndarray | Tensor) -> tuple[Tensor, Tensor]:
        if isinstance(key, np.ndarray):
            key = upload(key, self.device)
        windows: Any = self.windows  # its arithmetic holds for tensors as well
        if isinstance(windows, WindowTable):
            slots = key % windows.capacity
        else:
            rows, columns = self.ring.rows, self.ring.columns
            slots = key % columns * rows + key // columns % rows
        return slots, self.alive[slots] & (windows.keys(slots) == key)

    def spans(self, slots: Tensor) -> DeviceSpans:
        windows: Any = self.windows
        key = windows.keys(slots)
        found = self.index.index_select(0, slots).long().unbind(1)
        if isinstance(windows, SingleRowWindows):
            return DeviceSpans(slots, 0, found[0], found[1], key)
        return DeviceSpans(found[0], found[1], found[2], found[3], key)

    def read(self, slots: Tensor, spans: DeviceSpans, *, reuse: bool) -> Segment:
        """The windows; ``reuse`` or not, fresh tensors: the device's allocator reuses memory."""
        segment = self.gather.read(spans, self.window.rows)
        if isinstance(self.windows, SingleRowWindows):
            return segment
        return replace(segment, state=self.states.select(slots), partial=self.partial)

    def read_slots(self, slots: np.ndarray) -> Segment:
        uploaded = upload(slots, self.device)
        return self.read(uploaded, self.spans(uploaded), reuse=False)

    def read_rows(self, spans: Spans, positions: int) -> Segment:
        return self.gather(spans, positions, 0)

    def read_collected(self, start: int, stop: int, column: np.ndarray) -> Segment:
        ring = self.ring
        row = np.arange(start, stop + 1)[:, None]
        at = upload(ring.cells(row, column), self.device)
        first, *ends = (torch.from_numpy(x) for x in ring.flags_of(row, column))
        taken = {name: field.take(at[:-1]).cpu() for name, field in ring.step_fields.items()}
        terminated, truncated, valid = (x[:-1] for x in ends)
        return Segment(
            tree_map(lambda field: field.take(at).cpu(), ring.obs_fields),
            first,
            taken.pop("action"),
            ring.rewards[at[:-1]].cpu(),
            terminated,
            truncated,
            valid,
            {name[7:]: x for name, x in taken.items()},
        )

    def arrays(self) -> list[Tensor]:
        return [self.index]

    def check(self) -> str | None:
        flags = upload(self.ring.flags & _SHARED, self.device)
        if not torch.equal(self.ring.device_flags & _SHARED, flags):
            return "flags differ on device and host"
        before = self.index.clone()
        self.insert(self.windows.all())
        if not torch.equal(before, self.index):
            return "the rows of a window differ on device and host"
        return None
