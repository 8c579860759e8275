"""Losses of value networks that predict Q, atoms or quantiles, with one interface.

``outputs`` are those of the network: action values [*, A], or [*, A, N] of a distribution. A
criterion selects the outputs of an action (``select``), builds the targets of rows (``target``) and
computes the loss between the two (``loss``).
"""

from typing import NamedTuple

import torch
from torch import Tensor

from rlrun.functional.distributional import (
    RowLoss,
    cross_entropy,
    kl_divergence,
    midpoints,
    munchausen_reward,
    munchausen_value,
    project,
    quantile_huber,
    support,
)
from rlrun.functional.value import scatter_q_grad, sequence_loss, take_action, td_target
from rlrun.schema import SwitchedConfig


class CriterionLoss(NamedTuple):
    """Loss of the predictions of rows [L, B]; detached, 0 where not valid."""

    loss: Tensor  # 0-d
    td: Tensor  # [L, B] |difference of the means|
    priority: Tensor  # [L, B] >= 0, per row
    grad: Tensor  # [L, B] or [L, B, N]: d loss / d prediction
    prediction: Tensor  # [L, B] mean of the prediction
    target: Tensor  # [L, B] mean of the target


class ScalarCriterion:
    """Q itself: half the squared TD error, Huber with ``td_clip``. Priorities from |delta|."""

    def __init__(self, config: SwitchedConfig, device: torch.device) -> None:
        self.config = config

    def mean(self, outputs: Tensor) -> Tensor:
        """Action values [*, A] of ``outputs``."""
        return outputs

    def select(self, outputs: Tensor, action: Tensor) -> Tensor:
        """Outputs [*] or [*, N] of ``action`` int64 [*]."""
        return take_action(outputs, action)

    def target(self, reward: Tensor, discount: Tensor, bootstrap: Tensor) -> Tensor:
        """h(R + discount h^-1(bootstrap)) [L, B], detached; ``bootstrap`` as from ``select``."""
        return td_target(reward, discount, bootstrap, rescale_eps=self.config.value_rescale_eps)

    def loss(
        self, prediction: Tensor, target: Tensor, valid: Tensor, weight: Tensor, taus: Tensor | None
    ) -> CriterionLoss:
        """Loss of ``prediction`` against ``target``; ``valid`` [L, B], ``weight`` [B].

        ``taus`` [L, B, N]: levels of the predicted quantiles; None: the midpoints.
        """
        out = sequence_loss(prediction, target, valid, weight, td_clip=self.config.td_clip)
        return CriterionLoss(out.loss, out.td, out.td, out.grad, prediction, target)

    def outputs_grad(self, outputs: Tensor, action: Tensor, grad: Tensor) -> Tensor:
        """d loss / d ``outputs`` [T, B, ...]: ``grad`` at the actions taken, zero elsewhere."""
        return scatter_q_grad(outputs, action, grad)


class _DistributionCriterion(ScalarCriterion):
    """A criterion of N outputs per action."""

    def select(self, outputs: Tensor, action: Tensor) -> Tensor:
        index = action.unsqueeze(-1).unsqueeze(-1)
        index = index.expand(*action.shape, 1, outputs.shape[-1])
        return outputs.gather(-2, index).squeeze(-2)

    def outputs_grad(self, outputs: Tensor, action: Tensor, grad: Tensor) -> Tensor:
        full = torch.zeros_like(outputs, requires_grad=False)
        index = action.unsqueeze(-1).unsqueeze(-1)
        index = index.expand(*action.shape, 1, outputs.shape[-1])
        full[: len(grad)].scatter_(-2, index, grad.unsqueeze(-2))
        return full


class CategoricalCriterion(_DistributionCriterion):
    """Cross entropy against the target's atoms, projected on the grid (C51).

    Priorities from KL(target || prediction) as in Rainbow. Source: Bellemare et al. 2017,
    algorithm 1; Hessel et al. 2018.
    """

    def __init__(self, config: SwitchedConfig, device: torch.device) -> None:
        super().__init__(config, device)
        self.atoms = support(config.v_min, config.v_max, config.atoms).to(device)

    def mean(self, outputs: Tensor) -> Tensor:
        return outputs.softmax(-1) @ self.atoms

    def target(self, reward: Tensor, discount: Tensor, bootstrap: Tensor) -> Tensor:
        alive = (discount > 0).unsqueeze(-1)
        probabilities = torch.where(alive, bootstrap, torch.zeros_like(bootstrap)).softmax(-1)
        values = super().target(reward.unsqueeze(-1), discount.unsqueeze(-1), self.atoms)
        return project(values, probabilities.detach(), self.atoms)

    def loss(
        self, prediction: Tensor, target: Tensor, valid: Tensor, weight: Tensor, taus: Tensor | None
    ) -> CriterionLoss:
        prediction, target = _where(valid, prediction), _where(valid, target)
        share = weight / valid.numel()
        row = cross_entropy(prediction, target)
        means = self.mean(prediction.detach()), target @ self.atoms
        priority = torch.where(valid, kl_divergence(prediction, target), 0.0)
        return _row_loss(row, means, priority, valid, share)


class QuantileCriterion(_DistributionCriterion):
    """Quantile Huber loss between all pairs of predicted and target quantiles (QR-DQN, IQN).

    Priorities from |difference of the means|. Source: Dabney et al. 2018a, algorithm 1; Dabney et
    al. 2018b, eq. 3.
    """

    def __init__(self, config: SwitchedConfig, device: torch.device) -> None:
        super().__init__(config, device)
        self.levels = midpoints(config.atoms).to(device)

    def mean(self, outputs: Tensor) -> Tensor:
        return outputs.mean(-1)

    def target(self, reward: Tensor, discount: Tensor, bootstrap: Tensor) -> Tensor:
        return super().target(reward.unsqueeze(-1), discount.unsqueeze(-1), bootstrap)

    def loss(
        self, prediction: Tensor, target: Tensor, valid: Tensor, weight: Tensor, taus: Tensor | None
    ) -> CriterionLoss:
        prediction, target = _where(valid, prediction), _where(valid, target)
        levels = self.levels.expand_as(prediction) if taus is None else taus
        row = quantile_huber(prediction, target, levels, kappa=self.config.kappa)
        means = prediction.detach().mean(-1), target.mean(-1)
        priority = (means[1] - means[0]).abs()
        return _row_loss(row, means, priority, valid, weight / valid.numel())


def _where(valid: Tensor, x: Tensor) -> Tensor:
    return torch.where(valid.unsqueeze(-1), x, torch.zeros_like(x))


def _row_loss(
    row: RowLoss, means: tuple[Tensor, Tensor], priority: Tensor, valid: Tensor, share: Tensor
) -> CriterionLoss:
    """mean_b(w_b sum_t valid loss_t / L), like ``sequence_loss``; ``share`` [B]: w_b / (L B)."""
    loss = (share * torch.where(valid, row.loss, 0.0).sum(0)).sum()
    grad = torch.where(valid, share, 0.0).unsqueeze(-1) * row.grad
    td = torch.where(valid, (means[1] - means[0]).abs(), 0.0)
    return CriterionLoss(loss, td, priority, grad, *means)


def make_criterion(config: SwitchedConfig, device: torch.device) -> ScalarCriterion:
    """The criterion of ``policy.distribution``."""
    table = {"none": ScalarCriterion, "categorical": CategoricalCriterion}
    return table.get(config.distribution, QuantileCriterion)(config, device)


class Munchausen:
    """Munchausen: log pi added to rewards, and soft values instead of maxima.

    pi = softmax(q / temperature) of the target network. Every step of an n-step return gets its
    own log pi: the one-step equation of the paper, unrolled. Source: Vieillard et al. 2020.
    """

    def __init__(self, config: SwitchedConfig, criterion: ScalarCriterion) -> None:
        assert config.munchausen is not None
        self.scale, self.criterion = config.munchausen, criterion
        self.temperature, self.clip = config.munchausen_tau, config.munchausen_clip

    def reward(self, outputs: Tensor, action: Tensor, mask: Tensor | None) -> Tensor:
        """scale clip(temperature log pi(a), clip, 0) [T, B] of the rows of ``action``.

        ``outputs`` (of the target network) and ``mask`` may have more rows.
        """
        rows = len(action)
        return munchausen_reward(
            self.criterion.mean(outputs[:rows]), action, scale=self.scale,
            temperature=self.temperature, clip=self.clip,
            allowed=None if mask is None else mask[:rows],
        )  # fmt: skip

    def value(self, outputs: Tensor, mask: Tensor | None) -> Tensor:
        """Soft value sum_a pi(a) (outputs_a - temperature log pi(a)), in place of a maximum."""
        q = self.criterion.mean(outputs)
        return munchausen_value(outputs, q, temperature=self.temperature, allowed=mask)


def make_munchausen(config: SwitchedConfig, criterion: ScalarCriterion) -> Munchausen | None:
    """The Munchausen terms of ``policy.munchausen``; None: off."""
    return None if config.munchausen is None else Munchausen(config, criterion)
