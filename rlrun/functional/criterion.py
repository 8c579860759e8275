"""What a value network is taught: Q, atoms or quantiles; one interface for every learner.

``said`` is what the network says: action values [*, A], or [*, A, N]. A criterion picks what was
said of an action, makes the target of rows from what was said where they bootstrap, and measures
the one against the other.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from rlrun.functional.distributional import (
    RowLoss,
    cross_entropy,
    divergence,
    midpoints,
    munchausen_reward,
    project,
    quantile_huber,
    soft_value,
    support,
)
from rlrun.functional.value import sequence_loss, slope_of_q, take_action, td_target
from rlrun.schema import SwitchedConfig


class Fit(NamedTuple):
    """How far the predictions of rows [L, B] are off; detached, 0 where not valid."""

    loss: Tensor  # 0-d
    td: Tensor  # [L, B] |difference of the means|
    surprise: Tensor  # [L, B] >= 0, what priorities are made of
    slope: Tensor  # [L, B] or [L, B, N]: d loss / d what was said of the action
    taken: Tensor  # [L, B] mean of the prediction
    target: Tensor  # [L, B] mean of the target


class Scalar:
    """Q itself: half the squared TD error, Huber with ``td_clip``. Priorities from |delta|."""

    def __init__(self, config: SwitchedConfig, device: torch.device) -> None:
        self.config = config

    def mean(self, said: Tensor) -> Tensor:
        """Action values of what was said."""
        return said

    def pick(self, said: Tensor, action: Tensor) -> Tensor:
        """What was said of ``action`` int64 [*]."""
        return take_action(said, action)

    def target(self, reward: Tensor, discount: Tensor, bootstrap: Tensor) -> Tensor:
        """h(R + discount h^-1(bootstrap)) [L, B], detached; ``bootstrap`` as ``pick`` gives it."""
        return td_target(reward, discount, bootstrap, rescale_eps=self.config.value_rescale_eps)

    def fit(
        self, taken: Tensor, target: Tensor, valid: Tensor, weight: Tensor, taus: Tensor | None
    ) -> Fit:
        """``taken`` against ``target``; ``valid`` [L, B], ``weight`` [B]; ``taus``: where quantiles
        were said, None: at the midpoints."""
        out = sequence_loss(taken, target, valid, weight, td_clip=self.config.td_clip)
        return Fit(out.loss, out.td, out.td, out.slope, taken, target)

    def slope(self, said: Tensor, action: Tensor, slope: Tensor) -> Tensor:
        """d loss / d ``said`` of rows [T, B]: ``slope`` at the actions taken, zero elsewhere."""
        return slope_of_q(said, action, slope)


class _Spread(Scalar):
    """What has N numbers per action."""

    def pick(self, said: Tensor, action: Tensor) -> Tensor:
        index = action.unsqueeze(-1).unsqueeze(-1)
        index = index.expand(*action.shape, 1, said.shape[-1])
        return said.gather(-2, index).squeeze(-2)

    def slope(self, said: Tensor, action: Tensor, slope: Tensor) -> Tensor:
        full = torch.zeros_like(said, requires_grad=False)
        index = action.unsqueeze(-1).unsqueeze(-1)
        index = index.expand(*action.shape, 1, said.shape[-1])
        full[: len(slope)].scatter_(-2, index, slope.unsqueeze(-2))
        return full


class Categorical(_Spread):
    """Cross entropy against the target's atoms, projected on the grid (C51).

    Priorities from KL(target || prediction) as in Rainbow. Source: Bellemare et al. 2017,
    algorithm 1; Hessel et al. 2018.
    """

    def __init__(self, config: SwitchedConfig, device: torch.device) -> None:
        super().__init__(config, device)
        self.atoms = support(config.v_min, config.v_max, config.atoms).to(device)

    def mean(self, said: Tensor) -> Tensor:
        return said.softmax(-1) @ self.atoms

    def target(self, reward: Tensor, discount: Tensor, bootstrap: Tensor) -> Tensor:
        alive = (discount > 0).unsqueeze(-1)
        probabilities = torch.where(alive, bootstrap, torch.zeros_like(bootstrap)).softmax(-1)
        values = super().target(reward.unsqueeze(-1), discount.unsqueeze(-1), self.atoms)
        return project(values, probabilities.detach(), self.atoms)

    def fit(
        self, taken: Tensor, target: Tensor, valid: Tensor, weight: Tensor, taus: Tensor | None
    ) -> Fit:
        taken, target = _where(valid, taken), _where(valid, target)
        share = weight / valid.numel()
        row = cross_entropy(taken, target)
        means = self.mean(taken.detach()), target @ self.atoms
        surprise = torch.where(valid, divergence(taken, target), 0.0)
        return _fit(row, means, surprise, valid, share)


class Quantile(_Spread):
    """Quantile Huber loss between all pairs of predicted and target quantiles (QR-DQN, IQN).

    Priorities from |difference of the means|. Source: Dabney et al. 2018a, algorithm 1; Dabney et
    al. 2018b, eq. 3.
    """

    def __init__(self, config: SwitchedConfig, device: torch.device) -> None:
        super().__init__(config, device)
        self.levels = midpoints(config.atoms).to(device)

    def mean(self, said: Tensor) -> Tensor:
        return said.mean(-1)

    def target(self, reward: Tensor, discount: Tensor, bootstrap: Tensor) -> Tensor:
        return super().target(reward.unsqueeze(-1), discount.unsqueeze(-1), bootstrap)

    def fit(
        self, taken: Tensor, target: Tensor, valid: Tensor, weight: Tensor, taus: Tensor | None
    ) -> Fit:
        taken, target = _where(valid, taken), _where(valid, target)
        levels = self.levels.expand_as(taken) if taus is None else taus
        row = quantile_huber(taken, target, levels, kappa=self.config.kappa)
        means = taken.detach().mean(-1), target.mean(-1)
        surprise = (means[1] - means[0]).abs()
        return _fit(row, means, surprise, valid, weight / valid.numel())


def _where(valid: Tensor, x: Tensor) -> Tensor:
    return torch.where(valid.unsqueeze(-1), x, torch.zeros_like(x))


def _fit(
    row: RowLoss, means: tuple[Tensor, Tensor], surprise: Tensor, valid: Tensor, share: Tensor
) -> Fit:
    """mean_b(w_b sum_t valid loss_t / L), semantics section 5; ``share`` [B] is w_b / (L B)."""
    loss = (share * torch.where(valid, row.loss, 0.0).sum(0)).sum()
    slope = torch.where(valid, share, 0.0).unsqueeze(-1) * row.slope
    td = torch.where(valid, (means[1] - means[0]).abs(), 0.0)
    return Fit(loss, td, surprise, slope, *means)


def make_criterion(config: SwitchedConfig, device: torch.device) -> Scalar:
    """What ``policy.distribution`` says."""
    table = {"none": Scalar, "categorical": Categorical}
    return table.get(config.distribution, Quantile)(config, device)


class Munchausen:
    """log pi added to rewards, and the soft value instead of the largest one.

    pi = softmax(q / temperature) of the target network. Every step of an n-step return gets its
    own log pi: the one-step equation of the paper, unrolled. Source: Vieillard et al. 2020.
    """

    def __init__(self, config: SwitchedConfig, criterion: Scalar) -> None:
        assert config.munchausen is not None
        self.scale, self.criterion = config.munchausen, criterion
        self.temperature, self.lowest = config.munchausen_tau, config.munchausen_clip

    def reward(self, said: Tensor, action: Tensor, mask: Tensor | None) -> Tensor:
        """scale clip(temperature log pi(a), lowest, 0) [T, B] of the rows of ``action``.

        ``said`` by the target network and ``mask`` may have more rows.
        """
        rows = len(action)
        return munchausen_reward(
            self.criterion.mean(said[:rows]), action, scale=self.scale,
            temperature=self.temperature, lowest=self.lowest,
            allowed=None if mask is None else mask[:rows],
        )  # fmt: skip

    def value(self, said: Tensor, mask: Tensor | None) -> Tensor:
        """sum_a pi(a) (said_a - temperature log pi(a)): what ``pick`` would have said."""
        q = self.criterion.mean(said)
        return soft_value(said, q, temperature=self.temperature, allowed=mask)


def make_munchausen(config: SwitchedConfig, criterion: Scalar) -> Munchausen | None:
    """None: off."""
    return None if config.munchausen is None else Munchausen(config, criterion)
