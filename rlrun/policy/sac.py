"""Soft actor-critic: a squashed Gaussian actor, twin critics and an adaptive temperature.

Haarnoja et al. 2018a, "Soft Actor-Critic", ICML; 2018b, "Soft Actor-Critic Algorithms and
Applications". Equation numbers are those of the latter. With a memory (policy=rsac) actor and
critics each unroll their own memory over the window. The actor's starts from the stored state, the
critics' from zero, and burn-in warms both up.
"""

from typing import Generic, TypeVar

import torch
from torch import Tensor

from rlrun.functional.policy import SquashedSample, squashed_gaussian
from rlrun.functional.rows import masked_mean, weighted_row_mean
from rlrun.functional.value import td_target
from rlrun.nets.actor_and_critics import Batch
from rlrun.policy.base import Losses
from rlrun.policy.control import ControlLearner, SquashedGaussianActor
from rlrun.schema import MemoryConfig, SACConfig, TorsoConfig

Z = TypeVar("Z", bound=SACConfig)


class SAC(ControlLearner[Z], Generic[Z]):
    """A tanh(Normal) policy that learns from windows of rows."""

    config_class: type[SACConfig] = SACConfig  # a subclass inherits its keys
    actor_class = SquashedGaussianActor
    outputs = 2  # mean and log standard deviation of every action
    critics = 2
    logged = ("train/entropy",)  # of the actor's last step
    noises = 2  # numbers of noise vectors of an update

    def build(self, torso: TorsoConfig, memory: MemoryConfig) -> None:
        super().build(torso, memory)
        c, entropy = self.config, self.config.target_entropy
        self.log_alpha = self.add_coefficient("temperature", c.temperature)
        self.target_entropy = -float(self.bounds.size) if entropy is None else entropy

    def control_losses(self, batch: Batch) -> Losses:
        """Return losses of critics, actor, temperature; rows [L, B], Q of the critics [C, L, B]."""
        alpha = self.log_alpha.detach().exp()
        features, next_features = batch.encode_both(self.pi.encoder, batch.state)
        outputs = self.pi(features) if self.actor_due() else None

        # a' ~ pi(s')
        with torch.no_grad():
            next_action, next_log_pi = self.sample_action(self.pi(next_features), 1)
            next_q = self.q_target(batch.encode_next(self.q_target.encoder), next_action)
            y = self.soft_target(batch, next_q, -alpha * next_log_pi)

        q_features = batch.encode(self.q.encoder)
        out = self.critic_losses(batch, self.q(q_features, batch.action), y)
        return self.add_actor_losses(out, batch, outputs, q_features, alpha)

    def soft_target(self, batch: Batch, next_q: Tensor, entropy: Tensor) -> Tensor:
        """y = R_n + gamma^n (min_c Q'_c(s', a') - alpha log pi(a'|s')) [L, B]; ``next_q`` [C, L,
        B], ``entropy`` = -alpha log pi [L, B].                                     (eq. 2, 3)
        """
        value = self.value_of(next_q) + entropy
        return td_target(batch.reward, batch.discount, value)

    def value_of(self, q: Tensor) -> Tensor:
        """Return what the actor maximises: min_c Q_c, [C, L, B] -> [L, B]."""
        return q.amin(0)

    def add_actor_losses(
        self, out: Losses, batch: Batch, outputs: Tensor | None, q_features: Tensor, alpha: Tensor
    ) -> Losses:
        """Return ``out`` with the losses of actor and temperature, if ``outputs`` are given.

        actor: alpha log pi(a|s) - min_c Q_c(s, a), a = tanh(mean + std noise)        (eq. 7, 9)
        temperature: alpha (-log pi(a|s) - target entropy)                              (eq. 18)

        ``outputs`` [L, B, 2 A]: of the actor; None: its update is not due.
        """
        losses, priority, metrics = out
        metrics["train/temperature"] = alpha
        if outputs is None:
            return out
        action, log_pi = self.sample_action(outputs, 0)
        q_pi = self.value_of(self.q(q_features.detach(), action, frozen=True))  # gradient to a only
        loss = weighted_row_mean(alpha * log_pi - q_pi, batch.valid, batch.weight)
        losses["actor"], metrics["train/actor_loss"] = loss, loss.detach()
        metrics["train/entropy"] = masked_mean(-log_pi.detach(), batch.valid)
        if self.config.temperature_auto:
            surplus = -log_pi.detach() - self.target_entropy
            surplus = weighted_row_mean(surplus, batch.valid, batch.weight)
            losses["temperature"] = self.log_alpha.exp() * surplus
        return Losses(losses, priority, metrics)

    def update_all_targets(self, env_steps: int, *, actor_stepped: bool) -> dict[str, Tensor]:
        self.update_targets("critics")
        return {}

    def sample_action(self, outputs: Tensor, which: int, *lead: int) -> SquashedSample:
        """Sample actions [*lead, L, B, A] from the actor's ``outputs`` [L, B, 2 A].

        ``which``: the number of the noise, 0 at s, 1 at s'.
        """
        mean, log_std = outputs.chunk(2, -1)
        noise = self.noise(self.noises * self.updates + which, *lead, *mean.shape)
        return squashed_gaussian(mean, log_std, noise)
