"""Where windows lie in their columns."""

from typing import Any, NamedTuple

import numpy as np


class Spans:
    """Where B windows lie in their columns: lines of ``at``, int64 [7, B], absolute rows."""

    __slots__ = ("at",)

    def __init__(self, at: np.ndarray) -> None:
        self.at = at

    @classmethod
    def of(cls, cell: Any, column: Any, first: Any, learn: Any, stop: Any, last: Any) -> "Spans":
        """From the lines but the names."""
        return cls(np.stack([cell, column, first, learn, stop, last, cell]))

    def __len__(self) -> int:
        """B."""
        return int(self.at.shape[1])

    cell = property(lambda self: self.at[0], doc="where the first own row lies")
    column = property(lambda self: self.at[1])
    first = property(lambda self: self.at[2], doc="first own row")
    learn = property(lambda self: self.at[3], doc="first learned row")
    stop = property(lambda self: self.at[4], doc="last row that is a step")
    last = property(lambda self: self.at[5], doc="last row shown: stop or the observation behind")
    key = property(lambda self: self.at[6], doc="the windows' names")


class Extended(NamedTuple):
    """What an addition of rows did to the windows."""

    dropped: np.ndarray  # slots of windows that went for want of room
    slots: np.ndarray  # slots of new windows
    keys: np.ndarray  # their names
    learned: int  # rows that some window learns for the first time
