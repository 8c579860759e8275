"""PQN: Q(lambda) on new rollouts, without replay or target network.

Source: Gallici et al., "Simplifying Deep Temporal Difference Learning", ICLR 2025 (arXiv
2407.04811, 2024). Layer normalisation in the torso (``torso.layer_norm``) replaces the target
network. With a memory, minibatches are rollout segments that begin with their stored state, without
burn-in.
"""

import torch
from torch import Tensor

from rlrun.functional.masks import allowed_or_none
from rlrun.functional.returns import Advantage, lambda_return
from rlrun.functional.rows import masked_mean
from rlrun.functional.value import greedy, huber, take_action, td_metrics
from rlrun.nets.actor_critic import unroll_episodes
from rlrun.nets.memory.gated import NoMemory
from rlrun.nets.qnet import QNet, make_qnet
from rlrun.policy.base import LossMetrics
from rlrun.policy.dqn import ValueActor
from rlrun.policy.optim import RAdam
from rlrun.policy.rollout import (
    Minibatch,
    MinibatchLearner,
    RolloutRows,
    rollout_rows,
    split_rollout,
)
from rlrun.schema import MemoryConfig, PQNConfig, TorsoConfig
from rlrun.types import Sample


class PQN(MinibatchLearner[PQNConfig]):
    """Acts epsilon-greedily on Q and learns from each rollout in several epochs."""

    config_class = PQNConfig  # subclasses inherit its keys
    actor_class = ValueActor
    net: QNet

    def build(self, torso: TorsoConfig, memory: MemoryConfig) -> None:
        super().build(torso, memory)
        self.net = make_qnet(self.config, torso, memory, self.spec).to(self.device)
        self.add("net", self.net, optimiser=RAdam).flatten()  # RAdam: as the paper's code
        self.recurrent = not isinstance(self.net.memory, NoMemory)

    def loss(self, batch: Minibatch, q: Tensor) -> LossMetrics:
        """Return the mean of (G - Q(s, a))^2 / 2; ``q`` [S, M, A]: M segments of S rows. (eq. 9)"""
        valid = batch.valid
        q_selected = take_action(q, batch.action)
        delta = torch.where(valid, batch.target - q_selected, 0.0)  # padding has no gradient
        loss = masked_mean(huber(delta, None), valid)
        return loss, td_metrics(loss, delta.detach().abs(), q_selected, batch.target, valid)

    def minibatch_loss(
        self, batch: Minibatch, env_steps: int, *, with_metrics: bool
    ) -> LossMetrics:
        return self.loss(batch, self.values(batch))

    def with_targets(self, rows: RolloutRows, values: Tensor) -> Minibatch:
        """Return the rows of a rollout, or with a memory its segments, with targets.

        G_t = r_t + gamma ((1 - lambda) max_a Q(s_{t+1}, a) + lambda G_{t+1}); ``values`` [T+1, B,
        A].
        """
        c, value = self.config, take_action(values, greedy(values, allowed_or_none(rows.obs)))
        target = lambda_return(rows.reward, value, *rows.ends, gamma=c.gamma, trace=c.q_lambda)
        returns = Advantage(target, target)  # targets alone are read
        return split_rollout(rows, returns, value[:-1], c.segment_len if self.recurrent else None)

    def prepare(self, sample: Sample) -> RolloutRows:
        reward = self.shaped_reward(sample)
        return rollout_rows(sample.segment, reward, self.net, self.config, self.device)

    def values(self, rows: RolloutRows | Minibatch) -> Tensor:
        """Return Q [T, M, A] of every row, in float32."""
        with self.autocast():
            inputs = self.net.inputs(rows.obs, rows.previous)
            h = unroll_episodes(self.net.memory, inputs, rows.first, rows.state)
            return self.net.outputs(h).float()
