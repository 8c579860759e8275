"""PPO's gradients of a feed-forward network in numpy; torch computes advantages only."""

import time
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rlrun.kernels import policy_losses
from rlrun.kernels.actor_critic import NumpyActorCritic
from rlrun.kernels.policy_losses import ActionLogProb
from rlrun.policy.base import Gradients
from rlrun.policy.ppo import PPO
from rlrun.policy.rollout import Minibatch, RolloutRows, split_range


class NumpyMinibatch(NamedTuple):
    """Valid rows of a rollout."""

    x: np.ndarray  # float32 [N, F] inputs of the first layer
    previous: np.ndarray  # [N, S]
    action: np.ndarray  # [N, *A]
    behaviour_log_prob: np.ndarray  # [N], like all that follow
    advantage: np.ndarray
    target: np.ndarray
    value: np.ndarray

    def take(self, index: np.ndarray) -> "NumpyMinibatch":
        """The rows ``index`` (int64 [n])."""
        return NumpyMinibatch(*(x.take(index, 0) for x in self))

    def split(self, parts: int) -> list["NumpyMinibatch"]:
        """``parts`` views of successive rows."""
        ranges = split_range(len(self.x), parts)
        return [NumpyMinibatch(*(x[a:b] for x in self)) for a, b in ranges]

    def standardised(self) -> "NumpyMinibatch":
        """The rows with advantages of mean 0 and standard deviation 1."""
        return self._replace(advantage=policy_losses.standardise(self.advantage))

    def tensors(self) -> Minibatch:
        """The same rows as tensors [1, N]."""
        parts = (torch.from_numpy(part).unsqueeze(0) for part in self)
        x, previous, action, behaviour_log_prob, advantage, target, value = parts
        valid = torch.ones(1, len(self.x), dtype=torch.bool)
        return Minibatch(
            x, previous, ~valid, (), action, behaviour_log_prob, advantage, target, value, valid
        )


class PPOKernel:
    """The gradients of ``PPO.loss`` of a network that ``NumpyActorCritic`` computes."""

    def __init__(self, policy: PPO) -> None:
        self.policy, self.net = policy, NumpyActorCritic(policy.net, policy.parts["net"].adam)

    def values(self, rows: RolloutRows) -> Tensor:
        """Return V [T+1, B]."""
        return self.net.outputs(rows)[1]

    def begin(self, whole: Minibatch, parts: int) -> NumpyMinibatch:
        """Return single rows [1, N] as arrays; a single minibatch is standardised once."""
        rows = (
            whole.previous, whole.action, whole.behaviour_log_prob, whole.advantage, whole.target,
            whole.value,
        )  # fmt: skip
        batch = NumpyMinibatch(self.net.inputs(whole.obs), *(x.squeeze(0).numpy() for x in rows))
        alone = parts == 1 and self.policy.config.normalize_advantage
        return batch.standardised() if alone else batch

    def shuffle(self, rollout: NumpyMinibatch, parts: int) -> list[NumpyMinibatch]:
        """``PPO.shuffle``; a single minibatch is standardised already."""
        if parts == 1:
            return [rollout]
        batches = rollout.take(self.policy.shuffle_generator.permutation(len(rollout.x)))
        if not self.policy.config.normalize_advantage:
            return batches.split(parts)
        return [batch.standardised() for batch in batches.split(parts)]

    def gradients(self, batch: NumpyMinibatch, env_steps: int, *, with_metrics: bool) -> Gradients:
        """Return the gradients of ``PPO.loss``; its metrics only ``with_metrics``."""
        c, net, policy = self.policy.config, self.net, self.policy
        clip = policy.clip_at(env_steps)
        params, value = net.forward(batch.x, batch.previous)
        evaluated: ActionLogProb = net.evaluate(params, batch.action, entropy=c.entropy_coef > 0)
        log_prob_grad = policy_losses.ppo_grad(
            evaluated.log_prob, batch.behaviour_log_prob, batch.advantage, clip=clip
        )
        error = policy_losses.value_grad(value, batch.target, batch.value, clip=c.value_clip)
        entropy_grad = policy_losses.entropy_grad(len(value), c.entropy_coef)
        metrics = {}
        if with_metrics:
            head, v = (torch.from_numpy(x).unsqueeze(0) for x in (params, value))
            with torch.no_grad():
                metrics = policy.loss(batch.tensors(), head, v, clip, with_metrics=True)[1]

        began = time.perf_counter()
        value_grad = np.float32(c.value_coef) * error
        net.backward_from_log_prob(evaluated, log_prob_grad, value_grad, entropy_grad)
        return Gradients({"net": None}, None, metrics, time.perf_counter() - began)
