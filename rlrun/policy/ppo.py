"""PPO with the clipped surrogate, feed-forward or recurrent.

Schulman et al., "Proximal Policy Optimization Algorithms", 2017; details as in Huang et al., "The
37 Implementation Details of Proximal Policy Optimization", 2022. With a memory, minibatches are
rollout segments that begin with their stored state, that of the weights that acted: no burn-in.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rlrun.functional.policy import explained_variance, mean_terms, standardise
from rlrun.functional.returns import gae
from rlrun.functional.rows import masked_mean
from rlrun.policy.base.on_policy import OnPolicy
from rlrun.policy.base.rollout import Minibatch, RolloutRows, split_rollout
from rlrun.schedule import make_schedule
from rlrun.schema import PPOConfig
from rlrun.types import Sample, Update, generator


class PPO(OnPolicy[PPOConfig]):
    """Samples actions from the policy and learns from each rollout in several epochs."""

    config_class = PPOConfig  # a subclass inherits its keys

    def set_up(self) -> None:
        super().set_up()
        self.clip_at = make_schedule(self.config.clip, total_steps=self.total_steps)
        self.shuffle_generator = generator(self.seed, "minibatch")

    def torch_update(self, sample: Sample) -> Update:
        """``epochs`` passes over a rollout in minibatches of about ``batch_size`` rows.

        Advantages and value targets are those of the network before the update, metrics those of
        the last minibatch.
        """
        c, clip, gradient_steps = self.config, self.clip_at(sample.env_steps), 0
        rows = self.prepare(sample.segment)
        with torch.no_grad():
            rollout = self.with_advantages(rows, self.outputs(rows)[1])
        explained = explained_variance(rollout.value, rollout.target, rollout.valid)
        for _ in range(c.epochs):
            minibatches = self.shuffle(rollout, self.num_minibatches(rows))
            for batch in minibatches:
                params, value = self.outputs(batch)
                last = batch is minibatches[-1]
                loss, metrics = self.loss(batch, params, value, clip, with_metrics=last)
                metrics |= self.step(loss, sample.env_steps)
            gradient_steps += len(minibatches)
            if c.target_kl is not None and metrics["train/approx_kl"] > c.target_kl:
                break
        self.update_obs_moments(rows)
        return Update(None, metrics | {"train/explained_variance": explained}, steps=gradient_steps)

    def loss(
        self, batch: Minibatch, params: Tensor, value: Tensor, clip: float, *, with_metrics: bool
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Clipped surrogate, squared error of V and entropy bonus: -L^{CLIP+VF+S}, eq. 9.

        ``params`` [S, M, K], ``value`` [S, M]: outputs for M segments of S rows; c1 is value_coef
        / 2. Metrics only where asked for.
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

    # -- minibatches -----------------------------------------------------------------------------

    def with_advantages(self, rows: RolloutRows, value: Tensor) -> Minibatch:
        """Rows, or with a memory segments, of a rollout with their advantages.

        ``value`` [T+1, B]: of every row.
        """
        c = self.config
        advantages = gae(rows.reward, value, *rows.ends, gamma=c.gamma, trace=c.gae_lambda)
        length = c.segment_len if self.net.recurrent else None
        return split_rollout(rows, advantages, value[:-1], length)

    def num_minibatches(self, rows: RolloutRows) -> int:
        """The number of minibatches of a pass over a rollout."""
        return max(1, round(len(rows.index) / self.config.batch_size))

    def shuffle(self, rollout: Minibatch, parts: int) -> list[Minibatch]:
        """Random minibatches, each with standardised advantages; a single one is not shuffled."""
        batches = rollout.shuffle(parts, self.shuffle_generator)
        if not self.config.normalize_advantage:
            return batches
        return [replace(b, advantage=standardise(b.advantage, b.valid)) for b in batches]

    # -- saving ----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {
            "shuffle_generator": self.shuffle_generator.bit_generator.state
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.shuffle_generator.bit_generator.state = state["shuffle_generator"]
