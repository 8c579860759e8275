"""PPO with the clipped surrogate, feed-forward or recurrent.

Schulman et al., "Proximal Policy Optimization Algorithms", 2017; details as in Huang et al., "The
37 Implementation Details of Proximal Policy Optimization", 2022. With a memory, minibatches are
rollout segments that begin with their stored state. The acting weights made that state, so there is
no burn-in.
"""

from dataclasses import replace

import torch
from torch import Tensor

from rlrun.functional.policy import explained_variance, mean_terms, standardise
from rlrun.functional.returns import gae
from rlrun.functional.rows import masked_mean
from rlrun.functional.schedule import make_schedule
from rlrun.policy.actor_critic import ActorCriticLearner
from rlrun.policy.base import LossMetrics
from rlrun.policy.rollout import Minibatch, MinibatchLearner, RolloutRows, split_rollout
from rlrun.schema import MemoryConfig, PPOConfig, TorsoConfig


class PPO(ActorCriticLearner[PPOConfig], MinibatchLearner[PPOConfig]):
    """Samples actions from the policy and learns from each rollout in several epochs."""

    config_class = PPOConfig  # subclasses inherit its keys

    def build(self, torso: TorsoConfig, memory: MemoryConfig) -> None:
        super().build(torso, memory)
        self.clip_at = make_schedule(self.config.clip_range, total_steps=self.total_steps)
        self.target_kl = self.config.target_kl

    def loss(
        self, batch: Minibatch, params: Tensor, value: Tensor, clip: float, *, with_metrics: bool
    ) -> LossMetrics:
        """Return clipped surrogate, squared error of V and entropy bonus: -L^{CLIP+VF+S}, eq. 9.

        ``params`` [S, M, K], ``value`` [S, M]: outputs for M segments of S rows; c1 is value_coef /
        2. Metrics are computed only ``with_metrics``.
        """
        c, valid, advantage = self.config, batch.valid, batch.advantage
        log_prob, entropy = self.net.evaluate_actions(params, batch.action)
        # Padded rows (their inputs are zeros) get no gradient.
        log_prob, value = (torch.where(valid, x, 0.0) for x in (log_prob, value))

        log_ratio = log_prob - batch.behaviour_log_prob
        ratio = log_ratio.exp()
        clipped_ratio = ratio.clamp(1 - clip, 1 + clip)
        policy_loss = torch.maximum(-advantage * ratio, -advantage * clipped_ratio)  # eq. 7

        value_loss = 0.5 * (value - batch.target).square()
        if c.value_clip is not None:  # OpenAI Baselines' PPO2
            clipped_value = batch.value + (value - batch.value).clamp(-c.value_clip, c.value_clip)
            value_loss = torch.maximum(value_loss, 0.5 * (clipped_value - batch.target).square())

        per_row = policy_loss + c.value_coef * value_loss - c.entropy_coef * entropy
        loss = masked_mean(per_row, valid)
        if not with_metrics:
            return loss, {}
        terms = {
            "train/policy_loss": policy_loss,
            "train/value_loss": value_loss,
            "train/entropy": entropy,
            "train/approx_kl": ratio - 1 - log_ratio,  # Schulman 2020, "Approximating KL"
            "train/clip_fraction": (ratio != clipped_ratio).float(),
        }
        return loss, {"train/loss": loss.detach()} | mean_terms(terms, valid)

    def minibatch_loss(
        self, batch: Minibatch, env_steps: int, *, with_metrics: bool
    ) -> LossMetrics:
        outputs = self.outputs(batch)
        return self.loss(batch, *outputs, self.clip_at(env_steps), with_metrics=with_metrics)

    # -- minibatches -----------------------------------------------------------------------------

    def values(self, rows: RolloutRows) -> Tensor:
        return self.outputs(rows)[1]

    def with_targets(self, rows: RolloutRows, values: Tensor) -> Minibatch:
        """Return the rows of a rollout, or with a memory its segments, with advantages."""
        c = self.config
        advantages = gae(rows.reward, values, *rows.ends, gamma=c.gamma, trace=c.gae_lambda)
        length = c.segment_len if self.net.recurrent else None
        return split_rollout(rows, advantages, values[:-1], length)

    def shuffle(self, rollout: Minibatch, parts: int) -> list[Minibatch]:
        """Return random minibatches with standardised advantages. A single one is not shuffled."""
        batches = super().shuffle(rollout, parts)
        if not self.config.normalize_advantage:
            return batches
        return [replace(b, advantage=standardise(b.advantage, b.valid)) for b in batches]

    def rollout_metrics(self, rollout: Minibatch) -> dict[str, Tensor]:
        explained = explained_variance(rollout.value, rollout.target, rollout.valid)
        return {"train/explained_variance": explained}
