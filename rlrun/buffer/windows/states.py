"""The recurrent state before the first row of every window."""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from rlrun.buffer.storage.layout import Allocate
from rlrun.run.tensors import Rows
from rlrun.types import Tree, tree_leaves, tree_map


class StateStore(Protocol):
    """A recurrent state for every slot of a window table, in host memory or on a device."""

    def write(self, slots: np.ndarray, states: Tree) -> None:
        """Store ``states``, a tree of host arrays [n, ...], in ``slots`` int64 [n]."""

    def read(self, slots: np.ndarray) -> Tree:
        """The states in ``slots``: fresh arrays [n, ...] in host memory."""

    def arrays(self) -> list[Any]:
        """Every array owned."""

    def state_dict(self, written: Callable[[Any], Rows]) -> Tree:
        """The states of stored windows; ``written``: of an array [1, slots, ...]."""

    def load_state_dict(self, states: Tree, restore: Callable[[Any, Any], None]) -> None:
        """Load a ``state_dict``; ``restore``: writes saved entries to an array [1, slots, ...]."""


class HostStates:
    """``StateStore`` in host memory."""

    def __init__(self, blocks: Tree, allocate: Allocate) -> None:
        """``blocks``: ``Layout.states()``."""
        self.tree = _allocated("states", blocks, allocate)

    def write(self, slots: np.ndarray, states: Tree) -> None:
        def put(store: np.ndarray, new: np.ndarray) -> None:
            store[slots] = new

        tree_map(put, self.tree, states)

    def read(self, slots: np.ndarray) -> Tree:
        return tree_map(lambda store: store[slots], self.tree)

    def arrays(self) -> list[Any]:
        return tree_leaves(self.tree)

    def state_dict(self, written: Callable[[Any], Rows]) -> Tree:
        return tree_map(lambda store: written(store[None]), self.tree)

    def load_state_dict(self, states: Tree, restore: Callable[[Any, Any], None]) -> None:
        tree_map(lambda store, x: restore(store[None], x), self.tree, states)


def _allocated(name: str, tree: Tree, allocate: Allocate) -> Tree:
    """The arrays of a tree of ArraySpecs, named by their path in it."""
    if isinstance(tree, dict):
        return {k: _allocated(f"{name}/{k}", v, allocate) for k, v in tree.items()}
    if isinstance(tree, tuple):
        return tuple(_allocated(f"{name}/{i}", v, allocate) for i, v in enumerate(tree))
    return allocate(name, tree)
