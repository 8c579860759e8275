"""Adam with the gradient norm clipped; parameters side by side in one array."""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

BETAS = (0.9, 0.999)  # Kingma & Ba 2015


class Adam:
    """torch's fused Adam: constructing ``torch.optim.Adam`` imports torch._dynamo, which would add
    a second to the start of every run."""

    def __init__(
        self, parameters: Iterable[Tensor], *, eps: float, grad_clip: float | None
    ) -> None:
        """``grad_clip``: largest norm over all gradients, None: any."""
        self.parameters, self.eps, self.grad_clip = list(parameters), eps, grad_clip
        self.mean = [torch.zeros_like(p, requires_grad=False) for p in self.parameters]
        self.square = [torch.zeros_like(p, requires_grad=False) for p in self.parameters]
        self.steps = [torch.zeros((), device=p.device) for p in self.parameters]

    @torch.no_grad()
    def step(self, grads: list[Tensor], lr: float | Tensor) -> Tensor:
        """One descent; the gradient norm before clipping, 0-d. ``grads`` may be overwritten."""
        if len(grads) == 1:
            norm: Tensor = torch.linalg.vector_norm(grads[0])
        else:
            norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
        if self.grad_clip is not None:
            torch._foreach_mul_(grads, (self.grad_clip / (norm + 1e-6)).clamp(max=1.0))
        self._move(grads, lr)
        return norm

    @torch.no_grad()
    def bare_step(self, grad: Tensor, lr: float) -> float:
        """``step`` where all parameters are one float32 array on the CPU: the norm in numpy."""
        slope = grad.numpy()
        norm = math.sqrt(np.dot(slope, slope))
        if self.grad_clip is not None and norm > self.grad_clip:
            slope *= np.float32(self.grad_clip / (norm + 1e-6))
        self._move([grad], lr)
        return norm

    def _move(self, grads: list[Tensor], lr: float | Tensor) -> None:
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


class Flat:
    """Parameters moved into one array, each a view of it, and an array of that kind for slopes.

    An optimiser then has one tensor to go through instead of many small ones.
    """

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        given = list(parameters)
        with torch.no_grad():
            self.values = torch.cat([p.reshape(-1) for p in given])
        self.slopes = torch.zeros_like(self.values)
        self.parts: list[Tensor] = []  # of ``slopes``, shaped like the parameters
        start = 0
        for p in given:
            span = slice(start, start + p.numel())
            p.data = self.values[span].view_as(p)
            self.parts.append(self.slopes[span].view_as(p))
            start = span.stop
