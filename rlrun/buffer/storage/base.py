"""The numbering of stored rows, and the interface of a ring that stores them."""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from rlrun.buffer import saved
from rlrun.buffer.storage.compressed import CompressedRows
from rlrun.buffer.storage.layout import Layout
from rlrun.run.tensors import RingRows, RowFiles
from rlrun.types import Chunk, Tree, tree_map

FIRST, TERMINATED, TRUNCATED, VALID = 1, 2, 4, 8  # of a row, in one byte
CUT = 16  # the trajectory ends after this row although its episode continues (a collect's end)
LEARNED, LIVE = 32, 64  # some window learns this row; the row's own window can be sampled


_FLAGS = FIRST | TERMINATED | TRUNCATED | VALID | CUT | LEARNED | LIVE


class Storage(ABC):
    """The last ``rows`` rows of each of ``columns``, in host memory or on a device.

    Row r of column c is in cell c * rows + r % rows. The flags of all cells are in host memory.
    """

    obs: Tree  # arrays or tensors [columns, rows, *O], or ``CompressedRows``
    fields: dict[str, Any]  # the other fields, [columns, rows, ...]
    flags: np.ndarray  # uint8 [cells]
    blocks: tuple[CompressedRows, ...] = ()  # compressed observations

    def __init__(self, layout: Layout) -> None:
        self.rows, self.columns, self.spaces = layout.rows, layout.columns, layout.row.spaces
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

    def check_loaded(self) -> None:
        """Raise CheckpointError unless loaded flags, rewards and episodes can be those of rows."""
        flags = self.flags.reshape(self.columns, self.rows)
        newest = self.head - 1
        row = newest - (newest - np.arange(self.rows)) % self.rows  # of each slot; < 0: none
        saved.require(not (flags & ~np.uint8(_FLAGS)).any(), "ring.flags", "has unknown bits")
        none = (row < 0) | (np.arange(self.rows) == self.head % self.rows)
        saved.require(not flags[:, none].any(), "ring.flags", "marks rows that are not complete")
        reward = np.asarray(saved.host(self.fields["reward"])).reshape(flags.shape)
        valid = flags & VALID > 0
        saved.require(np.isfinite(reward[valid]).all(), "ring.reward", "is not finite")
        if self.spaces is not None:
            used = slice(None, min(self.head + 1, self.rows))  # the newest has an observation only
            obs = tree_map(
                lambda x: saved.host(x)[:, used] if not isinstance(x, CompressedRows) else x,
                self.obs,
            )
            action = saved.host(self.fields["action"])[:, used]
            wrong = self.spaces.violation(obs, action, valid[:, used], axes=("column", "row"))
            saved.require(wrong is None, "ring", str(wrong))
        if "final" not in self.fields:
            return
        origin, final = self.fields["origin"], self.fields["final"]
        good = (origin >= -1) & (origin <= row)
        good &= (final == -1) | ((final > row) & (final <= newest))
        saved.require(good[valid].all(), "ring.origin", "an episode does not surround its rows")

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
        """Take ``head`` and the files of the rows from a saved state."""
        self.head = saved.integer("ring.head", state["head"], 0, saved.MOST_ROWS)
        self.files = state["fields"]["reward"].saved_files()

    def restore(self, array: Any, rows: Any) -> None:
        """Write the saved rows of a field to ``array`` [columns, rows, ...]."""
        saved.fill_rows("ring", array, rows, self.oldest, self.head)

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None: ...
