"""The numbering of stored rows, and the interface of a ring that stores them."""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from rlrun.buffer.storage.compressed import CompressedRows
from rlrun.rundir.segments import RingRows, RowFiles, Rows
from rlrun.types import Chunk, Tree

FIRST, TERMINATED, TRUNCATED, VALID = 1, 2, 4, 8  # of a row, in one byte
CUT = 16  # the trajectory ends after this row although its episode continues (a collect's end)
LEARNED, LIVE = 32, 64  # some window learns this row; the row's own window can be sampled


class Storage(ABC):
    """The last ``rows`` rows of each of ``columns``, in host memory or on a device.

    Row r of column c is in cell c * rows + r % rows. The flags of all cells are in host memory.
    """

    obs: Tree  # arrays or tensors [columns, rows, *O], or ``CompressedRows``
    fields: dict[str, Any]  # the other fields, [columns, rows, ...]
    flags: np.ndarray  # uint8 [cells]
    blocks: tuple[CompressedRows, ...] = ()  # compressed observations

    def __init__(self, rows: int, columns: int) -> None:
        self.rows, self.columns = rows, columns
        self.head = 0  # rows written; the observation of row ``head`` is stored already
        self.files = RowFiles()  # of the rows saved so far

    @property
    def oldest(self) -> int:
        """The oldest complete row: slot head % rows already has the newest observation."""
        return max(0, self.head + 1 - self.rows)

    def written(self, array: Any) -> RingRows:
        """The stored rows of a field [columns, rows, ...]."""
        return RingRows(array, self.oldest, self.head, self.files)

    def cells(self, row: np.ndarray, column: np.ndarray) -> np.ndarray:
        """The cells of rows, int64 of the broadcast shape of ``row`` and ``column``."""
        flat: np.ndarray = column * self.rows + row % self.rows
        return flat

    def opens(self, row: np.ndarray, column: np.ndarray) -> np.ndarray:
        """Return whether each row is the first of an episode, bool."""
        opens: np.ndarray = self.flags[self.cells(row, column)] & FIRST > 0
        return opens

    def flags_of(self, row: np.ndarray, column: np.ndarray) -> list[np.ndarray]:
        """The flags first, terminated, truncated, valid of rows, bool."""
        flags = self.flags[self.cells(row, column)]
        return [flags & bit > 0 for bit in (FIRST, TERMINATED, TRUNCATED, VALID)]

    @abstractmethod
    def write(self, chunk: Chunk, given: list[np.ndarray], *, close: bool) -> int:
        """Append T < rows rows of every column and the observation after them.

        ``given``: the validated arrays of the chunk. ``close``: the trajectories end with the last
        row. Returns the number of valid rows.
        """

    @abstractmethod
    def arrays(self) -> list[Any]:
        """Every array owned."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """``head``, ``obs`` and ``fields``: ``Rows`` where they never change once written.

        An observation has its newest entry besides, which the next chunk writes again.
        """

    def begin(self, state: dict[str, Any]) -> None:
        """Take ``head`` from a saved state. Raises: ValueError when it has other rows."""
        reward: Rows = state["fields"]["reward"]
        self.head, self.files = int(state["head"]), reward.saved_files()
        if (reward.first, reward.stop) != (self.oldest, self.head):
            raise ValueError(f"rows {reward.first} to {reward.stop} are stored at {self.head}")

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None: ...
