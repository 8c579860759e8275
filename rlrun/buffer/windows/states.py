"""The recurrent state before the first row of every window."""

from typing import Any, Protocol

import numpy as np

from rlrun.buffer import saved
from rlrun.buffer.storage.layout import Allocate
from rlrun.types import Tree, tree_leaves, tree_map


class StateStore(Protocol):
    """A recurrent state for every slot of a window table, in host memory or on a device."""

    def write(self, slots: np.ndarray, states: Tree) -> None:
        """Store ``states``, a tree of host arrays [n, ...], in ``slots`` int64 [n]."""

    def read(self, slots: np.ndarray) -> Tree:
        """The states in ``slots``: fresh arrays [n, ...] in host memory."""

    def arrays(self) -> list[Any]:
        """Every array owned."""

    def state_dict(self, used: int) -> Tree:
        """The states of slots 0..used-1, arrays in host memory."""

    def load_state_dict(self, states: Tree) -> None:
        """Store the states of slots 0..n-1 and zero the others."""


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

    def state_dict(self, used: int) -> Tree:
        return tree_map(lambda store: store[:used], self.tree)

    def load_state_dict(self, states: Tree) -> None:
        def restore(store: np.ndarray, x: np.ndarray) -> None:
            saved.fill("windows.states", store, x)

        tree_map(restore, self.tree, states)


def _allocated(name: str, tree: Tree, allocate: Allocate) -> Tree:
    """The arrays of a tree of ArraySpecs, named by their path in it."""
    if isinstance(tree, dict):
        return {k: _allocated(f"{name}/{k}", v, allocate) for k, v in tree.items()}
    if isinstance(tree, tuple):
        return tuple(_allocated(f"{name}/{i}", v, allocate) for i, v in enumerate(tree))
    return allocate(name, tree)
