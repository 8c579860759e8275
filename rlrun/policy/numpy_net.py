"""The forward pass of acting networks in numpy: inputs, linear layers, memories, heads.

``NumpyNet`` computes one row of MLP torsos, LSTM, GRU, minGRU, BMRU or no memory, and any head.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor, nn

from rlrun.nets.acting import ActingNet
from rlrun.nets.actor_and_critics import ActorNet
from rlrun.nets.actor_critic import CLIP, ActorCritic
from rlrun.nets.memory import Memory
from rlrun.nets.memory.bmru import BMRU
from rlrun.nets.memory.cell import Readout
from rlrun.nets.memory.gated import GRU, LSTM, MinGRU
from rlrun.nets.noise import NoisyLinear, NoisyMLP, noisy_layers
from rlrun.nets.policy_net import PolicyNet
from rlrun.nets.qnet import DistNet, QNet
from rlrun.nets.renorm import BatchRenorm
from rlrun.nets.torso import MLP, Arrays, FlatObs, make_flatten
from rlrun.types import Tree

Outputs = tuple[np.ndarray, Tree]  # [E, K], and the next state [E, ...]


def _one_hot(index: np.ndarray, size: int) -> np.ndarray:
    hot: np.ndarray = (index[..., None] == np.arange(size)).astype(np.float32)
    return hot


ARRAYS = Arrays(_one_hot, np.concatenate, partial(np.asarray, dtype=np.float32))


class PreviousInputs:
    """Encodes previous actions and rewards like ``encode_previous`` of the networks."""

    def __init__(self, net: ActingNet, num_envs: int) -> None:
        self.bounds, sizes = net.bounds, net.sizes
        self.encoded = np.zeros((num_envs, net.previous_size), np.float32)
        self.actions, self.rewards = self.encoded[:, :-1], self.encoded[:, -1]
        one_hot = np.split(self.actions, np.cumsum(sizes)[:-1], 1) if sizes else []
        self.one_hot = [(x, np.arange(n)) for x, n in zip(one_hot, sizes, strict=True)]

    def __call__(self, action: np.ndarray, reward: np.ndarray) -> np.ndarray:
        """Return float32 [E, K + 1]: actions [E, *A] (one-hot if discrete) and rewards [E].

        The next call overwrites the array.
        """
        if self.bounds is not None:
            action = self.bounds.to_unit_array(action)
        flat = action.reshape(len(action), -1)
        for i, (one_hot, choices) in enumerate(self.one_hot):
            np.equal(flat[:, i : i + 1], choices, out=one_hot)
        if not self.one_hot:
            self.actions[...] = flat
        self.rewards[...] = reward
        return self.encoded


class NumpyNorm(NamedTuple):
    """Layer normalisation over the last axis: (x - mean) / sqrt(var + eps) * weight + bias.

    Source: Ba et al. 2016, eq. 4.
    """

    weight: np.ndarray  # [N]
    bias: np.ndarray  # [N]
    eps: np.float32

    def __call__(self, x: np.ndarray) -> None:
        """Normalise ``x`` [*, N] in place."""
        scale = np.float32(1 / x.shape[-1])
        x -= x.sum(-1, keepdims=True) * scale
        inverse: np.ndarray = np.vecdot(x, x)[..., None]
        inverse *= scale
        inverse += self.eps
        np.sqrt(inverse, out=inverse)
        np.reciprocal(inverse, out=inverse)
        x *= inverse
        x *= self.weight
        x += self.bias


def copy_norm(module: nn.LayerNorm) -> NumpyNorm:
    """Return the normalisation with copies of the parameters of ``module``."""
    return NumpyNorm(
        copy_parameter(module.weight), copy_parameter(module.bias), np.float32(module.eps)
    )


class ForwardMLP:
    """Copies of linear layers (mean weights of noisy ones), normalisations and activations.

    ``refresh`` copies the current weights.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        """``modules``: linear layers, each followed by an optional normalisation and activation,
        or after a ``BatchRenorm``, which becomes a part of the linear layer.
        """
        self.sources: list[nn.Linear | NoisyLinear] = []
        self.folded: dict[int, BatchRenorm] = {}  # layer -> the normalisation of its inputs
        self.norm_sources: list[nn.LayerNorm | None] = []
        self.activations: list[Callable[[np.ndarray], object] | None] = []
        for module in modules:
            if isinstance(module, (nn.Linear, NoisyLinear)):
                self.sources.append(module)
                self.activations.append(None)
                self.norm_sources.append(None)
            elif isinstance(module, nn.LayerNorm):
                self.norm_sources[-1] = module
            elif isinstance(module, BatchRenorm):
                self.folded[len(self.sources)] = module
            else:
                self.activations[-1] = FORWARD[type(module)]
        self.weights = [copy_parameter(m.weight).T for m in self.sources]  # [in, out]
        self.biases = [copy_parameter(m.bias) for m in self.sources]
        self.norms = [m if m is None else copy_norm(m) for m in self.norm_sources]
        parts = self.weights, self.biases, self.norms, self.activations
        self.layers = list(zip(*parts, strict=True))
        self._fold()

    def _fold(self) -> None:
        for layer, norm in self.folded.items():
            scale, shift = norm.affine()
            self.biases[layer] += shift @ self.weights[layer]
            self.weights[layer] *= scale[:, None]

    def refresh(self) -> None:
        for source, weight, bias in zip(self.sources, self.weights, self.biases, strict=True):
            np.copyto(weight, source.weight.detach().numpy().T)
            np.copyto(bias, source.bias.detach().numpy())
        for module, norm in zip(self.norm_sources, self.norms, strict=True):
            if module is not None and norm is not None:
                np.copyto(norm.weight, module.weight.detach().numpy())
                np.copyto(norm.bias, module.bias.detach().numpy())
        if self.folded:
            self._fold()

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Return the outputs [*, out] of ``x`` [*, in] in a new array."""
        for weight, bias, norm, activation in self.layers:
            x = x @ weight
            x += bias
            if norm is not None:
                norm(x)
            if activation is not None:
                activation(x)
        return x


def copy_parameter(parameter: Tensor) -> np.ndarray:
    return parameter.detach().numpy().copy()


FORWARD: dict[type[nn.Module], Callable[[np.ndarray], object]] = {  # in place
    nn.ReLU: lambda x: np.maximum(x, np.float32(0), out=x),
    nn.Tanh: lambda x: np.tanh(x, out=x),
    nn.ELU: lambda x: np.expm1(x, out=x, where=x <= 0),
}


HALF = np.float32(0.5)


class LSTMCell:
    """torch.lstm_cell with one product for inputs and state, and one tanh for all gates.

    sigmoid(x) = tanh(x / 2) / 2 + 1/2, so the weights of gates i, f and o are halved in advance.
    The order of gates is i, f, o, g (in torch i, f, g, o).
    """

    def __init__(self, memory: LSTM, num_envs: int) -> None:
        self.core, h, features = memory.core, memory.size, memory.core.input_size
        self.weight = np.empty((4 * h, features + h), np.float32)
        self.bias = np.empty(4 * h, np.float32)
        self.joined = np.empty((num_envs, features + h), np.float32)
        self.inputs, self.hidden = self.joined[:, :features], self.joined[:, features:]
        self.all_gates = np.empty((num_envs, 4 * h), np.float32)
        self.sigmoids = self.all_gates[:, : 3 * h]
        self.gates = np.split(self.all_gates, 4, 1)
        self.refresh()

    def refresh(self) -> None:
        w_x, w_h, b_x, b_h = (p.detach().numpy() for p in self.core.all_weights[0])
        weight, bias = np.concatenate([w_x, w_h], 1), b_x + b_h
        for target, source in zip((0, 1, 3, 2), range(4), strict=True):
            scale = np.float32(1 if target == 3 else 0.5)
            np.multiply(np.split(weight, 4)[source], scale, out=np.split(self.weight, 4)[target])
            np.multiply(np.split(bias, 4)[source], scale, out=np.split(self.bias, 4)[target])

    def __call__(self, x: np.ndarray, state: Tree) -> tuple[np.ndarray, Tree]:
        self.inputs[...], self.hidden[...] = x, state[0]
        np.matmul(self.joined, self.weight.T, out=self.all_gates)
        self.all_gates += self.bias
        np.tanh(self.all_gates, out=self.all_gates)
        self.sigmoids *= HALF
        self.sigmoids += HALF
        i, f, o, g = self.gates
        c = f * state[1]
        c += i * g
        h = np.tanh(c)
        h *= o
        return h, (h, c)


class _CopiedCell:
    """Base class of cells with copied parameters, whose state is one array [B, H]."""

    def __init__(
        self, parameters: Iterable[Tensor], size: int, readout: Readout | None = None
    ) -> None:
        self.sources, self.size = list(parameters), size
        self.weights = [copy_parameter(p) for p in self.sources]
        self.readout = None if readout is None else ForwardMLP(readout)

    def refresh(self) -> None:
        for weight, source in zip(self.weights, self.sources, strict=True):
            np.copyto(weight, source.detach().numpy())
        if self.readout is not None:
            self.readout.refresh()


class GRUCell(_CopiedCell):
    """torch.gru_cell."""

    def __init__(self, memory: GRU) -> None:
        super().__init__(memory.core.all_weights[0], memory.size)

    def __call__(self, x: np.ndarray, state: Tree) -> tuple[np.ndarray, Tree]:
        (h,), size = state, self.size
        w_x, w_h, b_x, b_h = self.weights
        a, b = x @ w_x.T + b_x, h @ w_h.T + b_h
        gates = a[:, : 2 * size] + b[:, : 2 * size]  # r, z
        gates = np.tanh(gates * HALF) * HALF + HALF
        r, z = gates[:, :size], gates[:, size:]
        candidate = np.tanh(a[:, 2 * size :] + r * b[:, 2 * size :])
        h = candidate + z * (h - candidate)
        return h, (h,)


class MinGRUCell(_CopiedCell):
    """``MinGRU.step``."""

    def __init__(self, memory: MinGRU) -> None:
        super().__init__((memory.core.weight, memory.core.bias), memory.size, memory.readout)

    def __call__(self, x: np.ndarray, state: Tree) -> tuple[np.ndarray, Tree]:
        weight, bias = self.weights
        out = x @ weight.T
        out += bias
        keep, candidate = out[:, : self.size], out[:, self.size :]
        keep = np.tanh(keep * HALF) * HALF + HALF
        h = candidate + keep * (state[0] - candidate)
        return (h if self.readout is None else self.readout(h)), (h,)


class BMRUCell(_CopiedCell):
    """``BMRU.step``."""

    def __init__(self, memory: BMRU) -> None:
        parameters = memory.core.weight, memory.core.bias, memory.alpha
        super().__init__(parameters, memory.size, memory.readout)

    def __call__(self, x: np.ndarray, state: Tree) -> tuple[np.ndarray, Tree]:
        weight, bias, alpha = self.weights
        out = x @ weight.T
        out += bias
        candidate, threshold = out[:, : self.size], out[:, self.size :]
        h = np.where(candidate > 0, alpha, -alpha)
        h = np.where(np.abs(candidate) > np.abs(threshold), h, state[0])
        return (h if self.readout is None else self.readout(np.concatenate([h, x], 1))), (h,)


def make_cell(memory: Memory, num_envs: int) -> LSTMCell | GRUCell | MinGRUCell | BMRUCell | None:
    """Return the cell of ``memory``, or None for ``NoMemory``."""
    match memory:
        case LSTM():
            return LSTMCell(memory, num_envs)
        case GRU():
            return GRUCell(memory)
        case MinGRU():
            return MinGRUCell(memory)
        case BMRU():
            return BMRUCell(memory)
    return None


class NoisyForwardMLP(ForwardMLP):
    """The layers of a ``NoisyMLP``, with the mean weights or with noise."""

    def __init__(self, stream: NoisyMLP) -> None:
        layers = noisy_layers(stream)
        hidden = [m for pair in zip(layers, stream.activations, strict=False) for m in pair]
        super().__init__([*hidden, layers[-1]])
        self.sizes = [n for m in layers for n in (m.n_in, m.n_out)]
        self.sigmas = [
            [copy_parameter(m.weight_sigma), copy_parameter(m.bias_sigma)] for m in layers
        ]
        self.noise: list[np.ndarray] | None = None  # f(eps) of inputs and outputs of every layer

    def refresh(self) -> None:
        super().refresh()
        for source, (weight, bias) in zip(self.sources, self.sigmas, strict=True):
            np.copyto(weight, source.get_parameter("weight_sigma").detach().numpy())
            np.copyto(bias, source.get_parameter("bias_sigma").detach().numpy())

    def __call__(self, x: np.ndarray) -> np.ndarray:
        if self.noise is None:
            return super().__call__(x)
        for i, (weight, bias, _, activation) in enumerate(self.layers):
            weight_sigma, bias_sigma = self.sigmas[i]
            lead = (len(x), *[1] * (x.ndim - 2), -1)
            eps_in, eps_out = (e.reshape(lead) for e in self.noise[2 * i : 2 * i + 2])
            y = x @ weight
            y += bias
            y += eps_out * ((x * eps_in) @ weight_sigma.T + bias_sigma)
            if activation is not None:
                activation(y)
            x = y
        return x


class NumpyQHead:
    """Action values of E environments. ``refresh`` copies the network's current weights."""

    def __init__(self, net: QNet, num_envs: int) -> None:
        self.net, self.actions, self.num_envs = net, net.actions, num_envs
        self.advantage = _forward(net.advantage)
        self.value = None if net.value is None else _forward(net.value)
        self.streams = [s for s in (self.advantage, self.value) if s is not None]
        self.parts: list[Any] = list(self.streams)  # all with weights

    def perturb(self, generator: np.random.Generator | None) -> None:
        """Draw noise for every environment, in the order of the layers. None: mean weights."""
        streams = [s for s in self.streams if isinstance(s, NoisyForwardMLP)]
        if generator is None:
            for stream in streams:
                stream.noise = None
            return
        sizes = [size for stream in streams for size in stream.sizes]
        eps = generator.standard_normal((self.num_envs, sum(sizes)), np.float32)
        eps = np.sign(eps) * np.sqrt(np.abs(eps))
        parts = np.split(eps, np.cumsum(sizes)[:-1], axis=1)
        for stream in streams:
            stream.noise, parts = parts[: len(stream.sizes)], parts[len(stream.sizes) :]

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Return action values [E, A] of memory outputs [E, H]."""
        return self.dueling(self.advantage(x), None if self.value is None else self.value(x))

    def dueling(self, advantage: np.ndarray, value: np.ndarray | None) -> np.ndarray:
        """Return ``advantage`` [E, A], overwritten with action values if there is a ``value``."""
        if value is not None:
            advantage -= advantage.sum(-1, keepdims=True) * np.float32(1 / self.actions)
            advantage += value
        return advantage


class NumpyDistHead(NumpyQHead):
    """``NumpyQHead`` of a ``DistNet``: means of its distributions."""

    net: DistNet

    def __init__(self, net: DistNet, num_envs: int) -> None:
        super().__init__(net, num_envs)
        self.kind = net.kind
        if self.kind != "quantile":
            self.grid = net.get_buffer("grid").numpy()
        if self.kind == "implicit":
            self.parts.append(self)

    def refresh(self) -> None:
        self.phi = self.net.embedding().detach().numpy()  # [K, H]: the levels are fixed

    def __call__(self, x: np.ndarray) -> np.ndarray:
        if self.kind == "implicit":
            x = x[:, None] * self.phi  # [E, K, H]
        advantage = self.advantage(x)
        value = None if self.value is None else self.value(x)
        if self.kind == "categorical":
            atoms = advantage.reshape(len(x), self.actions, -1)
            if value is not None:
                atoms = value[:, None] + atoms - atoms.mean(1, keepdims=True)
            p = np.exp(atoms - atoms.max(-1, keepdims=True))
            q: np.ndarray = (p @ self.grid) / p.sum(-1)
            return q
        if self.kind == "implicit":  # dueling commutes with the mean over levels
            advantage = advantage.mean(1)
            value = None if value is None else value.mean(1)
        elif self.kind == "quantile":
            advantage = advantage.reshape(len(x), self.actions, -1).mean(-1)
            value = None if value is None else value.mean(-1, keepdims=True)
        return self.dueling(advantage, value)


def _forward(stream: nn.Module) -> ForwardMLP:
    if isinstance(stream, NoisyMLP):
        return NoisyForwardMLP(stream)
    assert isinstance(stream, nn.Sequential)
    return ForwardMLP(stream)


class NumpyTrunk:
    """The torso and memory of a network."""

    def __init__(self, torso: nn.Module, memory: Memory, num_envs: int, extra: int) -> None:
        """``extra``: number of the memory's inputs that bypass the torso."""
        assert isinstance(torso, (MLP, FlatObs))
        self.torso = ForwardMLP(torso.layers if isinstance(torso, MLP) else ())
        self.space, self.cell = torso.space, make_cell(memory, num_envs)
        self.parts = [self.torso] if self.cell is None else [self.torso, self.cell]
        self.inputs = np.zeros((num_envs, torso.size + extra), np.float32)
        self.features, self.extra = self.inputs[:, : torso.size], self.inputs[:, torso.size :]


class NumpyNet:
    """A copy of the weights of a network with MLP torsos, on the CPU. See ``TorchNet``."""

    def __init__(self, net: ActingNet, num_envs: int) -> None:
        self.net, trunks = net, net.acting_trunks()
        self.trunks = [NumpyTrunk(*trunk, num_envs, net.previous_size) for trunk in trunks]
        self.flatten = make_flatten(self.trunks[0].space, ARRAYS)
        self.head = make_head(net, num_envs)
        self.parts = [part for trunk in self.trunks for part in trunk.parts]
        self.parts += self.head.parts if isinstance(self.head, NumpyQHead) else [self.head]
        self.mean: np.ndarray | None = None
        self.refresh()

    def refresh(self) -> None:
        for part in self.parts:
            part.refresh()
        if isinstance(self.net, ActorCritic) and self.net.moments is not None:
            self.mean = self.net.moments.center().numpy()
            self.inverse_std = self.net.moments.inverse_std().numpy()

    def perturb(self, generator: np.random.Generator | None) -> None:
        assert isinstance(self.head, NumpyQHead), "a network without noise"
        self.head.perturb(generator)

    def forward(self, obs: Tree, previous: np.ndarray | None, states: Sequence[Tree]) -> Outputs:
        if self.mean is not None:
            obs = np.clip((obs - self.mean) * self.inverse_std, -CLIP, CLIP).astype(np.float32)
        x, features, after = self.flatten(obs), list[np.ndarray](), list[Tree]()
        for trunk, state in zip(self.trunks, states, strict=True):
            y = trunk.torso(x)
            if previous is not None:
                trunk.features[...], trunk.extra[...] = y, previous
                y = trunk.inputs
            if trunk.cell is not None:
                y, state = trunk.cell(y, state)
            features.append(y)
            after.append(state)
        return self.head(features[0]), tuple(after)


def make_head(net: ActingNet, num_envs: int) -> ForwardMLP | NumpyQHead:
    """Return the layers from the memory's outputs [E, H] to the network's outputs [E, K]."""
    match net:
        case DistNet() if net.kind != "none":
            return NumpyDistHead(net, num_envs)
        case QNet():
            return NumpyQHead(net, num_envs)
        case ActorCritic():
            return ForwardMLP(net.policy)
        case PolicyNet() if net.log_std is not None:
            return ForwardMLP((*net.head, nn.Tanh()))
        case PolicyNet() | ActorNet():
            return ForwardMLP(net.head)
    raise AssertionError(f"no head in numpy: {type(net).__name__}")
