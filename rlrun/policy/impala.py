"""IMPALA's learner: an actor-critic with V-trace, on rollouts of an earlier policy.

Source: Espeholt et al., "IMPALA: Scalable Distributed Deep-RL with Importance Weighted
Actor-Learner Architectures", ICML 2018. The policy lag is 0 with pipeline=serial and one chunk with
pipeline=overlapped.
"""

from torch import Tensor

from rlrun.functional.returns import vtrace
from rlrun.policy.a2c import AdvantageMetrics, OnePassLearner
from rlrun.policy.rollout import RolloutRows
from rlrun.schema import IMPALAConfig

ROUNDING = 1e-4  # of a ratio; that of the acting policy is 1


class IMPALA(OnePassLearner[IMPALAConfig]):
    """Samples actions from the policy and learns from them once, with importance weights."""

    config_class = IMPALAConfig  # subclasses inherit its keys

    def advantages(self, rows: RolloutRows, log_prob: Tensor, value: Tensor) -> AdvantageMetrics:
        """Return V-trace's advantages and targets v, of actions that an earlier policy took."""
        c, log_ratio = self.config, log_prob - rows.behaviour_log_prob
        out = vtrace(
            log_ratio, rows.reward, value, *rows.ends, gamma=c.gamma, trace=c.vtrace_lambda,
            rho_clip=c.rho_clip, c_clip=c.c_clip,
        )  # fmt: skip
        cut = log_ratio.exp() > (1 + ROUNDING) * c.rho_clip
        return out, {"train/rho_clipped": cut.float()}
