"""One step of a Q-network for E environments: numpy in, numpy out, with weights of its own.

Acting is a chain of tiny matrix products. On the CPU numpy does them in 0.6 to 0.9 of torch's time
at every width from 32 to 512 and 1 to 256 environments (measured, one thread), so an MLP torso on
the CPU takes ``NumpyStep``, anything else ``TorchStep``.
"""

import copy
from collections.abc import Callable
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from rlrun.nets.acting_head import NumpyHead
from rlrun.nets.distnet import DistNet
from rlrun.nets.draw import MEAN, Draw
from rlrun.nets.memory import GRU, LSTM, Cell
from rlrun.nets.mingru import MinGRU, MinGRUCell
from rlrun.nets.noisy import noise_size, noisy_layers, split_noise
from rlrun.nets.qnet import QNet
from rlrun.nets.torso import MLP
from rlrun.types import Tree, tree_map


class Step(Protocol):
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


class TorchStep:
    """Any network, on its own device."""

    def __init__(self, net: QNet, num_envs: int) -> None:
        self.source, self.num_envs = net, num_envs
        self.net = copy.deepcopy(net).requires_grad_(False)
        self.device = next(net.parameters()).device
        self.noisy, self.draw = noisy_layers(self.net), MEAN

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
        self.draw = MEAN
        if generator is not None:
            eps = generator.standard_normal((self.num_envs, noise_size(self.noisy)), np.float32)
            noise = split_noise(torch.from_numpy(eps).to(self.device), self.noisy)
            self.draw = Draw(tuple(noise))

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


class NumpyStep:
    """A network with an MLP torso, on the CPU."""

    def __init__(self, net: QNet, num_envs: int) -> None:
        assert isinstance(net.torso, MLP)
        self.num_envs, self.actions = num_envs, net.actions
        self.space, self.width = net.torso.space, net.torso.size
        self.side = net.prev_inputs
        self.torso = Layers(net.torso.layers)
        self.head = NumpyHead(net, num_envs, _ACTIVATIONS) if isinstance(net, DistNet) else None
        streams = [] if self.head else [m for m in (net.advantage, net.value) if m is not None]
        self.heads = [Layers(stream) for stream in streams]
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


class Layers:
    """The linear layers of a Sequential and the activations between them."""

    def __init__(self, layers: nn.Module) -> None:
        assert isinstance(layers, nn.Sequential)
        self.sources = [m for m in layers if isinstance(m, nn.Linear)]
        self.weights = [(_copy(m.weight), _copy(m.bias)) for m in self.sources]
        kinds = [type(m) for m in layers if not isinstance(m, nn.Linear)]
        self.activations: list[Activation | None] = [_ACTIVATIONS[kind] for kind in kinds]
        self.activations += [None] * (len(self.sources) - len(kinds))  # none behind the last

    def refresh(self) -> None:
        for source, (weight, bias) in zip(self.sources, self.weights, strict=True):
            np.copyto(weight, source.weight.detach().numpy())
            np.copyto(bias, source.bias.detach().numpy())

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """[E, in] -> [E, out], fresh."""
        for (weight, bias), activation in zip(self.weights, self.activations, strict=True):
            x = x @ weight.T
            x += bias
            if activation is not None:
                activation(x)
        return x


class LSTMCell:
    """torch.lstm_cell; one product for inputs and state, one tanh for all gates.

    sigmoid(x) = tanh(x / 2) / 2 + 1/2: the rows of the gates i, f, o are halved beforehand. They
    stand before those of g here.
    """

    def __init__(self, memory: LSTM, num_envs: int) -> None:
        self.core, self.size = memory.core, memory.size
        features = self.core.input_size
        self.weight = np.empty((4 * self.size, features + self.size), np.float32)
        self.bias = np.empty(4 * self.size, np.float32)
        self.joined = np.empty((num_envs, features + self.size), np.float32)
        self.refresh()

    def refresh(self) -> None:
        w_x, w_h, b_x, b_h = (p.detach().numpy() for p in self.core.all_weights[0])
        h, features = self.size, self.core.input_size
        places = (slice(0, 2 * h), slice(2 * h, 3 * h), slice(3 * h, 4 * h))
        sources = (slice(0, 2 * h), slice(3 * h, 4 * h), slice(2 * h, 3 * h))  # torch: i, f, g, o
        for to, of in zip(places, sources, strict=True):
            self.weight[to, :features], self.weight[to, features:] = w_x[of], w_h[of]
            self.bias[to] = b_x[of] + b_h[of]
        self.weight[: 3 * h] *= 0.5
        self.bias[: 3 * h] *= 0.5

    def initial_state(self, num_envs: int) -> Tree:
        return tuple(np.zeros((num_envs, self.size), np.float32) for _ in range(2))

    def __call__(self, x: np.ndarray, state: Tree) -> tuple[np.ndarray, Tree]:
        size, joined = self.size, self.joined
        joined[:, : x.shape[1]], joined[:, x.shape[1] :] = x, state[0]
        gates = joined @ self.weight.T
        gates += self.bias
        np.tanh(gates, out=gates)
        opened = gates[:, : 3 * size]
        opened *= np.float32(0.5)
        opened += np.float32(0.5)
        c = gates[:, size : 2 * size] * state[1]
        c += gates[:, :size] * gates[:, 3 * size :]
        h = np.tanh(c)
        h *= gates[:, 2 * size : 3 * size]
        return h, (h, c)


class GRUCell:
    """torch.gru_cell."""

    def __init__(self, memory: GRU) -> None:
        self.core, self.size = memory.core, memory.size
        self.weights = [_copy(p) for p in self.core.all_weights[0]]

    def refresh(self) -> None:
        for own, p in zip(self.weights, self.core.all_weights[0], strict=True):
            np.copyto(own, p.detach().numpy())

    def initial_state(self, num_envs: int) -> Tree:
        return (np.zeros((num_envs, self.size), np.float32),)

    def __call__(self, x: np.ndarray, state: Tree) -> tuple[np.ndarray, Tree]:
        (h,), size = state, self.size
        w_x, w_h, b_x, b_h = self.weights
        a, b = x @ w_x.T + b_x, h @ w_h.T + b_h
        opened = a[:, : 2 * size] + b[:, : 2 * size]  # r, z
        opened = np.tanh(opened * np.float32(0.5)) * np.float32(0.5) + np.float32(0.5)
        r, z = opened[:, :size], opened[:, size:]
        new = np.tanh(a[:, 2 * size :] + r * b[:, 2 * size :])
        h = new + z * (h - new)
        return h, (h,)


def make_step(net: QNet, num_envs: int) -> Step:
    """The faster step for this network, by a fixed rule; both give the same values to 1e-5."""
    cpu = next(net.parameters()).device.type == "cpu"
    fast = cpu and isinstance(net.torso, MLP) and not isinstance(net.memory, Cell)
    return NumpyStep(net, num_envs) if fast else TorchStep(net, num_envs)


def flatten(space: gym.Space[Any], obs: Tree) -> np.ndarray:
    """``torso.flatten`` in numpy: float32 [E, flat_size]."""
    match space:
        case gym.spaces.Discrete():
            return _one_hot(obs - space.start, int(space.n))
        case gym.spaces.MultiDiscrete():
            index = (obs - space.start).reshape(len(obs), -1)
            sizes = space.nvec.reshape(-1)
            return np.concatenate([_one_hot(index[:, i], int(n)) for i, n in enumerate(sizes)], 1)
        case gym.spaces.Dict():
            return np.concatenate([flatten(s, obs[k]) for k, s in space.spaces.items()], 1)
        case gym.spaces.Tuple():
            return np.concatenate(
                [flatten(s, o) for s, o in zip(space.spaces, obs, strict=True)], 1
            )
        case _:
            x: np.ndarray = obs.reshape(len(obs), -1).astype(np.float32, copy=False)
            if obs.dtype == np.uint8:
                x /= np.float32(255)  # a copy: it was bytes
            return x


def _one_hot(index: np.ndarray, size: int) -> np.ndarray:
    hot: np.ndarray = (index[:, None] == np.arange(size)).astype(np.float32)
    return hot


def _copy(parameter: Tensor) -> np.ndarray:
    return parameter.detach().numpy().copy()


Activation = Callable[[np.ndarray], Any]  # in place


def _relu(x: np.ndarray) -> None:
    np.maximum(x, np.float32(0), out=x)


def _tanh(x: np.ndarray) -> None:
    np.tanh(x, out=x)


def _elu(x: np.ndarray) -> None:
    low = x <= 0
    np.expm1(x, out=x, where=low)


_ACTIVATIONS: dict[type[nn.Module], Activation] = {
    nn.ReLU: _relu,
    nn.Tanh: _tanh,
    nn.ELU: _elu,
}
