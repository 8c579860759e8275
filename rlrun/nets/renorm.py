"""Networks whose layers read inputs that are normalised over a batch: batch renormalisation.

Ioffe 2017, "Batch Renormalization: Towards Reducing Minibatch Dependence in Batch-Normalized
Models", NeurIPS.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rlrun.nets.actor_and_critics import ActorNet, Critics
from rlrun.nets.torso import Stack

EPS, MAX_SCALE, MAX_SHIFT = 1e-3, 3.0, 5.0  # Bhatt et al. 2024; Ioffe 2017, section 4.1


class BatchRenorm(nn.Module):
    """Normalises each unit: y = weight ((x - mean) / std) + bias.

    Within ``batch_statistics`` mean and std are those of the batch, and from update ``warmup`` on
    corrected towards the running ones: y = weight ((x - mean) / std r + d) + bias with r = std /
    running std, d = (mean - running mean) / running std, both bounded and without gradient.
    Otherwise they are the running ones. A forward pass does not change these: ``follow`` does.
    """

    mean: Tensor  # [*S, 1, F] running mean
    var: Tensor  # [*S, 1, F] running variance
    count: Tensor  # 0-d: updates of the running statistics

    def __init__(self, *shape: int, momentum: float, warmup: int) -> None:
        """``shape``: units, or networks x units. ``momentum``: kept share of running statistics."""
        super().__init__()
        full = (*shape[:-1], 1, shape[-1])
        self.momentum, self.warmup = momentum, warmup
        self.weight, self.bias = nn.Parameter(torch.ones(full)), nn.Parameter(torch.zeros(full))
        self.register_buffer("mean", torch.zeros(full))
        self.register_buffer("var", torch.ones(full))
        self.register_buffer("count", torch.zeros(()))
        self.rows: Tensor | None = None  # bool [N, 1]: rows of the batch; None: not in a batch
        self.last: tuple[Tensor, Tensor] | None = None  # statistics of the last batch

    def forward(self, x: Tensor, *, frozen: bool = False) -> Tensor:
        """Return the normalised ``x`` [*, F], with several networks [C, N, F].

        ``frozen``: gradients reach the input, not the parameters.
        """
        parameters = self.weight, self.bias
        weight, bias = (p.detach() for p in parameters) if frozen else parameters
        flat = x.reshape(*self.mean.shape[:-2], -1, x.shape[-1])
        if self.rows is None:
            scale = weight * (self.var + EPS).rsqrt()
            return torch.addcmul(bias, flat - self.mean, scale).reshape(x.shape)
        with torch.autocast(x.device.type, enabled=False):
            return self._by_batch(flat.float(), self.rows, weight, bias).reshape(x.shape)

    def affine(self) -> tuple[np.ndarray, np.ndarray]:
        """Return (scale, shift) [F] of the running statistics: y = scale x + shift."""
        scale = self.weight * (self.var + EPS).rsqrt()
        shift = self.bias - scale * self.mean
        return scale.detach().numpy().ravel(), shift.detach().numpy().ravel()

    def _by_batch(self, x: Tensor, rows: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Return the normalised ``x`` [*S, N, F]; a product with ``share`` is a mean over rows."""
        share = (rows / rows.sum().clamp(min=1)).T
        mean = share @ x
        centred = x - mean
        var = share @ centred.square()
        self.last = mean.detach(), var.detach()
        running = (self.var + EPS).sqrt()
        r = ((self.last[1] + EPS).sqrt() / running).clamp(1 / MAX_SCALE, MAX_SCALE)
        d = ((self.last[0] - self.mean) / running).clamp(-MAX_SHIFT, MAX_SHIFT)
        warm = self.count >= self.warmup
        r, d = torch.where(warm, r, 1.0), torch.where(warm, d, 0.0)
        return torch.addcmul(weight * d + bias, centred, weight * r * (var + EPS).rsqrt())

    @torch.no_grad()
    def follow(self) -> None:
        """Move the running statistics towards those of the last batch."""
        assert self.last is not None, "no batch yet"
        for running, new in zip((self.mean, self.var), self.last, strict=True):
            running.lerp_(new, 1 - self.momentum)
        self.count += 1


MakeNorm = Callable[..., BatchRenorm]  # of its shape


def normalisations(net: nn.Module) -> list[BatchRenorm]:
    """Return the batch renormalisations of ``net``."""
    return [module for module in net.modules() if isinstance(module, BatchRenorm)]


@contextmanager
def batch_statistics(net: nn.Module, rows: Tensor) -> Iterator[None]:
    """Normalise by the statistics of the batch, of its ``rows`` (bool), in this block."""
    norms = normalisations(net)
    for norm in norms:
        norm.rows = rows.reshape(-1, 1)
    try:
        yield
    finally:
        for norm in norms:
            norm.rows = None


class NormalisedActor(ActorNet):
    """An ``ActorNet`` whose linear layers read normalised inputs."""

    def __init__(self, *args: Any, make_norm: MakeNorm) -> None:
        """``args``: those of ``ActorNet``."""
        super().__init__(*args)
        layers: list[nn.Module] = []
        for layer in self.head:
            if isinstance(layer, nn.Linear):
                layers.append(make_norm(layer.in_features))
            layers.append(layer)
        self.head = Stack(*layers)


class NormalisedCritics(Critics):
    """``Critics`` whose layers read normalised inputs, each critic with its own statistics."""

    def __init__(self, *args: Any, make_norm: MakeNorm) -> None:
        """``args``: those of ``Critics``."""
        super().__init__(*args)
        self.norms = nn.ModuleList(make_norm(*weight.shape[:2]) for weight in self.weights)

    def layer_inputs(self, layer: int, x: Tensor, *, frozen: bool) -> Tensor:
        normal: Tensor = self.norms[layer](x, frozen=frozen)
        return normal
