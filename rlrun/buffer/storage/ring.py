"""Rows in host memory: one contiguous array per field, overwritten in a ring."""

import math
from typing import Any

import numpy as np

from rlrun.buffer import saved
from rlrun.buffer.storage.base import CUT, FIRST, TERMINATED, TRUNCATED, VALID, Storage
from rlrun.buffer.storage.compressed import CompressedRows, from_state, is_saved
from rlrun.buffer.storage.layout import Allocate, Layout
from rlrun.jit import COMPILED, jit
from rlrun.run.tensors import Rows
from rlrun.types import Chunk, Tree, tree_leaves, tree_map


class Ring(Storage):
    """``Storage`` of numpy arrays [columns, rows, ...].

    The rows of a column are contiguous: the next observation is the next entry.
    """

    def __init__(self, layout: Layout, allocate: Allocate) -> None:
        super().__init__(layout)
        named = layout.ring()
        del named["obs"]
        self.obs: Tree = _observations(layout, layout.row.obs, "obs", allocate)
        self.fields = {name: allocate(name, block) for name, block in named.items()}
        self.flags = self.fields["flags"].reshape(-1)
        self.reward = self.fields["reward"].reshape(-1)
        stored = [*tree_leaves(self.obs), self.fields["action"]]
        stored += [self.fields[f"extras/{name}"] for name in layout.row.extras]
        self.blocks = tuple(x for x in stored if isinstance(x, CompressedRows))
        for one in self.blocks:
            one.room = None if layout.room is None else layout.room // len(self.blocks)
        # Unsigned words [cells, words of an entry], or CompressedRows.
        self.leaves: list[Any] = [
            x if isinstance(x, CompressedRows) else as_words(x) for x in stored
        ]
        plain = [x for x in self.leaves if not isinstance(x, CompressedRows)]
        self.word_types = [(x.shape[1], x.dtype) for x in plain]
        self.tracks_episodes = "final" in self.fields
        # Observation and action only, both plain.
        self.obs_action_only = (
            len(self.word_types) == len(self.leaves) == 2 and not self.tracks_episodes
        )

    def arrays(self) -> list[np.ndarray]:
        obs = [x.open if isinstance(x, CompressedRows) else x for x in tree_leaves(self.obs)]
        return [*obs, *self.fields.values()]

    def write(self, chunk: Chunk, given: list[np.ndarray], *, close: bool) -> int:
        valid: int = write_flags(
            self.flags, self.reward, self.head, self.rows,
            chunk.first, chunk.terminated, chunk.truncated, chunk.valid, chunk.reward, close,
        )  # fmt: skip
        self.store(chunk, given)
        return valid

    def store(self, chunk: Chunk, given: list[np.ndarray]) -> None:
        """Append all fields but flags and rewards."""
        steps = len(chunk.reward)
        assert steps < self.rows, "a ring takes fewer rows at once than it holds"
        start = self.head % self.rows
        kinds = iter(self.word_types)
        for leaf, rows in zip(self.leaves, given, strict=False):  # ``given`` has more
            if isinstance(leaf, CompressedRows):
                leaf.write(rows, start)
                continue
            entries = _entries(rows, rows.shape[0] * rows.shape[1], *next(kinds))
            write_rows(leaf, entries, start, self.rows, self.columns)
        self.head += steps
        if self.tracks_episodes:
            self._track_episodes(chunk.first[:steps], chunk.valid)

    def entries(self, given: list[np.ndarray]) -> tuple[Any, ...]:
        """(store, new entries) of observation and action, for ``obs_action_only``."""
        (obs, action), steps = self.leaves, len(given[1]) * self.columns
        (wide, word), (narrow, byte) = self.word_types
        obs_count = steps + self.columns
        return (
            obs, _entries(given[0], obs_count, wide, word),
            action, _entries(given[1], steps, narrow, byte),
        )  # fmt: skip

    def _track_episodes(self, first: np.ndarray, valid: np.ndarray) -> None:
        """Store every row's first row of the episode (``origin``) and its end row (``final``).

        ``final`` is -1 while the episode continues.
        """
        origin, final = self.fields["origin"], self.fields["final"]
        row = np.arange(self.head - len(valid), self.head)[:, None]
        before = origin[:, (row[0, 0] - 1) % self.rows]
        opened = np.where(first, row, -1)
        opened[0] = np.where(first[0], row[0], before)
        opened = np.maximum.accumulate(opened, axis=0)
        column = np.arange(self.columns)
        origin.reshape(-1)[self.cells(row, column)] = opened
        final.reshape(-1)[self.cells(row, column)] = -1
        for t, c in zip(*np.nonzero(~valid), strict=True):
            end = int(row[t, 0])
            rows = np.arange(max(opened[t, c], self.oldest), end + 1)
            final[c, rows % self.rows] = end

    def state_dict(self) -> dict[str, Any]:
        def observations(store: Any) -> dict[str, Any]:
            if isinstance(store, CompressedRows):
                return store.state_dict()
            return {"rows": self.written(store), "open": store[:, self.head % self.rows]}

        used = min(self.head + 1, self.rows)
        fields = {
            name: store[:, :used] if name in _CHANGING else self.written(store)
            for name, store in self.fields.items()
        }
        return {"head": self.head, "obs": tree_map(observations, self.obs), "fields": fields}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.begin(state)

        def observations(store: Any, x: dict[str, Any]) -> None:
            if isinstance(store, CompressedRows):
                store.load_state_dict(x)
                return
            self.restore(store, x["rows"])
            newest = store[:, self.head % self.rows]
            saved.like("ring.open", x["open"], newest)
            newest[...] = x["open"]

        tree_map(observations, self.obs, state["obs"])
        for name, store in self.fields.items():
            if name in _CHANGING:
                saved.fill(f"ring.{name}", store, state["fields"][name], lead=1)
            else:
                self.restore(store, state["fields"][name])
        self.check_loaded()


_CHANGING = ("flags", "final")  # fields whose entries change after their row was written


def _entries(rows: np.ndarray, count: int, width: int, word: np.dtype[Any]) -> np.ndarray:
    """Rows [T, B, ...] as ``count`` = T * B entries of ``width`` words each."""
    try:
        return np.ndarray((count, width), word, rows)
    except (ValueError, BufferError):  # not contiguous
        return np.ndarray((count, width), word, np.ascontiguousarray(rows))


def _observations(layout: Layout, tree: Tree, name: str, allocate: Allocate) -> Tree:
    """Arrays [columns, rows, …], or CompressedRows, for a tree of entries."""
    if isinstance(tree, dict):
        return {k: _observations(layout, v, f"{name}/{k}", allocate) for k, v in tree.items()}
    if isinstance(tree, tuple):
        parts = enumerate(tree)
        return tuple(_observations(layout, v, f"{name}/{i}", allocate) for i, v in parts)
    if layout.packs(tree):
        return CompressedRows(name, tree, layout.columns, layout.rows, allocate)
    return allocate(name, tree.times(layout.columns, layout.rows))


def is_saved_field(tree: Any) -> bool:
    """Return whether ``tree`` is the saved state of one observation's rows."""
    return is_saved(tree) or (isinstance(tree, dict) and set(tree) == {"rows", "open"})


def read_columns(field: Any, first: int, stop: int) -> np.ndarray:
    """Rows first..stop-1 [T, columns, …] of a saved ring: an observation's state, or ``Rows``."""
    if is_saved(field):
        blocks = from_state(field)
        slots = np.arange(first, stop) % blocks.rows
        cells = slots[:, None] + np.arange(blocks.columns) * blocks.rows
        out = np.empty((*cells.shape, *blocks.entry.shape), blocks.entry.dtype)
        blocks.take(cells, 0, out)
        return out
    rows: Rows = field if isinstance(field, Rows) else field["rows"]
    return np.stack([*rows.read(first, stop)], axis=1)


def as_words(array: np.ndarray) -> np.ndarray:
    """View an array [A, B, ...] as [A * B, words] of the widest unsigned words that fit."""
    entries = array.shape[0] * array.shape[1]
    size = array.nbytes // entries if entries else array.dtype.itemsize * math.prod(array.shape[2:])
    word, width = (_U64, 8) if size % 8 == 0 else (_U32, 4) if size % 4 == 0 else (_U8, 1)
    whole = array if array.flags.c_contiguous else np.ascontiguousarray(array)
    return np.ndarray((entries, size // width), word, whole)


_U64, _U32, _U8 = np.dtype(np.uint64), np.dtype(np.uint32), np.dtype(np.uint8)


@jit
def write_flags_compiled(
    flags: np.ndarray, rewards: np.ndarray, head: int, rows: int,
    first: np.ndarray, terminated: np.ndarray, truncated: np.ndarray, valid: np.ndarray,
    reward: np.ndarray, close: bool,
) -> int:  # fmt: skip
    """Write flags and rewards of T rows [T, B] and clear the next row's; returns the valid rows."""
    steps, columns = reward.shape
    count = 0
    for c in range(columns):
        slot = head % rows
        for t in range(steps):
            cut = CUT if close and t == steps - 1 else 0
            at = np.uint64(c * rows + slot)  # unsigned: no test for negative indices
            flags[at] = np.uint8(
                FIRST * first[t, c]
                + TERMINATED * terminated[t, c]
                + TRUNCATED * truncated[t, c]
                + VALID * valid[t, c]
                + cut
            )
            rewards[at] = reward[t, c]
            count += valid[t, c]
            slot = slot + 1 if slot + 1 < rows else 0
        flags[np.uint64(c * rows + slot)] = 0
    return count


def write_flags_vectorised(
    flags: np.ndarray, rewards: np.ndarray, head: int, rows: int,
    first: np.ndarray, terminated: np.ndarray, truncated: np.ndarray, valid: np.ndarray,
    reward: np.ndarray, close: bool,
) -> int:  # fmt: skip
    """Twin in numpy."""
    steps, columns = reward.shape
    packed = np.zeros((steps + 1, columns), np.uint8)
    packed[:-1] = FIRST * first[:steps] + TERMINATED * terminated + TRUNCATED * truncated
    packed[:-1] += VALID * valid.view(np.uint8)
    if close:
        packed[-2] |= CUT
    row = (head + np.arange(steps + 1)[:, None]) % rows + np.arange(columns) * rows
    flags[row] = packed
    rewards[row[:-1]] = reward
    return int(valid.sum())


write_flags = write_flags_compiled if COMPILED else write_flags_vectorised


@jit
def write_rows_compiled(
    store: np.ndarray, source: np.ndarray, start: int, rows: int, columns: int
) -> None:
    """Rows ``source`` [T * columns, words], time-major, to slots ``start``... of every column."""
    steps, width = len(source) // columns, source.shape[1]
    to, given, one = store.reshape(-1), source.reshape(-1), np.uint64(1)
    for c in range(columns):  # a column is contiguous
        slot = start
        for t in range(steps):
            if slot == rows:
                slot = 0
            if width == 1:
                to[np.uint64(c * rows + slot)] = given[np.uint64(t * columns + c)]
            elif width == 2:
                i, j = np.uint64(2 * (c * rows + slot)), np.uint64(2 * (t * columns + c))
                to[i], to[i + one] = given[j], given[j + one]
            else:
                i, j = (c * rows + slot) * width, (t * columns + c) * width
                to[i : i + width] = given[j : j + width]
            slot += 1


def write_rows_vectorised(
    store: np.ndarray, source: np.ndarray, start: int, rows: int, columns: int
) -> None:
    """Twin in numpy."""
    slot = (start + np.arange(len(source) // columns)[:, None]) % rows
    store[(slot + np.arange(columns) * rows).reshape(-1)] = source


write_rows = write_rows_compiled if COMPILED else write_rows_vectorised
