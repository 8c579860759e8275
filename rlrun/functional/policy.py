"""Action distributions and the losses of policy-gradient methods.

Losses come with their gradients over log-probability, entropy and value instead of a recorded
graph, like those of ``functional.value``: the caller passes the gradients to autograd, and a step
without metrics computes no loss. All are means over valid rows; elsewhere gradients are 0, and
values there are not read, NaN included.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from rlrun.functional.masks import FORBIDDEN, allowed_actions
from rlrun.functional.rows import masked_sum
from rlrun.types import Tree

LOG_2PI = math.log(2 * math.pi)

# -- distributions ---------------------------------------------------------------------------------


class LogProbEntropy(NamedTuple):
    """Log-probability of an action and entropy of its distribution, with gradients."""

    log_prob: Tensor  # [*]
    entropy: Tensor  # [*]


def categorical(logits: Tensor, action: Tensor, sizes: tuple[int, ...]) -> LogProbEntropy:
    """log pi(a) and entropy of independent choices among ``sizes[i]`` each, summed over i.

    ``logits`` [*, sum(sizes)], ``action`` int64 [*] (one choice) or [*, len(sizes)].
    """
    if len(sizes) == 1:
        return _single_choice(logits, action.reshape(logits.shape[:-1]))
    parts = zip(torch.split(logits, list(sizes), -1), action.unbind(-1), strict=True)
    log_prob, entropy = zip(*(_single_choice(one, chosen) for one, chosen in parts), strict=True)
    return LogProbEntropy(torch.stack(log_prob).sum(0), torch.stack(entropy).sum(0))


def _single_choice(logits: Tensor, action: Tensor) -> LogProbEntropy:
    log_p = logits.log_softmax(-1)
    log_prob = log_p.gather(-1, action.unsqueeze(-1)).squeeze(-1)
    return LogProbEntropy(log_prob, -(log_p.exp() * log_p).sum(-1))


def mask_logits(logits: Tensor, obs: Tree) -> Tensor:
    """Logits [*, A] whose softmax is that over the actions which observations ``obs`` allow.

    Forbidden actions have probability 0, no gradient, and no part in the entropy.
    Source: Huang & Ontanon 2022, "A Closer Look at Invalid Action Masking", section 3.
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


# -- losses and their gradients --------------------------------------------------------------------


class ValidRows(NamedTuple):
    """The mask of valid rows and the weight of each in a mean."""

    valid: Tensor  # [*] bool
    share: Tensor  # 0-d: 1 / their number

    def mean(self, x: Tensor) -> Tensor:
        """Mean of ``x`` [*] over valid rows, detached; 0 where there is none."""
        return masked_sum(x.detach(), self.valid) * self.share

    def select(self, x: Tensor) -> Tensor:
        """``x`` [*] where valid, else 0."""
        return torch.where(self.valid, x, torch.zeros((), dtype=x.dtype, device=x.device))


def valid_rows(valid: Tensor, dtype: torch.dtype = torch.float32) -> ValidRows:
    """``ValidRows`` of the mask ``valid`` [*]; ``dtype``: that of the values to be averaged."""
    return ValidRows(valid, 1.0 / valid.sum().clamp(min=1).to(dtype))


def ppo_grad(
    log_prob: Tensor, behaviour: Tensor, advantage: Tensor, rows: ValidRows, *, clip: float
) -> Tensor:
    """Gradient of ``ppo_loss`` over log pi, detached, [*].

    -ratio A / count where the unclipped of the two terms is the smaller one, else 0.
    """
    ratio = (log_prob.detach() - behaviour).exp()
    unclipped, clipped = ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage
    return ValidRows(rows.valid & (unclipped <= clipped), rows.share).select(
        unclipped * -rows.share
    )


class PPOLoss(NamedTuple):
    """PPO's loss and metrics, 0-d each."""

    loss: Tensor
    kl: Tensor  # estimate of KL(mu, pi)
    clipped: Tensor  # fraction of rows whose ratio is outside of 1 +- clip


def ppo_loss(
    log_prob: Tensor, behaviour: Tensor, advantage: Tensor, rows: ValidRows, *, clip: float
) -> PPOLoss:
    """-mean min(ratio A, clip(ratio, 1 - c, 1 + c) A), ratio = exp(log pi - log mu)(a); detached.

    KL(mu, pi) is estimated by mean(ratio - 1 - log ratio). All [*].
    Source: Schulman et al. 2017 (PPO), eq. 7; the estimator: Schulman 2020, "Approximating KL".
    """
    difference = log_prob.detach() - behaviour
    ratio = difference.exp()
    clipped = ratio.clamp(1 - clip, 1 + clip)
    loss = -rows.mean(torch.minimum(ratio * advantage, clipped * advantage))
    return PPOLoss(
        loss, rows.mean(ratio - 1 - difference), rows.mean((ratio != clipped).to(ratio.dtype))
    )


def reinforce_grad(advantage: Tensor, rows: ValidRows) -> Tensor:
    """-A / count, detached, [*]: the gradient of -mean(A log pi(a)) over log pi.

    Source: Williams 1992 (REINFORCE); Mnih et al. 2016 (A3C), section 4.
    """
    return rows.select(advantage.detach() * -rows.share)


class ValueLoss(NamedTuple):
    """Squared error of V; detached."""

    loss: Tensor  # 0-d
    grad: Tensor  # [*] d loss / d V


def value_loss(
    value: Tensor, target: Tensor, rows: ValidRows, *, old: Tensor | None, clip: float | None
) -> ValueLoss:
    """mean (V - target)^2 / 2 and its gradient over V. All [*].

    With ``clip`` c: the larger of this and the same with V clipped to within c of its value ``old``
    before the update. Source: Schulman et al. 2016, eq. 28; clipping: OpenAI Baselines' PPO2.
    """
    value = value.detach()
    error = rows.select(value - target)
    grad = error
    if clip is not None:
        assert old is not None
        change = rows.select(value - old)
        clipped = error + (change.clamp(-clip, clip) - change)
        worse = clipped.square() > error.square()  # only outside the clip range: no gradient there
        grad, error = error.masked_fill(worse, 0.0), torch.where(worse, clipped, error)
    return ValueLoss(0.5 * error.square().sum() * rows.share, grad * rows.share)


def standardise(x: Tensor, rows: ValidRows) -> Tensor:
    """(x - mean) / (std + 1e-8) over valid rows, 0 elsewhere; detached. All [*].

    A single row keeps its value: its deviation is undefined.
    Source: OpenAI Baselines' PPO2 (advantages).
    """
    x = x.detach()
    centred = rows.select(x - rows.mean(x))
    freedom = (1 / rows.share - 1).round()
    std = (centred.square().sum() / freedom.clamp(min=1)).sqrt()
    return torch.where(freedom > 0, centred / (std + 1e-8), rows.select(x))


def explained_variance(value: Tensor, target: Tensor, rows: ValidRows) -> Tensor:
    """1 - var(target - V) / var(target) over valid rows, 0-d, detached; 1 is best.

    0 where the targets do not vary (by more than rounding errors).
    """

    def variance(x: Tensor) -> Tensor:
        return rows.mean((x - rows.mean(x)).square())

    total, residual = variance(target), variance(target - value.detach())
    varies = total > 1e-10 * rows.mean(target.square())
    return torch.where(
        varies, 1 - residual / torch.where(varies, total, 1.0), torch.zeros_like(total)
    )
