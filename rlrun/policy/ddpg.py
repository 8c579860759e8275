"""DDPG: a deterministic actor that follows the critic's gradient over actions.

Lillicrap et al. 2016, "Continuous control with deep reinforcement learning", ICLR. The noise is
uncorrelated (Fujimoto et al. 2018 found no gain in the original's Ornstein-Uhlenbeck process).
"""

import torch
from torch import Tensor

from rlrun.acting.box import GaussianNoiseActor
from rlrun.functional.rows import weighted_row_mean
from rlrun.functional.value import huber, mixed_priority, td_metrics, td_target
from rlrun.nets.actor_and_critics import Batch
from rlrun.policy.base.off_policy_control import ControlLoss, OffPolicyControl
from rlrun.schedule import make_schedule
from rlrun.schema import DDPGConfig


class DDPG(OffPolicyControl[DDPGConfig]):
    """A deterministic actor with Gaussian noise that learns from windows of rows."""

    config_class = DDPGConfig  # a subclass inherits its keys
    outputs, critics = 1, 1

    def set_up(self) -> None:
        self.noise_at = make_schedule(self.config.noise, total_steps=self.total_steps)
        self.pi.noise.fill_(self.noise_at(0))

    def actor(self, num_envs: int) -> GaussianNoiseActor:
        """Deterministic actions with noise; uniform ones before the first update."""
        return GaussianNoiseActor(
            self.pi, self.config, self.bounds, self.generator, num_envs=num_envs
        )

    def loss(self, batch: Batch) -> ControlLoss:
        """Losses of critic and actor (algorithm 1); rows [L, B], Q of the critic [1, L, B]."""
        c, valid, weight = self.config, batch.valid, batch.weight

        # y = R_n + gamma^n Q'(s', pi'(s'))
        with torch.no_grad():
            next_h = batch.encode_next(self.pi_target.encoder, batch.state)
            next_action = self.pi_target(next_h).tanh()
            next_q = self.q_target(batch.encode_next(self.q_target.encoder), next_action)
            y = td_target(batch.reward, batch.discount, next_q[0], rescale_eps=None)

        # critic: (y - Q(s, a))^2 / 2
        z = batch.encode(self.q.encoder)
        q = self.q(z, batch.action)
        delta = torch.where(valid, y - q[0], 0.0)
        critic_loss = weighted_row_mean(huber(delta, c.td_clip), valid, weight)
        td = delta.detach().abs()
        metrics = td_metrics(critic_loss, td, q.mean(0), y, valid)
        priority, actor_loss = mixed_priority(td, valid, c.eta), None

        if self.actor_due():
            # actor: -Q(s, pi(s)), the deterministic policy gradient                      (eq. 6)
            action = self.pi(batch.encode(self.pi.encoder, batch.state)).tanh()
            q_pi = self.q(z.detach(), action, frozen=True)[0]
            actor_loss = weighted_row_mean(-q_pi, valid, weight)
            metrics["train/actor_loss"] = actor_loss.detach()
        return ControlLoss(critic_loss, actor_loss, {}, priority, metrics)

    def finish_update(self, env_steps: int, *, actor_stepped: bool) -> dict[str, Tensor]:
        """Update both targets after steps of the actor, and the noise of acting."""
        if actor_stepped:
            target = [*self.q_target_params, *self.pi_target_params]
            online = [*self.q_params, *self.pi_params]
            self.update_target(target, online, since=self.config.actor_every)
        return {"train/noise": self.pi.noise.fill_(self.noise_at(env_steps)).clone()}
