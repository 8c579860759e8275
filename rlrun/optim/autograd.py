"""Action values of single rows and their gradients over the parameters.

Recording a graph and running it backward costs as much as the products of a small network. For a
network of linear layers ``LinearQ`` applies the chain rule itself, with the same numbers.
"""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn

from rlrun.functional.value import dueling
from rlrun.nets.forward_noise import MEAN_WEIGHTS, ForwardNoise
from rlrun.nets.memory.lstm_gru import NoMemory
from rlrun.nets.qnet import QNet
from rlrun.nets.torso import MLP, flatten
from rlrun.optim.adam import FlatParameters
from rlrun.types import Tree

aten = torch.ops.aten


class GradientSource(Protocol):
    """The parameters of one network, and gradients over them."""

    parameters: list[Tensor]  # stepped by the optimiser

    def grads(self, output: Tensor, output_grad: Tensor | None) -> list[Tensor]:
        """d loss / d ``parameters``, given d loss / d ``output``; None: ``output`` is the loss.

        The returned tensors may be overwritten by the next call.
        """


class QFunction(GradientSource, Protocol):
    """A Q-network on single rows; ``grads`` belongs to the last ``q``."""

    def q(self, obs: Tree, previous: Tensor, noise: ForwardNoise = MEAN_WEIGHTS) -> Tensor:
        """Action values [B, A], or [B, A, N] of a distribution.

        ``previous`` [B, A + 1] or empty: encoded previous action and reward, concatenated to the
        features of the torso.
        """

    def values(self, obs: Tree, previous: Tensor, noise: ForwardNoise = MEAN_WEIGHTS) -> Tensor:
        """``q`` without a gradient."""


class AutogradNet:
    """Gradients of any network by autograd."""

    def __init__(self, net: nn.Module) -> None:
        self.parameters: list[Tensor] = list(net.parameters())

    def grads(self, output: Tensor, output_grad: Tensor | None) -> list[Tensor]:
        return list(torch.autograd.grad(output, self.parameters, output_grad))


class AutogradQ(AutogradNet):
    """A ``QFunction`` of any Q-network, by autograd."""

    def __init__(self, net: QNet) -> None:
        super().__init__(net)
        self.net = net

    def q(self, obs: Tree, previous: Tensor, noise: ForwardNoise = MEAN_WEIGHTS) -> Tensor:
        q: Tensor = self.net.unroll(self.net.inputs(obs, previous), (), noise)[0]
        return q

    @torch.no_grad()
    def values(self, obs: Tree, previous: Tensor, noise: ForwardNoise = MEAN_WEIGHTS) -> Tensor:
        return self.q(obs, previous, noise)


class LinearQ:
    """A ``QFunction`` of a feed-forward network of linear layers in float32, without a graph.

    The network's parameters become views of one array.
    """

    def __init__(self, net: QNet) -> None:
        """``net`` must pass ``is_linear_qnet``."""
        assert isinstance(net.torso, MLP)
        self.flat = FlatParameters(net.parameters())
        self.parameters = [self.flat.values]
        self.space, self.prev_inputs = net.torso.space, net.prev_inputs
        assert isinstance(net.advantage, nn.Sequential)
        self.torso, self.advantage = LinearLayers(net.torso.layers), LinearLayers(net.advantage)
        self.value = LinearLayers(net.value) if isinstance(net.value, nn.Sequential) else None

    @torch.no_grad()
    def q(self, obs: Tree, previous: Tensor, noise: ForwardNoise = MEAN_WEIGHTS) -> Tensor:
        return self._q(obs, previous, keep=True)

    @torch.no_grad()
    def values(self, obs: Tree, previous: Tensor, noise: ForwardNoise = MEAN_WEIGHTS) -> Tensor:
        return self._q(obs, previous, keep=False)

    def _q(self, obs: Tree, previous: Tensor, *, keep: bool) -> Tensor:
        x = self.torso(flatten(self.space, obs), keep=keep)
        if self.prev_inputs:
            x = torch.cat([x, previous], -1)
        advantage = self.advantage(x, keep=keep)
        return advantage if self.value is None else dueling(self.value(x, keep=keep), advantage)

    @torch.no_grad()
    def grads(self, output: Tensor, output_grad: Tensor | None) -> list[Tensor]:
        assert output_grad is not None  # Q is not a loss
        views = self.flat.grad_views
        torso, head = 2 * len(self.torso.weights), 2 * len(self.advantage.weights)
        if self.value is None:
            x = self.advantage.backward(output_grad, views[torso:])
        else:
            total = output_grad.sum(-1, keepdim=True)
            advantage_grad = output_grad - total / output_grad.shape[-1]
            x = self.advantage.backward(advantage_grad, views[torso : torso + head])
            x = x.add_(self.value.backward(total, views[torso + head :]))
        features = x[:, : self.torso.width] if self.prev_inputs else x
        self.torso.backward(features, views[:torso], inputs=False)
        return [self.flat.grads]


class LinearLayers:
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
        self.saved: list[Tensor] = []

    def __call__(self, x: Tensor, *, keep: bool) -> Tensor:
        """[B, in] -> [B, out]; ``keep``: save the inputs of all layers for ``backward``."""
        saved = [x]
        for (weight, bias), activation in zip(self.weights, self.activations, strict=True):
            x = torch.addmm(bias, x, weight.t())
            if activation is not None:
                _FORWARD[activation](x)
            saved.append(x)
        if keep:
            self.saved = saved
        return x

    def backward(self, grad: Tensor, out: list[Tensor], *, inputs: bool = True) -> Tensor:
        """d loss / d input (where ``inputs``), given d loss / d output.

        ``out`` receives the gradients of weight and bias of every layer.
        """
        for i in reversed(range(len(self.weights))):
            activation = self.activations[i]
            if activation is not None:
                grad = _BACKWARD[activation](grad, self.saved[i + 1])
            torch.mm(grad.t(), self.saved[i], out=out[2 * i])
            torch.sum(grad, 0, out=out[2 * i + 1])
            if i or inputs:
                grad = torch.mm(grad, self.weights[i][0])
        return grad


_FORWARD: dict[type[nn.Module], Callable[[Tensor], Tensor]] = {  # in place
    nn.ReLU: torch.relu_,
    nn.Tanh: torch.tanh_,
    nn.ELU: nn.functional.elu_,
}
_BACKWARD: dict[type[nn.Module], Callable[[Tensor, Tensor], Tensor]] = {  # (gradient, output)
    nn.ReLU: lambda grad, out: aten.threshold_backward(grad, out, 0),
    nn.Tanh: lambda grad, out: aten.tanh_backward(grad, out),
    nn.ELU: lambda grad, out: aten.elu_backward(grad, 1, 1, 1, True, out),
}


def is_linear_qnet(net: QNet) -> bool:
    """True where the network has linear layers and activations only."""
    if type(net) is not QNet or not isinstance(net.torso, MLP):
        return False
    stacks = [net.torso.layers, net.advantage] + ([net.value] if net.value is not None else [])
    parts = (m for s in stacks if isinstance(s, nn.Sequential) for m in s)
    linear = all(type(m) is nn.Linear or type(m) in _FORWARD for m in parts)
    return linear and isinstance(net.memory, NoMemory)


def make_q_function(net: QNet, *, float32: bool) -> QFunction:
    """``LinearQ`` where it applies, by a fixed rule; both give the same numbers to 1e-5."""
    cpu = next(net.parameters()).device.type == "cpu"
    return LinearQ(net) if cpu and float32 and is_linear_qnet(net) else AutogradQ(net)
