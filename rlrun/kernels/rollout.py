"""The gradients of A2C and IMPALA of a feed-forward network in numpy; torch: advantages only."""

import time
from typing import Any

import numpy as np
import torch

from rlrun.functional.policy import mean_terms
from rlrun.kernels.actor_critic import NumpyActorCritic
from rlrun.kernels.mlp import as_metrics
from rlrun.policy.a2c import OnePassLearner
from rlrun.policy.base import Gradients
from rlrun.policy.rollout import RolloutRows


class RolloutKernel:
    """The gradients of ``OnePassLearner.loss`` of a network that ``NumpyActorCritic`` computes."""

    def __init__(self, policy: OnePassLearner[Any]) -> None:
        self.policy, self.net = policy, NumpyActorCritic(policy.net, policy.parts["net"].adam)

    def gradients(self, rows: RolloutRows) -> Gradients:
        """Return the gradients of a rollout's loss."""
        net, c = self.net, self.policy.config
        params, values = net.outputs(rows)
        action = rows.action.flatten(0, 1).numpy()
        evaluated = net.evaluate(params[:-1].flatten(0, 1).numpy(), action, entropy=True)
        log_prob, valid = evaluated.log_prob, rows.valid.flatten().numpy()
        of_rows = torch.from_numpy(log_prob).reshape(rows.valid.shape)
        advantages, more = self.policy.advantages(rows, of_rows, values)
        advantage, target = (x.flatten().numpy() for x in advantages)
        # The weight of a row in a mean, 0 in padding, where all inputs are 0.
        share = valid.astype(np.float32) / max(1, int(np.count_nonzero(valid)))
        error = np.where(valid, values[:-1].flatten().numpy() - target, np.float32(0))

        began = time.perf_counter()
        entropy_grad = -c.entropy_coef * share if c.entropy_coef > 0 else None
        value_grad = c.value_coef * error * share
        net.backward_from_log_prob(evaluated, -advantage * share, value_grad, entropy_grad)
        seconds = time.perf_counter() - began

        policy_loss = -np.dot(advantage * share, log_prob)
        value_loss = 0.5 * np.dot(error * share, error)
        assert evaluated.entropy is not None
        entropy = np.dot(share, evaluated.entropy)
        metrics = as_metrics(
            loss=policy_loss + c.value_coef * value_loss - c.entropy_coef * entropy,
            policy_loss=policy_loss,
            value_loss=value_loss,
            entropy=entropy,
            explained_variance=explained_variance(error, target, share),
        )
        if more:
            metrics |= mean_terms(more, rows.valid)
        return Gradients({"net": None}, None, metrics, seconds)


def explained_variance(error: np.ndarray, target: np.ndarray, share: np.ndarray) -> float:
    """``functional.policy.explained_variance`` of ``error`` = V - target; ``share``: weights."""
    mean = np.dot(share, target)
    total = np.dot(share, np.square(target - mean))
    residual = np.dot(share, np.square(error - np.dot(share, error)))
    return float(1 - residual / total) if total > 1e-10 * (total + mean * mean) else 0.0
