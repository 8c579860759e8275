"""Expected SARSA with a recurrent network, on R2D2's windows and prioritized replay.

van Seijen et al., "A Theoretical and Empirical Analysis of Expected Sarsa", ADPRL 2009.
"""

from dataclasses import dataclass, field

import torch

from rlrun.functional.returns import nstep_return
from rlrun.functional.rows import shape_reward, weighted_row_mean
from rlrun.functional.value import gather_bootstrap, mixed_priority, td_metrics
from rlrun.policy.r2d2 import R2D2
from rlrun.schema import R2D2Config
from rlrun.schema.ranges import unit
from rlrun.types import Loss


@dataclass(frozen=True)
class ExpectedSARSAConfig(R2D2Config):
    policy_epsilon: float = field(metadata=unit())  # of the policy that is evaluated


class ExpectedSARSA(R2D2):
    config_class = ExpectedSARSAConfig

    def loss(self, segment, weight):
        c, bs, learned = self.config, self.window.burnin, self.window.learned
        inputs, state = self.net.window_inputs(segment, c), self.start_state(segment)
        q = self.unroll(self.net, inputs, segment, state)
        q_target = self.unroll_target(inputs, segment, state)

        # V(s') = sum_a pi(a | s') Q(s', a; theta-), pi epsilon-greedy on Q(s', .; theta-)
        greedy, mean = q_target.amax(-1), q_target.mean(-1)
        value = (1 - c.policy_epsilon) * greedy + c.policy_epsilon * mean

        # y = R_n + gamma^n V(s'),  loss = mean_b w_b sum_t (y - Q(s, a))^2 / 2 L
        ends = [x[bs:] for x in (segment.terminated, segment.truncated, segment.valid)]
        reward = shape_reward(segment.reward[bs:], c.reward_scale, c.reward_clip)
        n = nstep_return(reward, *ends, nstep=c.nstep, gamma=c.gamma)
        bootstrap = gather_bootstrap(value, n.steps[:learned])
        y = self.criterion.target(n.reward[:learned], n.discount[:learned], bootstrap)
        valid = ends[2][:learned]
        action = torch.where(valid, segment.action[bs : bs + learned], 0)
        prediction = self.criterion.select(q[:learned], action)
        row = self.criterion.loss(prediction, y, valid, None)
        loss = weighted_row_mean(row.loss, valid, weight)
        metrics = td_metrics(loss, row.td, row.prediction, row.target, valid)
        return Loss(loss, mixed_priority(row.priority, valid, c.priority_eta), metrics)
