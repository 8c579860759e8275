"""Soft actor-critic: a squashed Gaussian actor, twin critics, a temperature that adapts.

Haarnoja et al. 2018a, "Soft Actor-Critic", ICML; 2018b, "Soft Actor-Critic Algorithms and
Applications" (the temperature). With a memory (policy=rsac) actor and critics each unroll their own
over the window: the actor's starts from the stored state, the critics' from zero, and burn-in warms
both up.
"""

import torch
from torch import Tensor

from rlrun.acting.box import SquashedGaussianActor
from rlrun.functional.continuous import (
    SquashedSample,
    actor_loss,
    bootstrap_target,
    critic_loss,
    soft_value,
    squashed_gaussian,
    temperature_loss,
)
from rlrun.functional.rows import masked_mean
from rlrun.functional.value import mixed_priority
from rlrun.kernels.sac_td3 import SACKernel, supports
from rlrun.nets.encoder import prepare_windows
from rlrun.optim.actor_and_critics import ActorCriticsLoss
from rlrun.optim.lagrange import LagrangeMultiplier
from rlrun.policy.base.off_policy_control import OffPolicyControl
from rlrun.schema import SACConfig
from rlrun.types import Sample, Segment, Update


class SAC(OffPolicyControl[SACConfig]):
    """A tanh(Normal) policy that learns from windows of rows."""

    outputs, critics, logged = 2, 2, ("train/entropy",)

    def set_up(self) -> None:
        c, size, wanted = self.config, self.bounds.size, self.config.target_entropy
        self.target_entropy = -float(size) if wanted is None else wanted  # Haarnoja et al. 2018b
        self.temperature = LagrangeMultiplier(c.temperature, eps=c.adam_eps, device=self.device)
        self.multipliers = {"temperature": self.temperature}
        self.kernel: SACKernel | None = None
        own = type(self) is SAC  # a subclass's loss is not what the kernel computes
        if own and supports(self.nets, self.compute, self.memory):
            self.kernel = SACKernel(self.nets, self.compute, self.temperature, self.target_entropy)

    def actor(self, num_envs: int) -> SquashedGaussianActor:
        """Samples; uniform actions before the first update."""
        return SquashedGaussianActor(
            self.pi.net, self.config, self.bounds, self.generator, num_envs=num_envs
        )

    def update(self, sample: Sample) -> Update:
        """One step of critics, actor and temperature, all from the same weights."""
        update = self.autograd_update(sample) if self.kernel is None else self.kernel(sample)
        self.q.update_target(self.q.updates, 1)
        return update

    def _loss(self, segment: Segment, weight: Tensor) -> ActorCriticsLoss:
        c, (bs, learned) = self.config, (self.window.burnin, self.window.learned)
        windows, n, taken = prepare_windows(
            segment, self.bounds, self.window, c, memory=self.recurrent
        )
        valid = segment.valid[bs : bs + learned]
        state = segment.state if c.state_init == "stored" else None
        temperature = self.temperature.value()
        features_pi, next_features_pi = windows.encode_both(self.pi.net.encoder, state)
        with torch.no_grad():
            next_sample, target_critics = self.sample_action(next_features_pi, 1), self.q.target
            next_q = target_critics(
                windows.encode_next(target_critics.encoder, None), next_sample.action
            )
            value = soft_value(next_q, next_sample.log_prob, temperature)
            target = bootstrap_target(n.reward, n.discount, value)
        features = windows.encode(self.q.net.encoder, None)
        q = self.q.net(features, taken)
        out = critic_loss(q, target, valid, weight, td_clip=c.td_clip)
        metrics = {
            "train/loss": out.loss,
            "train/td_abs": masked_mean(out.td, valid),
            "train/q_taken": masked_mean(q.detach().mean(0), valid),
            "train/target": masked_mean(target, valid),
            "train/valid_fraction": valid.float().mean(),
            "train/temperature": temperature,
        }
        actor, multipliers = None, {}
        if self.nets.actor_due():
            sampled = self.sample_action(features_pi, 0)
            q_pi = self.q.net(features.detach(), sampled.action, frozen=True)
            actor = actor_loss(q_pi, sampled.log_prob, temperature, valid, weight)
            if c.temperature_auto:
                multipliers["temperature"] = temperature_loss(
                    self.temperature.log, sampled.log_prob, self.target_entropy, valid, weight
                )
            metrics["train/actor_loss"] = actor.detach()
            metrics["train/entropy"] = masked_mean(-sampled.log_prob.detach(), valid)
        priority = mixed_priority(out.td, valid, c.eta)
        return ActorCriticsLoss(out.loss, priority, metrics, q, out.q_grad, actor, multipliers)

    def sample_action(self, features: Tensor, which: int) -> SquashedSample:
        """Actions [L, B, A] sampled by the actor; ``which``: 0 or 1, the number of the noise."""
        mean, log_std = self.pi.net(features).chunk(2, -1)
        noise = self.nets.noise(2 * self.q.updates + which, *mean.shape)
        return squashed_gaussian(mean, log_std, noise)
