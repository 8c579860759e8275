"""Rows of windows."""

from typing import Any, NamedTuple

import numpy as np


class Spans:
    """Rows of B windows, counted since the run began: ``lines`` int64 [7, B]."""

    __slots__ = ("lines",)

    def __init__(self, lines: np.ndarray) -> None:
        self.lines = lines

    @classmethod
    def of(cls, cell: Any, column: Any, first: Any, learn: Any, stop: Any, last: Any) -> "Spans":
        """From all lines but the keys."""
        return cls(np.stack([cell, column, first, learn, stop, last, cell]))

    def __len__(self) -> int:
        """B."""
        return int(self.lines.shape[1])

    cell = property(lambda self: self.lines[0], doc="of the first own row")
    column = property(lambda self: self.lines[1])
    first = property(lambda self: self.lines[2], doc="first own row")
    learn = property(lambda self: self.lines[3], doc="first learned row")
    stop = property(lambda self: self.lines[4], doc="last valid row")
    last = property(lambda self: self.lines[5], doc="last row shown: stop or the one after it")
    key = property(lambda self: self.lines[6], doc="keys of the windows")


class NewWindows(NamedTuple):
    """Windows completed by appended rows, and windows evicted for them."""

    dropped: np.ndarray  # slots of windows evicted from a full table
    slots: np.ndarray  # slots of new windows
    keys: np.ndarray  # their keys
    learned: int  # rows learned by some window for the first time
