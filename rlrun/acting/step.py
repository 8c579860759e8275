"""One row of a network for E environments, in torch and in numpy.

Acting is a chain of tiny matrix products. On the CPU numpy does them in 0.6 to 0.9 of torch's time
at every width from 32 to 512 and 1 to 256 environments (measured, one thread), so ``make_step``
takes numpy on the CPU, and torch on a GPU, for convolutions and for memories that are a ``Cell``.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from rlrun.acting.cells import make_cell
from rlrun.acting.inputs import PreviousInputs, flatten
from rlrun.acting.mlp import ForwardMLP
from rlrun.acting.q_heads import NumpyQHead
from rlrun.nets.actor_and_critics import ActorNet, FlatObs
from rlrun.nets.actor_critic import ActorCritic
from rlrun.nets.forward_noise import MEAN_WEIGHTS, ForwardNoise
from rlrun.nets.memory import Cell, Memory
from rlrun.nets.noisy import noise_size, noisy_layers, split_noise
from rlrun.nets.policy_net import PolicyNet
from rlrun.nets.qnet import QNet
from rlrun.nets.running_moments import CLIP
from rlrun.nets.torso import MLP
from rlrun.types import Tree, tree_map

ActingNet = QNet | ActorCritic | ActorNet | PolicyNet
Outputs = tuple[np.ndarray, Tree]  # [E, K], and the next state [E, ...]


def trunks_of(net: ActingNet) -> list[tuple[nn.Module, Memory]]:
    """Return (torso, memory) pairs; the head reads the outputs of the first."""
    match net:
        case ActorCritic():  # a recurrent value trunk runs too: its state is stored with the rows
            trunks = net.trunks if net.recurrent else [net.trunk]
            return [(trunk.torso, trunk.memory) for trunk in trunks]
        case ActorNet():
            return [(net.encoder.torso, net.encoder.memory)]
        case QNet() | PolicyNet():
            return [(net.torso, net.memory)]


class NetStep(ABC):
    """A copy of a network's weights that computes one row of E environments at a time."""

    def __init__(self, net: ActingNet, num_envs: int) -> None:
        self.net, self.num_envs, self.trunks = net, num_envs, trunks_of(net)
        # The state of an actor-critic is a tuple with one state per trunk.
        self.state_per_trunk = isinstance(net, ActorCritic) and net.recurrent
        self.previous: PreviousInputs | None = None
        if net.prev_inputs:
            bounds = net.bounds if isinstance(net, ActorNet | ActorCritic) else None
            self.previous = PreviousInputs(net.space, num_envs, bounds=bounds)
        self.has_past = self.previous is not None or bool(self.initial_state())

    @abstractmethod
    def refresh(self) -> None:
        """Copy the network's current weights."""

    @abstractmethod
    def perturb(self, generator: np.random.Generator | None) -> None:
        """Draw weight noise for every environment, kept until the next call; None: mean weights."""

    @abstractmethod
    def forward(self, obs: Tree, previous: np.ndarray | None, states: Sequence[Tree]) -> Outputs:
        """Return outputs [E, K] and the next states, one per trunk.

        ``previous`` [E, F]: of ``PreviousInputs``, zeros in an episode's first row.
        """

    def initial_state(self) -> Tree:
        """Return the state before an episode's first row, arrays [E, ...]."""
        cpu = torch.device("cpu")
        states = tuple(memory.initial_state(self.num_envs, cpu) for _, memory in self.trunks)
        return tree_map(Tensor.numpy, states if self.state_per_trunk else states[0])

    def __call__(
        self, obs: Tree, first: np.ndarray, action: np.ndarray, reward: np.ndarray, state: Tree
    ) -> Outputs:
        """Return outputs [E, K] and the next state.

        ``action`` [E, *A] and ``reward`` [E]: of the previous row, as the environment takes it,
        and scaled and clipped. Rows with ``first`` [E] start from a zero state without them.
        """
        previous = None if self.previous is None else self.previous(action, reward)
        if self.has_past and first.any():
            state = tree_map(lambda s: np.where(first[:, None], s.dtype.type(0), s), state)
            if previous is not None:
                previous[first] = 0
        if self.state_per_trunk:
            return self.forward(obs, previous, state)
        outputs, states = self.forward(obs, previous, (state,))
        return outputs, states[0]


class TorchStep(NetStep):
    """Any network, on its own device."""

    def __init__(self, net: ActingNet, num_envs: int) -> None:
        super().__init__(net, num_envs)
        self.copy = copy.deepcopy(net).requires_grad_(False)
        self.own_trunks, self.device = trunks_of(self.copy), next(net.parameters()).device
        self.noisy_layers, self.noise = noisy_layers(self.copy), MEAN_WEIGHTS

    @torch.no_grad()
    def refresh(self) -> None:
        torch._foreach_copy_(list(self.copy.parameters()), list(self.net.parameters()))
        for own, source in zip(self.copy.buffers(), self.net.buffers(), strict=True):
            own.copy_(source)

    def perturb(self, generator: np.random.Generator | None) -> None:
        self.noise = MEAN_WEIGHTS
        if generator is not None:
            shape = self.num_envs, noise_size(self.noisy_layers)
            eps = self._tensor(generator.standard_normal(shape, np.float32))
            self.noise = ForwardNoise(tuple(split_noise(eps, self.noisy_layers)))

    @torch.inference_mode()
    def forward(self, obs: Tree, previous: np.ndarray | None, states: Sequence[Tree]) -> Outputs:
        obs, states = tree_map(self._tensor, obs), tree_map(self._tensor, tuple(states))
        read = None if previous is None else self._tensor(previous)
        trunks = zip(self.own_trunks, states, strict=True)
        outputs, after = forward_net(self.copy, trunks, obs, read, self.noise)
        return outputs.numpy(force=True), tree_map(lambda x: x.numpy(force=True), after)

    def _tensor(self, x: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(x)).to(self.device)


def forward_net(
    net: ActingNet,
    trunks: Iterable[tuple[tuple[nn.Module, Memory], Tree]],
    obs: Tree,
    previous: Tensor | None,
    noise: ForwardNoise = MEAN_WEIGHTS,
) -> tuple[Tensor, tuple[Tree, ...]]:
    """Return outputs [E, K] of ``net``, and the next state of every trunk.

    ``trunks``: (torso, memory) pairs with their states; the head reads the outputs of the first.
    ``previous`` [E, F]: previous action and reward as the network encodes them.
    """
    if isinstance(net, ActorCritic) and net.moments is not None:
        obs = net.moments(obs)
    extra = [] if previous is None else [previous]
    out = [
        memory.step(torch.cat([torso(obs), *extra], -1), state) for (torso, memory), state in trunks
    ]
    return _head(net, out[0][0], noise), tuple(state for _, state in out)


def _head(net: ActingNet, h: Tensor, noise: ForwardNoise) -> Tensor:
    """Return outputs [E, K] of memory outputs [E, H]."""
    out: Tensor
    match net:
        case QNet():
            out = net.q(h, noise)
        case ActorCritic():
            out = net.policy(h)
        case ActorNet():
            out = net(h)
        case PolicyNet():
            out = net.outputs(h)
    return out


class NumpyTrunk:
    """Torso and memory of a network."""

    def __init__(self, torso: nn.Module, memory: Memory, num_envs: int, extra: int) -> None:
        """``extra``: number of inputs of the memory that bypass the torso."""
        assert isinstance(torso, (MLP, FlatObs))
        self.torso = ForwardMLP(torso.layers if isinstance(torso, MLP) else ())
        self.space, self.cell = torso.space, make_cell(memory, num_envs)
        self.inputs = np.zeros((num_envs, torso.size + extra), np.float32)
        self.features, self.extra = self.inputs[:, : torso.size], self.inputs[:, torso.size :]

    def refresh(self) -> None:
        self.torso.refresh()
        if self.cell is not None:
            self.cell.refresh()

    def __call__(self, x: np.ndarray, previous: np.ndarray | None, state: Tree) -> Outputs:
        """Return features [E, H] of flat observations ``x`` [E, F], and the next state."""
        x = self.torso(x)
        if previous is not None:
            self.features[...], self.extra[...] = x, previous
            x = self.inputs
        return (x, state) if self.cell is None else self.cell(x, state)


class NumpyStep(NetStep):
    """A network with MLP torsos, on the CPU."""

    def __init__(self, net: ActingNet, num_envs: int) -> None:
        super().__init__(net, num_envs)
        extra = 0 if self.previous is None else self.previous.size
        self.own_trunks = [NumpyTrunk(*trunk, num_envs, extra) for trunk in self.trunks]
        self.trunk, *value_trunks = self.own_trunks
        self.value_trunk = value_trunks[0] if value_trunks else None
        self.head = make_head(net, num_envs)
        self.mean: np.ndarray | None = None
        self.refresh()

    def refresh(self) -> None:
        for part in (*self.own_trunks, self.head):
            part.refresh()
        if isinstance(self.net, ActorCritic) and self.net.moments is not None:
            self.mean = self.net.moments.mean.numpy().copy()
            self.inverse_std = self.net.moments.inverse_std().numpy().copy()

    def perturb(self, generator: np.random.Generator | None) -> None:
        assert isinstance(self.head, NumpyQHead), "a network without noise"
        self.head.perturb(generator)

    def forward(self, obs: Tree, previous: np.ndarray | None, states: Sequence[Tree]) -> Outputs:
        if self.mean is not None:
            obs = np.clip((obs - self.mean) * self.inverse_std, -CLIP, CLIP).astype(np.float32)
        x = flatten(self.trunk.space, obs)
        h, state = self.trunk(x, previous, states[0])
        if self.value_trunk is None:
            return self.head(h), (state,)
        return self.head(h), (state, self.value_trunk(x, previous, states[1])[1])


def make_head(net: ActingNet, num_envs: int) -> ForwardMLP | NumpyQHead:
    """Return the layers from the memory's outputs [E, H] to the outputs [E, K]."""
    match net:
        case QNet():
            return NumpyQHead(net, num_envs)
        case ActorCritic():
            return ForwardMLP(net.policy)
        case ActorNet():
            return ForwardMLP(net.head)
        case PolicyNet():
            return ForwardMLP(net.head if net.log_std is None else (*net.head, nn.Tanh()))


def make_step(net: ActingNet, num_envs: int) -> NetStep:
    """Return the faster step for this network, by a fixed rule; outputs agree to 1e-5."""
    numpy = next(net.parameters()).device.type == "cpu" and all(
        isinstance(torso, (MLP, FlatObs)) and not isinstance(memory, Cell)
        for torso, memory in trunks_of(net)
    )
    return (NumpyStep if numpy else TorchStep)(net, num_envs)
