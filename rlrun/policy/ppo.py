"""PPO with the clipped surrogate, feed-forward or recurrent.

Schulman et al., "Proximal Policy Optimization Algorithms", 2017; details as in Huang et al., "The
37 Implementation Details of Proximal Policy Optimization", 2022. With a memory, minibatches are
rollout segments that begin with their stored state, which is exact: no burn-in.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlrun.functional.policy import (
    LogProbEntropy,
    explained_variance,
    ppo_grad,
    ppo_loss,
    value_loss,
)
from rlrun.functional.returns import gae
from rlrun.kernels import policy_losses
from rlrun.kernels.actor_critic import NumpyActorCritic
from rlrun.policy.base.minibatch import Batch, Minibatch, NumpyBatch, split_rollout, to_numpy_batch
from rlrun.policy.base.on_policy import OnPolicy
from rlrun.policy.base.rollout import (
    ActorCriticLoss,
    RolloutRows,
    first_states,
    loss_metrics,
    make_loss,
)
from rlrun.schedule import make_schedule
from rlrun.schema import PPOConfig
from rlrun.types import Sample, Update, generator


class PPO(OnPolicy[PPOConfig]):
    """Samples actions from the policy and learns from each rollout in several epochs."""

    def set_up(self) -> None:
        backprop = self.learner.backprop
        self.numpy_net = backprop if isinstance(backprop, NumpyActorCritic) else None
        self.clip_at = make_schedule(self.config.clip, total_steps=self.total_steps)
        self.shuffle_generator = generator(self.seed, "minibatch")

    def update(self, sample: Sample) -> Update:
        """``epochs`` passes over a rollout in minibatches of about ``batch_size`` rows.

        Advantages and value targets are those of the network before the update, metrics those of
        the last minibatch.
        """
        c, env_steps, steps = self.config, sample.env_steps, 0
        rows = self.learner.prepare(sample.segment)
        whole = self.with_advantages(rows)
        parts, clip = max(1, round(len(rows.index) / c.batch_size)), self.clip_at(env_steps)
        explained = explained_variance(whole.value, whole.target, whole.valid_rows())
        rollout: Minibatch = whole
        if self.numpy_net is not None:
            rollout = to_numpy_batch(whole, self.numpy_net)
        if parts == 1:
            rollout = self.standardise(rollout)
        for epoch in range(c.epochs):
            batches = self.shuffle(rollout, parts)
            for batch in batches[:-1]:
                self.minibatch(batch, clip, env_steps, with_metrics=False)
            with_metrics = c.target_kl is not None or epoch == c.epochs - 1
            metrics = self.minibatch(batches[-1], clip, env_steps, with_metrics=with_metrics)
            steps += len(batches)
            if c.target_kl is not None and metrics["train/approx_kl"] > c.target_kl:
                break
        self.learner.update_obs_moments(rows)
        return Update(None, metrics | {"train/explained_variance": explained}, steps=steps)

    @torch.no_grad()
    def with_advantages(self, rows: RolloutRows) -> Batch:
        """Rows, or with a memory segments, of a rollout with their advantages."""
        c = self.config
        state = first_states(rows.states)
        value = self.learner.outputs(rows.obs, rows.previous, rows.first, state)[1]
        advantages = gae(rows.reward, value, *rows.ends, gamma=c.gamma, trace=c.gae_lambda)
        return split_rollout(
            rows, advantages, value[:-1], c.segment_len if self.net.recurrent else None
        )

    def shuffle(self, rollout: Minibatch, parts: int) -> list[Minibatch]:
        """Random minibatches of ``rollout``; a single one is not shuffled."""
        if parts == 1:
            return [rollout]
        order = self.shuffle_generator.permutation(rollout.size())
        return [self.standardise(batch) for batch in rollout.take(order).split(parts)]

    def standardise(self, batch: Minibatch) -> Minibatch:
        """The batch, with standardised advantages where ``policy.normalize_advantage`` is set."""
        return batch.standardised() if self.config.normalize_advantage else batch

    def minibatch(
        self, batch: Minibatch, clip: float, env_steps: int, *, with_metrics: bool
    ) -> dict[str, Tensor]:
        """One gradient step; the metrics of its loss only ``with_metrics``."""
        if isinstance(batch, NumpyBatch):
            return self.numpy_minibatch(batch, clip, env_steps, with_metrics=with_metrics)
        out = self.loss(batch, clip)
        metrics = self.metrics(out.choice, out.value, batch, clip) if with_metrics else {}
        return metrics | self.learner.step(out, env_steps)

    def loss(self, batch: Batch, clip: float) -> ActorCriticLoss:
        """Clipped surrogate, (clipped) value error and the entropy bonus of a minibatch."""
        c, net, valid = self.config, self.learner, batch.valid_rows()
        head, value = net.outputs(batch.obs, batch.previous, batch.first, batch.state)
        choice = net.evaluate_actions(head, batch.action)
        given = (choice.log_prob, batch.behaviour_log_prob, batch.advantage, valid)
        value_term = value_loss(value, batch.target, valid, old=batch.value, clip=c.value_clip)
        return make_loss(c, choice, ppo_grad(*given, clip=clip), value, value_term.grad, valid)

    def numpy_minibatch(
        self, batch: NumpyBatch, clip: float, env_steps: int, *, with_metrics: bool
    ) -> dict[str, Tensor]:
        """``minibatch`` of a network of linear layers, in numpy except for Adam."""
        c, net = self.config, self.numpy_net
        assert net is not None
        head, value = net.forward(batch.x, batch.previous)
        evaluated = net.evaluate(head, batch.action, entropy=with_metrics or c.entropy_coef > 0)
        policy = policy_losses.ppo_grad(
            evaluated.log_prob, batch.behaviour_log_prob, batch.advantage, clip=clip
        )
        error = policy_losses.value_grad(value, batch.target, batch.value, clip=c.value_clip)
        lr, value_term = self.learner.lr_at(env_steps), np.float32(c.value_coef) * error
        entropy_term = policy_losses.entropy_grad(len(value), c.entropy_coef)
        norm = self.learner.numpy_step(evaluated, policy, value_term, entropy_term, lr)
        if not with_metrics:
            return {}
        log_prob, entropy = (torch.from_numpy(x).unsqueeze(0) for x in evaluated.terms())
        choice, current = LogProbEntropy(log_prob, entropy), torch.from_numpy(value).unsqueeze(0)
        metrics = self.metrics(choice, current, batch.batch(), clip)
        return metrics | {"train/grad_norm": torch.tensor(norm), "train/lr": torch.tensor(lr)}

    def metrics(
        self, choice: LogProbEntropy, value: Tensor, batch: Batch, clip: float
    ) -> dict[str, Tensor]:
        """Metrics of the loss of a minibatch."""
        c, valid = self.config, batch.valid_rows()
        given = (choice.log_prob, batch.behaviour_log_prob, batch.advantage, valid)
        policy = ppo_loss(*given, clip=clip)
        value_term = value_loss(value, batch.target, valid, old=batch.value, clip=c.value_clip)
        more = {"train/approx_kl": policy.kl, "train/clip_fraction": policy.clipped}
        return loss_metrics(c, policy.loss, value_term.loss, choice, valid) | more

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"dealer": self.shuffle_generator.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.shuffle_generator.bit_generator.state = state["dealer"]
