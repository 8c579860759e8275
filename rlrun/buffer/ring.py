"""Contiguous time-major storage of rows: one array per field, one column per environment.

Row r of every column lies in slot r % rows. No next_obs: the next observation is the next row.
"""

from typing import Any

import numpy as np

from rlrun.types import Segment, Tree, tree_leaves, tree_map

_FLAGS = ("first", "terminated", "truncated")


class Ring:
    """The last ``rows`` rows of ``columns`` environments, as numpy arrays [rows, columns, ...]."""

    def __init__(self, example: Segment, *, rows: int) -> None:
        """Shapes and dtypes are those of ``example``, a collected segment."""
        self.rows = rows
        self.columns = example.reward.shape[1]
        self.head = 0  # rows written; the observation of row ``head`` is there already
        self.obs: Tree = tree_map(self._empty, example.obs)
        self.fields: dict[str, np.ndarray] = {
            name: self._empty(getattr(example, name)) for name in ("action", "reward", *_FLAGS)
        }
        for name, value in example.extras.items():
            self.fields[f"extras/{name}"] = self._empty(value)

    def _empty(self, x: Any) -> np.ndarray:
        like = x.numpy()
        return np.zeros((self.rows, self.columns, *like.shape[2:]), like.dtype)

    @property
    def oldest(self) -> int:
        """The oldest row that is whole: slot head % rows already has the newest observation."""
        return max(0, self.head + 1 - self.rows)

    @property
    def nbytes(self) -> int:
        return sum(a.nbytes for a in (*tree_leaves(self.obs), *self.fields.values()))

    def write(self, chunk: Segment) -> None:
        """Append T < rows rows of every column, and the observation behind them."""
        steps = len(chunk.reward)
        assert steps < self.rows, "Ring.write takes fewer rows than the ring holds"
        tree_map(lambda store, new: self._put(store, new.numpy()), self.obs, chunk.obs)
        for name, store in self.fields.items():
            source = chunk.extras[name[7:]] if name.startswith("extras/") else getattr(chunk, name)
            self._put(store, source.numpy()[:steps])
        self.head += steps

    def _put(self, store: np.ndarray, new: np.ndarray) -> None:
        start = self.head % self.rows
        cut = min(len(new), self.rows - start)
        store[start : start + cut] = new[:cut]
        if cut < len(new):
            store[: len(new) - cut] = new[cut:]

    def slots(self, row: np.ndarray, column: np.ndarray) -> np.ndarray:
        """Flat indices of (row, column) pairs, for ``take``."""
        flat: np.ndarray = (row % self.rows) * self.columns + column
        return flat

    def take(self, store: np.ndarray, flat: np.ndarray) -> np.ndarray:
        """The entries of one field at ``flat`` [...]: [..., *field shape], a fresh array."""
        return store.reshape(-1, *store.shape[2:]).take(flat, axis=0)

    def state_dict(self) -> dict[str, Any]:
        """Only slots that were ever written: an early checkpoint of a large ring is small."""
        used = min(self.head + 1, self.rows)
        part: tuple[Tree, Tree] = tree_map(lambda store: store[:used], (self.obs, self.fields))
        return {"head": self.head, "obs": part[0], "fields": part[1]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.head = int(state["head"])
        saved = (state["obs"], state["fields"])
        tree_map(lambda store, x: np.copyto(store[: len(x)], x), (self.obs, self.fields), saved)
