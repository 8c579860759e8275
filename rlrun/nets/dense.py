"""Small fully connected networks on the CPU: one node of the autograd graph instead of one a layer.

Measured at 256 rows through 64 x 64 tanh units: torch's tanh takes longer than the matrix product
before it, numpy's a tenth of that, and recording and replaying a node for every layer as long as
both. The numbers are those of the layers to 1e-6.
"""

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


def dense(parts: list[nn.Sequential], x: Tensor) -> Tensor:
    """What the layers of ``parts`` make of ``x`` [*, F] one after the other, [*, K].

    Linear layers with a tanh, a ReLU, an ELU or nothing behind them; on the CPU, in float32.
    """
    layers = [module for part in parts for module in part]
    linear = [m for m in layers if isinstance(m, nn.Linear)]
    behind = [b for a, b in pairwise([*layers, None]) if isinstance(a, nn.Linear)]
    kinds = tuple("" if isinstance(b, nn.Linear | None) else type(b).__name__ for b in behind)
    weights = [p for m in linear for p in (m.weight, m.bias)]
    flat = x.reshape(-1, x.shape[-1])
    out: Tensor = _Dense.apply(flat, kinds, *weights)  # type: ignore[no-untyped-call]
    return out.reshape(*x.shape[:-1], -1)


def is_dense(parts: list[nn.Module], x: Tensor) -> bool:
    """Whether ``dense`` computes what ``parts`` do with ``x``; a fixed rule."""
    plain = all(isinstance(m, _KNOWN) for part in parts for m in part.children())
    here = x.device.type == "cpu" and x.dtype == torch.float32
    return plain and here and not torch.is_autocast_enabled("cpu")


_KNOWN = (nn.Linear, nn.Tanh, nn.ReLU, nn.ELU)


class _Dense(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, kinds: tuple[str, ...], *weights: Tensor) -> Tensor:
        outputs = [x]
        for kind, weight, bias in zip(kinds, weights[::2], weights[1::2], strict=True):
            x = torch.addmm(bias, x, weight.t())
            if kind == "Tanh":
                array = x.numpy()
                np.tanh(array, out=array)
            elif kind == "ReLU":
                x.relu_()
            elif kind == "ELU":
                nn.functional.elu_(x)
            outputs.append(x)
        ctx.kinds = kinds
        ctx.save_for_backward(*outputs, *weights[::2])
        return x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (grad,), count = grads, len(ctx.kinds)
        outputs, weights = ctx.saved_tensors[: count + 1], ctx.saved_tensors[count + 1 :]
        found: list[Tensor] = []
        for i in reversed(range(count)):
            out, kind = outputs[i + 1], ctx.kinds[i]
            if kind == "Tanh":
                grad = torch.ops.aten.tanh_backward(grad, out)
            elif kind == "ReLU":
                grad = torch.where(out > 0, grad, 0.0)
            elif kind == "ELU":
                grad = torch.where(out > 0, grad, grad * (out + 1))
            found += [grad.sum(0), grad.t() @ outputs[i]]
            if i or ctx.needs_input_grad[0]:
                grad = grad @ weights[i]
        first = grad if ctx.needs_input_grad[0] else None
        return first, None, *reversed(found)
