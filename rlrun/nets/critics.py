"""Several critics as one network, every layer one batched product."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from rlrun.nets.encoder import ObsEncoder
from rlrun.schema import ControlConfig, MemoryConfig, TorsoConfig
from rlrun.types import Spec

_aten = torch.ops.aten
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu_,
    "tanh": torch.tanh_,
    "elu": nn.functional.elu_,
}
_ACTIVATION_GRADS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {  # (d loss / d output, output)
    "relu": lambda d, y: _aten.threshold_backward(d, y, 0),
    "tanh": lambda d, y: _aten.tanh_backward(d, y),
    "elu": lambda d, y: _aten.elu_backward(d, 1, 1, 1, True, y),
}


class Critics(nn.Module):
    """Q_c(s, a) of ``count`` critics.

    Every critic has its own head; the encoder of images and of the past is shared.
    """

    def __init__(
        self,
        policy: ControlConfig,
        torso: TorsoConfig,
        memory: MemoryConfig,
        spec: Spec,
        *,
        actions: int,
        count: int,
    ) -> None:
        super().__init__()
        self.count, self.activation = count, torso.activation
        self.encoder = ObsEncoder(policy, torso, memory, spec, actions=actions)
        assert self.encoder.head_hidden, "a head linear in the action; checked in rlrun.config"
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        sizes = [self.encoder.size + actions, *self.encoder.head_hidden, 1]
        for n_in, n_out in pairwise(sizes):
            bound = n_in**-0.5  # the default of nn.Linear
            weight = torch.empty(count, n_in, n_out).uniform_(-bound, bound)
            self.weights.append(nn.Parameter(weight))
            self.biases.append(nn.Parameter(torch.empty(count, 1, n_out).uniform_(-bound, bound)))

    def forward(
        self, features: Tensor, action: Tensor, count: int | None = None, *, frozen: bool = False
    ) -> Tensor:
        """Return float32 [C, L, B] of features [L, B, F] and unit actions [L, B, A].

        ``count``: number of critics evaluated, the first ones; None: all. ``frozen``: gradients
        reach the inputs only, not the parameters.
        """
        lead, stop = features.shape[:-1], self.count if count is None else count
        flat = features.flatten(0, -2), action.flatten(0, -2)
        params = [*self.weights, *self.biases]
        if stop < self.count:
            params = [p[:stop] for p in params]
        if frozen:
            params = [p.detach() for p in params]
        if torch.is_autocast_enabled(features.device.type):  # autograd differentiates its casts
            q = forward_critics(*flat, self.activation, params)[-1]
        else:
            q = _CriticsFunction.apply(*flat, self.activation, *params)  # type: ignore[no-untyped-call]
        return q.reshape(stop, *lead).float()


def forward_critics(
    features: Tensor, action: Tensor, activation: str, params: Sequence[Tensor]
) -> list[Tensor]:
    """Return [inputs [C, N, F + A], output of every hidden layer ..., q [C, N]].

    ``params``: all weights, then all biases.
    """
    half = len(params) // 2
    weights, biases = params[:half], params[half:]
    x = torch.cat([features, action], -1)
    x = x.expand(len(weights[0]), *x.shape)
    out = [x]
    for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
        x = _ACTIVATIONS[activation](torch.baddbmm(bias, x, weight))
        out.append(x)
    q = torch.linalg.vecdot(x, weights[-1].squeeze(-1).unsqueeze(1)) + biases[-1].squeeze(-1)
    return [*out, q]


class _CriticsFunction(torch.autograd.Function):
    """``forward_critics`` with an explicit backward pass.

    Autograd multiplies matrices in the last layer, where vectors are enough, and computes the
    gradients of all inputs where only those of the actions are used: measured, a third of an
    update at [256, 256] and batch 256.
    """

    @staticmethod
    def forward(
        ctx: Any, features: Tensor, action: Tensor, activation: str, *params: Tensor
    ) -> Tensor:
        *activations, q = forward_critics(features, action, activation, params)
        ctx.activation, ctx.split = activation, features.shape[-1]
        ctx.save_for_backward(*activations, *params[: len(activations)])
        return q

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        half = len(ctx.saved_tensors) // 2
        activations, weights = ctx.saved_tensors[:half], ctx.saved_tensors[half:]
        learns, needs_grad = ctx.needs_input_grad[3], ctx.needs_input_grad[:2]
        d_weights: list[Tensor | None] = [None] * half
        d_biases: list[Tensor | None] = [None] * half
        d = grad.unsqueeze(-1)  # [C, N, 1]
        if learns:
            d_weights[-1] = (activations[-1] * d).sum(1).unsqueeze(-1)
            d_biases[-1] = d.sum(1, keepdim=True)
        d = d * weights[-1].squeeze(-1).unsqueeze(1)
        for i in range(half - 2, -1, -1):
            d = _ACTIVATION_GRADS[ctx.activation](d, activations[i + 1])
            if learns:
                d_weights[i] = torch.bmm(activations[i].mT, d)
                d_biases[i] = d.sum(1, keepdim=True)
            if i:
                d = torch.bmm(d, weights[i].mT)
        parts = weights[0][:, : ctx.split], weights[0][:, ctx.split :]
        inputs = (
            _grad_of_inputs(d, w) if n else None for w, n in zip(parts, needs_grad, strict=True)
        )
        return (*inputs, None, *d_weights, *d_biases)


def _grad_of_inputs(d: Tensor, weight: Tensor) -> Tensor:
    """Return [N, K]: the sum over critics of d [C, N, H] times weight [C, K, H]."""
    total = d[0] @ weight[0].T
    for one, w in zip(d[1:], weight[1:], strict=True):
        total = torch.addmm(total, one, w.T)
    return total
