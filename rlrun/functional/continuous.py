"""Squashed Gaussians, targets and losses of actor-critics with bounded real actions.

Actions are in [-1, 1], and log-probabilities are those of such actions. Rows are [L, B] (learned
positions x windows), values of C critics [C, L, B].
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from rlrun.functional.rows import weighted_row_mean

LOG_STD_BOUNDS = (
    -20.0,
    2.0,
)  # bounds of the log standard deviation; Haarnoja et al. 2018a, released code


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


def soft_value(q: Tensor, log_prob: Tensor, temperature: Tensor) -> Tensor:
    """min_c Q_c(s, a) - temperature log pi(a | s) of a sampled action, detached.

    ``q`` [C, L, B], ``log_prob`` [L, B] -> [L, B]. Over n steps the entropies of the
    intermediate steps are left out: their actions are an earlier policy's.
    Source: Haarnoja et al. 2018b, eq. 3 and 5; the minimum: Fujimoto et al. 2018, eq. 10.
    """
    return (q.amin(0) - temperature * log_prob).detach()


def bootstrap_target(reward: Tensor, discount: Tensor, value: Tensor) -> Tensor:
    """reward + discount value, detached; values with discount 0 are not read, NaN included.

    All [L, B]: R_t and gamma^k of ``nstep_return``, the value of row t + k.
    """
    return (reward + torch.where(discount > 0, discount * value, 0.0)).detach()


class CriticLoss(NamedTuple):
    loss: Tensor  # 0-d
    td: Tensor  # [L, B] mean_c |delta_c|, 0 where not valid
    q_grad: Tensor  # [C, L, B] d loss / d q


def critic_loss(
    q: Tensor, target: Tensor, valid: Tensor, weight: Tensor, *, td_clip: float | None
) -> CriticLoss:
    """mean_b(w_b sum_t valid sum_c 0.5 delta_c,t^2 / L), delta_c = target - q_c, with its gradient.

    The divisor is the constant number of learned positions, as in ``value.sequence_loss``, and
    ``td_clip`` is Huber's threshold as there. Everything is detached; the caller backpropagates
    ``q_grad``.
    Shapes: q [C, L, B], target and valid [L, B], weight [B].
    Source: Haarnoja et al. 2018b, eq. 5; Fujimoto et al. 2018, algorithm 1.
    """
    q = q.detach()
    delta = torch.where(valid, target - q, torch.zeros_like(q))
    within = delta if td_clip is None else delta.clamp(-td_clip, td_clip)
    share = weight / valid.numel()
    loss = (share * (within * (delta - 0.5 * within))).sum()
    return CriticLoss(loss, delta.abs().mean(0), within * -share)


def actor_loss(
    q: Tensor, log_prob: Tensor, temperature: Tensor, valid: Tensor, weight: Tensor
) -> Tensor:
    """The weighted mean of temperature log pi(a | s) - min_c Q_c(s, a) over valid rows, 0-d.

    ``q`` [C, L, B] and ``log_prob`` [L, B] of actions sampled by the current actor; gradients
    reach it through both. Source: Haarnoja et al. 2018b, eq. 7.
    """
    return weighted_row_mean(temperature * log_prob - q.amin(0), valid, weight)


def temperature_loss(
    log_temperature: Tensor, log_prob: Tensor, target_entropy: float, valid: Tensor, weight: Tensor
) -> Tensor:
    """The weighted mean of temperature (-log pi(a | s) - target_entropy), 0-d.

    The gradient reaches ``log_temperature`` alone: it falls while the entropy is above its target.
    Source: Haarnoja et al. 2018b, eq. 18.
    """
    surplus = -log_prob.detach() - target_entropy
    return log_temperature.exp() * weighted_row_mean(surplus, valid, weight)
