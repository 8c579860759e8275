"""Truncated quantile critics: SAC whose critics are distributions, without their largest quantiles.

Kuznetsov et al. 2020, "Controlling Overestimation Bias with Truncated Mixture of Continuous
Distributional Quantile Critics", ICML. Twin critics with a minimum are replaced by C critics of M
quantiles each. The target is the mixture of all of them without its C x ``dropped_quantiles``
largest atoms, so overestimation is controlled in steps finer than a minimum.
"""

import torch
from torch import Tensor

from rlrun.functional.criterion import midpoints, quantile_huber
from rlrun.functional.rows import weighted_row_mean
from rlrun.functional.value import mixed_priority, td_metrics, td_target
from rlrun.nets.actor_and_critics import Batch
from rlrun.policy.base import Losses
from rlrun.policy.sac import SAC
from rlrun.schema import MemoryConfig, TorsoConfig, TQCConfig


class TQC(SAC[TQCConfig]):
    """SAC with a truncated mixture of quantile critics."""

    config_class = TQCConfig

    def build(self, torso: TorsoConfig, memory: MemoryConfig) -> None:
        self.critics, self.critic_outputs = self.config.num_critics, self.config.num_quantiles
        super().build(torso, memory)
        self.levels = midpoints(self.config.num_quantiles).to(self.device)

    def soft_target(self, batch: Batch, next_q: Tensor, entropy: Tensor) -> Tensor:
        """y_i = R_n + gamma^n (z_(i) + alpha entropy), z_(i) the smallest atoms: [L, B, K].

        ``next_q`` [C, L, B, M]; K = C (M - dropped_quantiles).                      (eq. 8, 9)
        """
        c = self.config
        atoms = next_q.movedim(0, -2).flatten(-2).sort(-1).values
        kept = atoms[..., : c.num_critics * (c.num_quantiles - c.dropped_quantiles)]
        value = kept + entropy.unsqueeze(-1)
        reward, discount = batch.reward.unsqueeze(-1), batch.discount.unsqueeze(-1)
        return td_target(reward, discount, value)

    def value_of(self, q: Tensor) -> Tensor:
        """Return the mean over all quantiles of all critics: [C, L, B, M] -> [L, B].    (eq. 13)"""
        return q.mean((0, -1))

    def critic_losses(
        self, batch: Batch, q: Tensor, y: Tensor, penalty: Tensor | None = None
    ) -> Losses:
        """Return the quantile Huber loss of every critic against all kept atoms, summed. (eq. 10)

        ``q`` [C, L, B, M], ``y`` [L, B, K]. Priorities are |difference of the means|, averaged
        over the critics.
        """
        c, valid = self.config, batch.valid
        mask = valid.unsqueeze(-1)
        q, y = torch.where(mask, q, 0.0), torch.where(mask, y, 0.0)
        target = y.expand(len(q), *y.shape)
        row_loss = quantile_huber(q, target, self.levels.expand_as(q), kappa=c.kappa)
        loss = weighted_row_mean(row_loss.sum(0) / c.num_quantiles, valid, batch.weight)
        means, goal = q.detach().mean(-1), y.mean(-1)
        td = (goal - means).abs().mean(0)
        metrics = td_metrics(loss, td, means.mean(0), goal, valid)
        return Losses({"critics": loss}, mixed_priority(td, valid, c.priority_eta), metrics)
