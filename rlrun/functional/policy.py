"""Action distributions, and statistics of advantages and values over valid rows.

Squashed Gaussians have actions in [-1, 1], and log-probabilities of such actions.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from rlrun.functional.masks import FORBIDDEN, allowed_actions
from rlrun.functional.rows import masked_mean
from rlrun.types import Tree

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


LOG_2PI = math.log(2 * math.pi)

# -- distributions ---------------------------------------------------------------------------------


class LogProbEntropy(NamedTuple):
    """Log-probability of an action and entropy of its distribution."""

    log_prob: Tensor  # [*]
    entropy: Tensor  # [*]


def categorical(logits: Tensor, action: Tensor, sizes: tuple[int, ...]) -> LogProbEntropy:
    """log pi(a) and entropy of independent choices among ``sizes[i]`` each, summed over i.

    ``logits`` [*, sum(sizes)], ``action`` int64 [*] (one choice) or [*, len(sizes)].
    """
    if len(sizes) == 1:
        return _single_choice(logits, action.reshape(logits.shape[:-1]))
    parts = zip(torch.split(logits, list(sizes), -1), action.unbind(-1), strict=True)
    log_prob, entropy = zip(*(_single_choice(part, chosen) for part, chosen in parts), strict=True)
    return LogProbEntropy(torch.stack(log_prob).sum(0), torch.stack(entropy).sum(0))


def _single_choice(logits: Tensor, action: Tensor) -> LogProbEntropy:
    log_p = logits.log_softmax(-1)
    log_prob = log_p.gather(-1, action.unsqueeze(-1)).squeeze(-1)
    return LogProbEntropy(log_prob, -(log_p.exp() * log_p).sum(-1))


def mask_logits(logits: Tensor, obs: Tree) -> Tensor:
    """Logits [*, A] whose softmax covers only the actions that observations ``obs`` allow.

    Forbidden actions have probability 0, no gradient, and no part in the entropy. Source: Huang &
    Ontanon 2022, "A Closer Look at Invalid Action Masking", section 3.
    """
    return logits.masked_fill(~allowed_actions(obs), FORBIDDEN)


def gaussian(mean: Tensor, log_std: Tensor, action: Tensor) -> LogProbEntropy:
    """log N(action; mean, exp(log_std)) and its entropy, summed over the last axis.

    log pi = sum_a [ -((a - mean) / std)^2 / 2 - log std - log(2 pi) / 2 ]; the entropy is
    sum_a [ log std + (1 + log(2 pi)) / 2 ]. ``mean``, ``action`` [*, A], ``log_std`` [A].
    Actions are unbounded: they are clipped to a box after sampling, in the actor.
    """
    scaled = (action - mean) * (-log_std).exp()
    log_prob = -0.5 * scaled.square().sum(-1) - (log_std + 0.5 * LOG_2PI).sum()
    entropy = (log_std + 0.5 * (1 + LOG_2PI)).sum()
    return LogProbEntropy(log_prob, entropy.expand(log_prob.shape))


# -- statistics over valid rows; values elsewhere are not read, NaN included -----------------------


def standardise(x: Tensor, valid: Tensor) -> Tensor:
    """(x - mean) / (std + 1e-8) where ``valid``, 0 elsewhere; detached. All [*].

    A single row keeps its value: its deviation is undefined.
    Source: OpenAI Baselines' PPO2 (advantages).
    """
    x = torch.where(valid, x.detach(), 0.0)
    centred = torch.where(valid, x - masked_mean(x, valid), 0.0)
    freedom = valid.sum() - 1
    std = (centred.square().sum() / freedom.clamp(min=1)).sqrt()
    return torch.where(freedom > 0, centred / (std + 1e-8), x)


def explained_variance(value: Tensor, target: Tensor, valid: Tensor) -> Tensor:
    """1 - var(target - V) / var(target) where ``valid``, 0-d, detached; 1 is best.

    0 if the targets do not vary by more than rounding errors. All [*].
    """
    mask, count = valid.flatten(), valid.sum().clamp(min=1)
    both = torch.stack([target, target - value]).detach().flatten(1)
    mean = torch.where(mask, both, 0.0).sum(1, keepdim=True) / count
    variance = torch.where(mask, both - mean, 0.0).square().sum(1) / count
    total, residual = variance.unbind()
    varies = total > 1e-10 * (total + mean[0, 0].square())
    return torch.where(varies, 1 - residual / torch.where(varies, total, 1.0), 0.0)


def mean_terms(terms: dict[str, Tensor], valid: Tensor) -> dict[str, Tensor]:
    """The mean of every term [*] where ``valid``, 0-d, detached."""
    stacked = torch.stack(list(terms.values())).detach().flatten(1)
    means = torch.where(valid.flatten(), stacked, 0.0).sum(1) / valid.sum().clamp(min=1)
    return dict(zip(terms, means.unbind(), strict=True))
