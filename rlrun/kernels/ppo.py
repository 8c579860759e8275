"""PPO's update of a feed-forward network in numpy; torch computes advantages and Adam only."""

import time
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rlrun.functional.policy import explained_variance
from rlrun.kernels import policy_losses
from rlrun.kernels.actor_critic import NumpyActorCritic
from rlrun.kernels.mlp import IGNORE_OVERFLOW
from rlrun.kernels.policy_losses import ActionLogProb
from rlrun.policy.base.rollout import Minibatch, split_range
from rlrun.policy.ppo import PPO
from rlrun.types import Sample, Update


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
    """``PPO.torch_update`` of a network that ``NumpyActorCritic`` computes."""

    def __init__(self, policy: PPO) -> None:
        self.policy, self.net = policy, NumpyActorCritic(policy.net, policy.adam.flatten())

    @IGNORE_OVERFLOW
    def update(self, sample: Sample) -> Update:
        """Learn from a rollout."""
        policy, c, steps = self.policy, self.policy.config, 0
        clip, lr = policy.clip_at(sample.env_steps), policy.rates_at(sample.env_steps)[0]
        rows = policy.prepare(sample.segment)
        whole = policy.with_advantages(rows, self.net.outputs(rows)[1])
        explained = explained_variance(whole.value, whole.target, whole.valid)
        parts, rollout = policy.num_minibatches(rows), self.arrays(whole)
        if parts == 1 and c.normalize_advantage:
            rollout = rollout.standardised()
        for epoch in range(c.epochs):
            batches = self.shuffle(rollout, parts)
            for batch in batches[:-1]:
                self.minibatch(batch, clip, lr, with_metrics=False)
            with_metrics = c.target_kl is not None or epoch == c.epochs - 1
            metrics = self.minibatch(batches[-1], clip, lr, with_metrics=with_metrics)
            steps += len(batches)
            if c.target_kl is not None and metrics["train/approx_kl"] > c.target_kl:
                break
        policy.update_obs_moments(rows)
        return Update(None, metrics | {"train/explained_variance": explained}, steps=steps)

    def arrays(self, batch: Minibatch) -> NumpyMinibatch:
        """A minibatch of single rows [1, N] in numpy."""
        rows = (
            batch.previous,
            batch.action,
            batch.behaviour_log_prob,
            batch.advantage,
            batch.target,
            batch.value,
        )
        return NumpyMinibatch(self.net.inputs(batch.obs), *(x.squeeze(0).numpy() for x in rows))

    def shuffle(self, rollout: NumpyMinibatch, parts: int) -> list[NumpyMinibatch]:
        """``PPO.shuffle``; a single minibatch is standardised already."""
        if parts == 1:
            return [rollout]
        batches = rollout.take(self.policy.shuffle_generator.permutation(len(rollout.x)))
        if not self.policy.config.normalize_advantage:
            return batches.split(parts)
        return [batch.standardised() for batch in batches.split(parts)]

    def minibatch(
        self, batch: NumpyMinibatch, clip: float, lr: float, *, with_metrics: bool
    ) -> dict[str, Tensor]:
        """One gradient step on ``PPO.loss``; its metrics only ``with_metrics``."""
        c, net, policy = self.policy.config, self.net, self.policy
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
        backward = time.perf_counter()
        norm = policy.adam.flat_step(lr)
        policy.seconds["backward"] += backward - began
        policy.seconds["optimiser"] += time.perf_counter() - backward
        if with_metrics:
            metrics |= {"train/grad_norm": torch.tensor(norm), "train/lr": torch.tensor(lr)}
        return metrics
