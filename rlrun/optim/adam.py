"""Adam with gradient norm clipping, and parameters stored in one array."""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

BETAS = (0.9, 0.999)  # Kingma & Ba 2015


class Adam:
    """torch's fused Adam with gradient norm clipping.

    Constructing ``torch.optim.Adam`` imports torch._dynamo, which would add a second to the start
    of every run.
    """

    def __init__(
        self, parameters: Iterable[Tensor], *, eps: float, grad_clip: float | None
    ) -> None:
        """``grad_clip``: largest norm over all gradients; None: not clipped."""
        self.parameters, self.eps, self.grad_clip = list(parameters), eps, grad_clip
        self.mean = [torch.zeros_like(p, requires_grad=False) for p in self.parameters]
        self.square = [torch.zeros_like(p, requires_grad=False) for p in self.parameters]
        self.steps = [torch.zeros((), device=p.device) for p in self.parameters]

    @torch.no_grad()
    def step(self, grads: list[Tensor], lr: float | Tensor) -> Tensor:
        """One step; the gradient norm before clipping, 0-d. ``grads`` may be overwritten."""
        if len(grads) == 1:
            norm: Tensor = torch.linalg.vector_norm(grads[0])
        else:
            norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
        if self.grad_clip is not None:
            torch._foreach_mul_(grads, (self.grad_clip / (norm + 1e-6)).clamp(max=1.0))
        self._apply(grads, lr)
        return norm

    @torch.no_grad()
    def numpy_step(self, grad: Tensor, lr: float) -> float:
        """``step`` of one float32 array on the CPU, with the norm in numpy."""
        array = grad.numpy()
        norm = math.sqrt(np.dot(array, array))
        if self.grad_clip is not None and norm > self.grad_clip:
            array *= np.float32(self.grad_clip / (norm + 1e-6))
        self._apply([grad], lr)
        return norm

    def _apply(self, grads: list[Tensor], lr: float | Tensor) -> None:
        torch._foreach_add_(self.steps, 1)
        torch._fused_adam_(
            self.parameters, grads, self.mean, self.square, [], self.steps,
            lr=lr, beta1=BETAS[0], beta2=BETAS[1], weight_decay=0.0, eps=self.eps,
            amsgrad=False, maximize=False, grad_scale=None, found_inf=None,
        )  # fmt: skip

    def state_dict(self) -> dict[str, Any]:
        return {name: tuple(getattr(self, name)) for name in ("mean", "square", "steps")}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in ("mean", "square", "steps"):
            for own, saved in zip(getattr(self, name), state[name], strict=True):
                own.copy_(saved)


class FlatParameters:
    """Parameters moved into one array, each a view of it, and a second array for their gradients.

    An optimiser then updates one tensor instead of many small ones.
    """

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        given = list(parameters)
        with torch.no_grad():
            self.values = torch.cat([p.reshape(-1) for p in given])
        self.grads = torch.zeros_like(self.values)
        self.grad_views: list[Tensor] = []  # of ``grads``, shaped like the parameters
        start = 0
        for p in given:
            span = slice(start, start + p.numel())
            p.data = self.values[span].view_as(p)
            self.grad_views.append(self.grads[span].view_as(p))
            start = span.stop
