"""Gathering of windows into a segment: cells, copies, reused output arrays."""

from sys import getrefcount
from typing import Any

import numpy as np
import torch

from rlrun.buffer.storage.base import FIRST, TERMINATED, TRUNCATED
from rlrun.buffer.storage.compressed import CompressedRows
from rlrun.buffer.storage.layout import REWARD, Row
from rlrun.buffer.storage.ring import Ring, as_words
from rlrun.buffer.windows.spans import Spans
from rlrun.jit import COMPILED, jit
from rlrun.types import Segment, Tree, tree_leaves, tree_map

_SETS, _SIZES = 4, 4  # output sets cached per batch size, batch sizes cached
_FEW = 8  # positions up to which copies overlap well without prefetching
_SMALL = 256  # bytes of an entry up to which prefetching pays; longer ones stream


class Gather:
    """Copies windows out of a ring, time-major.

    Output arrays are reused once no tensor of them is left: the page faults of fresh image batches
    cost more than the copy.
    """

    def __init__(self, ring: Ring, row: Row, *, stack: int) -> None:
        """``stack``: frames of an observation."""
        self.ring, self.row, self.stack = ring, row, stack
        flat = {name: _flat(x) for name, x in ring.fields.items()}
        leaves = tree_leaves(ring.obs)
        self.obs: list[Any] = [x if isinstance(x, CompressedRows) else _flat(x) for x in leaves]
        self.action, self.flags, self.reward = flat["action"], flat["flags"], flat["reward"]
        self.extras = {name[7:]: x for name, x in flat.items() if name.startswith("extras/")}
        plain = [x for x in (*self.obs, *self.extras.values()) if not isinstance(x, CompressedRows)]
        small = [x for x in plain if 0 < x[:1].nbytes <= _SMALL]
        small = [as_words(x[None]) for x in (*small, self.action)]
        self.prefetched = (small[0], self.reward, self.flags)
        self.others = small[1:]
        self.sets: dict[tuple[int, int], list[Outputs]] = {}

    def __call__(
        self,
        spans: Spans,
        positions: int,
        burnin: int,
        *,
        reuse: bool,
        state: Tree = (),
        partial: tuple[int, ...] = (),
    ) -> Segment:
        """The positions from learn - ``burnin`` on; filler and null rows are not valid.

        ``reuse`` the arrays for another batch of the same size. ``state``, ``partial``: of the
        segment.
        """
        at = spans.lines
        out = self._outputs(positions, at.shape[1], reuse)
        if COMPILED and positions > _FEW:
            for store in self.others:
                prefetch(store, at[0], positions)
        read_rows(
            *self.prefetched, at, burnin, self.ring.rows,
            out.shift, out.steps, out.seen, out.step, out.before, out.opens,
            out.first, out.terminated, out.truncated, out.valid, out.reward, out.prev_reward,
        )  # fmt: skip
        shown = out.seen if self.stack == 1 else self.frames(out.seen)
        for store, leaf in zip(self.obs, out.leaves, strict=True):
            store.take(shown, 0, leaf, "clip")
        self.action.take(out.step, 0, out.action, "clip")
        for name, store in self.extras.items():
            store.take(out.step, 0, out.extras[name], "clip")
        self.action.take(out.before, 0, out.prev_action, "clip")
        out.prev_action[out.opens] = 0
        return out.segment(state, partial)

    def frames(self, cells: np.ndarray) -> np.ndarray:
        """Cells [*cells, stack] of the last frames at ``cells``, oldest first.

        Frames before an episode's first row are copies of it.
        """
        out = np.empty((*cells.shape, self.stack), np.int64)
        for i in range(self.stack - 1, -1, -1):
            out[..., i] = cells
            start = cells % self.ring.rows == 0
            back = np.where(start, cells + self.ring.rows - 1, cells - 1)
            cells = np.where(self.flags[cells] & FIRST > 0, cells, back)
        return out

    def _outputs(self, positions: int, batch: int, reuse: bool) -> "Outputs":
        """Output arrays that are not in use."""
        if not reuse:
            return Outputs(self.row, positions, batch, self.stack)
        sets = self.sets.pop((positions, batch), [])
        self.sets[positions, batch] = sets  # most recently used size last
        if len(self.sets) > _SIZES:
            del self.sets[next(iter(self.sets))]
        for i, out in enumerate(sets):
            if out.free():
                if i:
                    sets.insert(0, sets.pop(i))
                return out
        out = Outputs(self.row, positions, batch, self.stack)
        out.count_references()
        if len(sets) < _SETS:
            sets.append(out)
        return out


class Outputs:
    """Arrays of one batch of windows."""

    def __init__(self, row: Row, positions: int, batch: int, stack: int) -> None:
        steps = positions - 1
        lead = (positions, batch) if stack == 1 else (positions, batch, stack)
        self.seen = np.empty((positions, batch), np.int64)  # cells of the observations shown
        self.step = np.empty((steps, batch), np.int64)  # cells of the transitions
        self.before = np.empty(batch, np.int64)  # cells of the rows before the windows
        self.shift = np.empty(batch, np.int64)  # positions of the windows' first own rows
        self.steps = np.empty(batch, np.int64)  # transitions after those
        self.opens = np.empty(batch, bool)  # whether these open an episode
        self.obs: Tree = tree_map(lambda b: np.empty((*lead, *b.shape), b.dtype), row.obs)
        self.leaves = tree_leaves(self.obs)
        self.first = np.empty((positions, batch), bool)
        self.action = np.empty((steps, batch, *row.action.shape), row.action.dtype)
        self.reward = np.empty((steps, batch), REWARD)
        self.terminated, self.truncated, self.valid = (
            np.empty((steps, batch), bool) for _ in range(3)
        )
        self.prev_action = np.empty((batch, *row.action.shape), row.action.dtype)
        self.prev_reward = np.empty(batch, REWARD)
        self.extras = {
            name: np.empty((steps, batch, *b.shape), b.dtype) for name, b in row.extras.items()
        }
        flags = (self.terminated, self.truncated, self.valid)
        previous = (self.prev_action, self.prev_reward)
        given = (self.first, self.action, self.reward, *flags, *previous)
        self.given = [*self.leaves, *given, *self.extras.values()]
        self.idle: list[int] = []

    def count_references(self) -> None:
        """Store the reference counts of the idle arrays."""
        self.idle = [getrefcount(x) for x in self.given]

    def free(self) -> bool:
        """Return whether no tensor of these arrays is left."""
        return self.idle == [getrefcount(x) for x in self.given]

    def segment(self, state: Tree, partial: tuple[int, ...]) -> Segment:
        """The arrays as tensors sharing memory."""
        tensor = torch.from_numpy
        extras = {name: tensor(x) for name, x in self.extras.items()} if self.extras else {}
        extras["prev_action"] = tensor(self.prev_action)
        extras["prev_reward"] = tensor(self.prev_reward)
        single = self.obs is self.leaves[0]
        obs = tensor(self.obs) if single else tree_map(tensor, self.obs)
        return Segment(
            obs, tensor(self.first), tensor(self.action),
            tensor(self.reward), tensor(self.terminated), tensor(self.truncated),
            tensor(self.valid), extras, state, partial,
        )  # fmt: skip


def _flat(store: np.ndarray) -> np.ndarray:
    """A ring's array [columns, rows, ...] as [cells, ...]."""
    return store.reshape(store.shape[0] * store.shape[1], *store.shape[2:])


@jit
def prefetch(store: np.ndarray, cell: np.ndarray, count: int) -> np.uint64:
    """Load ``count`` entries from each ``cell`` on into the cache; returns the sum of the words.

    Independent loads overlap: the copies that follow take half the time.
    """
    width, last = store.shape[1], len(store) - 1
    source = store.reshape(-1)
    line = max(64 // (width * store.itemsize), 1)  # entries a cache line holds at least
    total = np.uint64(0)
    for k in range(0, count - 1 + line, line):
        offset = min(k, count - 1)
        for b in range(len(cell)):
            total += np.uint64(source[np.uint64(min(cell[b] + offset, last) * width)])
    return total


@jit
def prefetch_fields(
    store: np.ndarray, rewards: np.ndarray, flags: np.ndarray, cell: np.ndarray, count: int
) -> np.uint64:
    """``prefetch`` for three arrays at once."""
    total = prefetch(store, cell, count) + prefetch(flags.reshape(-1, 1), cell, count)
    return total + prefetch(rewards.view(np.uint32).reshape(-1, 1), cell, count)


@jit
def window_cells_compiled(
    at: np.ndarray, burnin: int, rows: int,
    shift: np.ndarray, steps: np.ndarray, seen: np.ndarray, step: np.ndarray, before: np.ndarray,
) -> None:  # fmt: skip
    """Compute the cells of windows; ``at``: ``Spans.lines``.

    ``seen`` [S, B] for observations, ``step`` [S - 1, B] for the rest; a position outside a
    window's rows gets the nearest of them. ``before`` [B]: the rows before the windows.
    """
    cell, column, first, learn, stop, last = at[0], at[1], at[2], at[3], at[4], at[5]
    batch = len(cell)
    end = (column + 1) * rows
    for b in range(batch):
        shift[b] = first[b] - learn[b] + burnin
        steps[b] = stop[b] - first[b]
        before[b] = (end[b] if cell[b] == end[b] - rows else cell[b]) - 1
    for t in range(len(seen)):
        for b in range(batch):
            to = cell[b] + min(max(t - shift[b], 0), last[b] - first[b])
            seen[t, b] = to - rows if to >= end[b] else to
    for t in range(len(step)):
        for b in range(batch):
            to = cell[b] + min(max(t - shift[b], 0), steps[b])
            step[t, b] = to - rows if to >= end[b] else to


def window_cells_vectorised(
    at: np.ndarray, burnin: int, rows: int,
    shift: np.ndarray, steps: np.ndarray, seen: np.ndarray, step: np.ndarray, before: np.ndarray,
) -> None:  # fmt: skip
    """Twin in numpy."""
    cell, column, first, learn, stop, last, _ = at
    start = column * rows
    shift[:] = first - learn + burnin
    steps[:] = stop - first
    t = np.arange(len(seen))[:, None] - shift
    seen[:] = start + (cell - start + np.clip(t, 0, last - first)) % rows
    step[:] = start + (cell - start + np.clip(t[: len(step)], 0, steps)) % rows
    before[:] = start + (cell - start - 1) % rows


@jit
def read_flags_compiled(
    flags: np.ndarray, rewards: np.ndarray, at: np.ndarray, before: np.ndarray, step: np.ndarray,
    shift: np.ndarray, steps: np.ndarray,
    opens: np.ndarray, first: np.ndarray, terminated: np.ndarray, truncated: np.ndarray,
    valid: np.ndarray, reward: np.ndarray, prev_reward: np.ndarray,
) -> None:  # fmt: skip
    """Decode flags and rewards of the cells ``step`` [S - 1, B].

    Positions outside a window's rows get reward 0 and valid False.
    """
    batch = len(shift)
    flag, since, until = (
        np.empty(batch, np.uint8),
        np.empty(batch, np.int32),
        np.empty(batch, np.int32),
    )
    for b in range(batch):
        opens[b] = flags[np.uint64(at[0, b])] & FIRST > 0
        since[b], until[b] = shift[b], shift[b] + steps[b]
    for b in range(batch):
        previous = rewards[np.uint64(before[b])]
        prev_reward[b] = np.float32(0) if opens[b] else previous
    for t in range(len(first)):
        for b in range(batch):
            first[t, b] = opens[b] & (t == since[b])
    for t in range(len(step)):
        for b in range(batch):  # bound by memory latency
            row = np.uint64(step[t, b])
            flag[b], reward[t, b] = flags[row], rewards[row]
        now = np.int32(t)
        for b in range(batch):  # vectorised by the compiler
            own = (now >= since[b]) & (now <= until[b])
            valid[t, b] = own
            terminated[t, b] = own & (flag[b] & TERMINATED > 0)
            truncated[t, b] = (not own) | (flag[b] & TRUNCATED > 0)
            reward[t, b] = reward[t, b] if own else np.float32(0)


def read_flags_vectorised(
    flags: np.ndarray, rewards: np.ndarray, at: np.ndarray, before: np.ndarray, step: np.ndarray,
    shift: np.ndarray, steps: np.ndarray,
    opens: np.ndarray, first: np.ndarray, terminated: np.ndarray, truncated: np.ndarray,
    valid: np.ndarray, reward: np.ndarray, prev_reward: np.ndarray,
) -> None:  # fmt: skip
    """Twin in numpy."""
    opens[:] = flags[at[0]] & FIRST > 0
    prev_reward[:] = np.where(opens, np.float32(0), rewards[before])
    t = np.arange(len(first))[:, None] - shift
    first[:] = opens & (t == 0)
    valid[:] = (t[: len(step)] >= 0) & (t[: len(step)] <= steps)
    terminated[:] = valid & (flags[step] & TERMINATED > 0)
    truncated[:] = ~valid | (flags[step] & TRUNCATED > 0)
    reward[:] = np.where(valid, rewards[step], np.float32(0))


window_cells = window_cells_compiled if COMPILED else window_cells_vectorised
read_flags = read_flags_compiled if COMPILED else read_flags_vectorised


@jit
def read_rows(
    store: np.ndarray, rewards: np.ndarray, flags: np.ndarray, at: np.ndarray, burnin: int,
    rows: int, shift: np.ndarray, steps: np.ndarray, seen: np.ndarray, step: np.ndarray,
    before: np.ndarray, opens: np.ndarray, first: np.ndarray, terminated: np.ndarray,
    truncated: np.ndarray, valid: np.ndarray, reward: np.ndarray, prev_reward: np.ndarray,
) -> None:  # fmt: skip
    """``window_cells`` and ``read_flags`` in one call, of long windows after ``prefetch_fields``.

    Passing arrays to three kernels takes longer than the work of the first two.
    """
    if COMPILED and len(seen) > _FEW:
        prefetch_fields(store, rewards, flags, at[0], len(seen))
    window_cells(at, burnin, rows, shift, steps, seen, step, before)
    read_flags(
        flags, rewards, at, before, step, shift, steps, opens,
        first, terminated, truncated, valid, reward, prev_reward,
    )  # fmt: skip
