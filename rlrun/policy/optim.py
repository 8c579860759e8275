"""Adam with gradient norm clipping, and parameters stored in one array."""

import math
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rlrun.errors import NumericError

BETAS = (0.9, 0.999)  # Kingma & Ba 2015

# A run whose loss overflows ends with one error line, without numpy's warnings before it.
IGNORE_OVERFLOW = np.errstate(over="ignore", invalid="ignore", divide="ignore")

Rate = float | Tensor  # a learning rate


class ParameterGroup(NamedTuple):
    """Tensors with the same learning rate."""

    numbers: list[int]  # indices of their gradients
    parameters: list[Tensor]
    mean: list[Tensor]
    square: list[Tensor]
    steps: list[Tensor]


class Adam:
    """torch's fused Adam with gradient norm clipping.

    Constructing ``torch.optim.Adam`` would import torch._dynamo, which adds a second to the start
    of a run. ``mean`` and ``square`` are shaped like the parameters, flat or not.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        *,
        eps: float,
        max_grad_norm: float | None,
        key: str = "policy.lr",
        apart: Iterable[Tensor] = (),
        beta1: float = BETAS[0],
    ) -> None:
        """``max_grad_norm``: largest norm over all gradients; None: not clipped.

        ``key``: config key of the learning rate, for error messages. ``apart``: the parameters with
        their own learning rate, the second one of ``step``. Moments, order and clipping do not
        depend on it. ``beta1``: the part of the first moment that a step keeps.
        """
        self.parameters, self.eps, self.max_grad_norm = list(parameters), eps, max_grad_norm
        self.key, self.beta1 = key, beta1
        self.mean = [torch.zeros_like(p, requires_grad=False) for p in self.parameters]
        self.square = [torch.zeros_like(p, requires_grad=False) for p in self.parameters]
        self.counted = [torch.zeros((), device=p.device) for p in self.parameters[:1]]
        self.steps = self.counted * len(self.parameters)  # one number, incremented in each step
        self.flat: FlatParameters | None = None
        apart_ids = {id(p) for p in apart}
        self.group_of = [int(id(p) in apart_ids) for p in self.parameters]
        assert sum(self.group_of) == len(apart_ids), "apart must be a subset of the parameters"
        self.groups = self._groups(
            self.group_of, self.parameters, self.mean, self.square, self.steps
        )

    @torch.no_grad()
    def flatten(self) -> "FlatParameters":
        """Move the parameters into one array. Later steps update one tensor."""
        if self.flat is None:
            self.flat = FlatParameters(self.parameters)
            moments = _join(self.mean), _join(self.square)
            self.mean, self.square = (_views(x, self.parameters) for x in moments)
            self._group_runs(self.flat, *moments)
        return self.flat

    def _group_runs(self, flat: "FlatParameters", mean: Tensor, square: Tensor) -> None:
        """Step successive parameters of one group as one tensor, a part of the flat arrays."""
        numbers = range(len(self.group_of))
        runs = [list(run) for _, run in groupby(numbers, self.group_of.__getitem__)]
        sizes = [sum(self.parameters[i].numel() for i in run) for run in runs]
        parts = (list(torch.split(x, sizes)) for x in (flat.values, mean, square))
        kinds = [self.group_of[run[0]] for run in runs]
        values, means, squares = parts
        self.groups = self._groups(kinds, values, means, squares, self.counted * len(runs))
        self.run_grads = list(torch.split(flat.grads, sizes))

    @staticmethod
    def _groups(
        kinds: list[int],
        parameters: list[Tensor],
        mean: list[Tensor],
        square: list[Tensor],
        steps: list[Tensor],
    ) -> list[ParameterGroup]:
        """Return the groups of tensors with the same number in ``kinds``, in their order."""
        groups = []
        for kind in range(max(kinds, default=0) + 1):
            index = [i for i, x in enumerate(kinds) if x == kind]
            lists = ([x[i] for i in index] for x in (parameters, mean, square, steps))
            groups.append(ParameterGroup(index, *lists))
        return groups

    @torch.no_grad()
    def step(self, grads: Sequence[Tensor], *rates: Rate) -> Tensor:
        """Make one step; may overwrite ``grads``. Return their norm before clipping, 0-d.

        ``rates``: the learning rate, then that of the parameters ``apart`` (ignored if there are
        none).

        Raises: NumericError before the step if the norm is NaN or infinite. Only on a CPU: reading
        the norm on a GPU would wait for the kernels.
        """
        grad_list = list(grads)
        if self.flat is not None:
            torch._foreach_copy_(self.flat.grad_views, grad_list)
            grad_list = [self.flat.grads]
        if len(grad_list) == 1:
            norm: Tensor = torch.linalg.vector_norm(grad_list[0])
        else:
            norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grad_list)))
        if norm.is_cpu and not math.isfinite(norm.item()):
            self.require_finite(norm.item())
        if self.max_grad_norm is not None:
            torch._foreach_mul_(grad_list, (self.max_grad_norm / (norm + 1e-6)).clamp(max=1.0))
        self._apply(grad_list if self.flat is None else self.run_grads, rates)
        return norm

    @torch.no_grad()
    def flat_step(self, *rates: float) -> float:
        """Step with the gradients in ``flat.grads``, float32 on the CPU. Return the norm.

        Raises: NumericError, see ``step``.
        """
        assert self.flat is not None, "flatten first"
        array = self.flat.grads.numpy()
        norm = math.sqrt(np.dot(array, array))
        self.require_finite(norm)
        if self.max_grad_norm is not None and norm > self.max_grad_norm:
            array *= np.float32(self.max_grad_norm / (norm + 1e-6))
        self._apply(self.run_grads, rates)
        return norm

    def require_finite(self, norm: float) -> None:
        """Raise NumericError if the norm of the gradients is NaN or infinite."""
        if not math.isfinite(norm):
            raise NumericError(
                f"train/grad_norm = {norm} in update {int(self.steps[0]) + 1}: the loss diverged, "
                f"or the data is not finite; it must stay finite; lower {self.key} or "
                "set policy.max_grad_norm"
            )

    def _apply(self, grads: list[Tensor], rates: Sequence[Rate]) -> None:
        assert len(rates) >= len(self.groups), "a learning rate per group"
        torch._foreach_add_(self.counted, 1)
        for group, lr in zip(self.groups, rates, strict=False):
            self._move(group, [grads[i] for i in group.numbers], lr)

    def _move(self, group: ParameterGroup, grads: list[Tensor], lr: Rate) -> None:
        """Step the parameters of a group, whose steps are counted already."""
        torch._fused_adam_(
            group.parameters, grads, group.mean, group.square, [], group.steps, lr=lr,
            beta1=self.beta1, beta2=BETAS[1], weight_decay=0.0, eps=self.eps, amsgrad=False,
            maximize=False, grad_scale=None, found_inf=None,
        )  # fmt: skip

    def state_dict(self) -> dict[str, Any]:
        """Return the same tensors for parameters that are flat or not. All ``steps`` are equal."""
        steps = tuple(self.steps[0] for _ in self.steps)
        return {"mean": tuple(self.mean), "square": tuple(self.square), "steps": steps}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in ("mean", "square"):
            for tensor, x in zip(getattr(self, name), state[name], strict=True):
                tensor.copy_(x)
        for tensor in self.steps:
            tensor.copy_(state["steps"][0])


class FlatParameters:
    """Parameters as views of one array, and a second array for their gradients.

    An optimiser then updates one tensor instead of many small ones.
    """

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        tensors = list(parameters)
        self.values = _join(tensors)
        self.grads = torch.zeros_like(self.values)
        self.grad_views = _views(self.grads, tensors)  # shaped like the parameters
        for p, view in zip(tensors, _views(self.values, tensors), strict=True):
            p.data = view


def _join(tensors: Sequence[Tensor]) -> Tensor:
    with torch.no_grad():
        return torch.cat([x.reshape(-1) for x in tensors])


def _views(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Return parts of ``flat`` shaped like the tensors, in order."""
    parts = torch.split(flat, [x.numel() for x in like])
    return [part.view_as(x) for part, x in zip(parts, like, strict=True)]


class RAdam(Adam):
    """``torch.optim.RAdam`` with gradient norm clipping. The state is that of ``Adam``.

    With t the step, rho_inf = 2 / (1 - beta2) - 1 and rho = rho_inf - 2 t beta2^t / (1 - beta2^t):
    while rho <= 5 a step is lr m / (1 - beta1^t), then lr r m / (1 - beta1^t) sqrt(1 - beta2^t) /
    (sqrt(v) + eps) with r = sqrt((rho - 4) (rho - 2) rho_inf / ((rho_inf - 4) (rho_inf - 2) rho)).
    Source: Liu et al. 2020, "On the Variance of the Adaptive Learning Rate and Beyond", alg. 2.
    """

    def _move(self, group: ParameterGroup, grads: list[Tensor], lr: Rate) -> None:
        t, (beta1, beta2) = float(group.steps[0]), BETAS
        torch._foreach_lerp_(group.mean, grads, 1 - beta1)
        torch._foreach_mul_(group.square, beta2)
        torch._foreach_addcmul_(group.square, grads, grads, 1 - beta2)
        size, debias = float(lr) / (1 - beta1**t), 1 - beta2**t
        rho_inf = 2 / (1 - beta2) - 1
        rho = rho_inf - 2 * t * beta2**t / debias
        if rho <= 5:
            torch._foreach_add_(group.parameters, torch._foreach_mul(group.mean, -size))
            return
        rectifier = (rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho)
        denominator = torch._foreach_sqrt(group.square)
        torch._foreach_add_(denominator, self.eps)
        torch._foreach_div_(denominator, -size * math.sqrt(rectifier * debias))
        torch._foreach_addcdiv_(group.parameters, group.mean, denominator)
