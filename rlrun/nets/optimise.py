"""Adam on a list of parameters, with the gradient norm clipped."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam

BETAS = (0.9, 0.999)  # Kingma & Ba 2015


class Adam:
    """torch's functional Adam: constructing ``torch.optim.Adam`` imports torch._dynamo, which would
    add a second to the start of every run."""

    def __init__(
        self, parameters: Iterable[Tensor], *, eps: float, grad_clip: float | None
    ) -> None:
        """``grad_clip``: largest norm over all gradients, None: any."""
        self.parameters, self.eps, self.grad_clip = list(parameters), eps, grad_clip
        self.mean = [torch.zeros_like(p, requires_grad=False) for p in self.parameters]
        self.square = [torch.zeros_like(p, requires_grad=False) for p in self.parameters]
        self.steps = [torch.zeros((), device=p.device) for p in self.parameters]

    @torch.no_grad()
    def step(self, grads: list[Tensor], lr: float) -> Tensor:
        """One descent; the gradient norm before clipping, 0-d. ``grads`` may be overwritten."""
        norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
        if self.grad_clip is not None:
            torch._foreach_mul_(grads, (self.grad_clip / (norm + 1e-6)).clamp(max=1.0))
        adam(
            self.parameters, grads, self.mean, self.square, [], self.steps, fused=True,
            amsgrad=False, beta1=BETAS[0], beta2=BETAS[1], lr=lr,
            weight_decay=0.0, eps=self.eps, maximize=False,
        )  # fmt: skip
        return norm

    def state_dict(self) -> dict[str, Any]:
        return {name: tuple(getattr(self, name)) for name in ("mean", "square", "steps")}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in ("mean", "square", "steps"):
            for own, saved in zip(getattr(self, name), state[name], strict=True):
                own.copy_(saved)
