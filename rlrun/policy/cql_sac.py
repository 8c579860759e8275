"""CQL on SAC: offline soft actor-critic with a penalty on values of actions outside the dataset.

Source: Kumar et al., "Conservative Q-Learning for Offline Reinforcement Learning", NeurIPS 2020. As
in the released code, targets hold no entropy bonus (``entropy_in_target``), and the gap is
estimated with actions drawn uniformly, by the policy at the row, and by the policy at the row from
which its target bootstraps. The released code's optional start by imitation is left out.
"""

import torch
from torch import Tensor

from rlrun.functional.offline import sampled_gap
from rlrun.functional.policy import uniform_log_density
from rlrun.functional.rows import masked_mean, weighted_row_mean
from rlrun.functional.value import td_target
from rlrun.nets.actor_and_critics import Batch
from rlrun.policy.base import Losses
from rlrun.policy.sac import SAC
from rlrun.schema import CQLSACConfig, MemoryConfig, TorsoConfig

MAX_CONSERVATISM = 1e6  # largest weight; Kumar et al. 2020, released code


class CQLSAC(SAC[CQLSACConfig]):
    """SAC with a conservative term in the critics' loss."""

    config_class = CQLSACConfig  # subclasses inherit its keys
    noises = 5

    def build(self, torso: TorsoConfig, memory: MemoryConfig) -> None:
        super().build(torso, memory)
        self.log_conservatism = self.add_coefficient("conservatism", self.config.conservatism)

    def control_losses(self, batch: Batch) -> Losses:
        """Return SAC's losses (policy/sac.py), with the conservative term in the critics' loss."""
        c, valid = self.config, batch.valid
        alpha = self.log_alpha.detach().exp()
        conservatism = self.log_conservatism.detach().exp().clamp(max=MAX_CONSERVATISM)
        h, next_h = batch.encode_both(self.pi.encoder, batch.state)
        outputs, next_outputs = self.pi(h), self.pi(next_h)

        # y = R_n + gamma^n (min_c Q'_c(s', a') [- alpha log pi(a'|s')]), a' ~ pi(s')
        with torch.no_grad():
            next_action, next_log_pi = self.sample_action(next_outputs, 1)
            next_v = self.q_target(batch.encode_next(self.q_target.encoder), next_action).amin(0)
            if c.entropy_in_target:
                next_v = next_v - alpha * next_log_pi
            y = td_target(batch.reward, batch.discount, next_v)
            alive = (batch.discount > 0).unsqueeze(-1)
            sampled, log_density = self.gap_actions(
                outputs, torch.where(alive, next_outputs, outputs)
            )

        # critics: SAC's + conservatism sum_c (log int exp Q_c(s, a') da' - Q_c(s, a))     (eq. 4)
        z = batch.encode(self.q.encoder)
        actions = torch.cat([batch.action.unsqueeze(0), sampled])  # [1 + 3 samples, L, B, A]
        q, q_sampled = self.q(z.expand(len(actions), *z.shape), actions).tensor_split([1], 1)
        q = q.squeeze(1)
        gap = sampled_gap(q_sampled, log_density, q)
        out = self.critic_losses(batch, q, y, conservatism * gap.sum(0))
        gap = gap.detach().mean(0)
        out.metrics["train/conservative_gap"] = masked_mean(gap, valid)
        out.metrics["train/conservatism"] = conservatism
        out = self.add_actor_losses(out, batch, outputs if self.actor_due() else None, z, alpha)
        if c.gap_threshold is not None:
            # conservatism: conservatism (threshold - gap), dual ascent to gap <= threshold (app. F)
            room = weighted_row_mean(c.gap_threshold - gap, valid, batch.weight)
            out.losses["conservatism"] = self.log_conservatism.exp() * room
        return out

    def gap_actions(self, outputs: Tensor, bootstrap_outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return actions [3 N, L, B, A] that estimate the gap, and their log densities.

        N are uniform, N from the policy at the learned rows, and N from the policy at the rows from
        which targets bootstrap (at the learned rows if the episode terminated).
        """
        count, (*lead, size) = self.config.samples, outputs.shape
        noise = self.noise(5 * self.updates + 4, count, *lead, size // 2, uniform=True)
        uniform = 2 * noise - 1
        current = self.sample_action(outputs, 2, count)
        bootstrap = self.sample_action(bootstrap_outputs, 3, count)
        log_density = [uniform_log_density(uniform), current.log_prob, bootstrap.log_prob]
        return torch.cat([uniform, current.action, bootstrap.action]), torch.cat(log_density)
