"""Windows over stored rows: cutting trajectories into windows, and the table of stored windows.

A window has S = burnin + learned + nstep positions. Position p holds row ``learn + p - burnin`` of
its column if the trajectory has such a row, else filler (left) or a null row (right). Row numbers
are absolute: they count the rows of a column since the run began.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from rlrun.buffer import kernels, saved
from rlrun.buffer.layout import TABLE, Allocate, Layout, allocate_tree
from rlrun.buffer.ring import Ring
from rlrun.run.tensors import RingRows, RowFiles
from rlrun.types import Chunk, Tree, Window, tree_leaves, tree_map

_NONE = np.empty(0, np.int64)
_RESIDUALS = {"last": 1, "null_padding": 2, "drop": 3}


class Cutter:
    """Cuts columns of rows, which arrive chunk by chunk, into windows.

    Plain windows of a trajectory of T steps start at 0, d, 2 d, ... while start + S <= T, with
    d = ``stride``. If steps remain, ``residual: last`` adds a window at T - S,
    ``null_padding`` one at the next grid start, ``drop`` none. T < S always gives one padded
    window. Lossless spans of learned steps start d apart until one reaches the last step. The
    windows do not depend on how a trajectory is split into chunks. Each is cut as soon as its last
    row is known, so endless episodes are learned from.

    Source: DI-engine's documented ``get_train_sample``; rlrun/buffer/README.md, Windows.
    """

    def __init__(
        self, window: Window, *, columns: int, stride: int, residual: str | None, plain: bool
    ) -> None:
        """``stride``: rows from the start of one window to that of the next."""
        self.window, self.stride, self.plain = window, stride, plain
        self.shape = (*window, self.stride, _RESIDUALS[residual or "drop"] if plain else 0)
        self.origin = np.zeros(columns, np.int64)  # first row of each column's trajectory
        self.row = 0  # rows received

    def cut(self, first: np.ndarray, valid: np.ndarray) -> np.ndarray:
        """Return the windows that the next T rows complete; ``first``/``valid`` bool [T, B].

        int64 [N, 7]: the numbers ``TABLE`` of every window, in order of completion.
        """
        lines: np.ndarray = kernels.cut(first, valid, self.origin, self.row, self.shape)
        self.row += len(valid)
        return lines

    def count(self, first: np.ndarray, valid: np.ndarray) -> int:
        """Return the number of windows that a row, ``first``/``valid`` bool [B], completes."""
        return len(self.cut(first[None], valid[None]))

    def state_dict(self) -> dict[str, Any]:
        """Return the open trajectories and the number of rows received."""
        return {"origin": self.origin.copy(), "row": self.row}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        saved.check_cutter(self, state["origin"], state["row"])
        self.origin, self.row = np.array(state["origin"]), int(state["row"])


class StateFilter:
    """Zeros the states of collected rows from which no window starts: zeros compress well.

    The index of a row in its trajectory decides. All states are kept where the index is not enough:
    with ``residual: last``, and in a trajectory whose first row was not seen.
    """

    def __init__(
        self, window: Window, *, columns: int, stride: int, residual: str | None, plain: bool
    ) -> None:
        """The arguments are those of ``Cutter``."""
        self.window, self.stride, self.plain = window, stride, plain
        self.keep_all = plain and residual == "last"
        self.index = np.full(
            columns, -1, np.int64
        )  # index of the next row in its trajectory; -1: unknown

    def forget(self) -> None:
        """Reset: the next rows follow others, or go to a replay that lacks the earlier ones."""
        self.index[:] = -1

    def filter(self, chunk: Chunk) -> Chunk:
        """Return the chunk with unused states zeroed. The chunk's arrays are not changed."""
        if self.keep_all or not tree_leaves(chunk.states):
            return chunk
        keep = self.may_start(chunk.first[: len(chunk.reward)])

        def blank(x: np.ndarray) -> np.ndarray:
            wide = keep[..., *(None,) * (x.ndim - 2)]
            filtered: np.ndarray = np.where(wide, x, 0).astype(x.dtype)
            return filtered

        return replace(chunk, states=tree_map(blank, chunk.states))

    def may_start(self, first: np.ndarray) -> np.ndarray:
        """Return whether a window may start at each of the next rows, bool [T, B]."""
        rows = np.arange(len(first), dtype=np.int64)[:, None]
        opened = np.maximum.accumulate(np.where(first, rows, -1), axis=0)
        known = (opened >= 0) | (self.index >= 0)
        index = np.where(opened >= 0, rows - opened, rows + self.index)
        self.index = np.where(known[-1], index[-1] + 1, -1)
        if self.plain:
            starts = index % self.stride == 0
        else:  # a window that starts at the row learns after its full burn-in
            starts = ((index + self.window.burnin) % self.stride == 0) | (index == 0)
        keep: np.ndarray = starts | ~known
        return keep


@dataclass(slots=True)
class Spans:
    """Rows of B windows, counted since the run began: ``lines`` int64 [7, B]."""

    lines: np.ndarray

    @classmethod
    def of(cls, cell: Any, column: Any, first: Any, learn: Any, stop: Any, last: Any) -> "Spans":
        """Return the spans of all lines except the keys."""
        return cls(np.stack([cell, column, first, learn, stop, last, cell]))

    def __len__(self) -> int:
        """Return B."""
        return int(self.lines.shape[1])

    cell = property(lambda self: self.lines[0], doc="cells of the first rows")
    column = property(lambda self: self.lines[1])
    first = property(lambda self: self.lines[2], doc="first row")
    learn = property(lambda self: self.lines[3], doc="first learned row")
    stop = property(lambda self: self.lines[4], doc="last valid row")
    last = property(lambda self: self.lines[5], doc="last row shown: stop or the one after it")
    key = property(lambda self: self.lines[6], doc="keys of the windows")


class NewWindows(NamedTuple):
    """Changes of the table by appended rows."""

    dropped: np.ndarray  # slots of windows that are no longer stored
    slots: np.ndarray  # slots of new windows
    keys: np.ndarray  # their keys
    valid: int  # rows that are steps
    learned: int  # rows learned by some window for the first time


class WindowTable:
    """The windows that can be sampled, each in a slot, with a key that is never reused.

    Windows are numbered in order of completion. Window ``number`` is in slot number % capacity,
    with its rows and the recurrent state before its first row. If every valid row has a window of
    its own (``layout.windows`` None: one learned row, no state), its rows follow from the flags of
    the ring and only ``alive`` is stored. The window that learns row r of a column then has number
    r in that column, and its slot is the row's cell.

    A window is dropped when the ring overwrites one of the ``rows_before`` rows before its first
    (previous action and reward, stacked frames), or when the table is full of younger ones.
    """

    def __init__(
        self,
        ring: Ring,
        window: Window,
        layout: Layout,
        allocate: Allocate,
        *,
        cutter: Cutter,
        rows_before: int,
    ) -> None:
        self.ring, self.window, self.cutter = ring, window, cutter
        self.rows, self.rows_before = window.rows, rows_before
        self.of_rows = layout.windows is None  # every row has a window
        self.capacity, self.columns = layout.slots, 1
        if self.of_rows:
            self.capacity, self.columns = ring.rows, ring.columns
        blocks = layout.table()
        self.alive = allocate("alive", blocks["alive"])
        self.lines = allocate("table", blocks["lines"])
        self.numbers = {name: self.lines[:, i] for i, name in enumerate(TABLE)}
        self.states = allocate_tree("states", layout.states(), allocate)
        self.state_leaves = tree_leaves(self.states)
        # States before the last S rows, for windows not yet complete. None: no row was added.
        self.recent: list[np.ndarray] | None = None
        self.head = self.tail = 0  # the next number, and the oldest that may be alive
        self.live = 0  # windows that can be sampled
        # Whether windows may begin with a part of the burn-in: others have all of it or none.
        self.has_partial = not self.of_rows and window.burnin > cutter.stride
        self.files = RowFiles()  # of the windows saved so far
        self.early = 0  # windows evicted from a full table before their rows were overwritten

    # -- live windows ------------------------------------------------------------------------------

    def append(self, chunk: Chunk) -> NewWindows:
        """Write the flags of the rows after the ring's head and insert the windows they complete.

        Windows that read overwritten rows are dropped.
        """
        ring, steps = self.ring, len(chunk.reward)
        oldest = ring.head + steps + 1 - ring.rows  # oldest complete row after these
        first = oldest + self.rows_before if oldest > 0 else 0
        flags = chunk.first, chunk.terminated, chunk.truncated, chunk.valid, chunk.reward
        if not self.of_rows:
            dead = self._expire(first) if first else _NONE
            valid = kernels.write_flags(ring.arrays, ring.head, flags)
            return self._extend(chunk, first, dead, valid)
        cutter, until = self.cutter, max(first, self.tail)
        dead, (slots, keys), valid = kernels.append_rows(
            ring.arrays, self.alive, ring.head, flags, (cutter.origin, cutter.shape), self.tail,
            until,
        )  # fmt: skip
        self.tail, self.head = until, ring.head + steps
        cutter.row += steps
        self.live += len(slots) - len(dead)
        return NewWindows(dead, slots, keys, valid, len(slots))

    def _expire(self, first: int) -> np.ndarray:
        """Drop the windows that begin before row ``first`` and return their slots."""
        table = self.lines, self.alive
        dead: np.ndarray = kernels.expire_lines(table, self.tail, self.head, first, self.rows)
        while self.tail < self.head and not self.alive[self.tail % self.capacity]:
            self.tail += 1
        self.live -= len(dead)
        return dead

    def _extend(self, chunk: Chunk, first: int, dead: np.ndarray, valid: int) -> NewWindows:
        """Insert the windows that begin at row ``first`` or later."""
        new = self.cutter.cut(chunk.first[: len(chunk.reward)], chunk.valid)
        new = new[new[:, 1] - new[:, 2] >= first]  # the end of a trajectory may complete older ones
        keys = np.arange(self.head, self.head + len(new))[-self.capacity :]
        skip = len(new) - len(keys)
        self.early += skip
        until = self.head + len(new) - self.capacity
        dropped = self._evict(until) if until > self.tail else _NONE
        learned = kernels.insert_lines(
            (self.lines, self.alive), self.ring.arrays, new, self.head + skip, skip,
            self.window.learned,
        )  # fmt: skip
        self.live += len(keys)
        self.head += len(new)
        slots = keys % self.capacity
        self._keep_states(chunk.states, new[skip:], slots)
        return NewWindows(np.concatenate([dead, dropped]), slots, keys, valid, learned)

    def _keep_states(self, states: Tree, new: np.ndarray, slots: np.ndarray) -> None:
        """Store the states before the first rows of the windows ``new`` in ``slots``.

        ``states``: before the rows of the chunk. Windows may begin in the S rows before it.
        """
        earlier, self.recent = self.recent, []
        for i, x in enumerate(tree_leaves(states)):
            known = x if earlier is None else np.concatenate([earlier[i], x])
            self.recent.append(known[-self.rows :].copy())
            row = new[:, 1] - new[:, 2] - self.cutter.row + len(known)  # in ``known``
            self.state_leaves[i][slots] = known[row, new[:, 0]]

    def _evict(self, until: int) -> np.ndarray:
        """Drop windows with numbers below ``until``: the table is full of younger ones."""
        slots = np.arange(self.tail, min(until, self.head)) % self.capacity
        slots = slots[self.alive[slots]]
        self.alive[slots] = False
        self.live -= len(slots)
        self.early += len(slots)
        self.tail = until  # one add that overfills the table skips numbers below it
        return slots

    # -- slots and keys ----------------------------------------------------------------------------

    def keys(self, slots: np.ndarray) -> np.ndarray:
        """Return the keys of the windows in ``slots``."""
        newest = self.head - 1
        number = newest - (newest - slots % self.capacity) % self.capacity
        keys: np.ndarray = number * self.columns + slots // self.capacity
        return keys

    def find(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (slots, whether the window is still stored) of ``keys``."""
        number, column = np.divmod(keys, self.columns)
        slots = column * self.capacity + number % self.capacity
        return slots, (number >= self.tail) & (number < self.head) & self.alive[slots]

    def all(self) -> np.ndarray:
        """Return the live slots, oldest first."""
        slots = np.flatnonzero(self.alive)
        return slots[np.argsort(self.keys(slots))]

    @property
    def num_candidates(self) -> int:
        """Return the number of ``candidates``, most of which hold a live window."""
        return (self.head - self.tail) * self.columns

    def candidates(self, number: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (slots, whether each holds a live window) of candidates 0..num_candidates-1."""
        return kernels.candidates(number, self.columns, self.capacity, self.tail, self.alive)

    def spans(self, slots: np.ndarray) -> Spans:
        """Return the rows of the windows in ``slots``."""
        ring = self.ring
        if self.of_rows:
            return Spans(kernels.row_spans(ring.arrays, slots, ring.head, self.window.nstep))
        return Spans(kernels.line_spans(self.lines, slots, ring.rows, self.head))

    def states_of(self, slots: np.ndarray) -> Tree:
        """Return the states before the first rows of the windows, new arrays [n, ...]."""
        return tree_map(lambda store: store[slots], self.states)

    def partial(self, slots: np.ndarray) -> tuple[int, ...]:
        """Return the burn-in lengths in ``slots`` strictly between 0 and the full one."""
        burnin = self.numbers["burnin"][slots]
        partial = (burnin > 0) & (burnin < self.window.burnin)
        return tuple(np.unique(burnin[partial]).tolist())

    # -- checks, checkpoints -----------------------------------------------------------------------

    def arrays(self) -> list[np.ndarray]:
        """Return every array owned except ``recent`` (S rows of states)."""
        return [self.lines, self.alive, *self.state_leaves]

    def check(self) -> str | None:
        """Return a broken invariant, or None."""
        ring, slots = self.ring, np.flatnonzero(self.alive)
        spans = self.spans(slots)
        number = self.keys(slots) // self.columns
        wrong = {
            "the number of live windows is not the counted one": len(slots) != self.live,
            "a live window is older than the tail": (number < self.tail).any(),
            "a live window has a key not yet assigned": (number >= self.head).any(),
            "a window needs an overwritten row": ring.oldest > 0
            and (spans.first - self.rows_before < ring.oldest).any(),
            "a window reads ahead": (spans.last > ring.head).any(),
            "an invalid row has a window": not (ring.flags[spans.cell] & kernels.VALID).all(),
            "cutter and ring count different rows": self.cutter.row != ring.head,
        }
        return next((problem for problem, broken in wrong.items() if broken), None)

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state, without slots that hold no window."""
        used = len(self.alive) if self.of_rows else min(self.head, self.capacity)
        numbers = {name: getattr(self, name) for name in ("head", "tail", "live", "early")}
        lines, states, leaves = None, None, iter(self.recent or ())
        recent = None if self.recent is None else tree_map(lambda _: next(leaves), self.states)
        if not self.of_rows:
            lines = self._written(self.lines)
            states = tree_map(self._written, self.states)
        return numbers | {
            "lines": lines,
            "alive": self.alive[:used],
            "states": states,
            "recent": recent,
            "cutter": self.cutter.state_dict(),
        }

    def _written(self, array: np.ndarray) -> RingRows:
        """Return the entries [slots, ...] of windows from ``tail`` on, which are final."""
        return RingRows(array[None], self.tail, self.head, self.files)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in ("head", "tail", "live", "early"):
            setattr(self, name, saved.integer(f"windows.{name}", state[name], 0, saved.MOST_ROWS))
        saved.fill("windows.alive", self.alive, state["alive"])
        if not self.of_rows:

            def restore(array: np.ndarray, rows: Any) -> None:
                saved.fill_rows("windows", array[None], rows, self.tail, self.head)

            restore(self.lines, state["lines"])
            self.files = state["lines"].saved_files()
            tree_map(restore, self.states, state["states"])
        self.recent = None
        if state["recent"] is not None:
            recent = tree_map(np.array, state["recent"])
            saved.check_recent(recent, self.states, self.window, self.ring)
            self.recent = tree_leaves(recent)
        self.cutter.load_state_dict(state["cutter"])
        saved.check_table(self)
