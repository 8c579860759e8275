"""One step of a Q-network for E environments: numpy in, numpy out, with weights of its own.

Acting is a chain of tiny matrix products. On the CPU numpy does them in 0.6 to 0.9 of torch's time
at every width from 32 to 512 and 1 to 256 environments (measured, one thread), so an MLP torso on
the CPU takes ``NumpyStep``, anything else ``TorchStep``.
"""

import copy
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from rlrun.kernels.cells import GRUCell, LSTMCell, MinGRUCell
from rlrun.kernels.mlp import ForwardMLP
from rlrun.kernels.observations import flatten
from rlrun.kernels.q_heads import NumpyQHead
from rlrun.nets.forward_noise import MEAN_WEIGHTS, ForwardNoise
from rlrun.nets.memory.cell import Cell
from rlrun.nets.memory.mingru import MinGRU
from rlrun.nets.memory.recurrent import GRU, LSTM
from rlrun.nets.noisy import noise_size, noisy_layers, split_noise
from rlrun.nets.qnet import DistNet, QNet
from rlrun.nets.torso import MLP
from rlrun.types import Tree, tree_map


class QNetStep(Protocol):
    """A snapshot of a network's weights that can take steps."""

    def refresh(self) -> None:
        """Copy the network's present weights."""

    def initial_state(self) -> Tree:
        """The state before an episode's first row, arrays [E, ...]."""

    def perturb(self, generator: np.random.Generator | None) -> None:
        """Noise of every environment for the steps to come; None: mean weights."""

    def __call__(
        self, obs: Tree, first: np.ndarray, action: np.ndarray, reward: np.ndarray, state: Tree
    ) -> tuple[np.ndarray, Tree]:
        """Action values [E, A] and the state behind the row; where ``first`` it starts afresh.

        ``action``, ``reward``: those of the row before, as the network sees them.
        """


class TorchQNetStep:
    """Any network, on its own device."""

    def __init__(self, net: QNet, num_envs: int) -> None:
        self.source, self.num_envs = net, num_envs
        self.net = copy.deepcopy(net).requires_grad_(False)
        self.device = next(net.parameters()).device
        self.noisy, self.draw = noisy_layers(self.net), MEAN_WEIGHTS

    @torch.no_grad()
    def refresh(self) -> None:
        """See ``Step``."""
        torch._foreach_copy_(list(self.net.parameters()), list(self.source.parameters()))

    def initial_state(self) -> Tree:
        """See ``Step``."""
        state = self.net.memory.initial_state(self.num_envs, torch.device("cpu"))
        return tree_map(Tensor.numpy, state)

    def perturb(self, generator: np.random.Generator | None) -> None:
        """See ``Step``."""
        self.draw = MEAN_WEIGHTS
        if generator is not None:
            eps = generator.standard_normal((self.num_envs, noise_size(self.noisy)), np.float32)
            noise = split_noise(torch.from_numpy(eps).to(self.device), self.noisy)
            self.draw = ForwardNoise(tuple(noise))

    @torch.inference_mode()
    def __call__(
        self, obs: Tree, first: np.ndarray, action: np.ndarray, reward: np.ndarray, state: Tree
    ) -> tuple[np.ndarray, Tree]:
        """See ``Step``."""

        def tensor(x: np.ndarray) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(x)).to(self.device)

        obs, opens, taken, paid, state = (
            tree_map(tensor, x) for x in (obs, first, action, reward, state)
        )
        q, state = self.net.step(obs, opens, taken, paid, state, self.draw)
        return q.numpy(force=True), tree_map(lambda x: x.numpy(force=True), state)


class NumpyQNetStep:
    """A network with an MLP torso, on the CPU."""

    def __init__(self, net: QNet, num_envs: int) -> None:
        assert isinstance(net.torso, MLP)
        self.num_envs, self.actions = num_envs, net.actions
        self.space, self.width = net.torso.space, net.torso.size
        self.side = net.prev_inputs
        self.torso = ForwardMLP(net.torso.layers)
        self.head = NumpyQHead(net, num_envs) if isinstance(net, DistNet) else None
        streams = [] if self.head else [m for m in (net.advantage, net.value) if m is not None]
        self.heads = [ForwardMLP(stream) for stream in streams]
        self.memory: LSTMCell | GRUCell | MinGRUCell | None = None
        if isinstance(net.memory, LSTM):
            self.memory = LSTMCell(net.memory, num_envs)
        elif isinstance(net.memory, GRU):
            self.memory = GRUCell(net.memory)
        elif isinstance(net.memory, MinGRU):
            self.memory = MinGRUCell(net.memory)
        features = self.width + (net.actions + 1 if self.side else 0)
        self.inputs = np.zeros((num_envs, features), np.float32)
        self.numbers = np.arange(net.actions)

    def refresh(self) -> None:
        """See ``Step``."""
        for part in (self.torso, *self.heads, self.memory, self.head):
            if part is not None:
                part.refresh()

    def perturb(self, generator: np.random.Generator | None) -> None:
        """See ``Step``."""
        assert self.head is not None, "a network without noise"
        self.head.perturb(generator)

    def initial_state(self) -> Tree:
        """See ``Step``."""
        return () if self.memory is None else self.memory.initial_state(self.num_envs)

    def __call__(
        self, obs: Tree, first: np.ndarray, action: np.ndarray, reward: np.ndarray, state: Tree
    ) -> tuple[np.ndarray, Tree]:
        """See ``Step``."""
        if first.any():
            state = tree_map(lambda s: np.where(first[:, None], np.float32(0), s), state)
            action, reward = np.where(first, -1, action), np.where(first, np.float32(0), reward)
        x = self.torso(flatten(self.space, obs))
        if self.side:
            self.inputs[:, : self.width] = x
            self.inputs[:, self.width : -1] = action[:, None] == self.numbers
            self.inputs[:, -1] = reward
            x = self.inputs
        if self.memory is not None:
            x, state = self.memory(x, state)
        if self.head is not None:
            return self.head(x), state
        q = self.heads[0](x)
        if len(self.heads) > 1:
            q -= q.sum(-1, keepdims=True) * np.float32(1 / self.actions)
            q += self.heads[1](x)
        return q, state


def make_qnet_step(net: QNet, num_envs: int) -> QNetStep:
    """The faster step for this network, by a fixed rule; both give the same values to 1e-5."""
    cpu = next(net.parameters()).device.type == "cpu"
    fast = cpu and isinstance(net.torso, MLP) and not isinstance(net.memory, Cell)
    return NumpyQNetStep(net, num_envs) if fast else TorchQNetStep(net, num_envs)
