"""PQN: Q(lambda) on fresh rollouts, without replay and without a target network.

Gallici et al., "Simplifying Deep Temporal Difference Learning", ICLR 2025 (arXiv 2407.04811, 2024).
Layer normalisation in the torso (``torso.layer_norm``) takes the place of the target network. With
a memory, minibatches are rollout segments that begin with their stored state: no burn-in.
"""

from typing import Any

import torch
from torch import Tensor

from rlrun.acting.values import ValueActor
from rlrun.functional.masks import allowed_actions, has_mask
from rlrun.functional.returns import Advantage, lambda_return
from rlrun.functional.rows import masked_mean, network_inputs, shape_reward
from rlrun.functional.value import greedy, huber, take_action, td_metrics
from rlrun.nets.actor_critic import unroll_episodes
from rlrun.nets.memory.lstm_gru import NoMemory
from rlrun.nets.qnet import QNet, make_qnet
from rlrun.optim.radam import RAdam
from rlrun.policy.base.on_policy import RolloutPolicy
from rlrun.policy.base.rollout import Minibatch, RolloutRows, rollout_rows, split_rollout
from rlrun.schema import MemoryConfig, PQNConfig, TorsoConfig
from rlrun.types import Sample, Segment, Spec, Tree, Update, generator


class PQN(RolloutPolicy[PQNConfig, QNet]):
    """Acts epsilon-greedily on Q and learns from each rollout in several epochs."""

    config_class = PQNConfig  # a subclass inherits its keys
    optimiser = RAdam  # that of the paper's code

    def make_net(self, torso: TorsoConfig, memory: MemoryConfig, spec: Spec, seed: int) -> QNet:
        return make_qnet(self.config, torso, memory, spec, seed=seed)

    def set_up(self) -> None:
        self.masked = has_mask(self.spec.obs)
        self.recurrent = not isinstance(self.net.memory, NoMemory)
        self.shuffle_generator = generator(self.seed, "minibatch")

    def actor(self, num_envs: int) -> ValueActor:
        """Epsilon-greedy on Q."""
        return ValueActor(self.net, self.config, self.generator, num_envs=num_envs)

    def torch_update(self, sample: Sample) -> Update:
        """``epochs`` passes over a rollout in minibatches of about ``batch_size`` rows.

        Targets are those of the network before the update, metrics those of the last minibatch.
        """
        rows, gradient_steps = self.prepare(sample.segment), 0
        with torch.no_grad():
            rollout = self.with_targets(rows, self.q_values(rows))
        for _ in range(self.config.epochs):
            minibatches = rollout.shuffle(self.num_minibatches(rows), self.shuffle_generator)
            for batch in minibatches:
                loss, metrics = self.loss(batch, self.q_values(batch))
                metrics |= self.step(loss, sample.env_steps)
            gradient_steps += len(minibatches)
        return Update(None, metrics, steps=gradient_steps)

    def loss(self, batch: Minibatch, q: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Mean of (G - Q(s, a))^2 / 2; ``q`` [S, M, A]: of M segments of S rows. Source: eq. 9."""
        valid = batch.valid
        q_selected = take_action(q, batch.action)
        delta = torch.where(valid, batch.target - q_selected, 0.0)  # padding has no gradient
        loss = masked_mean(huber(delta, None), valid)
        return loss, td_metrics(loss, delta.detach().abs(), q_selected, batch.target, valid)

    def with_targets(self, rows: RolloutRows, q: Tensor) -> Minibatch:
        """Rows, or with a memory segments, of a rollout with their targets; ``q`` [T+1, B, A].

        G_t = r_t + gamma ((1 - lambda) max_a Q(s_{t+1}, a) + lambda G_{t+1}).
        """
        c, mask = self.config, allowed_actions(rows.obs) if self.masked else None
        value = take_action(q, greedy(q, mask))
        target = lambda_return(rows.reward, value, *rows.ends, gamma=c.gamma, trace=c.q_lambda)
        returns = Advantage(target - value[:-1], target)
        return split_rollout(rows, returns, value[:-1], c.segment_len if self.recurrent else None)

    def num_minibatches(self, rows: RolloutRows) -> int:
        """The number of minibatches of a pass over a rollout."""
        return max(1, round(len(rows.index) / self.config.batch_size))

    # -- network ---------------------------------------------------------------------------------

    def prepare(self, segment: Segment) -> RolloutRows:
        """The rows of a rollout on the host; rewards scaled and clipped."""
        reward = shape_reward(segment.reward, self.config.reward_scale, self.config.reward_clip)
        reward = torch.where(segment.valid, reward, torch.zeros_like(reward))
        return rollout_rows(segment, reward, self.inputs, self.device)

    def inputs(self, segment: Segment) -> tuple[Tree, Tensor]:
        """(obs, encoded previous action and reward) of every position; padding is zero."""
        c = self.config
        obs, *previous = network_inputs(segment, scale=c.reward_scale, clip=c.reward_clip)
        return obs, self.net.encode_previous(*previous)

    def q_values(self, rows: RolloutRows | Minibatch) -> Tensor:
        """Q [T, M, A] of every row, in float32."""
        bf16 = self.compute.precision != "float32"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=bf16):
            inputs = self.net.inputs(rows.obs, rows.previous)
            h = unroll_episodes(self.net.memory, inputs, rows.first, rows.state)
            return self.net.q(h).float()

    # -- saving ----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {
            "shuffle_generator": self.shuffle_generator.bit_generator.state
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.shuffle_generator.bit_generator.state = state["shuffle_generator"]
