"""TD3: a deterministic actor with delayed updates, twin critics, smoothed target actions.

Fujimoto et al. 2018, "Addressing Function Approximation Error in Actor-Critic Methods", ICML. With
a memory (policy=rtd3) actor and critics each unroll their own over the window: the actor's starts
from the stored state, the critics' from zero, and burn-in warms both up.
"""

import torch
from torch import Tensor

from rlrun.acting.box import GaussianNoiseActor
from rlrun.functional.continuous import (
    bootstrap_target,
    critic_loss,
    smoothed_action,
)
from rlrun.functional.rows import masked_mean, weighted_row_mean
from rlrun.functional.value import mixed_priority
from rlrun.kernels.sac_td3 import TD3Kernel, supports
from rlrun.nets.encoder import prepare_windows
from rlrun.optim.actor_and_critics import ActorCriticsLoss
from rlrun.policy.base.off_policy_control import OffPolicyControl
from rlrun.schedule import make_schedule
from rlrun.schema import TD3Config
from rlrun.types import Sample, Segment, Update


class TD3(OffPolicyControl[TD3Config]):
    """A deterministic actor with Gaussian noise that learns from windows of rows."""

    outputs, critics = 1, 2

    def set_up(self) -> None:
        self.noise_at = make_schedule(self.config.noise, total_steps=self.total_steps)
        self.pi.net.noise.fill_(self.noise_at(0))
        own = type(self) is TD3  # a subclass's loss is not what the kernel computes
        kernel = own and supports(self.nets, self.compute, self.memory)
        self.kernel = TD3Kernel(self.nets, self.compute) if kernel else None

    def actor(self, num_envs: int) -> GaussianNoiseActor:
        """Deterministic actions with noise; uniform ones before the first update."""
        return GaussianNoiseActor(
            self.pi.net, self.config, self.bounds, self.generator, num_envs=num_envs
        )

    def update(self, sample: Sample) -> Update:
        """One step of the critics; every ``actor_every`` also of the actor and all targets."""
        due = self.nets.actor_due()
        update = self.autograd_update(sample) if self.kernel is None else self.kernel(sample)
        if due:
            for nets in (self.q, self.pi):
                nets.update_target(self.q.updates, self.config.actor_every)
        noise = self.pi.net.noise.fill_(self.noise_at(sample.env_steps))
        return Update(update.priority, update.metrics | {"train/noise": noise.clone()})

    def _loss(self, segment: Segment, weight: Tensor) -> ActorCriticsLoss:
        c, (bs, learned) = self.config, (self.window.burnin, self.window.learned)
        windows, n, taken = prepare_windows(
            segment, self.bounds, self.window, c, memory=self.recurrent
        )
        valid = segment.valid[bs : bs + learned]
        state = segment.state if c.state_init == "stored" else None
        with torch.no_grad():
            target_critics, target_actor = self.q.target, self.pi.target
            action = target_actor(windows.encode_next(target_actor.encoder, state)).tanh()
            noise = self.nets.noise(self.q.updates, *action.shape)
            action = smoothed_action(action, noise, sigma=c.smoothing, clip=c.smoothing_clip)
            value = target_critics(windows.encode_next(target_critics.encoder, None), action).amin(
                0
            )
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
        }
        actor = None
        if self.nets.actor_due():
            pi_action = self.pi.net(windows.encode(self.pi.net.encoder, state)).tanh()
            first_q = self.q.net(features.detach(), pi_action, 1, frozen=True)[0]
            actor = weighted_row_mean(-first_q, valid, weight)
            metrics["train/actor_loss"] = actor.detach()
        priority = mixed_priority(out.td, valid, c.eta)
        return ActorCriticsLoss(out.loss, priority, metrics, q, out.q_grad, actor, {})
