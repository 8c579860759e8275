"""A2C's and IMPALA's updates of a feed-forward network in numpy.

Torch computes advantages and Adam only.
"""

import time
from abc import ABC, abstractmethod

import numpy as np
import torch
from torch import Tensor

from rlrun.functional.policy import standardise
from rlrun.functional.returns import Advantage, gae, vtrace
from rlrun.functional.rows import masked_mean
from rlrun.kernels.actor_critic import NumpyActorCritic
from rlrun.kernels.mlp import IGNORE_OVERFLOW
from rlrun.policy.a2c import A2C
from rlrun.policy.base.rollout import RolloutRows
from rlrun.policy.impala import IMPALA
from rlrun.schema import A2CConfig, IMPALAConfig
from rlrun.types import Sample, Update


class RolloutKernel(ABC):
    """One gradient step on a rollout, of a network that ``NumpyActorCritic`` computes."""

    def __init__(self, policy: A2C | IMPALA) -> None:
        self.policy, self.net = policy, NumpyActorCritic(policy.net, policy.adam.flatten())

    @abstractmethod
    def advantages(
        self, rows: RolloutRows, log_prob: Tensor, value: Tensor
    ) -> tuple[Advantage, dict[str, float]]:
        """Advantages and value targets, and more metrics; log_prob [T, B], value [T+1, B]."""

    @IGNORE_OVERFLOW
    def update(self, sample: Sample) -> Update:
        """Learn from a rollout."""
        policy, net, c = self.policy, self.net, self.policy.config
        rows = policy.prepare(sample.segment)
        params, values = net.outputs(rows)
        action = rows.action.flatten(0, 1).numpy()
        evaluated = net.evaluate(params[:-1].flatten(0, 1).numpy(), action, entropy=True)
        log_prob, valid = evaluated.log_prob, rows.valid.flatten().numpy()
        of_rows = torch.from_numpy(log_prob).reshape(rows.valid.shape)
        advantages, more = self.advantages(rows, of_rows, values)
        advantage, target = (x.flatten().numpy() for x in advantages)
        # The weight of a row in a mean, 0 in padding, where all inputs are 0.
        share = valid.astype(np.float32) / max(1, int(np.count_nonzero(valid)))
        error = np.where(valid, values[:-1].flatten().numpy() - target, np.float32(0))

        began = time.perf_counter()
        entropy_grad = -c.entropy_coef * share if c.entropy_coef > 0 else None
        value_grad = c.value_coef * error * share
        net.backward_from_log_prob(evaluated, -advantage * share, value_grad, entropy_grad)
        backward, lr = time.perf_counter(), policy.rates_at(sample.env_steps)[0]
        norm = policy.adam.flat_step(lr)
        policy.seconds["backward"] += backward - began
        policy.seconds["optimiser"] += time.perf_counter() - backward
        policy.update_obs_moments(rows)

        policy_loss = -np.dot(advantage * share, log_prob)
        value_loss = 0.5 * np.dot(error * share, error)
        assert evaluated.entropy is not None
        entropy = np.dot(share, evaluated.entropy)
        metrics = {
            "loss": policy_loss + c.value_coef * value_loss - c.entropy_coef * entropy,
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            **more,
            "explained_variance": explained_variance(error, target, share),
            "grad_norm": norm,
            "lr": lr,
        }
        tensors = torch.from_numpy(np.array([*metrics.values()], np.float32)).unbind()
        return Update(None, {f"train/{k}": x for k, x in zip(metrics, tensors, strict=True)})


class A2CKernel(RolloutKernel):
    """``A2C.torch_update``."""

    def advantages(
        self, rows: RolloutRows, log_prob: Tensor, value: Tensor
    ) -> tuple[Advantage, dict[str, float]]:
        c = self.policy.config
        assert isinstance(c, A2CConfig)
        out = gae(rows.reward, value, *rows.ends, gamma=c.gamma, trace=c.gae_lambda)
        if c.normalize_advantage:
            out = out._replace(advantage=standardise(out.advantage, rows.valid))
        return out, {}


class IMPALAKernel(RolloutKernel):
    """``IMPALA.torch_update``."""

    def advantages(
        self, rows: RolloutRows, log_prob: Tensor, value: Tensor
    ) -> tuple[Advantage, dict[str, float]]:
        c = self.policy.config
        assert isinstance(c, IMPALAConfig)
        log_ratio = log_prob - rows.behaviour_log_prob
        out = vtrace(
            log_ratio, rows.reward, value, *rows.ends, gamma=c.gamma, trace=c.vtrace_lambda,
            rho_clip=c.rho_clip, c_clip=c.c_clip,
        )  # fmt: skip
        clipped = masked_mean((log_ratio.exp() > c.rho_clip).float(), rows.valid)
        return out, {"rho_clipped": clipped.item()}


def explained_variance(error: np.ndarray, target: np.ndarray, share: np.ndarray) -> float:
    """``functional.policy.explained_variance`` of ``error`` = V - target; ``share``: weights."""
    mean = np.dot(share, target)
    total = np.dot(share, np.square(target - mean))
    residual = np.dot(share, np.square(error - np.dot(share, error)))
    return float(1 - residual / total) if total > 1e-10 * (total + mean * mean) else 0.0
