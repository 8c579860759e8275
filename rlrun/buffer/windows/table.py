"""Windows of several rows: a table of their rows, and the recurrent state before each."""

from typing import Any

import numpy as np

from rlrun.buffer import saved
from rlrun.buffer.storage.base import LEARNED, Storage
from rlrun.buffer.storage.layout import TABLE, Allocate, Layout
from rlrun.buffer.windows.cutter import Cutter, Windows
from rlrun.buffer.windows.spans import NewWindows, Spans
from rlrun.buffer.windows.states import StateStore
from rlrun.jit import COMPILED, jit
from rlrun.run.tensors import RingRows, RowFiles
from rlrun.types import Chunk, Tree, Window, tree_leaves, tree_map

SCAN = 1024  # windows checked together when old ones are dropped

_NONE = np.empty(0, np.int64)


class WindowTable:
    """Table of ``capacity`` windows: window ``key``, counted since the run began, is in slot
    key % capacity.

    A window is dropped when the ring overwrites one of the ``rows_before`` rows before its first
    (previous action and reward, stacked frames), or when the table is full of younger ones.
    """

    def __init__(
        self,
        ring: Storage,
        window: Window,
        layout: Layout,
        allocate: Allocate,
        *,
        states: StateStore,
        cutter: Cutter,
        close: bool,
        rows_before: int,
    ) -> None:
        """``close``: the end of a chunk ends its trajectories (collector.trajectory)."""
        assert layout.windows is not None
        self.ring, self.window, self.states, self.cutter = ring, window, states, cutter
        self.close, self.rows_before, self.capacity = close, rows_before, layout.windows
        blocks = layout.table()
        self.alive = allocate("alive", blocks["alive"])
        self.lines = allocate("table", blocks["lines"])
        self.columns = {name: self.lines[:, i] for i, name in enumerate(TABLE)}
        self.state_blocks = layout.states()
        self.recent: Tree = None  # states before the last S rows, of windows not yet complete
        self.head = self.tail = 0  # keys: the next one, the oldest that may be alive
        self.live = 0
        self.files = RowFiles()  # of the windows saved so far
        self.early = 0  # windows evicted from a full table before their rows were overwritten

    def __len__(self) -> int:
        """Windows that can be sampled."""
        return self.live

    # -- live windows ------------------------------------------------------------------------------

    def expire(self, oldest: int) -> np.ndarray:
        """Drop the windows that read rows below ``oldest``; returns their slots."""
        if oldest == 0:
            return _NONE
        table, scan, dead = self.columns, self.tail, [_NONE]
        while scan < self.head:
            slots = np.arange(scan, min(self.head, scan + SCAN)) % self.capacity
            needs = table["learn"][slots] - table["burnin"][slots] - self.rows_before
            dead.append(self._drop(slots[self.alive[slots] & (needs < oldest)]))
            # A window is complete at most S rows after its first: later ones are young enough.
            if table["release"][slots[-1]] > oldest + self.window.rows + self.rows_before:
                break
            scan += len(slots)
        while self.tail < self.head and not self.alive[self.tail % self.capacity]:
            self.tail += 1
        return np.concatenate(dead)

    def extend(self, chunk: Chunk, *, close: bool) -> NewWindows:
        """Insert the windows completed by the rows just written."""
        steps = len(chunk.reward)
        windows = self.cutter.cut(chunk.first[:steps], chunk.valid, close=close)
        states = self._with_recent(chunk.states, steps)
        oldest = self.ring.oldest
        whole = (
            windows.learn - windows.burnin - self.rows_before >= oldest if oldest else slice(None)
        )
        windows = Windows(**{n: getattr(windows, n)[whole] for n in TABLE})
        keys = np.arange(self.head, self.head + len(windows))
        keys = keys[max(0, len(keys) - self.capacity) :]
        skip = len(windows) - len(keys)
        self.early += skip
        dropped = self._evict(self.head + len(windows) - self.capacity)
        slots = keys % self.capacity
        for name, column in self.columns.items():
            column[slots] = getattr(windows, name)[skip:]
        self.alive[slots] = True
        self.live += len(slots)
        self.head += len(windows)
        self._keep_states(windows, states, slots, skip)
        return NewWindows(dropped, slots, keys, self._mark(windows))

    def _with_recent(self, states: Tree, steps: int) -> Tree:
        """States before the rows of this chunk and of up to S rows before it."""
        if self.recent is None:
            joined = tree_map(lambda x: x[:steps], states)
        else:
            joined = tree_map(
                lambda old, new: np.concatenate([old, new[:steps]]), self.recent, states
            )
        self.recent = tree_map(lambda x: x[-self.window.rows :].copy(), joined)
        return joined

    def _keep_states(self, windows: Windows, states: Tree, slots: np.ndarray, skip: int) -> None:
        if not tree_leaves(states) or not len(slots):
            return
        first = (windows.learn - windows.burnin)[skip:]
        column = windows.column[skip:]
        begin = self.ring.head - len(tree_leaves(states)[0])  # the row of states[0]

        self.states.write(slots, tree_map(lambda x: x[first - begin, column], states))

    def _mark(self, windows: Windows) -> int:
        """Flag the rows that windows learn; returns how many were not flagged before."""
        row = windows.learn[:, None] + np.arange(self.window.learned)
        known = row <= (windows.last - windows.ended)[:, None]
        column = np.broadcast_to(windows.column[:, None], row.shape)[known]
        fresh = np.unique(self.ring.cells(row[known], column))
        flags = self.ring.flags
        count = int((flags[fresh] & LEARNED == 0).sum())
        flags[fresh] |= LEARNED
        return count

    def _evict(self, until: int) -> np.ndarray:
        """Drop windows with keys below ``until``: the table is full of younger ones."""
        if until <= self.tail:
            return _NONE
        slots = np.arange(self.tail, min(until, self.head)) % self.capacity
        live = self._drop(slots[self.alive[slots]])
        self.early += len(live)
        self.tail = until  # one add that overfills the table skips keys below it
        return live

    def _drop(self, slots: np.ndarray) -> np.ndarray:
        self.alive[slots] = False
        self.live -= len(slots)
        return slots

    # -- slots and keys ----------------------------------------------------------------------------

    def keys(self, slots: np.ndarray) -> np.ndarray:
        """The keys of the windows now in ``slots``."""
        newest = self.head - 1
        keys: np.ndarray = newest - (newest - slots) % self.capacity
        return keys

    def find(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(slots, whether the window is still stored) of keys."""
        slots = keys % self.capacity
        return slots, self.alive[slots] & (self.keys(slots) == keys)

    def all(self) -> np.ndarray:
        """Live slots, oldest first."""
        slots = np.flatnonzero(self.alive)
        return slots[np.argsort(self.keys(slots))]

    @property
    def num_candidates(self) -> int:
        """Number of ``candidates``; most hold a live window."""
        return self.head - self.tail

    def candidates(self, number: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(slots, whether each holds a live window) of candidates 0..num_candidates-1."""
        slots = (self.tail + number) % self.capacity
        return slots, self.alive[slots]

    def spans(self, slots: np.ndarray) -> Spans:
        """The rows of the windows in ``slots``."""
        return Spans(spans(self.lines, slots, self.ring.rows, self.head, self.capacity))

    def partial(self, slots: np.ndarray) -> tuple[int, ...]:
        """Burn-in lengths of the windows in ``slots`` strictly between 0 and the full one."""
        bs = self.window.burnin
        if bs <= self.cutter.stride:  # every window has its full burn-in or none
            return ()
        burnin = self.columns["burnin"][slots]
        return tuple(np.unique(burnin[(burnin > 0) & (burnin < bs)]).tolist())

    # -- checks, checkpoints -----------------------------------------------------------------------

    def arrays(self) -> list[np.ndarray]:
        """Every array owned but ``recent`` (S rows of states)."""
        return [self.lines, self.alive, *self.states.arrays()]

    def check(self) -> str | None:
        """None, or the broken invariant."""
        slots, table, ring = np.flatnonzero(self.alive), self.columns, self.ring
        keys = self.keys(slots)
        needs = (table["learn"] - table["burnin"])[slots] - self.rows_before
        if len(slots) != self.live:
            return "the count of live windows is wrong"
        if (keys < self.tail).any():
            return "a live window is older than the tail"
        if (keys >= self.head).any():
            return "a live window has a key not yet assigned"
        if ring.oldest and (needs < ring.oldest).any():
            return "a window needs an overwritten row"
        if (table["last"][slots] > ring.head).any():
            return "a window reads ahead"
        if self.cutter.row != ring.head:
            return "cutter and ring count different rows"
        return None

    def state_dict(self) -> dict[str, Any]:
        """Everything but slots without a window."""
        used = min(self.head, self.capacity)
        numbers = {name: getattr(self, name) for name in ("head", "tail", "live", "early")}
        return numbers | {
            "lines": self._written(self.lines[None]),
            "alive": self.alive[:used],
            "states": self.states.state_dict(self._written),
            "recent": self.recent,
            "cutter": self.cutter.state_dict(),
        }

    def _written(self, array: Any) -> RingRows:
        """The entries [1, slots, ...] of windows from ``tail`` on: window k is in slot k % slots.

        They are not changed before the slot is used again.
        """
        return RingRows(array, self.tail, self.head, self.files)

    def _restore(self, array: Any, rows: Any) -> None:
        saved.fill_rows("windows", array, rows, self.tail, self.head)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in ("head", "tail", "live", "early"):
            setattr(self, name, saved.integer(f"windows.{name}", state[name], 0, saved.MOST_ROWS))
        self._restore(self.lines[None], state["lines"])
        self.files = state["lines"].saved_files()
        saved.fill("windows.alive", self.alive, state["alive"])
        self.states.load_state_dict(state["states"], self._restore)
        self.recent = tree_map(np.array, state["recent"]) if state["recent"] is not None else None
        if self.recent is not None:
            blocks = tree_leaves(self.state_blocks)
            saved.check_recent(tree_leaves(self.recent), blocks, self.window, self.ring)
        self.cutter.load_state_dict(state["cutter"])
        saved.check_table(self)


@jit
def spans_compiled(
    lines: np.ndarray, slots: np.ndarray, rows: int, head: int, capacity: int
) -> np.ndarray:
    """``Spans.lines`` of the windows in ``slots`` of the table."""
    out = np.empty((7, len(slots)), np.int64)
    for b in range(len(slots)):
        line = np.uint64(slots[b])
        out[1, b], out[3, b] = lines[line, 0], lines[line, 1]
        out[2, b] = lines[line, 1] - lines[line, 2]
        out[5, b] = lines[line, 3]
        out[4, b] = lines[line, 3] - lines[line, 4]
    for b in range(len(slots)):
        out[0, b] = out[1, b] * rows + out[2, b] % rows
        out[6, b] = head - 1 - (head - 1 - slots[b]) % capacity
    return out


def spans_vectorised(
    lines: np.ndarray, slots: np.ndarray, rows: int, head: int, capacity: int
) -> np.ndarray:
    """Twin in numpy."""
    column, learn, burnin, last, ended = lines[slots, :5].T
    first = learn - burnin
    key = head - 1 - (head - 1 - slots) % capacity
    cell = column * rows + first % rows
    return np.stack([cell, column, first, learn, last - ended, last, key])


spans = spans_compiled if COMPILED else spans_vectorised
