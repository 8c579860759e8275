"""Learning from somebody else's rows: likelihoods, expectiles, weights, conservatism."""

import math

import torch
from torch import Tensor
from torch.nn.functional import log_softmax, softmax

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
    """|tau - 1(gap < 0)| gap^2 of every element: at tau 1/2 half the square, at 1 only from below.

    ``gap`` = target - prediction; the minimum over predictions is the tau-expectile of targets.
    Source: Kostrikov et al. 2022 (IQL), eq. 5.
    """
    return torch.where(gap < 0, 1 - expectile, expectile) * gap.square()


def advantage_weight(advantage: Tensor, inverse_temperature: float, most: float) -> Tensor:
    """min(exp(beta A), most), detached: how much an action is worth imitating.

    Source: Kostrikov et al. 2022 (IQL), eq. 7; the clip is that of its experiments (100).
    """
    bounded = (inverse_temperature * advantage.detach()).clamp(max=math.log(most))
    return bounded.exp()


def conservative_gap(q: Tensor, action: Tensor) -> Tensor:
    """log sum_a exp Q(s, a) - Q(s, action) >= 0: [..., A] and int64 [...] -> [...].

    Source: Kumar et al. 2020 (CQL), eq. 4 (CQL(H)).
    """
    return q.logsumexp(-1) - take_action(q, action)


def conservative_slope(q: Tensor, action: Tensor, share: Tensor) -> Tensor:
    """d sum(share * conservative_gap) / d q, like ``q``: share (softmax(q) - onehot(action))."""
    slope = softmax(q, -1).mul_(share.unsqueeze(-1))
    return slope.scatter_add_(-1, action.unsqueeze(-1), -share.unsqueeze(-1))


def to_unit(action: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Actions of a box [low, high] as numbers in [-1, 1]."""
    return (2 * action - (high + low)) / (high - low)
