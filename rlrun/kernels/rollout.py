"""A2C's and IMPALA's update of a feed-forward network: the network in numpy, the loss by autograd.

Their one gradient step on a rollout applies the loss once; the network takes most of the time.
"""

import time

import torch

from rlrun.kernels.actor_critic import NumpyActorCritic
from rlrun.policy.a2c import A2C
from rlrun.policy.impala import IMPALA
from rlrun.types import Sample, Update


class RolloutKernel:
    """``torch_update`` of A2C and IMPALA with a network that ``NumpyActorCritic`` computes."""

    def __init__(self, policy: A2C | IMPALA) -> None:
        self.policy, self.net = policy, NumpyActorCritic(policy.net, policy.adam.flatten())

    def update(self, sample: Sample) -> Update:
        """Learn from a rollout."""
        policy, net = self.policy, self.net
        rows = policy.prepare(sample.segment)
        params, value = (x.requires_grad_() for x in net.outputs(rows))
        loss, metrics = policy.loss(rows, params, value)

        began = time.perf_counter()
        log_std = [] if policy.net.log_std is None else [policy.net.log_std]
        grads = torch.autograd.grad(loss, [params, value, *log_std])
        for grad in grads[2:]:
            net.log_std_grad[:] = grad.numpy()
        net.backward(grads[0].flatten(0, 1).numpy(), grads[1].flatten().numpy())
        backward, lr = time.perf_counter(), policy.lr_at(sample.env_steps)
        norm = policy.adam.flat_step(lr)
        policy.seconds["backward"] += backward - began
        policy.seconds["optimiser"] += time.perf_counter() - backward
        policy.update_obs_moments(rows)
        norms = {"train/grad_norm": torch.tensor(norm), "train/lr": torch.tensor(lr)}
        return Update(None, metrics | norms)
