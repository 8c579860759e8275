"""CQL on DQN: offline double Q-learning with a penalty on values of actions outside the dataset.

Source: Kumar et al., "Conservative Q-Learning for Offline Reinforcement Learning", NeurIPS 2020.
"""

from torch import Tensor

from rlrun.functional.masks import allowed_or_none
from rlrun.functional.offline import conservative_gap
from rlrun.functional.rows import masked_mean, weighted_row_mean
from rlrun.functional.value import td_metrics
from rlrun.policy.dqn import DQN
from rlrun.schema import CQLConfig
from rlrun.types import Loss, Segment


class CQL(DQN[CQLConfig]):
    """Acts greedily on Q and learns from single rows."""

    config_class = CQLConfig  # subclasses inherit its keys

    def loss(self, segment: Segment, weight: Tensor) -> Loss:
        """Return double DQN's loss + conservatism * mean_b w_b (log sum_a exp Q(s, a) - Q(s,
        action)).

        Source: Kumar et al. 2020, eq. 4, with the targets of van Hasselt et al. 2016.
        """
        t, q, row = self.td_rows(segment, weight)
        gap = conservative_gap(q, t.action, allowed_or_none(t.obs))
        loss = weighted_row_mean(row.loss + self.config.conservatism * gap, t.valid, weight)
        metrics = td_metrics(loss, row.td, row.prediction, row.target, t.valid)
        metrics["train/conservative_gap"] = masked_mean(gap.detach(), t.valid)
        return Loss(loss, row.priority, metrics, row.td, row.prediction)
