"""Forward and backward passes of an actor-critic network, by autograd or in numpy.

``NumpyActorCritic`` is the chain rule of a network of linear layers: at 256 rows through two nets
of 64 x 64 tanh units three quarters of its time are matrix products.
"""

from typing import NamedTuple, Protocol, cast

import numpy as np
import torch
from torch import Tensor, nn

from rlrun.acting.mlp import FORWARD
from rlrun.functional.policy import LogProbEntropy
from rlrun.kernels import policy_losses
from rlrun.kernels.mlp import DifferentiableMLP
from rlrun.kernels.policy_losses import ActionLogProb
from rlrun.nets.actor_critic import ActorCritic
from rlrun.nets.torso import MLP, flatten
from rlrun.optim.adam import FlatParameters
from rlrun.optim.compute import Compute
from rlrun.types import Tree


class OutputGrads(NamedTuple):
    """d loss / d (log pi, V, entropy) of the same rows [*]; entropy None: not in the loss."""

    log_prob: Tensor
    value: Tensor
    entropy: Tensor | None


class ActorCriticBackprop(Protocol):
    """A network with gradients: ``outputs``, ``evaluate_actions``, then ``backward``."""

    def outputs(
        self, obs: Tree, previous: Tensor, first: Tensor, state: Tree
    ) -> tuple[Tensor, Tensor]:
        """Return (parameters of the distribution [T, M, K], V [T, M]) in float32."""

    def evaluate_actions(self, params: Tensor, action: Tensor) -> LogProbEntropy:
        """Return log pi(action) and entropy [T, M].

        ``params``: those of the last ``outputs``, or their first rows.
        """

    def backward(self, choice: LogProbEntropy, value: Tensor, grads: OutputGrads) -> None:
        """Write the gradients of the parameters to ``FlatParameters.grads``."""


class AutogradActorCritic:
    """Any network, on its own device, in any precision."""

    def __init__(self, net: ActorCritic, flat: FlatParameters, compute: Compute) -> None:
        self.net, self.flat, self.compute = net, flat, compute
        self.parameters = list(net.parameters())
        self.evaluate_actions = net.evaluate_actions

    def outputs(
        self, obs: Tree, previous: Tensor, first: Tensor, state: Tree
    ) -> tuple[Tensor, Tensor]:
        with self.compute.autocast(self.parameters[0].device):
            params, value = self.net(obs, previous, first, state)
        return params.float(), value.float()

    def backward(self, choice: LogProbEntropy, value: Tensor, grads: OutputGrads) -> None:
        outputs, output_grads = [choice.log_prob, value], [grads.log_prob, grads.value]
        if grads.entropy is not None:
            outputs, output_grads = [*outputs, choice.entropy], [*output_grads, grads.entropy]
        parameter_grads = torch.autograd.grad(outputs, self.parameters, output_grads)
        with torch.no_grad():
            torch._foreach_copy_(self.flat.grad_views, list(parameter_grads))


class NumpyActorCritic:
    """A feed-forward network of linear layers in float32 on the CPU.

    ``forward``, ``evaluate`` and ``backward_arrays`` are the methods of ``ActorCriticBackprop`` on
    arrays.
    """

    def __init__(self, net: ActorCritic, flat: FlatParameters) -> None:
        """``net``: one that ``supports`` accepts; its parameters lie in ``flat``."""
        self.net, self.flat, self.sizes = net, flat, net.sizes
        self.torso_space = cast("MLP", net.trunk.torso).space
        self.prev_inputs, self.width = net.prev_inputs, net.trunk.torso.size
        parts = zip(net.parameters(), flat.grad_views, strict=True)
        grads = {p.data_ptr(): grad.numpy() for p, grad in parts}
        self.torsos = [DifferentiableMLP(cast("MLP", t.torso).layers, grads) for t in net.trunks]
        self.heads = [DifferentiableMLP(m, grads) for m in (net.policy, net.value)]
        self.log_std = self.log_std_grad = np.zeros(0, np.float32)
        if net.log_std is not None:
            self.log_std = net.log_std.detach().numpy()
            self.log_std_grad = grads[net.log_std.data_ptr()]
        self.evaluated: ActionLogProb | None = None  # of the last ``evaluate_actions``

    # -- arrays ----------------------------------------------------------------------------------

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

    def evaluate(self, params: np.ndarray, action: np.ndarray, *, entropy: bool) -> ActionLogProb:
        """Return log pi [N] of actions [N, *A], and with ``entropy`` the entropy [N]."""
        if self.sizes:
            return policy_losses.categorical(params, action, self.sizes, entropy=entropy)
        return policy_losses.gaussian(params, self.log_std, action, entropy=entropy)

    def backward_arrays(
        self,
        evaluated: ActionLogProb,
        log_prob_grad: np.ndarray,
        value_grad: np.ndarray,
        entropy_grad: np.ndarray | None,
    ) -> None:
        """Write the gradients of the parameters, once per ``forward``; the arguments are [n].

        Where n is smaller than the rows of ``forward``, they are the first ones, and the loss does
        not depend on the others.
        """
        if self.sizes:
            params_grad = policy_losses.categorical_grad(evaluated, log_prob_grad, entropy_grad)
        else:
            params_grad, self.log_std_grad[:] = policy_losses.gaussian_grad(
                evaluated, log_prob_grad, entropy_grad
            )
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

    # -- tensors ---------------------------------------------------------------------------------

    def outputs(
        self, obs: Tree, previous: Tensor, first: Tensor, state: Tree
    ) -> tuple[Tensor, Tensor]:
        lead = previous.shape[:-1]
        params, value = self.forward(self.inputs(obs), previous.flatten(0, 1).numpy())
        return torch.from_numpy(params).reshape(*lead, -1), torch.from_numpy(value).reshape(lead)

    def evaluate_actions(self, params: Tensor, action: Tensor) -> LogProbEntropy:
        lead = action.shape[:2]
        self.evaluated = self.evaluate(
            params.flatten(0, 1).numpy(), action.flatten(0, 1).numpy(), entropy=True
        )
        return LogProbEntropy(*(torch.from_numpy(x).reshape(lead) for x in self.evaluated.terms()))

    def backward(self, choice: LogProbEntropy, value: Tensor, grads: OutputGrads) -> None:
        assert self.evaluated is not None
        entropy = None if grads.entropy is None else grads.entropy.flatten().numpy()
        arrays = grads.log_prob.flatten().numpy(), grads.value.flatten().numpy()
        self.backward_arrays(self.evaluated, *arrays, entropy)


def supports(net: ActorCritic) -> bool:
    """Return whether ``NumpyActorCritic`` can compute the network.

    It can where there are only linear layers and activations, and no action masks.
    """
    if net.recurrent or net.masked or not all(isinstance(t.torso, MLP) for t in net.trunks):
        return False
    parts = [*(cast("MLP", t.torso).layers for t in net.trunks), net.policy, net.value]
    return all(type(m) is nn.Linear or type(m) in FORWARD for part in parts for m in part)


def make_actor_critic_backprop(
    net: ActorCritic, flat: FlatParameters, compute: Compute
) -> NumpyActorCritic | AutogradActorCritic:
    """Return ``NumpyActorCritic`` where it is possible, by a fixed rule; numbers agree to 1e-5."""
    cpu = next(net.parameters()).device.type == "cpu"
    if cpu and compute.precision == "float32" and supports(net):
        return NumpyActorCritic(net, flat)
    return AutogradActorCritic(net, flat, compute)
