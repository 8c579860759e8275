"""The recurrent state before the first row of every window, on a device."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlrun.buffer.device.proportional import upload
from rlrun.buffer.device.ring import to_host, torch_dtype
from rlrun.run.tensors import Rows
from rlrun.types import Tree, tree_leaves, tree_map


class DeviceStates:
    """``StateStore`` on a device."""

    def __init__(self, blocks: Tree, device: torch.device) -> None:
        """``blocks``: ``Layout.states()``."""
        self.tree = tree_map(
            lambda b: torch.zeros(b.shape, dtype=torch_dtype(b.dtype), device=device), blocks
        )

    def write(self, slots: np.ndarray, states: Tree) -> None:
        def put(store: Tensor, new: np.ndarray) -> None:
            store.index_copy_(0, upload(slots, store.device), upload(new, store.device))

        tree_map(put, self.tree, states)

    def read(self, slots: np.ndarray) -> Tree:
        return tree_map(lambda store: to_host(store[torch.from_numpy(slots)]), self.tree)

    def select(self, slots: Tensor) -> Tree:
        """The states in ``slots``: fresh tensors [n, ...] on the device."""
        return tree_map(lambda store: store.index_select(0, slots), self.tree)

    def arrays(self) -> list[Tensor]:
        return tree_leaves(self.tree)

    def state_dict(self, written: Callable[[Any], Rows]) -> Tree:
        return tree_map(lambda store: written(store[None]), self.tree)

    def load_state_dict(self, states: Tree, restore: Callable[[Any, Any], None]) -> None:
        tree_map(lambda store, x: restore(store[None], x), self.tree, states)
