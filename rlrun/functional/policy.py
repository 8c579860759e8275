"""Distributions of actions, and what policy-gradient methods descend on.

Losses come with their slope over log-probability, entropy and value instead of a recorded graph,
like those of ``functional.value``: the caller hands the slopes to autograd, and a step that nobody
asks about computes no loss. All are means over the rows that count; elsewhere slopes are 0 whatever
stands there, NaN included.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from rlrun.functional.masks import FORBIDDEN
from rlrun.functional.reduce import masked_sum
from rlrun.functional.value import allowed
from rlrun.types import Tree

LOG_2PI = math.log(2 * math.pi)

# -- distributions ---------------------------------------------------------------------------------


class Choice(NamedTuple):
    """What a distribution says of an action taken, with gradients."""

    log_prob: Tensor  # [*]
    entropy: Tensor  # [*]


def categorical(logits: Tensor, action: Tensor, sizes: tuple[int, ...]) -> Choice:
    """log pi(a) and entropy of independent choices among ``sizes[i]`` each, summed over i.

    ``logits`` [*, sum(sizes)], ``action`` int64 [*] (one choice) or [*, len(sizes)].
    """
    if len(sizes) == 1:
        return _one_of(logits, action.reshape(logits.shape[:-1]))
    parts = zip(torch.split(logits, list(sizes), -1), action.unbind(-1), strict=True)
    log_prob, entropy = zip(*(_one_of(one, chosen) for one, chosen in parts), strict=True)
    return Choice(torch.stack(log_prob).sum(0), torch.stack(entropy).sum(0))


def _one_of(logits: Tensor, action: Tensor) -> Choice:
    log_p = logits.log_softmax(-1)
    log_prob = log_p.gather(-1, action.unsqueeze(-1)).squeeze(-1)
    return Choice(log_prob, -(log_p.exp() * log_p).sum(-1))


def within_mask(logits: Tensor, obs: Tree) -> Tensor:
    """Logits [*, A] whose softmax is that over the actions which observations ``obs`` allow.

    Forbidden actions have probability 0 and get no gradient, nor does the entropy know of them.
    Source: Huang & Ontanon 2022, "A Closer Look at Invalid Action Masking", section 3.
    """
    return logits.masked_fill(~allowed(obs), FORBIDDEN)


def gaussian(mean: Tensor, log_std: Tensor, action: Tensor) -> Choice:
    """log N(action; mean, exp(log_std)) and its entropy, summed over the last axis.

    log pi = sum_a [ -((a - mean) / std)^2 / 2 - log std - log(2 pi) / 2 ]; the entropy is
    sum_a [ log std + (1 + log(2 pi)) / 2 ]. ``mean``, ``action`` [*, A], ``log_std`` [A].
    Actions are unbounded: clipping to a box is the environment's side of things.
    """
    scaled = (action - mean) * (-log_std).exp()
    log_prob = -0.5 * scaled.square().sum(-1) - (log_std + 0.5 * LOG_2PI).sum()
    entropy = (log_std + 0.5 * (1 + LOG_2PI)).sum()
    return Choice(log_prob, entropy.expand(log_prob.shape))


# -- what is descended on --------------------------------------------------------------------------


class Counted(NamedTuple):
    """Which rows count, and what one of them is worth in a mean."""

    valid: Tensor  # [*] bool
    share: Tensor  # 0-d: 1 / their number

    def mean(self, x: Tensor) -> Tensor:
        """Mean of ``x`` [*] over the rows that count, detached; 0 where there is none."""
        return masked_sum(x.detach(), self.valid) * self.share

    def select(self, x: Tensor) -> Tensor:
        """``x`` [*] where it counts, else 0."""
        return torch.where(self.valid, x, torch.zeros((), dtype=x.dtype, device=x.device))


def counted(valid: Tensor, dtype: torch.dtype = torch.float32) -> Counted:
    """The rows where ``valid``; their share in ``dtype``, that of the numbers to be averaged."""
    return Counted(valid, 1.0 / valid.sum().clamp(min=1).to(dtype))


def ppo_slope(
    log_prob: Tensor, behaviour: Tensor, advantage: Tensor, rows: Counted, *, clip: float
) -> Tensor:
    """The slope of ``ppo_terms``' loss over log pi, detached, [*].

    -ratio A / count where the unclipped of the two terms is the smaller one, else 0.
    """
    ratio = (log_prob.detach() - behaviour).exp()
    free, held = ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage
    return Counted(rows.valid & (free <= held), rows.share).select(free * -rows.share)


class PPOTerms(NamedTuple):
    """0-d each."""

    loss: Tensor
    kl: Tensor  # how far pi is from mu, estimated
    clipped: Tensor  # the share of rows whose ratio is outside of 1 +- clip


def ppo_terms(
    log_prob: Tensor, behaviour: Tensor, advantage: Tensor, rows: Counted, *, clip: float
) -> PPOTerms:
    """-mean min(ratio A, clip(ratio, 1 - c, 1 + c) A), ratio = exp(log pi - log mu)(a); detached.

    KL(mu, pi) is estimated by mean(ratio - 1 - log ratio). All [*].
    Source: Schulman et al. 2017 (PPO), eq. 7; the estimator: Schulman 2020, "Approximating KL".
    """
    difference = log_prob.detach() - behaviour
    ratio = difference.exp()
    held = ratio.clamp(1 - clip, 1 + clip)
    loss = -rows.mean(torch.minimum(ratio * advantage, held * advantage))
    return PPOTerms(
        loss, rows.mean(ratio - 1 - difference), rows.mean((ratio != held).to(ratio.dtype))
    )


def gradient_slope(advantage: Tensor, rows: Counted) -> Tensor:
    """-A / count, detached, [*]: the slope of -mean(A log pi(a)) over log pi.

    Source: Williams 1992 (REINFORCE); Mnih et al. 2016 (A3C), section 4.
    """
    return rows.select(advantage.detach() * -rows.share)


class ValueTerms(NamedTuple):
    """Detached."""

    loss: Tensor  # 0-d
    slope: Tensor  # [*] d loss / d V


def value_terms(
    value: Tensor, target: Tensor, rows: Counted, *, old: Tensor | None, clip: float | None
) -> ValueTerms:
    """mean (V - target)^2 / 2 and its slope over V. All [*].

    With ``clip`` c the larger of this and the same with V held within c of its value ``old`` before
    the update counts. Source: Schulman et al. 2016, eq. 28; clipping: OpenAI Baselines' PPO2.
    """
    value = value.detach()
    error = rows.select(value - target)
    slope = error
    if clip is not None:
        assert old is not None
        moved = rows.select(value - old)
        held = error + (moved.clamp(-clip, clip) - moved)
        worse = held.square() > error.square()  # only where V left the clip: no slope there
        slope, error = error.masked_fill(worse, 0.0), torch.where(worse, held, error)
    return ValueTerms(0.5 * error.square().sum() * rows.share, slope * rows.share)


def standardise(x: Tensor, rows: Counted) -> Tensor:
    """(x - mean) / (std + 1e-8) over the rows that count, 0 elsewhere; detached. All [*].

    A single row keeps its value: it has no spread. Source: OpenAI Baselines' PPO2 (advantages).
    """
    x = x.detach()
    centred = rows.select(x - rows.mean(x))
    freedom = (1 / rows.share - 1).round()
    std = (centred.square().sum() / freedom.clamp(min=1)).sqrt()
    return torch.where(freedom > 0, centred / (std + 1e-8), rows.select(x))


def explained_variance(value: Tensor, target: Tensor, rows: Counted) -> Tensor:
    """1 - var(target - V) / var(target) over the rows that count, 0-d, detached; 1 is best.

    0 where the targets do not vary (by more than what rounding makes of equal ones).
    """

    def variance(x: Tensor) -> Tensor:
        return rows.mean((x - rows.mean(x)).square())

    whole, left = variance(target), variance(target - value.detach())
    varies = whole > 1e-10 * rows.mean(target.square())
    return torch.where(varies, 1 - left / torch.where(varies, whole, 1.0), torch.zeros_like(whole))
