"""Windows of one learned row: every valid row has one, so they need no table."""

from typing import Any

import numpy as np

from rlrun.buffer import saved
from rlrun.buffer.storage.base import CUT, LIVE, VALID, Storage
from rlrun.buffer.windows.spans import NewWindows, Spans
from rlrun.jit import COMPILED, jit
from rlrun.types import Chunk, Window


class SingleRowWindows:
    """The window of row r is r and the next n rows. Its slot is the cell of row r.

    It can be sampled once row r + n or the end of its trajectory is stored, until the ring
    overwrites one of the ``rows_before`` rows before it (previous action and reward, stacked
    frames).
    """

    def __init__(self, ring: Storage, window: Window, *, close: bool, rows_before: int) -> None:
        """``close``: the end of a chunk ends its trajectories (collector.trajectory)."""
        self.ring, self.close, self.rows_before, self.nstep = ring, close, rows_before, window.nstep
        self.pending = np.zeros(ring.columns, np.int64)  # the first row not yet released
        self.live = 0
        self.tail = 0  # the oldest row that may have a live window
        self.early = 0  # windows dropped before their rows were: always 0

    def __len__(self) -> int:
        """Windows that can be sampled."""
        return self.live

    # -- live windows ------------------------------------------------------------------------------

    def expire(self, oldest: int) -> np.ndarray:
        """Drop the windows that read rows below ``oldest``; returns their slots."""
        until = oldest + self.rows_before if oldest else 0
        if until <= self.tail:
            return _NONE
        ring = self.ring
        dead: np.ndarray = expire(ring.flags, ring.rows, ring.columns, self.tail, until)
        self.tail = until
        self.live -= len(dead)
        return dead

    def extend(self, chunk: Chunk, *, close: bool) -> "NewWindows":
        """Insert the windows completed by the rows just written."""
        ring, steps = self.ring, len(chunk.reward)
        slots, keys = release(
            ring.flags, ring.rows, ring.columns, self.pending, self.nstep, ring.head - steps, steps
        )
        self.live += len(slots)
        return NewWindows(_NONE, slots, keys, len(slots))

    # -- slots and keys ----------------------------------------------------------------------------

    def row_of(self, slots: np.ndarray) -> np.ndarray:
        """The row stored in each slot's cell."""
        newest = self.ring.head - 1
        row: np.ndarray = newest - (newest - slots % self.ring.rows) % self.ring.rows
        return row

    def keys(self, slots: np.ndarray) -> np.ndarray:
        """The keys of the windows in ``slots``."""
        named: np.ndarray = self.row_of(slots) * self.ring.columns + slots // self.ring.rows
        return named

    def find(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(slots, whether the window is still stored) of keys."""
        row, column = np.divmod(keys, self.ring.columns)
        slots = self.ring.cells(row, column)
        stored = (row >= self.tail) & (row < self.ring.head)
        return slots, stored & (self.ring.flags[slots] & LIVE > 0)

    def all(self) -> np.ndarray:
        """Live slots, oldest first."""
        slots = np.flatnonzero(self.ring.flags & LIVE)
        return slots[np.argsort(self.keys(slots))]

    @property
    def num_candidates(self) -> int:
        """Number of ``candidates``; most hold a live window."""
        return (self.ring.head - self.tail) * self.ring.columns

    def candidates(self, number: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(slots, whether each holds a live window) of candidates 0..num_candidates-1."""
        back, column = np.divmod(number, self.ring.columns)
        slots = self.ring.cells(self.tail + back, column)
        return slots, self.ring.flags[slots] & LIVE > 0

    def spans(self, slots: np.ndarray) -> Spans:
        """The rows of the windows in ``slots``."""
        ring = self.ring
        return Spans(spans(ring.flags, slots, ring.head, ring.rows, ring.columns, self.nstep))

    # -- checks, checkpoints -----------------------------------------------------------------------

    def arrays(self) -> list[np.ndarray]:
        """Every array owned but ``pending`` (one number per column)."""
        return []

    def check(self) -> str | None:
        """None, or the broken invariant."""
        ring = self.ring
        live = np.flatnonzero(ring.flags & LIVE)
        row = self.row_of(live)
        oldest = ring.oldest
        if len(live) != self.live:
            return "the count of live windows is wrong"
        if oldest and (row - self.rows_before < oldest).any():
            return "a window needs an overwritten row"
        if not (ring.flags[live] & VALID).all():
            return "an invalid row has a window"
        if (row >= self.pending[live // ring.rows]).any():
            return "a window can be sampled before it is complete"
        if (self.spans(live).last > ring.head).any():
            return "a window reads ahead"
        return None

    def state_dict(self) -> dict[str, Any]:
        return {"pending": self.pending, "live": self.live, "tail": self.tail}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        saved.like("windows.pending", state["pending"], self.pending)
        self.pending[:] = state["pending"]
        cells = len(self.ring.flags)
        self.live = saved.integer("windows.live", state["live"], 0, cells)
        self.tail = saved.integer("windows.tail", state["tail"], 0, saved.MOST_ROWS)
        saved.check_single_rows(self)


_NONE = np.empty(0, np.int64)


@jit
def expire(flags: np.ndarray, rows: int, columns: int, start: int, stop: int) -> np.ndarray:
    """Drop the windows of rows start..stop-1; returns their cells, column by column."""
    out = np.empty((stop - start) * columns, np.int64)
    count = 0
    for c in range(columns):
        cell = c * rows + start % rows
        for _ in range(start, stop):
            if flags[cell] & LIVE:
                flags[cell] &= ~np.uint8(LIVE)
                out[count] = cell
                count += 1
            cell += 1
            if cell == (c + 1) * rows:
                cell -= rows
    return out[:count]


@jit
def release(
    flags: np.ndarray, rows: int, columns: int, pending: np.ndarray, nstep: int, start: int,
    steps: int,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Insert the windows completed by rows start, ...; returns cells and keys, by column."""
    out = np.empty((2, (steps + nstep) * columns), np.int64)
    count = np.uint64(0)
    for c in range(columns):
        base, wait = c * rows, pending[c]
        at = base + start % rows
        for row in range(start, start + steps):
            flag = flags[np.uint64(at)]
            at = at + 1 if at + 1 < base + rows else base
            until = row - nstep + 1  # windows of rows below are complete
            if not flag & VALID:
                until = row
            elif flag & CUT:
                until = row + 1
            for r in range(wait, until):
                back = at - 1 - (row - r)
                cell = np.uint64(back if back >= base else back + rows)
                if flags[cell] & VALID:
                    flags[cell] |= np.uint8(LIVE)
                    out[0, count], out[1, count] = cell, r * columns + c
                    count += np.uint64(1)
            wait = max(wait, until if flag & VALID else row + 1)
        pending[c] = wait
    return out[0, :count], out[1, :count]


@jit
def spans_compiled(
    flags: np.ndarray, slots: np.ndarray, head: int, rows: int, columns: int, nstep: int
) -> np.ndarray:
    """``Spans.lines`` of the windows in ``slots``."""
    out = np.empty((7, len(slots)), np.int64)
    newest = (head - 1) % rows
    for i in range(len(slots)):
        c = slots[i] // rows
        at = slots[i] - c * rows
        r = head - 1 - (newest - at if at <= newest else newest - at + rows)
        out[0, i], out[1, i], out[6, i] = slots[i], c, r * columns + c
        out[2, i] = out[3, i] = r
        out[4, i] = out[5, i] = r + nstep
        for j in range(1, nstep + 1):
            cut = flags[np.uint64(c * rows + at)] & CUT
            at += 1
            if at == rows:
                at = 0
            if cut or not flags[np.uint64(c * rows + at)] & VALID:
                out[4, i], out[5, i] = r + j - 1, r + j
                break
    return out


def spans_vectorised(
    flags: np.ndarray, slots: np.ndarray, head: int, rows: int, columns: int, nstep: int
) -> np.ndarray:
    """Twin in numpy."""
    column, at = np.divmod(slots, rows)
    row = head - 1 - (head - 1 - at) % rows
    last = row + nstep
    stop, open_ = last.copy(), np.ones(len(slots), bool)
    before = flags[slots]
    for j in range(1, nstep + 1):
        flag = flags[column * rows + (row + j) % rows]
        ends = open_ & ((before & CUT > 0) | (flag & VALID == 0))
        stop, last = np.where(ends, row + j - 1, stop), np.where(ends, row + j, last)
        open_ &= ~ends
        before = flag
    return np.stack([slots, column, row, row, stop, last, row * columns + column])


spans = spans_compiled if COMPILED else spans_vectorised
