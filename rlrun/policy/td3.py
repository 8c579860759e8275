"""TD3: a deterministic actor with delayed updates, twin critics, smoothed target actions.

Fujimoto et al. 2018, "Addressing Function Approximation Error in Actor-Critic Methods", ICML. With
a memory (policy=rtd3) actor and critics each unroll their own over the window: the actor's starts
from the stored state, the critics' from zero, and burn-in warms both up.
"""

import torch
from torch import Tensor

from rlrun.acting.box import GaussianNoiseActor
from rlrun.functional.continuous import smoothed_action
from rlrun.functional.rows import weighted_row_mean
from rlrun.functional.value import huber, mixed_priority, td_metrics, td_target
from rlrun.nets.actor_and_critics import Batch
from rlrun.policy.base.off_policy_control import ControlLoss, OffPolicyControl
from rlrun.schedule import make_schedule
from rlrun.schema import TD3Config


class TD3(OffPolicyControl[TD3Config]):
    """A deterministic actor with Gaussian noise that learns from windows of rows."""

    config_class = TD3Config  # a subclass inherits its keys
    outputs, critics = 1, 2

    def set_up(self) -> None:
        self.noise_at = make_schedule(self.config.noise, total_steps=self.total_steps)
        self.pi.noise.fill_(self.noise_at(0))

    def actor(self, num_envs: int) -> GaussianNoiseActor:
        """Deterministic actions with noise; uniform ones before the first update."""
        return GaussianNoiseActor(
            self.pi, self.config, self.bounds, self.generator, num_envs=num_envs
        )

    def loss(self, batch: Batch) -> ControlLoss:
        """Losses of critics and actor; rows [L, B], Q of the critics [C, L, B]."""
        c, valid, weight = self.config, batch.valid, batch.weight

        # y = R_n + gamma^n min_c Q'_c(s', clip(pi'(s') + clip(eps))), eps ~ N(0, sigma)   (eq. 14)
        with torch.no_grad():
            next_h = batch.encode_next(self.pi_target.encoder, batch.state)
            next_action = self.pi_target(next_h).tanh()
            noise = self.noise(self.updates, *next_action.shape)
            next_action = smoothed_action(
                next_action, noise, sigma=c.smoothing, clip=c.smoothing_clip
            )
            next_q = self.q_target(batch.encode_next(self.q_target.encoder), next_action)
            y = td_target(batch.reward, batch.discount, next_q.amin(0), rescale_eps=None)

        # critics: sum_c (y - Q_c(s, a))^2 / 2                                     (algorithm 1)
        z = batch.encode(self.q.encoder)
        q = self.q(z, batch.action)
        delta = torch.where(valid, y - q, 0.0)
        critic_loss = weighted_row_mean(huber(delta, c.td_clip).sum(0), valid, weight)
        td = delta.detach().abs().mean(0)
        metrics = td_metrics(critic_loss, td, q.mean(0), y, valid)
        priority, actor_loss = mixed_priority(td, valid, c.eta), None

        if self.actor_due():
            # actor: -Q_1(s, pi(s)), the deterministic policy gradient               (algorithm 1)
            action = self.pi(batch.encode(self.pi.encoder, batch.state)).tanh()
            q_pi = self.q(z.detach(), action, 1, frozen=True)[0]
            actor_loss = weighted_row_mean(-q_pi, valid, weight)
            metrics["train/actor_loss"] = actor_loss.detach()
        return ControlLoss(critic_loss, actor_loss, {}, priority, metrics)

    def finish_update(self, env_steps: int, *, actor_stepped: bool) -> dict[str, Tensor]:
        """Update all targets after steps of the actor (delayed, section 5.2), and the noise."""
        if actor_stepped:
            target = [*self.q_target_params, *self.pi_target_params]
            online = [*self.q_params, *self.pi_params]
            self.update_target(target, online, since=self.config.actor_every)
        return {"train/noise": self.pi.noise.fill_(self.noise_at(env_steps)).clone()}
