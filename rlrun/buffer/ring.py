"""Rows: one contiguous ring array per field, in host memory or on a device; reading windows."""

import math
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlrun.buffer import kernels, saved
from rlrun.buffer.compressed import CompressedRows, from_state, is_saved
from rlrun.buffer.kernels import FIRST, FLAGS, PREFETCHED, TERMINATED, TRUNCATED, VALID
from rlrun.buffer.layout import REWARD, Allocate, ArraySpec, Layout, Row
from rlrun.jit import COMPILED
from rlrun.run.tensors import RingRows, RowFiles, Rows, like
from rlrun.types import Chunk, Segment, Tree, tree_leaves, tree_map

_CHANGING = ("flags", "final")  # fields whose entries change after writing
_FLOATS = (torch.float32, torch.float64)  # dtypes of priorities that are not converted
_SMALL = 256  # largest entry in bytes for which prefetching pays
_WORDS = {8: np.int64, 4: np.int32, 1: np.uint8}


class HostRows:
    """The entries of one field as an array [columns, rows, ...] in host memory."""

    def __init__(self, entry: ArraySpec, columns: int, rows: int, allocate: Allocate) -> None:
        self.entry, self.columns, self.rows = entry, columns, rows
        self.array = allocate(entry.times(columns, rows))
        self.flat = self.array.reshape(columns * rows, *entry.shape)
        self.words = as_words(self.array)

    def split(self, count: int) -> "list[HostRows]":
        """Return ``count`` equal parts of the columns, which share the array."""
        parts, columns = np.split(self.array, count), self.columns // count
        return [HostRows(self.entry, columns, self.rows, lambda _, x=x: x) for x in parts]  # type: ignore[misc]

    def write(self, entries: np.ndarray, start: int) -> None:
        """Write ``entries`` [T, columns, ...] to the slots from ``start`` on; T <= rows."""
        shape = entries.shape[0] * self.columns, self.words.shape[1]
        whole = entries if entries.flags.c_contiguous else np.ascontiguousarray(entries)
        words = np.ndarray(shape, self.words.dtype, whole)
        kernels.write_rows(self.words, words, start, self.rows, self.columns)

    def take(self, cells: np.ndarray, out: Any) -> None:
        """Copy the entries in ``cells`` [*] to ``out`` [*, ...]."""
        self.flat.take(cells, 0, out, "clip")


class DeviceRows:
    """``HostRows`` in a tensor on a device. Entries are copied as words, whatever their dtype.

    CUDA stages pageable memory before an upload returns, so the arrays may be overwritten at once.
    """

    def __init__(
        self, entry: ArraySpec, columns: int, rows: int, device: torch.device,
        array: Tensor | None = None,
    ) -> None:  # fmt: skip
        """``array``: where the entries are; None: in a new tensor."""
        self.entry, self.columns, self.rows, self.device = entry, columns, rows, device
        dtype = torch.from_numpy(np.empty(0, entry.dtype)).dtype
        if array is None:
            array = torch.zeros((columns, rows, *entry.shape), dtype=dtype, device=device)
        self.array = array
        word = _WORDS[as_words(np.empty((1, 1, *entry.shape), entry.dtype)).dtype.itemsize]
        flat = self.array.view(columns * rows, -1) if entry.nbytes else self.array.new_empty(0)
        self.words = flat.view(torch.from_numpy(np.empty(0, word)).dtype)

    def split(self, count: int) -> "list[DeviceRows]":
        parts, columns = self.array.chunk(count), self.columns // count
        return [DeviceRows(self.entry, columns, self.rows, self.device, x) for x in parts]

    def write(self, entries: np.ndarray, start: int) -> None:
        if self.entry.nbytes:
            slot = (start + np.arange(len(entries))[:, None]) % self.rows
            cells = (slot + np.arange(self.columns) * self.rows).reshape(-1)
            words = as_words(entries)
            new = upload(words.view(_WORDS[words.dtype.itemsize]), self.device)
            self.words.index_copy_(0, upload(cells, self.device), new)

    def take(self, cells: np.ndarray, out: Any) -> Tensor:
        """Return the entries in ``cells`` [*] as a tensor [*, ...]."""
        shape = (*cells.shape, *self.entry.shape)
        if not self.entry.nbytes:
            return self.array.new_empty(shape)
        at = upload(cells.reshape(-1), self.device)
        return self.words.index_select(0, at).view(self.array.dtype).view(shape)


def upload(array: np.ndarray, device: torch.device) -> Tensor:
    """Copy the array to ``device`` without waiting for it."""
    return torch.from_numpy(np.ascontiguousarray(array)).to(device, non_blocking=True)


class Ring:
    """The last ``rows`` rows of each of ``columns``. The next observation is the next entry.

    Row r of column c is in cell c * rows + r % rows. Flags and rewards are in host memory.
    Observations, actions and extras are in host memory (``HostRows``, ``CompressedRows``) or on a
    device (``DeviceRows``).
    """

    def __init__(self, layout: Layout, allocate: Allocate, device: torch.device | None) -> None:
        self.rows, self.columns, self.spaces = layout.rows, layout.columns, layout.row.spaces
        self.device = device
        lead = layout.columns, layout.rows

        def store(entry: ArraySpec) -> Any:
            return DeviceRows(entry, *lead, device) if device else HostRows(entry, *lead, allocate)

        def observations(entry: ArraySpec) -> Any:
            return CompressedRows(entry, *lead, allocate) if layout.packs(entry) else store(entry)

        row = layout.row
        self.obs: Tree = tree_map(observations, row.obs)
        self.action, self.extras = store(row.action), tree_map(store, row.extras)
        names, blocks = ("reward", "flags", "origin", "final"), layout.ring()
        self.host = {name: allocate(blocks[name]) for name in names if name in blocks}
        self.heads = np.zeros(layout.columns, np.int64)  # ``head`` of every column
        self._name_arrays()
        for compressed in self.blocks:
            compressed.room = None if layout.room is None else layout.room // len(self.blocks)

    def _name_arrays(self) -> None:
        self.stores = [*tree_leaves(self.obs), self.action, *self.extras.values()]
        self.blocks = tuple(x for x in self.stores if isinstance(x, CompressedRows))
        self.flags = self.host["flags"].reshape(-1)
        self.reward = self.host["reward"].reshape(-1)
        self.arrays = self.flags, self.reward, self.rows, self.columns  # argument of kernels
        self.files = RowFiles()  # of the rows saved so far

    def split(self, count: int) -> "list[Ring]":
        """Return rings of ``count`` equal parts of the columns, which share the arrays.

        Rows are appended to the parts, whose columns advance together. This ring is read.
        """
        fields = tree_map(lambda store: store.split(count), (self.obs, self.action, self.extras))
        host = {name: np.split(x, count) for name, x in self.host.items()}
        parts = []
        for i, heads in enumerate(np.split(self.heads, count)):
            part = copy(self)
            part.columns, part.heads = len(heads), heads
            part.obs, part.action, part.extras = tree_map(lambda x, i=i: x[i], fields)
            part.host = {name: x[i] for name, x in host.items()}
            part._name_arrays()
            parts.append(part)
        self.blocks = tuple(block for part in parts for block in part.blocks)
        return parts

    @property
    def head(self) -> int:
        """Rows written. The observation of row ``head`` is stored already."""
        return int(self.heads[0])

    @head.setter
    def head(self, rows: int) -> None:
        self.heads.fill(rows)

    @property
    def oldest(self) -> int:
        """The oldest complete row. Slot head % rows already has the newest observation."""
        return max(0, self.head + 1 - self.rows)

    def oldest_of(self, column: np.ndarray) -> np.ndarray:
        """Return the oldest complete row of each column, which may belong to different parts."""
        rows: np.ndarray = np.maximum(0, self.heads[column] + 1 - self.rows)
        return rows

    def cells(self, row: np.ndarray, column: np.ndarray) -> np.ndarray:
        """Return the cells of rows, int64 of the broadcast shape of ``row`` and ``column``."""
        flat: np.ndarray = column * self.rows + row % self.rows
        return flat

    def flags_of(self, row: np.ndarray, column: np.ndarray) -> list[np.ndarray]:
        """Return the flags first, terminated, truncated and valid of rows, bool."""
        flags = self.flags[self.cells(row, column)]
        return [flags & bit > 0 for bit in (FIRST, TERMINATED, TRUNCATED, VALID)]

    def write(self, chunk: Chunk, arrays: list[np.ndarray]) -> None:
        """Append T < rows rows of every column and the observation after them, without their flags.

        ``arrays``: the chunk's arrays as validated.
        """
        steps = len(chunk.reward)
        assert steps < self.rows, "a ring takes fewer rows at once than it holds"
        start = self.head % self.rows
        for store, entries in zip(self.stores, arrays, strict=False):  # ``arrays`` has more
            store.write(entries, start)
        self.head += steps
        if "final" in self.host:
            self._track_episodes(chunk.first[:steps], chunk.valid)

    def _track_episodes(self, first: np.ndarray, valid: np.ndarray) -> None:
        """Store the first row of every row's episode (``origin``) and its end row (``final``).

        ``final`` is -1 while the episode continues.
        """
        origin, final = self.host["origin"], self.host["final"]
        row = np.arange(self.head - len(valid), self.head)[:, None]
        before = origin[:, (row[0, 0] - 1) % self.rows]
        opened = np.where(first, row, -1)
        opened[0] = np.where(first[0], row[0], before)
        opened = np.maximum.accumulate(opened, axis=0)
        cells = self.cells(row, np.arange(self.columns))
        origin.reshape(-1)[cells], final.reshape(-1)[cells] = opened, -1
        for t, c in zip(*np.nonzero(~valid), strict=True):
            end = int(row[t, 0])
            rows = np.arange(max(opened[t, c], self.oldest), end + 1)
            final[c, rows % self.rows] = end

    # -- checkpoints -------------------------------------------------------------------------------

    def _fields(self) -> dict[str, Any]:
        """Return the fields [columns, rows, ...] except observations, by checkpoint name."""
        extras = {f"extras/{name}": store.array for name, store in self.extras.items()}
        return {**extras, "action": self.action.array, **self.host}

    def _written(self, array: Any) -> RingRows:
        """Return the stored rows of a field [columns, rows, ...]."""
        return RingRows(array, self.oldest, self.head, self.files)

    def state_dict(self) -> dict[str, Any]:
        """Return ``head``, ``obs`` and ``fields``, as ``Rows`` where written rows never change.

        The newest observation is saved separately, because the next chunk writes it again.
        """

        def observations(store: Any) -> dict[str, Any]:
            if isinstance(store, CompressedRows):
                return store.state_dict()
            newest = saved.host(store.array[:, self.head % self.rows])
            return {"rows": self._written(store.array), "open": newest}

        used = min(self.head + 1, self.rows)
        fields = {
            name: array[:, :used] if name in _CHANGING else self._written(array)
            for name, array in self._fields().items()
        }
        return {"head": self.head, "obs": tree_map(observations, self.obs), "fields": fields}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a ``state_dict``. Raises: CheckpointError."""
        self.head = saved.integer("ring.head", state["head"], 0, saved.MOST_ROWS)
        self.files = state["fields"]["reward"].saved_files()

        def restore(array: Any, rows: Any) -> None:
            saved.fill_rows("ring", array, rows, self.oldest, self.head)

        def observations(store: Any, x: dict[str, Any]) -> None:
            if isinstance(store, CompressedRows):
                store.load_state_dict(x)
                return
            restore(store.array, x["rows"])
            newest = store.array[:, self.head % self.rows]
            saved.like("ring.open", x["open"], newest)
            newest[...] = like(x["open"], newest)

        tree_map(observations, self.obs, state["obs"])
        for name, array in self._fields().items():
            if name in _CHANGING:
                saved.fill(f"ring.{name}", array, state["fields"][name], lead=1)
            else:
                restore(array, state["fields"][name])
        self._check_loaded()

    def _check_loaded(self) -> None:
        """Raise CheckpointError unless loaded flags, rewards and episodes are consistent."""
        flags, newest = self.host["flags"], self.head - 1
        row = newest - (newest - np.arange(self.rows)) % self.rows  # row of each slot; < 0: none
        saved.require(not (flags & ~np.uint8(FLAGS)).any(), "ring.flags", "has unknown bits")
        none = (row < 0) | (np.arange(self.rows) == self.head % self.rows)
        saved.require(not flags[:, none].any(), "ring.flags", "marks rows that are not complete")
        valid = flags & VALID > 0
        finite = np.isfinite(self.host["reward"][valid]).all()
        saved.require(finite, "ring.reward", "is not finite")
        if self.spaces is not None:
            used = slice(None, min(self.head + 1, self.rows))  # the newest has no flags yet
            obs = tree_map(
                lambda x: x if isinstance(x, CompressedRows) else saved.host(x.array)[:, used],
                self.obs,
            )
            action = saved.host(self.action.array)[:, used]
            wrong = self.spaces.violation(obs, action, valid[:, used], axes=("column", "row"))
            saved.require(wrong is None, "ring", str(wrong))
        if "final" in self.host:
            origin, final = self.host["origin"], self.host["final"]
            good = (origin >= -1) & (origin <= row)
            good &= (final == -1) | ((final > row) & (final <= newest))
            saved.require(good[valid].all(), "ring.origin", "an episode does not surround its rows")


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


class Gather:
    """Copies windows out of a ring, time-major.

    Two sets of output arrays take turns (``Replay.sample``), because page faults of new image
    batches cost more than the copy.
    """

    def __init__(self, ring: Ring, row: Row, *, stack: int) -> None:
        """``stack``: frames per observation."""
        self.ring, self.row, self.stack = ring, row, stack
        self.num_obs = len(tree_leaves(ring.obs))  # stores of observations, the ring's first
        stored = [x for x in ring.stores if isinstance(x, HostRows)]
        self.prefetched = [x.words for x in stored if 0 < x.entry.nbytes <= _SMALL]
        self.sets: list[Outputs] = []  # at most two, the last used at the end

    def tensor(self, array: np.ndarray) -> Tensor:
        """Return the array as a tensor on the samples' device. In host memory they share memory."""
        device = self.ring.device
        return torch.from_numpy(array) if device is None else upload(array, device)

    def __call__(
        self, spans: Spans, positions: int, burnin: int, *, reuse: bool = False
    ) -> Segment:
        """Return the positions from learn - ``burnin`` on. Filler and null rows are invalid.

        ``reuse``: use arrays that later batches of the same size overwrite.
        """
        ring, lines = self.ring, spans.lines
        size = positions, lines.shape[1]
        out = self.sets.pop(0) if reuse and len(self.sets) == 2 else None
        if out is None or out.size != size:
            out = Outputs(self, *size)
        if reuse:
            self.sets.append(out)
        if COMPILED and positions > PREFETCHED:
            for words in self.prefetched:
                kernels.prefetch(words, lines[0], positions)
        kernels.read_windows(ring.arrays, lines, burnin, out.cells, out.decoded)
        seen, step, before = out.cells
        shown, fields = seen if self.stack == 1 else self._frames(seen), []
        for i, (store, array) in enumerate(zip(ring.stores, out.fields, strict=True)):
            fields.append(store.take(shown if i < self.num_obs else step, array))
        previous = ring.action.take(before, out.previous)
        if out.segment is not None:  # in host memory
            out.previous[out.decoded[5]] = 0
            return out.segment
        assert ring.device is not None
        decoded = [upload(x, ring.device) for x in out.decoded]
        previous.masked_fill_(decoded[5].view(-1, *[1] * (previous.dim() - 1)), 0)
        return self.segment(decoded, fields, previous)

    def rows(self, start: int, stop: int) -> Segment:
        """Return rows start..stop-1 of all columns as a collected segment in host memory."""
        ring, column = self.ring, np.arange(self.ring.columns)
        first, last = np.full_like(column, start), np.full_like(column, stop)
        spans = Spans.of(ring.cells(first, column), column, first, first, last - 1, last)
        segment = self(spans, stop - start + 1, 0).to(torch.device("cpu"))
        flags = ring.flags_of(np.arange(start, stop + 1)[:, None], column)
        opened, terminated, truncated, valid = (torch.from_numpy(x) for x in flags)
        return replace(
            segment, first=opened, terminated=terminated[:-1], truncated=truncated[:-1],
            valid=valid[:-1], extras={name: segment.extras[name] for name in ring.extras},
        )  # fmt: skip

    def segment(
        self, decoded: Iterable[Tensor], fields: Iterable[Tensor], previous: Tensor
    ) -> Segment:
        """Return the segment of tensors in the order of ``Outputs``."""
        first, terminated, truncated, valid, reward, _, prev_reward = decoded
        rest = iter(fields)
        obs, action = tree_map(lambda _: next(rest), self.row.obs), next(rest)
        extras = dict(zip(self.ring.extras, rest, strict=True))
        extras |= {"prev_action": previous, "prev_reward": prev_reward}
        return Segment(obs, first, action, reward, terminated, truncated, valid, extras)

    def _frames(self, cells: np.ndarray) -> np.ndarray:
        """Return the cells [*cells, stack] of the last frames at ``cells``, oldest first.

        Frames before an episode's first row repeat that row.
        """
        out = np.empty((*cells.shape, self.stack), np.int64)
        for i in range(self.stack - 1, -1, -1):
            out[..., i] = cells
            start = cells % self.ring.rows == 0
            back = np.where(start, cells + self.ring.rows - 1, cells - 1)
            cells = np.where(self.ring.flags[cells] & FIRST > 0, cells, back)
        return out


class Outputs:
    """Output arrays for a batch of windows of ``positions`` rows."""

    segment: Segment | None = None  # in host memory: tensors that share memory with the arrays

    def __init__(self, gather: Gather, positions: int, batch: int) -> None:
        self.size = seen = positions, batch
        step, stack, ring = (positions - 1, batch), gather.stack, gather.ring
        self.cells = np.empty(seen, np.int64), np.empty(step, np.int64), np.empty(batch, np.int64)
        self.decoded = (  # ``out`` of ``read_windows``
            np.empty(seen, bool), np.empty(step, bool), np.empty(step, bool), np.empty(step, bool),
            np.empty(step, REWARD), np.empty(batch, bool), np.empty(batch, REWARD),
        )  # fmt: skip
        self.fields: list[Any] = [None] * len(ring.stores)  # a device's allocator reuses memory
        self.previous: Any = None
        if ring.device is None:
            shown, action = seen if stack == 1 else (*seen, stack), ring.action.entry
            for i, store in enumerate(ring.stores):
                lead, entry = shown if i < gather.num_obs else step, store.entry
                self.fields[i] = np.empty((*lead, *entry.shape), entry.dtype)
            self.previous = np.empty((batch, *action.shape), action.dtype)
            tensor = torch.from_numpy
            decoded, fields = map(tensor, self.decoded), map(tensor, self.fields)
            self.segment = gather.segment(decoded, fields, torch.from_numpy(self.previous))


def priorities_of(priority: np.ndarray | Tensor) -> np.ndarray:
    """Return the numbers in host memory, as float32 or wider."""
    if isinstance(priority, Tensor):
        wide = priority if priority.dtype in _FLOATS else priority.float()
        values: np.ndarray = wide.numpy(force=True)
        return values
    return priority if priority.dtype.itemsize >= 4 else priority.astype(np.float32)


def is_saved_field(tree: Any) -> bool:
    """Return whether ``tree`` is the saved state of one observation field."""
    return is_saved(tree) or (isinstance(tree, dict) and set(tree) == {"rows", "open"})


def read_columns(field: Any, first: int, stop: int) -> np.ndarray:
    """Return rows first..stop-1 [T, columns, ...] of a saved field (a state, or ``Rows``)."""
    if is_saved(field):
        blocks = from_state(field)
        slots = np.arange(first, stop) % blocks.rows
        cells = slots[:, None] + np.arange(blocks.columns) * blocks.rows
        out = np.empty((*cells.shape, *blocks.entry.shape), blocks.entry.dtype)
        blocks.take(cells, out)
        return out
    rows: Rows = field if isinstance(field, Rows) else field["rows"]
    return np.stack([*rows.arrays(first, stop)[""]], axis=1)


def as_words(array: np.ndarray) -> np.ndarray:
    """View an array [A, B, ...] as [A * B, words] of the widest unsigned words that fit."""
    entries = array.shape[0] * array.shape[1]
    size = array.nbytes // entries if entries else array.dtype.itemsize * math.prod(array.shape[2:])
    word, width = (_U64, 8) if size % 8 == 0 else (_U32, 4) if size % 4 == 0 else (_U8, 1)
    whole = array if array.flags.c_contiguous else np.ascontiguousarray(array)
    return np.ndarray((entries, size // width), word, whole)


_U64, _U32, _U8 = np.dtype(np.uint64), np.dtype(np.uint32), np.dtype(np.uint8)

# -- validation of chunks --------------------------------------------------------------------------


class ChunkValidator:
    """Rejects chunks that differ from ``row``: compiled kernels do not check bounds."""

    def __init__(self, row: Row, columns: int, *, states: bool) -> None:
        """``states``: also compare the recurrent states."""
        self.row, self.columns, self.states = row, columns, states
        flag = ArraySpec((), np.dtype(bool))
        self.blocks = {f"obs leaf {i}": x for i, x in enumerate(tree_leaves(row.obs))}
        self.longer = {*self.blocks, "first"}  # with T + 1 entries
        self.blocks["action"] = row.action
        self.blocks |= {f"extras[{name!r}]": x for name, x in row.extras.items()}
        self.blocks["reward"] = ArraySpec((), REWARD)
        self.blocks |= dict.fromkeys(("first", "terminated", "truncated", "valid"), flag)
        if states:
            self.blocks |= {f"states leaf {i}": x for i, x in enumerate(tree_leaves(row.state))}

    def __call__(self, chunk: Chunk) -> list[np.ndarray]:
        """Return the arrays of a chunk: obs leaves, action, extras, reward, flags, states.

        Raises: ValueError naming the field that differs.
        """
        row, steps = self.row, len(chunk.reward)
        arrays = [*leaves_like(row.obs, chunk.obs, "obs"), chunk.action]
        for name in row.extras:
            if name not in chunk.extras:
                raise ValueError(
                    f"extras = {sorted(chunk.extras)}: {name!r} is missing; the buffer stores "
                    f"{sorted(row.extras)}; collect them, or make a new buffer"
                )
            arrays.append(chunk.extras[name])
        arrays += (chunk.reward, chunk.first, chunk.terminated, chunk.truncated, chunk.valid)
        if self.states:
            arrays += leaves_like(row.state, chunk.states, "states")
        for x, (name, block) in zip(arrays, self.blocks.items(), strict=True):
            shape = steps + (name in self.longer), self.columns, *block.shape
            if x.dtype != block.dtype or x.shape != shape:
                raise ValueError(
                    f"{name} = {x.dtype} {list(x.shape)}: the buffer stores other rows; allowed is "
                    f"{block.dtype} {list(shape)} (rows as in reward); make a new buffer for other "
                    "rows"
                )
        return arrays


def leaves_like(template: Tree, tree: Tree, name: str) -> list[Any]:
    """Return the leaves of ``tree`` in the order of ``template``.

    Raises: ValueError if the structures differ.
    """
    keys: Iterable[Any]
    if isinstance(template, dict):
        keys, same = template, isinstance(tree, dict) and template.keys() == tree.keys()
    elif isinstance(template, tuple):
        keys, same = range(len(template)), isinstance(tree, tuple) and len(template) == len(tree)
    else:
        return [tree]
    if not same:
        has = f"{len(tree)} parts" if isinstance(tree, dict | tuple) else type(tree).__name__
        raise ValueError(
            f"{name} = {has}: another structure; the buffer stores a {type(template).__name__} of "
            f"{', '.join(map(str, keys))}; make a new buffer"
        )
    leaves = []
    for key in keys:
        leaves += leaves_like(template[key], tree[key], f"{name}[{key!r}]")
    return leaves
