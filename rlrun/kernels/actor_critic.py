"""Forward and backward passes of an actor-critic network of linear layers in numpy.

At 256 rows through two nets of 64 x 64 tanh units three quarters of their time are matrix products.
"""

from typing import cast

import numpy as np
import torch
from torch import Tensor

from rlrun.kernels import policy_losses
from rlrun.kernels.mlp import DifferentiableMLP, flat_gradients
from rlrun.kernels.policy_losses import ActionLogProb
from rlrun.nets.actor_critic import ActorCritic
from rlrun.nets.torso import MLP, flatten
from rlrun.policy.optim import Adam
from rlrun.policy.rollout import RolloutRows
from rlrun.types import Tree


class NumpyActorCritic:
    """A feed-forward network of linear layers in float32 on the CPU, without action masks."""

    def __init__(self, net: ActorCritic, adam: Adam) -> None:
        """``adam``: of the parameters of ``net``; it holds the arrays of their gradients."""
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

        ``previous`` [N, S]: encoded previous action and reward, where the network reads them.
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
        """Return log pi [N] of actions [N, *A], and with ``entropy`` the entropy [N]."""
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
        """``backward`` from the gradients [N] over log pi, V and, where not None, the entropy."""
        if self.sizes:
            params_grad = policy_losses.categorical_grad(evaluated, log_prob_grad, entropy_grad)
        else:
            params_grad, self.log_std_grad[:] = policy_losses.gaussian_grad(
                evaluated, log_prob_grad, entropy_grad
            )
        self.backward(params_grad, value_grad)

    def backward(self, params_grad: np.ndarray, value_grad: np.ndarray) -> None:
        """Write the gradients of the parameters but ``log_std``, once per ``forward``.

        ``params_grad`` [n, K], ``value_grad`` [n]: of the outputs of the first n rows; the loss
        does not depend on the others.
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
