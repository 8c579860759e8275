"""RAdam: Adam whose first steps are those of momentum, until its denominators can be trusted."""

import math

import torch
from torch import Tensor

from rlrun.optim.adam import BETAS, Adam


class RAdam(Adam):
    """``torch.optim.RAdam`` with gradient norm clipping; the state is that of ``Adam``.

    With t the step, rho_inf = 2 / (1 - beta2) - 1 and
    rho = rho_inf - 2 t beta2^t / (1 - beta2^t): while rho <= 5 a step is lr m / (1 - beta1^t),
    then lr r m / (1 - beta1^t) sqrt(1 - beta2^t) / (sqrt(v) + eps) with
    r = sqrt((rho - 4) (rho - 2) rho_inf / ((rho_inf - 4) (rho_inf - 2) rho)).
    Source: Liu et al. 2020, "On the Variance of the Adaptive Learning Rate and Beyond", alg. 2.
    """

    def _apply(self, grads: list[Tensor], lr: float | Tensor) -> None:
        parameters, mean, square, steps = self.stepped
        torch._foreach_add_(steps, 1)
        t, (beta1, beta2) = float(steps[0]), BETAS
        torch._foreach_lerp_(mean, grads, 1 - beta1)
        torch._foreach_mul_(square, beta2)
        torch._foreach_addcmul_(square, grads, grads, 1 - beta2)
        size, debias = float(lr) / (1 - beta1**t), 1 - beta2**t
        rho_inf = 2 / (1 - beta2) - 1
        rho = rho_inf - 2 * t * beta2**t / debias
        if rho <= 5:
            torch._foreach_add_(parameters, torch._foreach_mul(mean, -size))
            return
        rectifier = (rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho)
        denominator = torch._foreach_sqrt(square)
        torch._foreach_add_(denominator, self.eps)
        torch._foreach_div_(denominator, -size * math.sqrt(rectifier * debias))
        torch._foreach_addcdiv_(parameters, mean, denominator)
