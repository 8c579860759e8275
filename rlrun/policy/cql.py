"""CQL on DQN: double Q-learning from a dataset, with a penalty on the values of actions outside it.

Kumar et al., "Conservative Q-Learning for Offline Reinforcement Learning", NeurIPS 2020.
"""

import torch
from torch import Tensor

from rlrun.acting.values import ValueActor
from rlrun.functional.masks import allowed_actions, has_mask
from rlrun.functional.offline import conservative_gap
from rlrun.functional.rows import (
    masked_mean,
    network_inputs,
    readable,
    shape_reward,
    weighted_row_mean,
)
from rlrun.functional.transition import transition
from rlrun.functional.value import ScalarCriterion, greedy, take_action, td_metrics
from rlrun.nets.qnet import QNet, make_qnet
from rlrun.policy.base.network_health import UnitActivity
from rlrun.policy.base.value_based import ValueBasedPolicy
from rlrun.schema import CQLConfig, MemoryConfig, TorsoConfig
from rlrun.types import Loss, Segment, Spec, Tree


class CQL(ValueBasedPolicy[CQLConfig, QNet]):
    """Acts greedily on Q; learns from single rows."""

    config_class = CQLConfig  # a subclass inherits its keys

    def make_net(self, torso: TorsoConfig, memory: MemoryConfig, spec: Spec, seed: int) -> QNet:
        return make_qnet(self.config, torso, memory, spec, seed=seed)

    def set_up(self, spec: Spec, seed: int) -> None:
        self.criterion, self.masked = ScalarCriterion(self.config), has_mask(spec.obs)

    def actor(self, num_envs: int) -> ValueActor:
        """Epsilon-greedy on Q."""
        return ValueActor(self.net, self.config, self.generator, num_envs=num_envs)

    def loss(self, segment: Segment, weight: Tensor) -> Loss:
        """Double DQN's loss + conservatism * mean_b w_b (log sum_a exp Q(s, a) - Q(s, action)).

        Source: Kumar et al. 2020, eq. 4, on the targets of van Hasselt et al. 2016.
        """
        c = self.config
        reward = shape_reward(segment.reward, c.reward_scale, c.reward_clip)
        inputs = (c.reward_scale, c.reward_clip) if c.prev_inputs else None
        t = transition(segment, reward, nstep=c.nstep, gamma=c.gamma, prev_inputs=inputs)
        mask, next_mask = (
            allowed_actions(obs) if self.masked else None for obs in (t.obs, t.next_obs)
        )
        with torch.no_grad():
            q_target = self.q_values(self.target, t.next_obs, t.next_previous)
            q_select = q_target
            if c.double:
                q_select = self.q_values(self.net, t.next_obs, t.next_previous)
            bootstrap = take_action(q_target, greedy(q_select, next_mask))
            y = self.criterion.target(t.reward, t.discount, bootstrap)

        q = self.q_values(self.net, t.obs, t.previous)
        row = self.criterion.loss(take_action(q, t.action), y, t.valid, None)
        gap = conservative_gap(q, t.action, mask)
        loss = weighted_row_mean(row.loss + c.conservatism * gap, t.valid, weight)
        metrics = td_metrics(loss, row.td, row.prediction, row.target, t.valid)
        metrics["train/conservative_gap"] = masked_mean(gap.detach(), t.valid)
        return Loss(loss, row.priority, metrics, row.td, row.prediction)

    def q_values(self, net: QNet, obs: Tree, previous: tuple[Tensor, Tensor]) -> Tensor:
        """Q [*, A] of observations, and action and reward of the rows before."""
        with self.autocast():
            return net.q(net.inputs(obs, net.encode_previous(*previous))).float()

    def dead_units(self, windows: Segment) -> Tensor | None:
        c, read = self.config, readable(windows.valid, windows.terminated)
        obs, action, reward = network_inputs(windows, scale=c.reward_scale, clip=c.reward_clip)
        with UnitActivity(self.net, positions=read) as units:
            self.q_values(self.net, obs, (action, reward))
        return units.dead()
