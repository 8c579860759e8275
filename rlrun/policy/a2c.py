"""A2C: the advantage actor-critic, one gradient step on every rollout.

Mnih et al., "Asynchronous Methods for Deep Reinforcement Learning", ICML 2016, without the threads:
all environments step together. Generalised advantages (Schulman et al. 2016); lambda 1 is A3C's.
"""

import torch
from torch import Tensor

from rlrun.functional.policy import explained_variance, mean_terms, standardise
from rlrun.functional.returns import gae
from rlrun.functional.rows import masked_mean
from rlrun.policy.base.on_policy import OnPolicy
from rlrun.policy.base.rollout import RolloutRows
from rlrun.schema import A2CConfig
from rlrun.types import Sample, Update


class A2C(OnPolicy[A2CConfig]):
    """Samples actions from the policy and learns from them once."""

    config_class = A2CConfig  # a subclass inherits its keys

    def torch_update(self, sample: Sample) -> Update:
        """One gradient step on a whole rollout, whose actions are the current policy's."""
        rows = self.prepare(sample.segment)
        loss, metrics = self.loss(rows, *self.outputs(rows))
        metrics |= self.step(loss, sample.env_steps)
        self.update_obs_moments(rows)
        return Update(None, metrics)

    def loss(
        self, rows: RolloutRows, params: Tensor, value: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """-mean A log pi(a), half the squared error of V, and the entropy bonus (section 4).

        ``params`` [T+1, B, K], ``value`` [T+1, B]: the network's outputs.
        """
        c, valid = self.config, rows.valid
        advantage, target = gae(rows.reward, value, *rows.ends, gamma=c.gamma, trace=c.gae_lambda)
        if c.normalize_advantage:
            advantage = standardise(advantage, valid)
        log_prob, entropy = self.net.evaluate_actions(params[:-1], rows.action)
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
        }
        metrics = {"train/loss": loss.detach()} | mean_terms(terms, valid)
        metrics["train/explained_variance"] = explained_variance(value, target, valid)
        return loss, metrics
