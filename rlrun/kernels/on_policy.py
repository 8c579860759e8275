"""Gradients of A2C and IMPALA with linear layers in numpy. Torch computes only advantages."""

import time
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from rlrun.functional.policy import mean_terms
from rlrun.kernels import policy_losses
from rlrun.kernels.mlp import DifferentiableMLP, as_metrics, flat_gradients
from rlrun.kernels.policy_losses import ActionLogProb
from rlrun.nets.actor_critic import ActorCritic
from rlrun.nets.torso import MLP, flatten
from rlrun.policy.a2c import OnePassLearner
from rlrun.policy.base import Gradients
from rlrun.policy.optim import Adam
from rlrun.policy.rollout import RolloutRows
from rlrun.types import Tree


class NumpyActorCritic:
    """A feed-forward network of linear layers in float32 on the CPU, without action masks."""

    def __init__(self, net: ActorCritic, adam: Adam) -> None:
        """``adam``: the optimiser of ``net``, which holds the arrays of its gradients."""
        self.net, self.sizes = net, net.sizes
        self.torso_space = cast("MLP", net.trunk.torso).space
        self.prev_inputs, self.width = net.prev_inputs, net.trunk.torso.size
        grads = flat_gradients(adam)
        self.torsos = [DifferentiableMLP(cast("MLP", t.torso).layers, grads) for t in net.trunks]
        self.heads = [DifferentiableMLP(m, grads) for m in (net.policy, net.value)]
        self.log_std = self.log_std_grad = np.zeros(0, np.float32)
        if net.log_std is not None:
            self.log_std = net.log_std.detach().numpy()
            self.log_std_grad = grads[net.log_std.data_ptr()]

    def inputs(self, obs: Tree) -> np.ndarray:
        """Return the first layer's inputs, float32 [N, F], of ``obs`` [*, *O]."""
        normalized = obs if self.net.moments is None else self.net.moments(obs)
        x = flatten(self.torso_space, normalized)
        return x.reshape(-1, x.shape[-1]).numpy()

    def forward(self, x: np.ndarray, previous: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (parameters of the distribution [N, K], V [N]).

        ``previous`` [N, S]: encoded previous action and reward, if the network reads them.
        """
        h = [torso(x) for torso in self.torsos]
        if self.prev_inputs:
            h = [np.concatenate([features, previous], 1) for features in h]
        return self.heads[0](h[0]), self.heads[1](h[-1])[:, 0]

    def outputs(self, rows: RolloutRows) -> tuple[Tensor, Tensor]:
        """Return ``ActorCriticLearner.outputs`` ([T+1, B, K], [T+1, B]) without a graph."""
        lead = rows.previous.shape[:-1]
        params, value = self.forward(self.inputs(rows.obs), rows.previous.flatten(0, 1).numpy())
        return torch.from_numpy(params).reshape(*lead, -1), torch.from_numpy(value).reshape(lead)

    def evaluate(self, params: np.ndarray, action: np.ndarray, *, entropy: bool) -> ActionLogProb:
        """Return log pi [N] of actions [N, *A], and the entropy [N] if ``entropy``."""
        if self.sizes:
            return policy_losses.categorical(params, action, self.sizes, entropy=entropy)
        return policy_losses.gaussian(params, self.log_std, action, entropy=entropy)

    def backward_from_log_prob(
        self,
        evaluated: ActionLogProb,
        log_prob_grad: np.ndarray,
        value_grad: np.ndarray,
        entropy_grad: np.ndarray | None,
    ) -> None:
        """Run ``backward`` from the gradients [N] of log pi, V and, unless None, the entropy."""
        if self.sizes:
            params_grad = policy_losses.categorical_grad(evaluated, log_prob_grad, entropy_grad)
        else:
            params_grad, self.log_std_grad[:] = policy_losses.gaussian_grad(
                evaluated, log_prob_grad, entropy_grad
            )
        self.backward(params_grad, value_grad)

    def backward(self, params_grad: np.ndarray, value_grad: np.ndarray) -> None:
        """Write the gradients of the parameters except ``log_std``. Call it once per ``forward``.

        ``params_grad`` [n, K], ``value_grad`` [n]: gradients of the outputs of the first n rows,
        the only ones on which the loss depends.
        """
        deep = bool(self.torsos[0].layers)
        feature_grads = [
            head.backward(grad, inputs=self.prev_inputs or deep)
            for head, grad in zip(self.heads, (params_grad, value_grad[:, None]), strict=True)
        ]
        if not deep:
            return
        if len(self.torsos) == 1:
            feature_grads = [feature_grads[0] + feature_grads[1]]
        for torso, grad in zip(self.torsos, feature_grads, strict=True):
            torso.backward(grad[:, : self.width], inputs=False)


class RolloutKernel:
    """The gradients of ``OnePassLearner.loss`` for networks that ``NumpyActorCritic`` supports."""

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
        # The weight of a row in a mean, 0 in padding (whose inputs are all 0).
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
        )
        if more:
            metrics |= mean_terms(more, rows.valid)
        metrics |= as_metrics(explained_variance=explained_variance(error, target, share))
        return Gradients({"net": None}, None, metrics, seconds)


def explained_variance(error: np.ndarray, target: np.ndarray, share: np.ndarray) -> float:
    """Return the explained variance for ``error`` = V - target; ``share``: weights of the rows.

    See ``functional.policy.explained_variance``.
    """
    mean = np.dot(share, target)
    total = np.dot(share, np.square(target - mean))
    residual = np.dot(share, np.square(error - np.dot(share, error)))
    return float(1 - residual / total) if total > 1e-10 * (total + mean * mean) else 0.0
