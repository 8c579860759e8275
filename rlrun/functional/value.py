"""Action values: rescaling, dueling, greedy actions, TD targets, losses, priorities, mixing."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import elu, huber_loss, mse_loss

from rlrun.functional.rows import masked_mean
from rlrun.schema import ValueConfig


def vdn_total(q: Tensor) -> Tensor:
    """Q_tot = sum_i Q_i: [*, N] -> [*]. Source: Sunehag et al. 2018 (VDN), section 3."""
    return q.sum(-1)


def qmix_total(q: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    """Q_tot = |w2| elu(|w1| q + b1) + b2: dQ_tot / dQ_i >= 0 whatever the weights are.

    ``q`` [*, N], ``w1`` [*, N, H], ``b1`` and ``w2`` [*, H], ``b2`` [*] -> [*]; weights and biases
    are functions of the global state. Source: Rashid et al. 2018 (QMIX), section 4 and figure 2a.
    """
    hidden = elu((q.unsqueeze(-1) * w1.abs()).sum(-2) + b1)
    return (hidden * w2.abs()).sum(-1) + b2


def mask_left_agents(q: Tensor, alive: Tensor) -> Tensor:
    """Q_i where the agent is ``alive``, else 0. Both [*, N]."""
    return torch.where(alive, q, torch.zeros_like(q))


def team_greedy(q: Tensor, allowed: Tensor) -> Tensor:
    """argmax_a Q_i over ``allowed`` actions, detached: [*, N, A] -> int64 [*, N].

    It is the team's best joint action if Q_tot is monotonic. Source: Rashid et al. 2018, eq. 4 and
    5.
    """
    return torch.where(allowed, q.detach(), -torch.inf).argmax(-1)


def rescale(x: Tensor, eps: float) -> Tensor:
    """h(x) = sign(x) (sqrt(|x| + 1) - 1) + eps x, in a form that does not cancel near 0.

    Source: Pohlen et al. 2018, prop. A.2; R2D2 section 2.3 (eps 1e-3).
    """
    size = x.abs()
    return x.sign() * (size / ((size + 1).sqrt() + 1) + eps * size)


def unrescale(x: Tensor, eps: float) -> Tensor:
    """The inverse of ``rescale``, with relative error 5.6e-7 in float32 (the textbook form: 1e3).

    With D = sqrt(1 + 4 eps (|x| + 1 + eps)) and u = 2 |x| / (D + 1 + 2 eps): sign(x) u (u + 2).
    """
    size = x.abs()
    root = (1 + 4 * eps * (size + 1 + eps)).sqrt()
    u = 2 * size / (root + 1 + 2 * eps)
    return x.sign() * u * (u + 2)


def dueling(value: Tensor, advantage: Tensor) -> Tensor:
    """Q = V + A - mean_a A. value [..., 1], advantage [..., A] -> [..., A].

    Source: Wang et al. 2016, eq. 9.
    """
    return value + advantage - advantage.mean(-1, keepdim=True)


def take_action(q: Tensor, action: Tensor) -> Tensor:
    """q[..., action]: [..., A] and int64 [...] -> [...]."""
    return q.gather(-1, action.unsqueeze(-1)).squeeze(-1)


def greedy(q: Tensor, mask: Tensor | None) -> Tensor:
    """argmax_a q int64 [*] over the actions that ``mask`` [*, A] allows, None: all."""
    return (q if mask is None else q.masked_fill(~mask, -torch.inf)).argmax(-1)


def gather_bootstrap(value: Tensor, steps: Tensor) -> Tensor:
    """value[t + steps[t, b], b] for every learned row t: [L + n, B] or [L + n, B, N] -> [L, B, *].

    ``steps`` int64 [L, B] holds k <= n.
    """
    rows = torch.arange(steps.shape[0], device=steps.device).unsqueeze(-1) + steps
    if value.ndim == 2:
        return value.gather(0, rows)
    return value[rows, torch.arange(steps.shape[1], device=steps.device)]


def td_target(reward: Tensor, discount: Tensor, value: Tensor) -> Tensor:
    """R + discount value, detached. ``value`` is not read where the discount is 0, NaN included."""
    return (reward + torch.where(discount > 0, discount * value, torch.zeros_like(value))).detach()


def huber(delta: Tensor, clip: float | None) -> Tensor:
    """delta^2 / 2, beyond |delta| = ``clip`` its tangent; None: delta^2 / 2 everywhere. [*].

    The gradient is ``delta`` clipped to +-clip. Source: Mnih et al. 2015, methods (clip 1).
    """
    zero = torch.zeros_like(delta, requires_grad=False)
    if clip is None:
        return 0.5 * mse_loss(delta, zero, reduction="none")
    return huber_loss(delta, zero, reduction="none", delta=clip)


class RowLoss(NamedTuple):
    """The loss of predictions of rows [*]. ``loss`` and ``td`` are 0 where not valid."""

    loss: Tensor  # [*], with a graph
    td: Tensor  # [*] |difference of the means|, detached like all that follow
    priority: Tensor  # [*] >= 0
    prediction: Tensor  # [*] mean of the prediction
    target: Tensor  # [*] mean of the target


class ScalarCriterion:
    """Half the squared TD error of Q, Huber with ``td_clip``. Priorities are |delta|.

    The criteria of distributions (functional/criterion.py) have the same methods.
    """

    def __init__(self, config: ValueConfig) -> None:
        self.config = config

    def mean(self, outputs: Tensor) -> Tensor:
        """Action values [*, A] of ``outputs``."""
        return outputs

    def select(self, outputs: Tensor, action: Tensor) -> Tensor:
        """Outputs [*] or [*, N] of ``action`` int64 [*]."""
        return take_action(outputs, action)

    def target(self, reward: Tensor, discount: Tensor, bootstrap: Tensor) -> Tensor:
        """h(R + discount h^-1(bootstrap)) [*], detached; ``bootstrap`` as from ``select``.

        Without h if ``value_rescale_eps`` is None. Source: R2D2 section 2.3.
        """
        eps = self.config.value_rescale_eps
        if eps is None:
            return td_target(reward, discount, bootstrap)
        return rescale(td_target(reward, discount, unrescale(bootstrap, eps)), eps)

    def loss(
        self, prediction: Tensor, target: Tensor, valid: Tensor, taus: Tensor | None
    ) -> RowLoss:
        """Loss of ``prediction`` against ``target``, of rows [*] where ``valid``.

        ``taus`` [*, N]: levels of the predicted quantiles; None: the midpoints.
        """
        delta = torch.where(valid, target - prediction, torch.zeros_like(target))
        td = delta.detach().abs()
        return RowLoss(huber(delta, self.config.td_clip), td, td, prediction.detach(), target)


def td_metrics(
    loss: Tensor, td: Tensor, prediction: Tensor, target: Tensor, valid: Tensor
) -> dict[str, Tensor]:
    """The metrics of learning from TD errors |delta| = ``td``: means over valid rows, all [*]."""
    return {
        "train/loss": loss.detach(),
        "train/td_abs": masked_mean(td, valid),
        "train/q_taken": masked_mean(prediction.detach(), valid),
        "train/target": masked_mean(target, valid),
        "train/valid_fraction": valid.to(loss.dtype).sum() / max(1, valid.numel()),
    }


def mixed_priority(td: Tensor, valid: Tensor, eta: float) -> Tensor:
    """eta max_t |delta_t| + (1 - eta) mean_t |delta_t| over valid rows; 0 for an empty window.

    ``td`` [L, B] -> [B]. Source: R2D2 section 2.3 (eta 0.9).
    """
    size = torch.where(valid, td.abs(), torch.zeros_like(td))
    mean = masked_mean(td.abs(), valid, 0)
    return eta * size.amax(0) + (1 - eta) * mean
