"""Losses of value networks that predict atoms or quantiles, and Munchausen's terms.

``outputs`` are those of the network: action values [*, A], or [*, A, N] of a distribution. A
criterion selects the outputs of an action (``select``), builds the targets of rows (``target``) and
computes the loss between the two (``loss``).
"""

import torch
from torch import Tensor

from rlrun.functional.distributional import (
    cross_entropy,
    kl_divergence,
    midpoints,
    munchausen_reward,
    munchausen_value,
    project,
    quantile_huber,
    support,
)
from rlrun.functional.value import RowLoss, ScalarCriterion
from rlrun.schema import SwitchedConfig, ValueConfig


class _DistributionCriterion(ScalarCriterion):
    """A criterion of N outputs per action."""

    def select(self, outputs: Tensor, action: Tensor) -> Tensor:
        index = action.unsqueeze(-1).unsqueeze(-1)
        index = index.expand(*action.shape, 1, outputs.shape[-1])
        return outputs.gather(-2, index).squeeze(-2)


class CategoricalCriterion(_DistributionCriterion):
    """Cross entropy against the target's atoms, projected on the grid (C51).

    Priorities from KL(target || prediction) as in Rainbow. Source: Bellemare et al. 2017,
    algorithm 1; Hessel et al. 2018.
    """

    def __init__(self, config: SwitchedConfig, device: torch.device) -> None:
        super().__init__(config)
        self.atoms = support(config.v_min, config.v_max, config.atoms).to(device)

    def mean(self, outputs: Tensor) -> Tensor:
        return outputs.softmax(-1) @ self.atoms

    def target(self, reward: Tensor, discount: Tensor, bootstrap: Tensor) -> Tensor:
        alive = (discount > 0).unsqueeze(-1)
        probabilities = torch.where(alive, bootstrap, torch.zeros_like(bootstrap)).softmax(-1)
        values = super().target(reward.unsqueeze(-1), discount.unsqueeze(-1), self.atoms)
        return project(values, probabilities.detach(), self.atoms)

    def loss(
        self, prediction: Tensor, target: Tensor, valid: Tensor, taus: Tensor | None
    ) -> RowLoss:
        prediction, target = _where(valid, prediction), _where(valid, target)
        means = self.mean(prediction.detach()), target @ self.atoms
        priority = torch.where(valid, kl_divergence(prediction, target), 0.0)
        return _row_loss(cross_entropy(prediction, target), means, priority, valid)


class QuantileCriterion(_DistributionCriterion):
    """Quantile Huber loss between all pairs of predicted and target quantiles (QR-DQN, IQN).

    Priorities from |difference of the means|. Source: Dabney et al. 2018a, algorithm 1; Dabney et
    al. 2018b, eq. 3.
    """

    def __init__(self, config: SwitchedConfig, device: torch.device) -> None:
        super().__init__(config)
        self.levels, self.kappa = midpoints(config.atoms).to(device), config.kappa

    def mean(self, outputs: Tensor) -> Tensor:
        return outputs.mean(-1)

    def target(self, reward: Tensor, discount: Tensor, bootstrap: Tensor) -> Tensor:
        return super().target(reward.unsqueeze(-1), discount.unsqueeze(-1), bootstrap)

    def loss(
        self, prediction: Tensor, target: Tensor, valid: Tensor, taus: Tensor | None
    ) -> RowLoss:
        prediction, target = _where(valid, prediction), _where(valid, target)
        levels = self.levels.expand_as(prediction) if taus is None else taus
        loss = quantile_huber(prediction, target, levels, kappa=self.kappa)
        means = prediction.detach().mean(-1), target.mean(-1)
        return _row_loss(loss, means, (means[1] - means[0]).abs(), valid)


def _where(valid: Tensor, x: Tensor) -> Tensor:
    return torch.where(valid.unsqueeze(-1), x, torch.zeros_like(x))


def _row_loss(
    loss: Tensor, means: tuple[Tensor, Tensor], priority: Tensor, valid: Tensor
) -> RowLoss:
    td = torch.where(valid, (means[1] - means[0]).abs(), 0.0)
    return RowLoss(torch.where(valid, loss, 0.0), td, priority, *means)


def make_criterion(config: ValueConfig, device: torch.device) -> ScalarCriterion:
    """The criterion of ``policy.distribution``, where the policy has that key."""
    if not isinstance(config, SwitchedConfig) or config.distribution == "none":
        return ScalarCriterion(config)
    categorical = config.distribution == "categorical"
    return (CategoricalCriterion if categorical else QuantileCriterion)(config, device)


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


def make_munchausen(config: ValueConfig, criterion: ScalarCriterion) -> Munchausen | None:
    """The Munchausen terms of ``policy.munchausen``; None: off."""
    if isinstance(config, SwitchedConfig) and config.munchausen is not None:
        return Munchausen(config, criterion)
    return None
