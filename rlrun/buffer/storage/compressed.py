"""Image observations in memory as compressed blocks of consecutive rows.

zstd finds the frame before by itself, so a few frames of one column together take a hundredth of
what they do apart (Atari), and a row costs the decoding of its block.
"""

import math
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from rlrun.buffer.storage.layout import BLOCK_ROWS, Allocate, Block, in_memory
from rlrun.codec import zstd
from rlrun.errors import ResourceError

_SAVED = {"zstd", "sizes", "open", "at", "rows"}


class Blocks:
    """Entries of ``columns`` x ``rows`` cells, read and written like an array's.

    Rows arrive in order and for all columns at once. The block that is written lies open, one a
    column; when the rows go on to the next one it is packed. A block that does not get smaller
    stays as it is.
    """

    def __init__(
        self, name: str, entry: Block, columns: int, rows: int, allocate: Allocate
    ) -> None:
        """``name``: for ``allocate``, which makes room for the open blocks."""
        self.entry, self.columns, self.rows = entry, columns, rows
        self.open = allocate(name, entry.times(columns, BLOCK_ROWS))
        self.at = -1  # which block is open; -1: nothing was written
        self.a_column = -(-rows // BLOCK_ROWS)  # blocks
        self.packed: list[bytes | None] = [None] * (columns * self.a_column)
        self.raw = 0  # bytes of what is packed, before
        self.coded = sys.getsizeof(self.packed)  # and now, with all there is to it
        self.room: int | None = None  # bytes ``coded`` may reach

    # -- writing ---------------------------------------------------------------------------------

    def write(self, entries: np.ndarray, start: int) -> None:
        """Rows ``entries`` [T, columns, …] to the slots from ``start`` on, T <= rows.

        Raises: ResourceError when what is packed outgrows its room.
        """
        done = 0
        while done < len(entries):
            slot = (start + done) % self.rows
            number, offset = divmod(slot, BLOCK_ROWS)
            if number != self.at:
                self._turn_to(number)
            count = min(len(entries) - done, BLOCK_ROWS - offset, self.rows - slot)
            for column in range(self.columns):
                self.open[column, offset : offset + count] = entries[done : done + count, column]
            done += count

    def _turn_to(self, number: int) -> None:
        """Pack the open block and open another, with what it holds already."""
        if self.at >= 0:
            for column in range(self.columns):
                self._keep(column * self.a_column + self.at, self._pack(column))
        self.at = number
        for column in range(self.columns):
            place = column * self.a_column + number
            held = self.packed[place]
            if held is not None:
                self.open[column] = self._unpacked(held)
                self._keep(place, None)

    def _pack(self, column: int) -> bytes:
        block = self.open[column]
        packed = zstd.compress(block.data.cast("B"))
        return packed if len(packed) < block.nbytes else block.tobytes()

    def _keep(self, place: int, data: bytes | None) -> None:
        """Replace a packed block, and account for it."""
        size = self.open[0].nbytes
        for one, sign in ((self.packed[place], -1), (data, 1)):
            if one is not None:
                self.coded += sign * sys.getsizeof(one)
                self.raw += sign * size
        self.packed[place] = data
        if self.room is not None and self.coded > self.room:
            rows = self.raw // size * BLOCK_ROWS
            fits = int(rows * self.room / self.coded)
            raise ResourceError(
                f"buffer.compress = true: {rows} rows of compressed observations take "
                f"{self.coded} bytes; {self.room} are left to them (buffer.max_bytes, else 80 % of "
                f"the memory that was free); set buffer.capacity to {fits} or less, or raise "
                "buffer.max_bytes"
            )

    # -- reading ---------------------------------------------------------------------------------

    def take(self, cells: np.ndarray, axis: int, out: np.ndarray, mode: str = "clip") -> None:
        """The entries at ``cells`` [*], to ``out`` [*, …]: ``ndarray.take`` for its users."""
        assert axis == 0, "cells are the first axis"
        wanted = cells.reshape(-1)
        into = out.reshape(len(wanted), *self.entry.shape)
        assert into.base is not None, "out is contiguous"
        column, slot = np.divmod(wanted, self.rows)
        number, offset = np.divmod(slot, BLOCK_ROWS)
        place = column * self.a_column + number
        order = np.argsort(place, kind="stable")
        ordered = place[order]
        edges = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
        for at in np.split(order, edges) if len(order) else ():
            into[at] = self._block(int(place[at[0]]))[offset[at]]

    def _block(self, place: int) -> np.ndarray:
        """The rows of a block, zeros where nothing was written."""
        column, number = divmod(place, self.a_column)
        if number == self.at:
            opened: np.ndarray = self.open[column]
            return opened
        held = self.packed[place]
        if held is None:
            return np.zeros(self.open.shape[1:], self.entry.dtype)
        return self._unpacked(held)

    def _unpacked(self, data: bytes) -> np.ndarray:
        shape = self.open.shape[1:]
        size = math.prod(shape) * self.entry.dtype.itemsize
        whole = data if len(data) == size else zstd.decompress(memoryview(data), size)
        return np.frombuffer(whole, self.entry.dtype).reshape(shape)

    # -- saving ----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """All blocks as they are packed."""
        return {
            "zstd": np.frombuffer(b"".join(x or b"" for x in self.packed), np.uint8),
            "sizes": np.array([len(x or b"") for x in self.packed], np.int64),
            "open": self.open,
            "at": self.at,
            "rows": self.rows,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of ``state_dict``."""
        data, start = state["zstd"], 0
        self.open[:], self.at = state["open"], int(state["at"])
        for place, size in enumerate(state["sizes"].tolist()):
            self._keep(place, data[start : start + size].tobytes() if size else None)
            start += size


def saved(tree: Any) -> bool:
    """Whether the node of a saved ring is the state of ``Blocks``."""
    return isinstance(tree, Mapping) and set(tree) == _SAVED


def restored(state: Mapping[str, Any]) -> Blocks:
    """The blocks of a state, for reading."""
    opened = state["open"]
    entry = Block(opened.shape[2:], opened.dtype)
    columns, rows = opened.shape[0], int(state["rows"])
    blocks = Blocks("obs", entry, columns, rows, in_memory)
    blocks.load_state_dict(state)
    return blocks
