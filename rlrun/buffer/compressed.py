"""Image observations as compressed blocks of consecutive rows.

zstd finds the repeated previous frame: 16 Atari frames of a column compressed together take a
hundredth of their separate size. Reading a row decodes its block.
"""

import math
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from rlrun.buffer import saved
from rlrun.buffer.layout import BLOCK_ROWS, Allocate, ArraySpec, in_memory
from rlrun.errors import ResourceError
from rlrun.run.tensors import SIZES, RowFiles, Rows

_SAVED = {"blocks", "open", "rows"}


class CompressedRows:
    """Entries of ``columns`` x ``rows`` cells, read and written like ``HostRows``.

    Rows arrive in order, for all columns at once. Each column has one open, uncompressed block,
    which is compressed when the next block begins. Blocks that compression does not shrink are
    stored uncompressed.
    """

    def __init__(self, entry: ArraySpec, columns: int, rows: int, allocate: Allocate) -> None:
        self.entry, self.columns, self.rows = entry, columns, rows
        self.open = allocate(entry.times(columns, BLOCK_ROWS))
        self.block = -1  # the open block, counted since the run began; -1: none
        self.files = RowFiles()  # of the packed blocks saved so far
        self.column_blocks = -(-rows // BLOCK_ROWS)
        self.packed: list[bytes | None] = [None] * (columns * self.column_blocks)
        self.raw = 0  # uncompressed bytes of the packed blocks
        self.coded = sys.getsizeof(self.packed)  # their compressed bytes, objects included
        self.room: int | None = None  # limit of ``coded`` in bytes, None: no limit
        self.parts: list[CompressedRows] = []

    def split(self, count: int) -> "list[CompressedRows]":
        """Return ``count`` equal parts of the columns, which are written instead of this."""
        for x in np.split(self.open, count):
            part = CompressedRows(self.entry, len(x), self.rows, lambda _, x=x: x)  # type: ignore[misc]
            part.room = None if self.room is None else self.room // count
            self.parts.append(part)
        self.packed.clear()
        return self.parts

    # -- writing -----------------------------------------------------------------------------------

    def write(self, entries: np.ndarray, start: int) -> None:
        """Write ``entries`` [T, columns, ...] to the slots from ``start`` on; T <= rows.

        Raises: ResourceError if the packed blocks exceed ``room``.
        """
        done = 0
        while done < len(entries):
            slot = (start + done) % self.rows
            number, offset = divmod(slot, BLOCK_ROWS)
            if number != self.number:
                self._open_next_block()
                assert number == self.number, "rows arrive in order"
            count = min(len(entries) - done, BLOCK_ROWS - offset, self.rows - slot)
            for column in range(self.columns):
                self.open[column, offset : offset + count] = entries[done : done + count, column]
            done += count

    @property
    def number(self) -> int:
        """The open block's number in its column, -1 if there is none."""
        return self.block % self.column_blocks if self.block >= 0 else -1

    def _open_next_block(self) -> None:
        """Pack the open blocks, then open each column's next one with its stored content."""
        if self.number >= 0:
            for column, block in enumerate(self.open):
                from rlrun.codec import zstd  # slow to import

                packed = zstd.compress(block.data.cast("B"))
                packed = packed if len(packed) < block.nbytes else block.tobytes()
                self._set_packed(column * self.column_blocks + self.number, packed)
        self.block += 1
        for column in range(self.columns):
            index = column * self.column_blocks + self.number
            stored = self.packed[index]
            if stored is not None:
                self.open[column] = self._unpacked(stored)
                self._set_packed(index, None)

    def _set_packed(self, index: int, data: bytes | None) -> None:
        """Replace a packed block and update the byte counts."""
        size = self.open[0].nbytes
        for block, sign in ((self.packed[index], -1), (data, 1)):
            if block is not None:
                self.coded += sign * sys.getsizeof(block)
                self.raw += sign * size
        self.packed[index] = data
        if self.room is not None and self.coded > self.room:
            rows = self.raw // size * BLOCK_ROWS
            fits = int(rows * self.room / self.coded)
            raise ResourceError(
                f"buffer.compress = true: {rows} rows of compressed observations take "
                f"{self.coded} bytes; {self.room} are left to them (buffer.max_bytes, else 80 % of "
                f"the memory that was free); set buffer.capacity to {fits} or less, or raise "
                "buffer.max_bytes"
            )

    # -- reading -----------------------------------------------------------------------------------

    def take(self, cells: np.ndarray, out: np.ndarray) -> None:
        """Copy the entries at ``cells`` [*] to ``out`` [*, ...]."""
        wanted = cells.reshape(-1)
        into = out.reshape(len(wanted), *self.entry.shape)
        assert into.base is not None, "out is contiguous"
        column, slot = np.divmod(wanted, self.rows)
        number, offset = np.divmod(slot, BLOCK_ROWS)
        index = column * self.column_blocks + number
        order = np.argsort(index, kind="stable")
        ordered = index[order]
        edges = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
        for at in np.split(order, edges) if len(order) else ():
            into[at] = self._block(int(index[at[0]]))[offset[at]]

    def _block(self, index: int) -> np.ndarray:
        """Return the rows of a block, zeros if it was never written."""
        if self.parts:
            number, index = divmod(index, len(self.parts[0].packed))
            return self.parts[number]._block(index)
        column, number = divmod(index, self.column_blocks)
        if number == self.number:
            opened: np.ndarray = self.open[column]
            return opened
        packed = self.packed[index]
        if packed is None:
            return np.zeros(self.open.shape[1:], self.entry.dtype)
        return self._unpacked(packed)

    def _unpacked(self, data: bytes) -> np.ndarray:
        shape = self.open.shape[1:]
        size = math.prod(shape) * self.entry.dtype.itemsize
        from rlrun.codec import zstd  # slow to import

        whole = data if len(data) == size else zstd.decompress(memoryview(data), size)
        return np.frombuffer(whole, self.entry.dtype).reshape(shape)

    # -- saving ------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the packed and the open blocks."""
        first = max(0, self.block + 1 - self.column_blocks)
        blocks = PackedBlocks(self.packed, self.columns, first, max(self.block, 0), self.files)
        return {"blocks": blocks, "open": self.open, "rows": self.rows}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a ``state_dict``. Raises: CheckpointError if it has another shape."""
        saved.check_blocks(self, state)
        blocks: Rows = state["blocks"]
        pieces = list(blocks.pieces(blocks.first, blocks.stop))
        for index in range(len(self.packed)):
            self._set_packed(index, None)
        self.open[:], self.files = state["open"], blocks.saved_files()
        # An unwritten ring has no open block; its next one is block 0, too.
        self.block = blocks.stop if blocks.stop or self.open.any() else -1
        for first, _, arrays in pieces:
            data, sizes, start = arrays[""], arrays[SIZES], 0
            good = sizes.dtype == np.int64 and sizes.ndim == 2 and sizes.shape[1] == self.columns
            saved.require(good, "ring.blocks", f"sizes are {sizes.dtype} {list(sizes.shape)}")
            good = (sizes > 0) & (sizes <= self.open[0].nbytes)
            saved.require(good.all(), "ring.blocks", "is not the size of a block")
            for i, row in enumerate(sizes.tolist()):
                for column, size in enumerate(row):
                    index = column * self.column_blocks + (first + i) % self.column_blocks
                    self._set_packed(index, data[start : start + size].tobytes())
                    start += size


class PackedBlocks(Rows):
    """The packed blocks of ``CompressedRows`` for saving. A row is one block of every column."""

    def __init__(
        self, packed: list[bytes | None], columns: int, first: int, stop: int, files: RowFiles
    ) -> None:
        self.packed, self.columns = packed, columns
        self.first, self.stop, self.files = first, stop, files

    def pieces(self, first: int, stop: int) -> Iterator[tuple[int, int, dict[str, np.ndarray]]]:
        each = len(self.packed) // self.columns
        slots = [c * each + k % each for k in range(first, stop) for c in range(self.columns)]
        blocks = [self.packed[slot] or b"" for slot in slots]
        if blocks:
            data = np.frombuffer(b"".join(blocks), np.uint8)
            sizes = np.array([len(x) for x in blocks], np.int64).reshape(-1, self.columns)
            yield first, stop, {"": data, SIZES: sizes}


def is_saved(tree: Any) -> bool:
    """Return whether ``tree`` is a ``state_dict`` of ``CompressedRows``."""
    return isinstance(tree, Mapping) and set(tree) == _SAVED


def from_state(state: Mapping[str, Any]) -> CompressedRows:
    """Return ``CompressedRows`` with a saved state, for reading."""
    opened = state["open"]
    entry = ArraySpec(opened.shape[2:], opened.dtype)
    columns, stop, capacity = opened.shape[0], state["blocks"].stop, int(state["rows"])
    if stop < -(-capacity // BLOCK_ROWS):  # not wrapped yet: later slots are unused
        capacity = min(capacity, (stop + 1) * BLOCK_ROWS)
    saved.integer("ring.rows", capacity, 1, (stop - state["blocks"].first + 1) * BLOCK_ROWS)
    blocks = CompressedRows(entry, columns, capacity, in_memory)
    blocks.load_state_dict({**state, "rows": capacity})
    return blocks
