"""A2C: advantage actor-critic with one gradient step per rollout.

Mnih et al., "Asynchronous Methods for Deep Reinforcement Learning", ICML 2016, without the threads:
all environments step together. Generalised advantages (Schulman et al. 2016); lambda = 1 gives
A3C's.
"""

from abc import abstractmethod
from typing import Generic

import numpy as np
import torch
from torch import Tensor

from rlrun.functional.policy import explained_variance, mean_terms, standardise
from rlrun.functional.returns import Advantage, gae
from rlrun.functional.rows import masked_mean
from rlrun.policy.actor_critic import A, ActorCriticLearner
from rlrun.policy.base import Losses, LossMetrics, Rates
from rlrun.policy.rollout import Batches, RolloutRows
from rlrun.schema import A2CConfig
from rlrun.types import Update

AdvantageMetrics = tuple[Advantage, dict[str, Tensor]]  # [T, B] each; metrics of rows [T, B]


class OnePassLearner(ActorCriticLearner[A], Generic[A]):
    """Base class of actor-critics that make one gradient step per rollout: A2C and IMPALA.

    A subclass defines the advantages.
    """

    def passes(self, rows: RolloutRows, rates: Rates, env_steps: int) -> Update:
        """Make one gradient step on a whole rollout."""
        loss, metrics = self.loss(rows, *self.outputs(rows))
        out = self.autograd(Losses({"net": loss}, None, metrics))
        return Update(None, self.gradient_step(out, rates))

    def batches(self, rows: RolloutRows) -> Batches:
        numbers = rows.index.numpy()
        if self.recurrent:
            numbers = np.arange(rows.valid.numel()).reshape(rows.valid.shape)
        bounds = sorted({0, numbers.shape[-1]})
        return Batches(numbers, np.zeros((1, 0), np.int64), np.array(bounds))

    @abstractmethod
    def advantages(self, rows: RolloutRows, log_prob: Tensor, value: Tensor) -> AdvantageMetrics:
        """Return advantages and value targets [T, B], and metrics.

        ``log_prob`` [T, B], detached, and ``value`` [T+1, B] are outputs of the present network.
        """

    def loss(self, rows: RolloutRows, params: Tensor, value: Tensor) -> LossMetrics:
        """Return -mean A log pi(a) + half the squared error of V - the entropy bonus, and metrics.

        ``params`` [T+1, B, K], ``value`` [T+1, B]: outputs of the network. Source: Mnih et al.,
        section 4; Espeholt et al., section 4.2.
        """
        c, valid = self.config, rows.valid
        log_prob, entropy = self.net.evaluate_actions(params[:-1], rows.action)
        (advantage, target), row_terms = self.advantages(rows, log_prob.detach(), value)
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
        metrics = {"train/loss": loss.detach()} | mean_terms(terms | row_terms, valid)
        metrics["train/explained_variance"] = explained_variance(value, target, valid)
        return loss, metrics


class A2C(OnePassLearner[A2CConfig]):
    """Samples actions from the policy and learns from them once."""

    config_class = A2CConfig  # subclasses inherit its keys

    def advantages(self, rows: RolloutRows, log_prob: Tensor, value: Tensor) -> AdvantageMetrics:
        """Return generalised advantages of the current policy's actions."""
        c = self.config
        out = gae(rows.reward, value, *rows.ends, gamma=c.gamma, trace=c.gae_lambda)
        if c.normalize_advantage:
            out = out._replace(advantage=standardise(out.advantage, rows.valid))
        return out, {}
