"""Losses of offline RL: likelihoods, expectile regression, advantage weights, CQL."""

import math

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from rlrun.functional.value import take_action


def categorical_log_prob(logits: Tensor, action: Tensor) -> Tensor:
    """log softmax(logits)[action]: [..., A] and int64 [...] -> [...]."""
    return take_action(log_softmax(logits, -1), action)


def normal_log_prob(mean: Tensor, log_std: Tensor, x: Tensor) -> Tensor:
    """log density at ``x`` of independent normals, summed over the last axis: [..., D] -> [...]."""
    scaled = (x - mean) * (-log_std).exp()
    each = -0.5 * scaled.square() - log_std - 0.5 * math.log(2 * math.pi)
    return each.sum(-1)


def expectile_loss(gap: Tensor, expectile: float) -> Tensor:
    """|tau - 1(gap < 0)| gap^2 of every element; tau 1/2 gives half the square.

    ``gap`` = target - prediction; the minimum over predictions is the tau-expectile of targets.
    Source: Kostrikov et al. 2022 (IQL), eq. 5.
    """
    tilt = torch.full_like(gap, expectile, requires_grad=False)
    return tilt.masked_fill_(gap < 0, 1 - expectile) * gap.square()


def advantage_weight(advantage: Tensor, inverse_temperature: float, clip: float) -> Tensor:
    """min(exp(beta A), clip), detached: the imitation weight of an action.

    Source: Kostrikov et al. 2022 (IQL), eq. 7, with the clip of its experiments (100).
    """
    bounded = (inverse_temperature * advantage.detach()).clamp(max=math.log(clip))
    return bounded.exp()


def conservative_gap(q: Tensor, action: Tensor, mask: Tensor | None) -> Tensor:
    """log sum_a exp Q(s, a) - Q(s, action) >= 0: [..., A] and int64 [...] -> [...].

    The sum is over the actions that ``mask`` [..., A] allows (None: all), which include the action.
    Source: Kumar et al. 2020 (CQL), eq. 4 (CQL(H)).
    """
    return _allowed(q, mask).logsumexp(-1) - take_action(q, action)


def _allowed(q: Tensor, mask: Tensor | None) -> Tensor:
    return q if mask is None else q.masked_fill(~mask, -torch.inf)


def sampled_gap(q: Tensor, log_density: Tensor, taken: Tensor) -> Tensor:
    """log mean_i exp(Q_c(s, a_i)) / p(a_i) - Q_c(s, a), an estimate of log int exp Q - Q(s, a).

    Actions a_i of several densities p (uniform, the policy's) may be concatenated: each group
    estimates the integral, so their mean does too, provided that no density is 0 anywhere. The
    released code does not divide by the number of samples I, so its gaps are larger by log I.

    Shapes: q [C, I, L, B], log_density = log p(a_i) [I, L, B], taken [C, L, B] -> [C, L, B].
    Source: Kumar et al. 2020 (CQL), eq. 4 (CQL(H)); the estimate: appendix F.
    """
    return (q - log_density).logsumexp(1) - math.log(q.shape[1]) - taken
