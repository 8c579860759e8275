"""Soft actor-critic: a squashed Gaussian actor, twin critics, a temperature that adapts.

Haarnoja et al. 2018a, "Soft Actor-Critic", ICML; 2018b, "Soft Actor-Critic Algorithms and
Applications", of which the equation numbers are. With a memory (policy=rsac) actor and critics each
unroll their own over the window: the actor's starts from the stored state, the critics' from zero,
and burn-in warms both up.
"""

import torch
from torch import Tensor

from rlrun.acting.box import SquashedGaussianActor
from rlrun.functional.continuous import SquashedSample, squashed_gaussian
from rlrun.functional.rows import masked_mean, weighted_row_mean
from rlrun.functional.value import huber, mixed_priority, td_metrics, td_target
from rlrun.nets.actor_and_critics import Batch
from rlrun.policy.base.off_policy_control import ControlLoss, OffPolicyControl
from rlrun.schema import SACConfig


class SAC(OffPolicyControl[SACConfig]):
    """A tanh(Normal) policy that learns from windows of rows."""

    config_class = SACConfig  # a subclass inherits its keys
    outputs = 2  # mean and log standard deviation of every action
    critics = 2
    logged = ("train/entropy",)  # between steps of the actor, that of the last

    def set_up(self) -> None:
        c = self.config
        self.log_alpha = self.add_multiplier("temperature", c.temperature)  # stepped by Adam at lr
        entropy = c.target_entropy
        self.target_entropy = -float(self.bounds.size) if entropy is None else entropy

    def actor(self, num_envs: int) -> SquashedGaussianActor:
        """Samples; uniform actions before the first update."""
        return SquashedGaussianActor(
            self.pi, self.config, self.bounds, self.generator, num_envs=num_envs
        )

    def loss(self, batch: Batch) -> ControlLoss:
        """Losses of critics, actor and temperature; rows [L, B], Q of the critics [C, L, B]."""
        c, valid, weight = self.config, batch.valid, batch.weight
        alpha = self.log_alpha.detach().exp()
        pi_features, next_pi_features = batch.encode_both(self.pi.encoder, batch.state)

        # y = R_n + gamma^n (min_c Q'_c(s', a') - alpha log pi(a'|s')), a' ~ pi(s')  (eq. 2, 3)
        with torch.no_grad():
            next_action, next_log_pi = self.sample_action(next_pi_features, 1)
            next_q = self.q_target(batch.encode_next(self.q_target.encoder), next_action)
            soft_value = next_q.amin(0) - alpha * next_log_pi
            y = td_target(batch.reward, batch.discount, soft_value, rescale_eps=None)

        # critics: sum_c (y - Q_c(s, a))^2 / 2, beyond td_clip its tangent                (eq. 5)
        q_features = batch.encode(self.q.encoder)
        q = self.q(q_features, batch.action)
        delta = torch.where(valid, y - q, 0.0)
        critic_loss = weighted_row_mean(huber(delta, c.td_clip).sum(0), valid, weight)
        td = delta.detach().abs().mean(0)
        metrics = td_metrics(critic_loss, td, q.mean(0), y, valid)
        metrics["train/temperature"] = alpha
        priority = mixed_priority(td, valid, c.eta)  # of the mean over the twins
        actor_loss, multipliers = None, {}

        if self.actor_due():
            # actor: alpha log pi(a|s) - min_c Q_c(s, a), a = tanh(mean + std noise)     (eq. 7, 9)
            action, log_pi = self.sample_action(pi_features, 0)
            q_pi = self.q(q_features.detach(), action, frozen=True).amin(0)  # gradient to a alone
            actor_loss = weighted_row_mean(alpha * log_pi - q_pi, valid, weight)
            metrics["train/actor_loss"] = actor_loss.detach()
            metrics["train/entropy"] = masked_mean(-log_pi.detach(), valid)
            if c.temperature_auto:
                # temperature: alpha (-log pi(a|s) - target entropy)                       (eq. 18)
                surplus = weighted_row_mean(-log_pi.detach() - self.target_entropy, valid, weight)
                multipliers["temperature"] = self.log_alpha.exp() * surplus
        return ControlLoss(critic_loss, actor_loss, multipliers, priority, metrics)

    def finish_update(self, env_steps: int, *, actor_stepped: bool) -> dict[str, Tensor]:
        self.update_target(self.q_target_params, self.q_params)
        return {}

    def sample_action(self, features: Tensor, draw: int) -> SquashedSample:
        """Actions [L, B, A] sampled by the actor; ``draw``: 0 at s, 1 at s'."""
        mean, log_std = self.pi(features).chunk(2, -1)
        noise = self.noise(2 * self.updates + draw, *mean.shape)
        return squashed_gaussian(mean, log_std, noise)
