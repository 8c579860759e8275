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
    actor_loss,
    bootstrap_target,
    critic_loss,
    soft_value,
    squashed_gaussian,
    temperature_loss,
    uniform_log_density,
)
from rlrun.functional.offline import multiplier_loss, sampled_gap, sampled_gap_grad
from rlrun.functional.rows import masked_mean, weighted_row_mean
from rlrun.functional.value import mixed_priority
from rlrun.nets.encoder import prepare_windows
from rlrun.optim.actor_and_critics import ActorCriticsLoss
from rlrun.optim.lagrange import LagrangeMultiplier
from rlrun.policy.base.off_policy_control import OffPolicyControl
from rlrun.schema import CQLSACConfig
from rlrun.types import Sample, Segment, Update

MAX_CONSERVATISM = 1e6  # of the weight; Kumar et al. 2020, released code


class CQLSAC(OffPolicyControl[CQLSACConfig]):
    """A tanh(Normal) policy that learns from windows of rows."""

    outputs, critics, logged = 2, 2, ("train/entropy",)

    def set_up(self) -> None:
        c, size, wanted = self.config, self.bounds.size, self.config.target_entropy
        self.target_entropy = -float(size) if wanted is None else wanted  # Haarnoja et al. 2018b
        self.temperature, self.conservatism = (
            LagrangeMultiplier(start, eps=c.adam_eps, device=self.device)
            for start in (c.temperature, c.conservatism)
        )
        self.multipliers = {"temperature": self.temperature, "conservatism": self.conservatism}

    def actor(self, num_envs: int) -> SquashedGaussianActor:
        """Samples; uniform actions before the first update."""
        return SquashedGaussianActor(
            self.pi.net, self.config, self.bounds, self.generator, num_envs=num_envs
        )

    def update(self, sample: Sample) -> Update:
        """One step of critics, actor, temperature and penalty weight, from the same parameters."""
        update = self.autograd_update(sample)
        self.q.update_target(self.q.updates, 1)
        return update

    def _loss(self, segment: Segment, weight: Tensor) -> ActorCriticsLoss:
        """SAC's losses, the critics' + conservatism * sum_c mean(gap_c).

        gap_c = log int exp Q_c(s, a) da - Q_c(s, action). Source: Kumar et al. 2020, eq. 4.
        """
        c, (bs, learned) = self.config, (self.window.burnin, self.window.learned)
        windows, n, taken = prepare_windows(
            segment, self.bounds, self.window, c, memory=self.recurrent
        )
        valid = segment.valid[bs : bs + learned]
        state = segment.state if c.state_init == "stored" else None
        temperature = self.temperature.value()
        strength = self.conservatism.value().clamp(max=MAX_CONSERVATISM)
        outputs, next_outputs = (
            self.pi.net(x) for x in windows.encode_both(self.pi.net.encoder, state)
        )
        with torch.no_grad():
            next_sample, target_critics = self.sample_action(next_outputs, 1), self.q.target
            next_q = target_critics(
                windows.encode_next(target_critics.encoder, None), next_sample.action
            )
            bonus = temperature if c.entropy_in_target else torch.zeros_like(temperature)
            value = soft_value(next_q, next_sample.log_prob, bonus)
            target = bootstrap_target(n.reward, n.discount, value)
            alive = (n.discount > 0).unsqueeze(-1)
            bootstrap_outputs = torch.where(alive, next_outputs, outputs)
            sampled, log_density = self.gap_actions(outputs, bootstrap_outputs)
        features = windows.encode(self.q.net.encoder, None)
        actions = torch.cat([taken.unsqueeze(0), sampled])  # [1 + 3 samples, L, B, A]
        q = self.q.net(features.expand(len(actions), *features.shape), actions)
        out = critic_loss(q[:, 0], target, valid, weight, td_clip=c.td_clip)
        with torch.no_grad():
            share = torch.where(valid, weight, 0.0) * (strength / valid.numel())
            gap = sampled_gap(q[:, 1:], log_density, q[:, 0])
            sampled_grad = sampled_gap_grad(q[:, 1:], log_density, share)
            q_grad = torch.cat([(out.q_grad - share).unsqueeze(1), sampled_grad], 1)
            loss = out.loss + strength * weighted_row_mean(gap.sum(0), valid, weight)
        metrics = {
            "train/loss": loss,
            "train/td_abs": masked_mean(out.td, valid),
            "train/q_taken": masked_mean(q[:, 0].detach().mean(0), valid),
            "train/target": masked_mean(target, valid),
            "train/valid_fraction": valid.float().mean(),
            "train/temperature": temperature,
            "train/conservative_gap": masked_mean(gap.mean(0), valid),
            "train/conservatism": strength,
        }
        actor, multipliers = None, {}
        if c.gap_threshold is not None:
            log = self.conservatism.log
            multipliers["conservatism"] = multiplier_loss(log, gap, c.gap_threshold, valid, weight)
        if self.nets.actor_due():
            pi_sample = self.sample_action(outputs, 0)
            q_pi = self.q.net(features.detach(), pi_sample.action, frozen=True)
            actor = actor_loss(q_pi, pi_sample.log_prob, temperature, valid, weight)
            if c.temperature_auto:
                log = self.temperature.log
                multipliers["temperature"] = temperature_loss(
                    log, pi_sample.log_prob, self.target_entropy, valid, weight
                )
            metrics["train/actor_loss"] = actor.detach()
            metrics["train/entropy"] = masked_mean(-pi_sample.log_prob.detach(), valid)
        priority = mixed_priority(out.td, valid, c.eta)
        return ActorCriticsLoss(loss, priority, metrics, q, q_grad, actor, multipliers)

    def sample_action(self, outputs: Tensor, which: int, *lead: int) -> SquashedSample:
        """Actions [*lead, L, B, A] sampled from the policy's ``outputs`` [L, B, 2 A].

        ``which``: the number of the noise, 0 to 3.
        """
        mean, log_std = outputs.chunk(2, -1)
        noise = self.nets.noise(5 * self.q.updates + which, *lead, *mean.shape)
        return squashed_gaussian(mean, log_std, noise)

    def gap_actions(self, outputs: Tensor, bootstrap_outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Actions [3 N, L, B, A] that estimate the gap, and their log densities.

        N uniform ones, N of the policy at the learned rows, N of the policy at the rows that
        targets bootstrap from (at the learned rows where the row terminated).
        """
        count, (*rows, size) = self.config.samples, outputs.shape
        uniform = self.nets.noise.uniform(5 * self.q.updates + 4, count, *rows, size // 2)
        current = self.sample_action(outputs, 2, count)
        bootstrap = self.sample_action(bootstrap_outputs, 3, count)
        log_density = [uniform_log_density(uniform), current.log_prob, bootstrap.log_prob]
        return torch.cat([uniform, current.action, bootstrap.action]), torch.cat(log_density)
