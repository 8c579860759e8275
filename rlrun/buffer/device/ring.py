"""Rows on a device, and gathering of windows from them in torch ops."""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rlrun.buffer import saved
from rlrun.buffer.device.proportional import upload
from rlrun.buffer.storage.base import FIRST, TERMINATED, TRUNCATED, Storage
from rlrun.buffer.storage.layout import FLAG, ArraySpec, Layout
from rlrun.buffer.storage.ring import as_words, write_flags
from rlrun.buffer.windows.spans import Spans
from rlrun.types import Chunk, Segment, Tree, tree_leaves, tree_map

_WORDS = {8: np.int64, 4: np.int32, 1: np.uint8}


def torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    """The torch dtype of a numpy dtype."""
    same: torch.dtype = torch.from_numpy(np.empty(0, dtype)).dtype
    return same


def to_host(tree: Tree) -> Tree:
    """Copy the tensors of a tree to arrays in host memory."""
    return tree_map(lambda x: x.numpy(force=True) if isinstance(x, Tensor) else x, tree)


class DeviceField:
    """One field of the ring on a device; entries are copied as words, whatever their dtype."""

    def __init__(self, block: ArraySpec, lead: tuple[int, int], device: torch.device) -> None:
        self.shape = block.shape
        self.array = torch.zeros(
            (*lead, *block.shape), dtype=torch_dtype(block.dtype), device=device
        )
        width = as_words(np.empty((1, 1, *block.shape), block.dtype)).dtype.itemsize
        flat = self.array.view(lead[0] * lead[1], -1) if block.nbytes else self.array.new_empty(0)
        self.words = flat.view(torch_dtype(np.dtype(_WORDS[width])))

    def write(self, at: Tensor, rows: np.ndarray) -> None:
        """Write entries ``rows`` [T, B, ...] to cells ``at`` [T * B]."""
        if self.array.numel():
            flat = as_words(rows)
            new = upload(flat.view(_WORDS[flat.dtype.itemsize]), self.words.device)
            self.words.index_copy_(0, at, new)

    def take(self, at: Tensor) -> Tensor:
        """Copy of the entries in cells ``at``, [*at, ...]."""
        if not self.array.numel():
            return self.array.new_empty((*at.shape, *self.shape))
        found = self.words.index_select(0, at.reshape(-1))
        return found.view(self.array.dtype).view(*at.shape, *self.shape)


class DeviceRing(Storage):
    """``Storage`` with its fields on a device and the flags in host memory too."""

    def __init__(self, layout: Layout, device: torch.device) -> None:
        super().__init__(layout)
        self.device, lead = device, (layout.columns, layout.rows)
        self.obs_fields: Tree = tree_map(lambda b: DeviceField(b, lead, device), layout.row.obs)
        named = {f"extras/{name}": block for name, block in layout.row.extras.items()}
        named["action"] = layout.row.action
        self.step_fields = {name: DeviceField(block, lead, device) for name, block in named.items()}
        self.rewards = torch.zeros(lead[0] * lead[1], device=device)
        self.device_flags = torch.zeros(lead[0] * lead[1], dtype=torch.uint8, device=device)
        flags = np.zeros(lead, FLAG)
        self.flags = flags.reshape(-1)
        self.obs = tree_map(lambda f: f.array, self.obs_fields)
        fields: dict[str, Any] = {name: field.array for name, field in self.step_fields.items()}
        self.fields = fields | {"reward": self.rewards.view(lead), "flags": flags}

    def arrays(self) -> list[Any]:
        return [*tree_leaves(self.obs), *self.fields.values(), self.device_flags]

    def write(self, chunk: Chunk, given: list[np.ndarray], *, close: bool) -> int:
        steps, columns = chunk.reward.shape
        assert steps < self.rows, "DeviceRing.write takes fewer rows than the ring holds"
        flags = np.zeros((columns, steps + 1), FLAG)  # of a ring of T + 1 rows
        valid: int = write_flags(
            flags.reshape(-1), np.empty(flags.size, np.float32), 0, steps + 1,
            chunk.first, chunk.terminated, chunk.truncated, chunk.valid, chunk.reward, close,
        )  # fmt: skip
        row = np.arange(self.head, self.head + steps + 1)[:, None]
        cells = self.cells(row, np.arange(columns)).reshape(-1)
        self.flags[cells] = flags.T.reshape(-1)
        at = upload(cells, self.device)
        self.device_flags.index_copy_(0, at, upload(flags.T.reshape(-1), self.device))
        obs = tree_leaves(self.obs_fields)
        for field, new in zip(obs, given, strict=False):  # ``given`` has more
            field.write(at, new)
        at = at[: steps * columns]
        self.rewards.index_copy_(0, at, upload(chunk.reward.reshape(-1), self.device))
        for name, field in self.step_fields.items():
            x = chunk.action if name == "action" else chunk.extras[name[7:]][:steps]
            field.write(at, x)
        self.head += steps
        return valid

    def state_dict(self) -> dict[str, Any]:
        def observations(store: Tensor) -> dict[str, Any]:
            return {"rows": self.written(store), "open": to_host(store[:, self.head % self.rows])}

        fields: dict[str, Any] = {n: self.written(x) for n, x in self.fields.items()}
        fields["flags"] = self.fields["flags"][:, : min(self.head + 1, self.rows)]
        return {"head": self.head, "obs": tree_map(observations, self.obs), "fields": fields}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.begin(state)

        def observations(store: Tensor, x: dict[str, Any]) -> None:
            self.restore(store, x["rows"])
            newest = store[:, self.head % self.rows]
            saved.like("ring.open", x["open"], newest)
            newest.copy_(torch.from_numpy(x["open"]))

        tree_map(observations, self.obs, state["obs"])
        for name, store in self.fields.items():
            if name == "flags":
                saved.fill("ring.flags", store, state["fields"][name], lead=1)
            else:
                self.restore(store, state["fields"][name])
        self.check_loaded()
        self.device_flags.copy_(upload(self.flags, self.device))


class DeviceSpans(NamedTuple):
    """Rows of B windows, as ``DeviceGather`` reads them; int64 [B]."""

    cell: Tensor  # of the first own row
    shift: Tensor | int  # its position in the window
    seen: Tensor  # rows after it whose observation may be shown
    steps: Tensor  # rows after it that are steps
    key: Any = None  # the windows' keys


class DeviceGather:
    """Gathers windows from a ring on its device, time-major, as ``Gather``."""

    def __init__(self, ring: DeviceRing, *, stack: int) -> None:
        """``stack``: frames of an observation."""
        self.ring, self.stack = ring, stack
        self.positions: dict[int, Tensor] = {}  # 0..S-1 as [S, 1]

    def __call__(self, spans: Spans, positions: int, burnin: int) -> Segment:
        """The positions from learn - ``burnin`` on; filler and null rows are not valid."""
        shift = spans.first - spans.learn + burnin
        seen, steps = spans.last - spans.first, spans.stop - spans.first
        numbers = upload(np.stack([spans.cell, shift, seen, steps]), self.ring.device)
        return self.read(DeviceSpans(*numbers.unbind()), positions)

    def read(self, spans: DeviceSpans, positions: int) -> Segment:
        """The first ``positions`` of these windows."""
        ring, (cell, shift, seen, steps, _) = self.ring, spans
        if positions not in self.positions:
            self.positions[positions] = torch.arange(positions, device=ring.device).unsqueeze(1)
        offset = self.positions[positions] - shift
        end = (cell // ring.rows + 1) * ring.rows

        def cells(offset: Tensor, most: Tensor) -> Tensor:
            at = cell + torch.minimum(offset.clamp(min=0), most)
            return torch.where(at >= end, at - ring.rows, at)

        shown = cells(offset, seen)
        step = cells(offset[:-1], steps)
        before_first = torch.where(cell == end - ring.rows, end, cell) - 1
        valid = (offset[:-1] >= 0) & (offset[:-1] <= steps)
        flags = ring.device_flags[step]
        opens = ring.device_flags[cell] & FIRST > 0
        shown = self.frames(shown) if self.stack > 1 else shown
        taken = {name: field.take(step) for name, field in ring.step_fields.items()}
        extras = {name[7:]: x for name, x in taken.items() if name != "action"}
        previous = ring.step_fields["action"].take(before_first)
        extras["prev_action"] = previous.masked_fill_(
            opens.view(-1, *[1] * (previous.dim() - 1)), 0
        )
        extras["prev_reward"] = ring.rewards[before_first].masked_fill_(opens, 0)
        return Segment(
            tree_map(lambda field: field.take(shown), ring.obs_fields),
            opens & (offset == 0),
            taken["action"],
            ring.rewards[step].masked_fill_(~valid, 0),
            valid & (flags & TERMINATED > 0),
            ~valid | (flags & TRUNCATED > 0),
            valid,
            extras,
        )

    def frames(self, cells: Tensor) -> Tensor:
        """Cells [*cells, stack] of the last frames at ``cells``, oldest first.

        Frames before an episode's first row are copies of it.
        """
        out, rows = [cells], self.ring.rows
        for _ in range(self.stack - 1):
            back = torch.where(cells % rows == 0, cells + rows - 1, cells - 1)
            cells = torch.where(self.ring.device_flags[cells] & FIRST > 0, cells, back)
            out.append(cells)
        return torch.stack(out[::-1], -1)
