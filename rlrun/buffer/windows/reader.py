"""Reading windows out of a storage: from slots and keys to segments."""

from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from rlrun.buffer.storage.layout import Row
from rlrun.buffer.storage.ring import Ring
from rlrun.buffer.windows.gather import Gather
from rlrun.buffer.windows.single_row import SingleRowWindows
from rlrun.buffer.windows.spans import Spans
from rlrun.buffer.windows.table import WindowTable
from rlrun.types import Segment, Window, tree_map

_FLOATS = (torch.float32, torch.float64)  # dtypes that priorities keep


class WindowReader(Protocol):
    """Reads windows where their rows are stored.

    Slots and keys are numpy arrays in host memory and tensors on a device.
    """

    def insert(self, slots: np.ndarray) -> None:
        """Note the rows of the windows now in ``slots``."""

    def priorities(self, priority: np.ndarray | Tensor) -> Any:
        """The priorities as the sampler takes them, float [n]."""

    def find(self, key: np.ndarray | Tensor) -> tuple[Any, Any]:
        """(slots, whether the window is still stored) of keys."""

    def spans(self, slots: Any) -> Any:
        """The rows of the windows in ``slots``, and their keys (``.key``)."""

    def read(self, slots: Any, spans: Any, *, reuse: bool) -> Segment:
        """The windows in ``slots``.

        ``reuse``: the output arrays serve another batch once no tensor of them is left.
        """

    def read_slots(self, slots: np.ndarray) -> Segment:
        """The windows in ``slots``, given as a host array."""

    def read_rows(self, spans: Spans, positions: int) -> Segment:
        """``positions`` rows from the first row of ``spans`` on, left-aligned."""

    def read_collected(self, start: int, stop: int, column: np.ndarray) -> Segment:
        """Rows start..stop-1 of the columns as they were collected, in host memory."""

    def arrays(self) -> list[Any]:
        """Every array owned, of those a layout counts."""

    def check(self) -> str | None:
        """None, or the broken invariant in words."""


class HostReader:
    """``WindowReader`` of rows in host memory."""

    def __init__(
        self,
        ring: Ring,
        windows: SingleRowWindows | WindowTable,
        row: Row,
        window: Window,
        *,
        stack: int,
    ) -> None:
        """``stack``: frames of an observation."""
        self.ring, self.windows, self.row, self.window = ring, windows, row, window
        self.gather = Gather(ring, row, stack=stack)

    def insert(self, slots: np.ndarray) -> None:
        """Nothing: ``windows`` has the rows of all slots."""

    def priorities(self, priority: np.ndarray | Tensor) -> np.ndarray:
        if isinstance(priority, Tensor):
            wide = priority if priority.dtype in _FLOATS else priority.float()
            values: np.ndarray = wide.numpy(force=True)
            return values
        return priority if priority.dtype.itemsize >= 4 else priority.astype(np.float32)

    def find(self, key: np.ndarray | Tensor) -> tuple[np.ndarray, np.ndarray]:
        assert isinstance(key, np.ndarray), "Sample.key of a replay in host memory is an array"
        return self.windows.find(key)

    def spans(self, slots: np.ndarray) -> Spans:
        return self.windows.spans(slots)

    def read(self, slots: np.ndarray, spans: Spans, *, reuse: bool) -> Segment:
        windows, w = self.windows, self.window
        if isinstance(windows, SingleRowWindows):
            return self.gather(spans, w.rows, w.burnin, reuse=reuse)
        state = tree_map(torch.from_numpy, windows.states.read(slots))
        partial = windows.partial(slots)
        return self.gather(spans, w.rows, w.burnin, reuse=reuse, state=state, partial=partial)

    def read_slots(self, slots: np.ndarray) -> Segment:
        return self.read(slots, self.windows.spans(slots), reuse=False)

    def read_rows(self, spans: Spans, positions: int) -> Segment:
        return self.gather(spans, positions, 0, reuse=False)

    def read_collected(self, start: int, stop: int, column: np.ndarray) -> Segment:
        ring = self.ring
        first, last = np.full_like(column, start), np.full_like(column, stop)
        spans = Spans.of(ring.cells(first, column), column, first, first, last - 1, last)
        gather = Gather(ring, self.row, stack=1)  # single frames
        segment = gather(spans, stop - start + 1, 0, reuse=False)
        row = np.arange(start, stop + 1)[:, None]
        flags = [torch.from_numpy(x) for x in ring.flags_of(row, column)]
        extras = {name: segment.extras[name] for name in self.row.extras}
        return replace(
            segment, first=flags[0], terminated=flags[1][:-1], truncated=flags[2][:-1],
            valid=flags[3][:-1], extras=extras,
        )  # fmt: skip

    def arrays(self) -> list[np.ndarray]:
        return []

    def check(self) -> str | None:
        return None
