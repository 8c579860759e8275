"""PPO with the clipped surrogate, feed-forward or recurrent.

Schulman et al., "Proximal Policy Optimization Algorithms", 2017; details as in Huang et al., "The
37 Implementation Details of Proximal Policy Optimization", 2022. With a memory, minibatches are
whole segments that begin with their stored state, which is exact: no burn-in.
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
from rlrun.policy.base.minibatch import Bare, Batch, Minibatch, bare, deal
from rlrun.policy.base.on_policy import RolloutPolicy
from rlrun.policy.base.rollout import Loss, Rows, join, opening, told
from rlrun.schedule import make_schedule
from rlrun.schema import PPOConfig
from rlrun.types import Sample, Update, generator


class PPO(RolloutPolicy[PPOConfig]):
    """Draws actions from its distribution and learns from each rollout in several epochs."""

    def begin(self) -> None:
        written = self.descender.backprop
        self.plain = written if isinstance(written, NumpyActorCritic) else None
        self.clip_at = make_schedule(self.config.clip, total_steps=self.total_steps)
        self.dealer = generator(self.seed, "minibatch")

    def update(self, sample: Sample) -> Update:
        """``epochs`` passes over a rollout in minibatches of about ``batch_size`` rows.

        Advantages and value targets are those of the network that begins the update; metrics are
        those of the last minibatch.
        """
        c, clock, steps = self.config, sample.env_steps, 0
        rows = self.descender.read(sample.segment)
        whole = self.prepared(rows)
        parts, clip = max(1, round(len(rows.places) / c.batch_size)), self.clip_at(clock)
        explained = explained_variance(whole.value, whole.target, whole.valid_rows())
        dealt: Minibatch = bare(whole, self.plain) if self.plain is not None else whole
        if parts == 1:
            dealt = self.standardised(dealt)
        for epoch in range(c.epochs):
            batches = self.shuffled(dealt, parts)
            for batch in batches[:-1]:
                self.minibatch(batch, clip, clock, tell=False)
            tell = c.target_kl is not None or epoch == c.epochs - 1
            metrics = self.minibatch(batches[-1], clip, clock, tell=tell)
            steps += len(batches)
            if c.target_kl is not None and metrics["train/approx_kl"] > c.target_kl:
                break
        self.descender.absorb(rows)
        return Update(None, metrics | {"train/explained_variance": explained}, steps=steps)

    @torch.no_grad()
    def prepared(self, rows: Rows) -> Batch:
        """The rollout's rows, or its segments where there is a memory, with their advantages."""
        c = self.config
        began = opening(rows.states)
        value = self.descender.outputs(rows.obs, rows.side, rows.first, began)[1]
        found = gae(rows.reward, value, *rows.ends, gamma=c.gamma, trace=c.gae_lambda)
        return deal(rows, found, value[:-1], c.segment_len if self.net.recurrent else None)

    def shuffled(self, whole: Minibatch, parts: int) -> list[Minibatch]:
        """``whole`` in random minibatches; a single one needs no shuffling."""
        if parts == 1:
            return [whole]
        order = self.dealer.permutation(whole.size())
        return [self.standardised(batch) for batch in whole.part(order).slices(parts)]

    def standardised(self, batch: Minibatch) -> Minibatch:
        """The batch with advantages as they are descended on."""
        return batch.standardised() if self.config.normalize_advantage else batch

    def minibatch(
        self, batch: Minibatch, clip: float, clock: int, *, tell: bool
    ) -> dict[str, Tensor]:
        """One gradient step; its metrics where somebody is told."""
        if isinstance(batch, Bare):
            return self.bare_minibatch(batch, clip, clock, tell=tell)
        out = self.loss(batch, clip)
        metrics = self.metrics(out.choice, out.value, batch, clip) if tell else {}
        return metrics | self.descender.step(out, clock)

    def loss(self, batch: Batch, clip: float) -> Loss:
        """Clipped surrogate, (clipped) value error and the entropy bonus of a minibatch."""
        c, net, real = self.config, self.descender, batch.valid_rows()
        head, value = net.outputs(batch.obs, batch.side, batch.first, batch.state)
        choice = net.evaluate_actions(head, batch.action)
        given = (choice.log_prob, batch.behaviour, batch.advantage, real)
        baseline = value_loss(value, batch.target, real, old=batch.value, clip=c.value_clip)
        return join(c, choice, ppo_grad(*given, clip=clip), value, baseline.grad, real)

    def bare_minibatch(
        self, batch: Bare, clip: float, clock: int, *, tell: bool
    ) -> dict[str, Tensor]:
        """``minibatch`` with a plain network, in numpy: no operation of torch but Adam's."""
        c, net = self.config, self.plain
        assert net is not None
        head, value = net.forward(batch.x, batch.side)
        drawn = net.evaluate(head, batch.action, entropy=tell or c.entropy_coef > 0)
        policy = policy_losses.ppo_grad(drawn.log_prob, batch.behaviour, batch.advantage, clip=clip)
        error = policy_losses.value_grad(value, batch.target, batch.value, clip=c.value_clip)
        lr, baseline = self.descender.lr_at(clock), np.float32(c.value_coef) * error
        worth = policy_losses.entropy_grad(len(value), c.entropy_coef)
        norm = self.descender.bare_step(drawn, policy, baseline, worth, lr)
        if not tell:
            return {}
        log_prob, entropy = (torch.from_numpy(x).unsqueeze(0) for x in drawn.said())
        choice, now = LogProbEntropy(log_prob, entropy), torch.from_numpy(value).unsqueeze(0)
        metrics = self.metrics(choice, now, batch.batch(), clip)
        return metrics | {"train/grad_norm": torch.tensor(norm), "train/lr": torch.tensor(lr)}

    def metrics(
        self, choice: LogProbEntropy, value: Tensor, batch: Batch, clip: float
    ) -> dict[str, Tensor]:
        """Of the loss on a minibatch."""
        c, real = self.config, batch.valid_rows()
        given = (choice.log_prob, batch.behaviour, batch.advantage, real)
        policy = ppo_loss(*given, clip=clip)
        baseline = value_loss(value, batch.target, real, old=batch.value, clip=c.value_clip)
        more = {"train/approx_kl": policy.kl, "train/clip_fraction": policy.clipped}
        return told(c, policy.loss, baseline.loss, choice, real) | more

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"dealer": self.dealer.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.dealer.bit_generator.state = state["dealer"]
