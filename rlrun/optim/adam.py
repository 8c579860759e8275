"""Adam with gradient norm clipping, and parameters stored in one array."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlrun.errors import NumericError

BETAS = (0.9, 0.999)  # Kingma & Ba 2015


class Adam:
    """torch's fused Adam with gradient norm clipping.

    Constructing ``torch.optim.Adam`` imports torch._dynamo, which would add a second to the start
    of every run. ``mean`` and ``square`` are shaped like the parameters, flat or not.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        *,
        eps: float,
        grad_clip: float | None,
        key: str = "policy.lr",
    ) -> None:
        """``grad_clip``: largest norm over all gradients; None: not clipped. ``key``: of the
        learning rate, for error messages."""
        self.parameters, self.eps, self.grad_clip = list(parameters), eps, grad_clip
        self.key = key
        self.mean = [torch.zeros_like(p, requires_grad=False) for p in self.parameters]
        self.square = [torch.zeros_like(p, requires_grad=False) for p in self.parameters]
        self.steps = [torch.zeros((), device=p.device) for p in self.parameters]
        self.flat: FlatParameters | None = None
        self.stepped = self.parameters, self.mean, self.square, self.steps

    @torch.no_grad()
    def flatten(self) -> "FlatParameters":
        """Move the parameters into one array; later steps are those of one tensor."""
        if self.flat is None:
            self.flat = FlatParameters(self.parameters)
            moments = _join(self.mean), _join(self.square)
            self.mean, self.square = (_views(x, self.parameters) for x in moments)
            self.stepped = [self.flat.values], [moments[0]], [moments[1]], self.steps[:1]
        return self.flat

    @torch.no_grad()
    def step(self, grads: Sequence[Tensor], lr: float | Tensor) -> Tensor:
        """One step; the gradient norm before clipping, 0-d. ``grads`` may be overwritten.

        Raises: NumericError, before the step, when the norm is NaN or infinite (on a CPU; on a GPU
            reading it would wait for the kernels).
        """
        given = list(grads)
        if self.flat is not None:
            torch._foreach_copy_(self.flat.grad_views, given)
            given = [self.flat.grads]
        if len(given) == 1:
            norm: Tensor = torch.linalg.vector_norm(given[0])
        else:
            norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(given)))
        if norm.device.type == "cpu":
            self._require_finite(norm.item())
        if self.grad_clip is not None:
            torch._foreach_mul_(given, (self.grad_clip / (norm + 1e-6)).clamp(max=1.0))
        self._apply(given, lr)
        return norm

    @torch.no_grad()
    def flat_step(self, lr: float) -> float:
        """``step`` of the gradients in ``flat.grads``, float32 on the CPU; the norm in numpy.

        Raises: NumericError, as ``step``.
        """
        assert self.flat is not None, "flatten first"
        array = self.flat.grads.numpy()
        norm = math.sqrt(np.dot(array, array))
        self._require_finite(norm)
        if self.grad_clip is not None and norm > self.grad_clip:
            array *= np.float32(self.grad_clip / (norm + 1e-6))
        self._apply([self.flat.grads], lr)
        return norm

    def _require_finite(self, norm: float) -> None:
        if not math.isfinite(norm):
            raise NumericError(
                f"train/grad_norm = {norm} in update {int(self.steps[0]) + 1}: the loss diverged, "
                f"or what is learned from is not finite; it must stay finite; lower {self.key} or "
                "set policy.grad_clip"
            )

    def _apply(self, grads: list[Tensor], lr: float | Tensor) -> None:
        parameters, mean, square, steps = self.stepped
        torch._foreach_add_(steps, 1)
        torch._fused_adam_(
            parameters, grads, mean, square, [], steps,
            lr=lr, beta1=BETAS[0], beta2=BETAS[1], weight_decay=0.0, eps=self.eps,
            amsgrad=False, maximize=False, grad_scale=None, found_inf=None,
        )  # fmt: skip

    def state_dict(self) -> dict[str, Any]:
        """The same tensors whether the parameters are flat or not; ``steps`` are equal."""
        steps = tuple(self.steps[0] for _ in self.steps)
        return {"mean": tuple(self.mean), "square": tuple(self.square), "steps": steps}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set the state; moments may also be one array each (checkpoints up to 0.9)."""
        sizes = [p.numel() for p in self.parameters]
        for name in ("mean", "square"):
            saved = state[name]
            if len(saved) == 1:
                saved = torch.split(saved[0].reshape(-1), sizes)
            for own, x in zip(getattr(self, name), saved, strict=True):
                own.copy_(x.view_as(own))
        for own in self.steps:
            own.copy_(state["steps"][0])


class FlatParameters:
    """Parameters moved into one array, each a view of it, and a second array for their gradients.

    An optimiser then updates one tensor instead of many small ones.
    """

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        given = list(parameters)
        self.values = _join(given)
        self.grads = torch.zeros_like(self.values)
        self.grad_views = _views(self.grads, given)  # shaped like the parameters
        for p, view in zip(given, _views(self.values, given), strict=True):
            p.data = view


def _join(tensors: Sequence[Tensor]) -> Tensor:
    with torch.no_grad():
        return torch.cat([x.reshape(-1) for x in tensors])


def _views(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Parts of ``flat`` shaped like the tensors, in their order."""
    parts = torch.split(flat, [x.numel() for x in like])
    return [part.view_as(x) for part, x in zip(parts, like, strict=True)]
