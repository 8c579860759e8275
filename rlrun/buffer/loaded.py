"""Rows that were in a replay before the run collected its first: those of ``buffer.load``."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from rlrun.buffer import saved
from rlrun.buffer.storage.base import Storage


@dataclass
class LoadedRows:
    """The rows before row ``head`` of every column; ``rows`` of them are steps."""

    rows: int = 0
    head: int = 0

    def mark(self, ring: Storage, rows: int) -> None:
        """Count all rows of ``ring`` so far, ``rows`` of them steps, as loaded."""
        self.rows, self.head = rows, ring.head

    def age(self, row: np.ndarray, ring: Storage, rows: int) -> dict[str, float]:
        """Return buffer/sample_age: mean env steps collected since ``row`` [n], of any column.

        A loaded row counts as collected right before the run's first. ``rows``: steps stored so
        far, loaded ones included. Empty while none was collected.
        """
        lines = ring.head - self.head
        if not lines:
            return {}
        steps_per_line = (rows - self.rows) / lines  # of all columns, end rows left out
        ago = (ring.head - np.maximum(row, self.head)).mean()
        return {"buffer/sample_age": float(ago) * steps_per_line}

    def state_dict(self) -> dict[str, int]:
        return asdict(self)

    def load_state_dict(self, state: Any, ring: Storage, rows: int) -> None:
        """Load a ``state_dict``; None: that of a version which did not save it. No row is loaded.

        Raises: CheckpointError.
        """
        state = LoadedRows().state_dict() if state is None else state
        good = isinstance(state, dict) and set(state) == {"rows", "head"}
        saved.require(good, "loaded", "other names")
        self.rows = saved.integer("loaded.rows", state["rows"], 0, rows)
        self.head = saved.integer("loaded.head", state["head"], 0, ring.head)
