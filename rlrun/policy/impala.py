"""IMPALA's learner: an actor-critic with V-trace, on rollouts of an earlier policy.

Espeholt et al., "IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner
Architectures", ICML 2018. The lag is 0 with pipeline=serial, one chunk with pipeline=overlapped.
"""

import torch
from torch import Tensor

from rlrun.functional.policy import explained_variance, mean_terms
from rlrun.functional.returns import vtrace
from rlrun.functional.rows import masked_mean
from rlrun.policy.base.on_policy import OnPolicy
from rlrun.policy.base.rollout import RolloutRows
from rlrun.schema import IMPALAConfig
from rlrun.types import Sample, Update


class IMPALA(OnPolicy[IMPALAConfig]):
    """Samples actions from the policy and learns from them once, importance-weighted."""

    config_class = IMPALAConfig  # a subclass inherits its keys

    def torch_update(self, sample: Sample) -> Update:
        """One gradient step on a whole rollout, whose actions may be an earlier policy's."""
        rows = self.prepare(sample.segment)
        loss, metrics = self.loss(rows, *self.outputs(rows))
        metrics |= self.step(loss, sample.env_steps)
        self.update_obs_moments(rows)
        return Update(None, metrics)

    def loss(
        self, rows: RolloutRows, params: Tensor, value: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """-mean A log pi(a), half the squared error of V towards v, and the entropy bonus.

        ``params`` [T+1, B, K], ``value`` [T+1, B]: the network's outputs. Source: section 4.2.
        """
        c, valid = self.config, rows.valid
        log_prob, entropy = self.net.evaluate_actions(params[:-1], rows.action)
        log_ratio = log_prob.detach() - rows.behaviour_log_prob
        advantage, target = vtrace(
            log_ratio, rows.reward, value, *rows.ends, gamma=c.gamma, trace=c.vtrace_lambda,
            rho_clip=c.rho_clip, c_clip=c.c_clip,
        )  # fmt: skip
        # Padding has no gradient, NaN included.
        log_prob, value = (torch.where(valid, x, 0.0) for x in (log_prob, value[:-1]))

        policy_loss = -advantage * log_prob
        value_loss = 0.5 * (value - target).square()
        per_row = policy_loss + c.value_coef * value_loss - c.entropy_coef * entropy
        loss = masked_mean(per_row, valid)
        terms = {
            "train/policy_loss": policy_loss,
            "train/value_loss": value_loss,
            "train/entropy": entropy,
            "train/rho_clipped": (log_ratio.exp() > c.rho_clip).float(),
        }
        metrics = {"train/loss": loss.detach()} | mean_terms(terms, valid)
        metrics["train/explained_variance"] = explained_variance(value, target, valid)
        return loss, metrics
