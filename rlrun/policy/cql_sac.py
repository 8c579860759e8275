"""CQL on SAC: soft actor-critic from a dataset, with a penalty on the values of actions outside it.

Kumar et al., "Conservative Q-Learning for Offline Reinforcement Learning", NeurIPS 2020. As in the
released code, targets hold no entropy bonus (``entropy_in_target``) and the gap is estimated with
actions drawn evenly, by the policy at the row, and by the policy at the row its target bootstraps
from. That code's optional start by imitation is left out.
"""

import torch
from torch import Tensor

from rlrun.acting.box import SquashedGaussianActor
from rlrun.functional.continuous import (
    SquashedSample,
    squashed_gaussian,
    uniform_log_density,
)
from rlrun.functional.offline import sampled_gap
from rlrun.functional.rows import masked_mean, weighted_row_mean
from rlrun.functional.value import huber, mixed_priority, td_metrics, td_target
from rlrun.nets.actor_and_critics import Batch
from rlrun.policy.base.off_policy_control import ControlLoss, OffPolicyControl
from rlrun.schema import CQLSACConfig

MAX_CONSERVATISM = 1e6  # of the weight; Kumar et al. 2020, released code


class CQLSAC(OffPolicyControl[CQLSACConfig]):
    """A tanh(Normal) policy that learns from windows of rows."""

    config_class = CQLSACConfig  # a subclass inherits its keys
    outputs, critics, logged = 2, 2, ("train/entropy",)

    def set_up(self) -> None:
        c, entropy = self.config, self.config.target_entropy
        self.log_alpha = self.add_multiplier("temperature", c.temperature)
        self.log_conservatism = self.add_multiplier("conservatism", c.conservatism)
        self.target_entropy = -float(self.bounds.size) if entropy is None else entropy

    def actor(self, num_envs: int) -> SquashedGaussianActor:
        """Samples; uniform actions before the first update."""
        return SquashedGaussianActor(
            self.pi, self.config, self.bounds, self.generator, num_envs=num_envs
        )

    def loss(self, batch: Batch) -> ControlLoss:
        """SAC's losses (policy/sac.py), with the conservative term in that of the critics."""
        c, valid, weight = self.config, batch.valid, batch.weight
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
            y = td_target(batch.reward, batch.discount, next_v, rescale_eps=None)
            alive = (batch.discount > 0).unsqueeze(-1)
            sampled, log_density = self.gap_actions(
                outputs, torch.where(alive, next_outputs, outputs)
            )

        # critics: sum_c (y - Q_c(s, a))^2 / 2
        #          + conservatism sum_c (log int exp Q_c(s, a') da' - Q_c(s, a))           (eq. 4)
        z = batch.encode(self.q.encoder)
        actions = torch.cat([batch.action.unsqueeze(0), sampled])  # [1 + 3 samples, L, B, A]
        q, q_sampled = self.q(z.expand(len(actions), *z.shape), actions).tensor_split([1], 1)
        q = q.squeeze(1)
        delta = torch.where(valid, y - q, 0.0)
        gap = sampled_gap(q_sampled, log_density, q)
        rows = huber(delta, c.td_clip).sum(0) + conservatism * gap.sum(0)
        critic_loss = weighted_row_mean(rows, valid, weight)
        td, gap = delta.detach().abs().mean(0), gap.detach().mean(0)
        metrics = td_metrics(critic_loss, td, q.mean(0), y, valid) | {
            "train/temperature": alpha,
            "train/conservative_gap": masked_mean(gap, valid),
            "train/conservatism": conservatism,
        }
        priority, actor_loss, multipliers = mixed_priority(td, valid, c.eta), None, {}

        if c.gap_threshold is not None:
            # conservatism: conservatism (threshold - gap), dual ascent to gap <= threshold (app. F)
            room = weighted_row_mean(c.gap_threshold - gap, valid, weight)
            multipliers["conservatism"] = self.log_conservatism.exp() * room
        if self.actor_due():
            action, log_pi = self.sample_action(outputs, 0)
            q_pi = self.q(z.detach(), action, frozen=True).amin(0)
            actor_loss = weighted_row_mean(alpha * log_pi - q_pi, valid, weight)
            metrics["train/actor_loss"] = actor_loss.detach()
            metrics["train/entropy"] = masked_mean(-log_pi.detach(), valid)
            if c.temperature_auto:
                surplus = weighted_row_mean(-log_pi.detach() - self.target_entropy, valid, weight)
                multipliers["temperature"] = self.log_alpha.exp() * surplus
        return ControlLoss(critic_loss, actor_loss, multipliers, priority, metrics)

    def finish_update(self, env_steps: int, *, actor_stepped: bool) -> dict[str, Tensor]:
        self.update_target(self.q_target_params, self.q_params)
        return {}

    def sample_action(self, outputs: Tensor, which: int, *lead: int) -> SquashedSample:
        """Actions [*lead, L, B, A] sampled from the policy's ``outputs`` [L, B, 2 A].

        ``which``: the number of the noise, 0 to 3.
        """
        mean, log_std = outputs.chunk(2, -1)
        noise = self.noise(5 * self.updates + which, *lead, *mean.shape)
        return squashed_gaussian(mean, log_std, noise)

    def gap_actions(self, outputs: Tensor, bootstrap_outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Actions [3 N, L, B, A] that estimate the gap, and their log densities.

        N uniform ones, N of the policy at the learned rows, N of the policy at the rows that
        targets bootstrap from (at the learned rows where the row terminated).
        """
        count, (*rows, size) = self.config.samples, outputs.shape
        noise = self.noise(5 * self.updates + 4, count, *rows, size // 2, uniform=True)
        uniform = 2 * noise - 1
        current = self.sample_action(outputs, 2, count)
        bootstrap = self.sample_action(bootstrap_outputs, 3, count)
        log_density = [uniform_log_density(uniform), current.log_prob, bootstrap.log_prob]
        return torch.cat([uniform, current.action, bootstrap.action]), torch.cat(log_density)
