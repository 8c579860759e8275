"""RAdam: Adam whose first steps are those of momentum, until its denominators can be trusted."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from rlrun.optim.adam import BETAS, Adam, ParameterGroup, Rate


class RAdam(Adam):
    """``torch.optim.RAdam`` with gradient norm clipping; the state is that of ``Adam``.

    With t the step, rho_inf = 2 / (1 - beta2) - 1 and
    rho = rho_inf - 2 t beta2^t / (1 - beta2^t): while rho <= 5 a step is lr m / (1 - beta1^t),
    then lr r m / (1 - beta1^t) sqrt(1 - beta2^t) / (sqrt(v) + eps) with
    r = sqrt((rho - 4) (rho - 2) rho_inf / ((rho_inf - 4) (rho_inf - 2) rho)).
    Source: Liu et al. 2020, "On the Variance of the Adaptive Learning Rate and Beyond", alg. 2.
    """

    def _apply(self, grads: list[Tensor], rates: Sequence[Rate]) -> None:
        assert len(rates) >= len(self.groups), "a learning rate per group"
        torch._foreach_add_(self.counted, 1)
        for group, lr in zip(self.groups, rates, strict=False):
            self._move(group, [grads[i] for i in group.numbers], float(lr))

    def _move(self, group: ParameterGroup, grads: list[Tensor], lr: float) -> None:
        t, (beta1, beta2) = float(group.steps[0]), BETAS
        torch._foreach_lerp_(group.mean, grads, 1 - beta1)
        torch._foreach_mul_(group.square, beta2)
        torch._foreach_addcmul_(group.square, grads, grads, 1 - beta2)
        size, debias = lr / (1 - beta1**t), 1 - beta2**t
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
