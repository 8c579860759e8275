"""One step of a network for E environments: the protocol, and what all networks share.

Acting is a chain of tiny matrix products. On the CPU numpy does them in 0.6 to 0.9 of torch's time
at every width from 32 to 512 and 1 to 256 environments (measured, one thread), so an MLP torso on
the CPU takes a subclass of ``NumpyStep``, anything else one of ``TorchStep``.
"""

import copy
from typing import Generic, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from rlrun.acting.cells import make_cell
from rlrun.nets.actor_and_critics import FlatObs
from rlrun.nets.memory import Cell, Memory
from rlrun.nets.torso import MLP
from rlrun.types import Tree, tree_map

N = TypeVar("N", bound=nn.Module)


class NetStep(Protocol):
    """A copy of a network's weights that computes one row of E environments at a time."""

    def refresh(self) -> None:
        """Copy the network's current weights."""

    def initial_state(self) -> Tree:
        """Return the state before an episode's first row, arrays [E, ...]."""

    def __call__(
        self, obs: Tree, first: np.ndarray, action: np.ndarray, reward: np.ndarray, state: Tree
    ) -> tuple[np.ndarray, Tree]:
        """Return outputs [E, K] and the next state; rows with ``first`` start from a zero state.

        ``action`` and ``reward``: of the previous row, the reward scaled and clipped.
        """


class HasInitialState(Protocol):
    """A memory, or a network that holds several."""

    def initial_state(self, batch: int, device: torch.device) -> Tree: ...


class TorchStep(Generic[N]):
    """A copy of any network, on the network's device."""

    def __init__(self, net: N, memory: HasInitialState, num_envs: int) -> None:
        self.source, self.memory, self.num_envs = net, memory, num_envs
        self.net = copy.deepcopy(net).requires_grad_(False)
        self.device = next(net.parameters()).device

    @torch.no_grad()
    def refresh(self) -> None:
        torch._foreach_copy_(list(self.net.parameters()), list(self.source.parameters()))

    def initial_state(self) -> Tree:
        state = self.memory.initial_state(self.num_envs, torch.device("cpu"))
        return tree_map(Tensor.numpy, state)

    def tensors(self, *trees: Tree) -> tuple[Tree, ...]:
        """Return the arrays as tensors on the network's device."""
        return tuple(tree_map(self._tensor, tree) for tree in trees)

    def arrays(self, outputs: Tensor, state: Tree) -> tuple[np.ndarray, Tree]:
        """Return outputs and state as arrays."""
        return outputs.numpy(force=True), tree_map(lambda x: x.numpy(force=True), state)

    def _tensor(self, x: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(x)).to(self.device)


class Refreshable(Protocol):
    """Weights copied from modules of torch."""

    def refresh(self) -> None: ...


class NumpyStep:
    """Numpy copies of a network's parts and of its memory; the network is on the CPU."""

    def __init__(self, memory: Memory, num_envs: int, *parts: Refreshable | None) -> None:
        self.num_envs, self.cell = num_envs, make_cell(memory, num_envs)
        self.parts = [part for part in (*parts, self.cell) if part is not None]

    def refresh(self) -> None:
        for part in self.parts:
            part.refresh()

    def initial_state(self) -> Tree:
        return () if self.cell is None else self.cell.initial_state(self.num_envs)

    def recur(self, x: np.ndarray, state: Tree) -> tuple[np.ndarray, Tree]:
        """Return memory outputs [E, H] of inputs [E, F], and the next state."""
        return (x, state) if self.cell is None else self.cell(x, state)


def uses_numpy(net: nn.Module, torso: nn.Module, memory: Memory) -> bool:
    """Return whether a network acts in numpy: an MLP torso, a memory with a cell, the CPU."""
    on_cpu = next(net.parameters()).device.type == "cpu"
    return on_cpu and isinstance(torso, (MLP, FlatObs)) and not isinstance(memory, Cell)


def reset_state(first: np.ndarray, state: Tree) -> Tree:
    """Return ``state`` [E, ...] with zeros in the rows where ``first`` [E] is set."""
    return tree_map(lambda s: np.where(first[:, None], np.float32(0), s), state)


def shape_reward(reward: np.ndarray, scale: float, clip: float | None) -> np.ndarray:
    """Return scale * reward clipped to [-clip, clip], as ``functional.rows.shape_reward``."""
    scaled = reward if scale == 1 else reward * np.float32(scale)
    return scaled if clip is None else np.clip(scaled, -clip, clip)
