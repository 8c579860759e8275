"""Windows of several rows: a table of where they lie, and the recurrent state before each."""

from typing import Any

import numpy as np

from rlrun.buffer.storage.base import LEARNED, Storage
from rlrun.buffer.storage.layout import TABLE, Allocate, Layout
from rlrun.buffer.windows.cutter import Cutter, Windows
from rlrun.buffer.windows.spans import Extended, Spans
from rlrun.buffer.windows.states import StateStore
from rlrun.jit import COMPILED, jit
from rlrun.types import Chunk, Tree, Window, tree_leaves, tree_map

SCAN = 1024  # windows looked at together when old ones are buried

_NONE = np.empty(0, np.int64)


class Table:
    """Window number ``key`` (counted since the run began, never reused) lies in slot
    key % capacity. It dies when the ring overwrites one of the ``reach`` rows before its first
    (previous action and reward, stacked frames).
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
        reach: int,
    ) -> None:
        """``close``: the end of a chunk ends its trajectories (collector.trajectory)."""
        assert layout.windows is not None
        self.ring, self.window, self.states, self.cutter = ring, window, states, cutter
        self.close, self.reach, self.capacity = close, reach, layout.windows
        blocks = layout.table()
        self.alive = allocate("alive", blocks["alive"])
        self.lines = allocate("table", blocks["lines"])
        self.columns = {name: self.lines[:, i] for i, name in enumerate(TABLE)}
        self.recent: Tree = None  # states before the last S rows: starts of windows yet to be cut
        self.head = self.tail = 0  # keys: next to be given, oldest that may be alive
        self.live = 0
        self.early = 0  # windows dropped before their rows were, for want of room

    def __len__(self) -> int:
        """Windows that can be sampled."""
        return self.live

    # -- life ------------------------------------------------------------------------------------

    def expire(self, oldest: int) -> np.ndarray:
        """The slots that die when rows below ``oldest`` go."""
        if oldest == 0:
            return _NONE
        table, scan, dead = self.columns, self.tail, [_NONE]
        while scan < self.head:
            slots = np.arange(scan, min(self.head, scan + SCAN)) % self.capacity
            needs = table["learn"][slots] - table["burnin"][slots] - self.reach
            dead.append(self._kill(slots[self.alive[slots] & (needs < oldest)]))
            # A window is complete at most S rows behind its first: later ones are young enough.
            if table["release"][slots[-1]] > oldest + self.window.rows + self.reach:
                break
            scan += len(slots)
        while self.tail < self.head and not self.alive[self.tail % self.capacity]:
            self.tail += 1
        return np.concatenate(dead)

    def extend(self, chunk: Chunk, *, close: bool) -> Extended:
        """The windows that the rows just written complete."""
        steps = len(chunk.reward)
        windows = self.cutter.cut(chunk.first[:steps], chunk.valid, close=close)
        states = self._with_recent(chunk.states, steps)
        oldest = self.ring.oldest
        whole = windows.learn - windows.burnin - self.reach >= oldest if oldest else slice(None)
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
        return Extended(dropped, slots, keys, self._mark(windows))

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
        """Note which rows some window learns; how many were not noted before."""
        row = windows.learn[:, None] + np.arange(self.window.learned)
        known = row <= (windows.last - windows.ended)[:, None]
        column = np.broadcast_to(windows.column[:, None], row.shape)[known]
        fresh = np.unique(self.ring.cells(row[known], column))
        flags = self.ring.flags
        count = int((flags[fresh] & LEARNED == 0).sum())
        flags[fresh] |= LEARNED
        return count

    def _evict(self, until: int) -> np.ndarray:
        """Kill windows with keys below ``until``: the table is full of younger ones."""
        if until <= self.tail:
            return _NONE
        slots = np.arange(self.tail, min(until, self.head)) % self.capacity
        live = self._kill(slots[self.alive[slots]])
        self.early += len(live)
        self.tail = until  # keys up to it are never given where one add overfills the table
        return live

    def _kill(self, slots: np.ndarray) -> np.ndarray:
        self.alive[slots] = False
        self.live -= len(slots)
        return slots

    # -- names -----------------------------------------------------------------------------------

    def keys(self, slots: np.ndarray) -> np.ndarray:
        """The keys that lie in ``slots`` now."""
        newest = self.head - 1
        keys: np.ndarray = newest - (newest - slots) % self.capacity
        return keys

    def find(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(slots, whether the window is still there) of named windows."""
        slots = keys % self.capacity
        return slots, self.alive[slots] & (self.keys(slots) == keys)

    def all(self) -> np.ndarray:
        """Live slots, oldest first."""
        slots = np.flatnonzero(self.alive)
        return slots[np.argsort(self.keys(slots))]

    @property
    def extent(self) -> int:
        """Places ``pick`` may be asked for; most hold a live window."""
        return self.head - self.tail

    def pick(self, place: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(slots, whether a live window is there) of places 0..extent-1."""
        slots = (self.tail + place) % self.capacity
        return slots, self.alive[slots]

    def spans(self, slots: np.ndarray) -> Spans:
        """Where the windows lie."""
        return Spans(spans(self.lines, slots, self.ring.rows, self.head, self.capacity))

    def partial(self, slots: np.ndarray) -> tuple[int, ...]:
        """Burn-in lengths among ``slots`` besides 0 and all."""
        bs = self.window.burnin
        if bs <= self.cutter.stride:  # windows have all of their burn-in or none
            return ()
        burnin = self.columns["burnin"][slots]
        return tuple(np.unique(burnin[(burnin > 0) & (burnin < bs)]).tolist())

    # -- accounts --------------------------------------------------------------------------------

    def arrays(self) -> list[np.ndarray]:
        """Every array owned (``recent``, S rows of states, is not counted)."""
        return [self.lines, self.alive, *self.states.arrays()]

    def check(self) -> str | None:
        """None, or the broken invariant in words."""
        slots, table, ring = np.flatnonzero(self.alive), self.columns, self.ring
        keys = self.keys(slots)
        needs = (table["learn"] - table["burnin"])[slots] - self.reach
        if len(slots) != self.live:
            return "the count of live windows is wrong"
        if (keys < self.tail).any():
            return "a live window is older than the tail"
        if (keys >= self.head).any():
            return "a live window has a key not yet given"
        if ring.oldest and (needs < ring.oldest).any():
            return "a window needs an overwritten row"
        if (table["last"][slots] > ring.head).any():
            return "a window reads ahead"
        if self.cutter.row != ring.head:
            return "cutter and ring count different rows"
        return None

    def state_dict(self) -> dict[str, Any]:
        """Everything but slots that were never written."""
        used = min(self.head, self.capacity)
        numbers = {name: getattr(self, name) for name in ("head", "tail", "live", "early")}
        return numbers | {
            "lines": self.lines[:used],
            "alive": self.alive[:used],
            "states": self.states.state_dict(used),
            "recent": self.recent,
            "cutter": self.cutter.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        def restore(store: np.ndarray, x: np.ndarray) -> None:
            store[: len(x)] = x
            store[len(x) :] = 0

        restore(self.lines, state["lines"])
        restore(self.alive, state["alive"])
        self.states.load_state_dict(state["states"])
        for name in ("head", "tail", "live", "early"):
            setattr(self, name, int(state[name]))
        self.recent = tree_map(np.array, state["recent"]) if state["recent"] is not None else None
        self.cutter.load_state_dict(state["cutter"])


@jit
def spans_compiled(
    lines: np.ndarray, slots: np.ndarray, rows: int, head: int, capacity: int
) -> np.ndarray:
    """``Spans.at`` of the windows in ``slots`` of the table."""
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
    """The same in numpy."""
    column, learn, burnin, last, ended = lines[slots, :5].T
    first = learn - burnin
    key = head - 1 - (head - 1 - slots) % capacity
    cell = column * rows + first % rows
    return np.stack([cell, column, first, learn, last - ended, last, key])


spans = spans_compiled if COMPILED else spans_vectorised
