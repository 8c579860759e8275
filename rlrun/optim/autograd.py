"""Action values of one row and their slopes over the parameters.

Recording a graph and walking it back costs as much as the products of a small network. A network
of linear layers needs neither: ``Written`` holds its chain rule, with the same numbers.
"""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn

from rlrun.functional.value import dueling
from rlrun.nets.forward_noise import MEAN_WEIGHTS, ForwardNoise
from rlrun.nets.memory.recurrent import NoMemory
from rlrun.nets.qnet import QNet
from rlrun.nets.torso import MLP, flatten
from rlrun.optim.adam import Flat
from rlrun.types import Tree

aten = torch.ops.aten


class Backprop(Protocol):
    """One network; ``slopes`` belongs to the last ``q``."""

    parameters: list[Tensor]  # what moves

    def q(self, obs: Tree, side: Tensor, draw: ForwardNoise = MEAN_WEIGHTS) -> Tensor:
        """Action values [B, A], or [B, A, N] of a distribution; ``side`` [B, A + 1] or empty: what
        stands beside the torso."""

    def values(self, obs: Tree, side: Tensor, draw: ForwardNoise = MEAN_WEIGHTS) -> Tensor:
        """The same, for reading only."""

    def slopes(self, q: Tensor, slope: Tensor) -> list[Tensor]:
        """d loss / d ``parameters``, given d loss / d ``q``; overwritten by the next call."""


class Autograd:
    """Any network, whatever is computed with it."""

    def __init__(self, net: nn.Module) -> None:
        self.parameters: list[Tensor] = list(net.parameters())

    def slopes(self, q: Tensor, slope: Tensor) -> list[Tensor]:
        """See ``Backprop``."""
        return list(torch.autograd.grad(q, self.parameters, slope))


class Recorded(Autograd):
    """Any Q-network, by autograd."""

    def __init__(self, net: QNet) -> None:
        super().__init__(net)
        self.net = net

    def q(self, obs: Tree, side: Tensor, draw: ForwardNoise = MEAN_WEIGHTS) -> Tensor:
        """See ``Backprop``."""
        q: Tensor = self.net.unroll(self.net.inputs(obs, side), (), draw)[0]
        return q

    @torch.no_grad()
    def values(self, obs: Tree, side: Tensor, draw: ForwardNoise = MEAN_WEIGHTS) -> Tensor:
        """See ``Backprop``."""
        return self.q(obs, side, draw)


class Written:
    """A feed-forward network of linear layers, in float32; nothing is recorded or drawn.

    Its parameters are moved into one array.
    """

    def __init__(self, net: QNet) -> None:
        """``net``: see ``is_plain``."""
        assert isinstance(net.torso, MLP)
        self.flat = Flat(net.parameters())
        self.parameters = [self.flat.values]
        self.space, self.beside = net.torso.space, net.prev_inputs
        assert isinstance(net.advantage, nn.Sequential)
        self.torso, self.advantage = Chain(net.torso.layers), Chain(net.advantage)
        self.value = Chain(net.value) if isinstance(net.value, nn.Sequential) else None

    @torch.no_grad()
    def q(self, obs: Tree, side: Tensor, draw: ForwardNoise = MEAN_WEIGHTS) -> Tensor:
        """See ``Backprop``."""
        return self._q(obs, side, keep=True)

    @torch.no_grad()
    def values(self, obs: Tree, side: Tensor, draw: ForwardNoise = MEAN_WEIGHTS) -> Tensor:
        """See ``Backprop``."""
        return self._q(obs, side, keep=False)

    def _q(self, obs: Tree, side: Tensor, *, keep: bool) -> Tensor:
        x = self.torso(flatten(self.space, obs), keep=keep)
        if self.beside:
            x = torch.cat([x, side], -1)
        advantage = self.advantage(x, keep=keep)
        return advantage if self.value is None else dueling(self.value(x, keep=keep), advantage)

    @torch.no_grad()
    def slopes(self, q: Tensor, slope: Tensor) -> list[Tensor]:
        """See ``Backprop``."""
        parts = self.flat.parts
        torso, head = 2 * len(self.torso.weights), 2 * len(self.advantage.weights)
        if self.value is None:
            x = self.advantage.back(slope, parts[torso:])
        else:
            total = slope.sum(-1, keepdim=True)
            rest = parts[torso : torso + head]
            x = self.advantage.back(slope - total / slope.shape[-1], rest)
            x = x.add_(self.value.back(total, parts[torso + head :]))
        self.torso.back(x[:, : self.torso.width] if self.beside else x, parts[:torso], inputs=False)
        return [self.flat.slopes]


class Chain:
    """The linear layers of a Sequential and the activations between them."""

    def __init__(self, layers: nn.Sequential) -> None:
        self.weights: list[tuple[Tensor, Tensor]] = []
        self.activations: list[type[nn.Module] | None] = []
        for layer in layers:
            if isinstance(layer, nn.Linear):
                self.weights.append((layer.weight, layer.bias))
                self.activations.append(None)
            else:
                self.activations[-1] = type(layer)
        self.width = self.weights[-1][1].numel() if self.weights else 0
        self.kept: list[Tensor] = []

    def __call__(self, x: Tensor, *, keep: bool) -> Tensor:
        """[B, in] -> [B, out]; ``keep``: what ``back`` needs."""
        kept = [x]
        for (weight, bias), activation in zip(self.weights, self.activations, strict=True):
            x = torch.addmm(bias, x, weight.t())
            if activation is not None:
                _FORWARD[activation](x)
            kept.append(x)
        if keep:
            self.kept = kept
        return x

    def back(self, slope: Tensor, out: list[Tensor], *, inputs: bool = True) -> Tensor:
        """The slope over the input (where asked for); ``out``: over weight, bias of every layer."""
        for i in reversed(range(len(self.weights))):
            activation = self.activations[i]
            if activation is not None:
                slope = _BACKWARD[activation](slope, self.kept[i + 1])
            torch.mm(slope.t(), self.kept[i], out=out[2 * i])
            torch.sum(slope, 0, out=out[2 * i + 1])
            if i or inputs:
                slope = torch.mm(slope, self.weights[i][0])
        return slope


_FORWARD: dict[type[nn.Module], Callable[[Tensor], Tensor]] = {  # in place
    nn.ReLU: torch.relu_,
    nn.Tanh: torch.tanh_,
    nn.ELU: nn.functional.elu_,
}
_BACKWARD: dict[type[nn.Module], Callable[[Tensor, Tensor], Tensor]] = {  # (slope, output)
    nn.ReLU: lambda slope, out: aten.threshold_backward(slope, out, 0),
    nn.Tanh: lambda slope, out: aten.tanh_backward(slope, out),
    nn.ELU: lambda slope, out: aten.elu_backward(slope, 1, 1, 1, True, out),
}


def is_plain(net: QNet) -> bool:
    """Whether the network is linear layers and activations, nothing else."""
    if type(net) is not QNet or not isinstance(net.torso, MLP):
        return False
    chains = [net.torso.layers, net.advantage] + ([net.value] if net.value is not None else [])
    parts = (m for c in chains if isinstance(c, nn.Sequential) for m in c)
    linear = all(type(m) is nn.Linear or type(m) in _FORWARD for m in parts)
    return linear and isinstance(net.memory, NoMemory)


def make_backprop(net: QNet, *, float32: bool) -> Backprop:
    """``Written`` where it can be, by a fixed rule; both give the same numbers to 1e-5."""
    cpu = next(net.parameters()).device.type == "cpu"
    return Written(net) if cpu and float32 and is_plain(net) else Recorded(net)
