"""TD3: a deterministic actor with delayed updates, twin critics, smoothed target actions.

Source: Fujimoto et al. 2018, "Addressing Function Approximation Error in Actor-Critic Methods",
ICML. With a memory (policy=rtd3) actor and critics each unroll their own memory over the window.
The actor's starts from the stored state, the critics' from zero, and burn-in warms both up.
"""

from typing import Generic, TypeVar

import torch
from torch import Tensor

from rlrun.functional.policy import smoothed_action
from rlrun.functional.rows import weighted_row_mean
from rlrun.functional.schedule import make_schedule
from rlrun.functional.value import td_target
from rlrun.nets.actor_and_critics import Batch
from rlrun.policy.base import Losses
from rlrun.policy.control import ControlLearner, GaussianNoiseActor
from rlrun.schema import DDPGConfig, MemoryConfig, TD3Config, TorsoConfig

D = TypeVar("D", bound=DDPGConfig)


class TD3(ControlLearner[D], Generic[D]):
    """A deterministic actor and twin critics that learn from windows of rows."""

    config_class: type[DDPGConfig] = TD3Config  # subclasses inherit its keys
    actor_class = GaussianNoiseActor
    outputs = 1
    critics = 2

    def build(self, torso: TorsoConfig, memory: MemoryConfig) -> None:
        super().build(torso, memory)
        self.noise_at = make_schedule(self.config.noise, total_steps=self.total_steps)
        self.pi.noise.fill_(self.noise_at(0))

    def smoothed(self, action: Tensor) -> Tensor:
        """Return clip(action + clip(eps)) [L, B, A], eps ~ N(0, sigma): eq. 14."""
        c = self.config
        assert isinstance(c, TD3Config)
        noise = self.noise(self.updates, *action.shape)
        return smoothed_action(action, noise, sigma=c.smoothing, clip=c.smoothing_clip)

    def control_losses(self, batch: Batch) -> Losses:
        """Return losses of critics and actor; rows [L, B], Q of the critics [C, L, B]."""
        # y = R_n + gamma^n min_c Q'_c(s', smoothed(pi'(s')))
        with torch.no_grad():
            next_features = batch.encode_next(self.pi_target.encoder, batch.state)
            next_action = self.smoothed(self.pi_target(next_features).tanh())
            next_q = self.q_target(batch.encode_next(self.q_target.encoder), next_action)
            y = td_target(batch.reward, batch.discount, next_q.amin(0))

        # critics: sum_c (y - Q_c(s, a))^2 / 2                                     (algorithm 1)
        z = batch.encode(self.q.encoder)
        out = self.critic_losses(batch, self.q(z, batch.action), y)

        if self.actor_due():
            # actor: -Q_1(s, pi(s)), the deterministic policy gradient               (algorithm 1)
            action = self.pi(batch.encode(self.pi.encoder, batch.state)).tanh()
            q_pi = self.q(z.detach(), action, 1, frozen=True)[0]
            loss = weighted_row_mean(-q_pi, batch.valid, batch.weight)
            out.losses["actor"], out.metrics["train/actor_loss"] = loss, loss.detach()
        return out

    def update_all_targets(self, env_steps: int, *, actor_stepped: bool) -> dict[str, Tensor]:
        """Update all targets after the actor's steps (delayed, section 5.2), and the noise."""
        if actor_stepped:
            self.update_targets("critics", "actor", since=self.config.actor_every)
        return {"train/noise": self.pi.noise.fill_(self.noise_at(env_steps)).clone()}
