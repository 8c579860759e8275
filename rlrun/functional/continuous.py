"""Squashed Gaussians, smoothed actions and metrics of actor-critics with bounded real actions.

Actions are in [-1, 1], and log-probabilities are those of such actions. Rows are [L, B] (learned
positions x windows), values of C critics [C, L, B].
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

LOG_STD_BOUNDS = (-20.0, 2.0)  # Haarnoja et al. 2018a, released code


class SquashedSample(NamedTuple):
    """A sample of tanh(Normal)."""

    action: Tensor  # [*, A] in [-1, 1]
    log_prob: Tensor  # [*]


def squashed_gaussian(mean: Tensor, log_std: Tensor, noise: Tensor) -> SquashedSample:
    """tanh(u) and log pi(tanh(u)) for u = mean + exp(log_std) noise, gradients to both parameters.

    log pi = sum_a [ log N(u; mean, std) - log(1 - tanh(u)^2) ], the second term written
    2 (log 2 - u - softplus(-2 u)), which is exact where tanh(u) rounds to 1 (the textbook form is
    log 0 there from |u| = 9.1 on in float32). ``log_std`` is clamped to ``LOG_STD_BOUNDS``.

    Shapes: [*, A] each; ``noise`` standard normal.
    Source: Haarnoja et al. 2018a, appendix C, eq. 21.
    """
    log_std = log_std.clamp(*LOG_STD_BOUNDS)
    u = mean + log_std.exp() * noise
    gaussian = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
    return SquashedSample(u.tanh(), (gaussian - log_tanh_derivative(u)).sum(-1))


def log_tanh_derivative(u: Tensor) -> Tensor:
    """log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2 u)), without cancellation; like ``u``."""
    return 2 * (math.log(2.0) - u - torch.nn.functional.softplus(-2 * u))


def uniform_log_density(action: Tensor) -> Tensor:
    """Log density of the uniform distribution on [-1, 1]^A, -A log 2: [*, A] -> [*]."""
    return action.new_full(action.shape[:-1], -math.log(2.0) * action.shape[-1])


def smoothed_action(action: Tensor, noise: Tensor, *, sigma: float, clip: float) -> Tensor:
    """clamp(action + clamp(sigma noise, -clip, clip), -1, 1), detached; [*, A].

    Source: Fujimoto et al. 2018, eq. 14 (sigma 0.2, clip 0.5).
    """
    return (action + (sigma * noise).clamp(-clip, clip)).clamp(-1, 1).detach()
