"""What an actor-critic says of rows, and the slopes of a loss over its parameters.

``Recorded`` asks autograd. ``Written`` is the chain rule of a network of linear layers in numpy:
at 256 rows through two nets of 64 x 64 tanh units the matrix products are all but a quarter of it.
"""

from typing import NamedTuple, Protocol, cast

import numpy as np
import torch
from torch import Tensor, nn

from rlrun.functional.policy import LogProbEntropy
from rlrun.kernels import policy_losses
from rlrun.kernels.mlp import FORWARD, DifferentiableMLP
from rlrun.kernels.policy_losses import ActionLogProb
from rlrun.nets.actor_critic import ActorCritic
from rlrun.nets.torso import MLP, flatten
from rlrun.optim.adam import FlatParameters
from rlrun.optim.compute import Compute
from rlrun.types import Tree


class OutputGrads(NamedTuple):
    """d loss over log pi, V and entropy of the same rows [*]; entropy None: it plays no part."""

    log_prob: Tensor
    value: Tensor
    entropy: Tensor | None


class ActorCriticBackprop(Protocol):
    """One network; ``choice`` belongs to the last ``outputs``, ``back`` to both."""

    def outputs(self, obs: Tree, side: Tensor, first: Tensor, state: Tree) -> tuple[Tensor, Tensor]:
        """(parameters of the distribution [T, M, K], V [T, M]) in float32."""

    def choice(self, head: Tensor, action: Tensor) -> LogProbEntropy:
        """log pi(action) and entropy [T, M]; ``head``: ``outputs``' or its first rows."""

    def back(self, choice: LogProbEntropy, value: Tensor, slopes: OutputGrads) -> None:
        """The slopes over the parameters into ``FlatParameters.grads``."""


class AutogradActorCritic:
    """Any network, on its own device, in any precision."""

    def __init__(self, net: ActorCritic, flat: FlatParameters, compute: Compute) -> None:
        self.net, self.flat, self.compute = net, flat, compute
        self.parameters = list(net.parameters())
        self.choice = net.choice

    def outputs(self, obs: Tree, side: Tensor, first: Tensor, state: Tree) -> tuple[Tensor, Tensor]:
        """See ``Backprop``."""
        with self.compute.autocast(self.parameters[0].device):
            head, value = self.net(obs, side, first, state)
        return head.float(), value.float()

    def back(self, choice: LogProbEntropy, value: Tensor, slopes: OutputGrads) -> None:
        """See ``Backprop``."""
        outputs, given = [choice.log_prob, value], [slopes.log_prob, slopes.value]
        if slopes.entropy is not None:
            outputs, given = [*outputs, choice.entropy], [*given, slopes.entropy]
        grads = torch.autograd.grad(outputs, self.parameters, given)
        with torch.no_grad():
            torch._foreach_copy_(self.flat.grad_views, list(grads))


class NumpyActorCritic:
    """A feed-forward network of linear layers in float32 on the CPU; nothing is recorded.

    ``run``, ``say`` and ``descend`` are the same as the three of ``Backprop``, in numpy.
    """

    def __init__(self, net: ActorCritic, flat: FlatParameters) -> None:
        """``net``: see ``is_plain``; its parameters lie in ``flat``."""
        self.net, self.flat, self.sizes = net, flat, net.sizes
        self.torso_space = cast("MLP", net.trunk.torso).space
        self.beside, self.width = net.prev_inputs, net.trunk.torso.size
        places = {
            p.data_ptr(): s.numpy() for p, s in zip(net.parameters(), flat.grad_views, strict=True)
        }
        self.torsos = [DifferentiableMLP(cast("MLP", t.torso).layers, places) for t in net.trunks]
        self.heads = [DifferentiableMLP(m, places) for m in (net.policy, net.value)]
        self.log_std = self.over_std = np.zeros(0, np.float32)
        if net.log_std is not None:
            self.log_std = net.log_std.detach().numpy()
            self.over_std = places[net.log_std.data_ptr()]
        self.drawn: ActionLogProb | None = None

    # -- in numpy --------------------------------------------------------------------------------

    def inputs(self, obs: Tree) -> np.ndarray:
        """float32 [N, F]: what the first layer sees of ``obs`` [*, *O]."""
        seen = obs if self.net.moments is None else self.net.moments(obs)
        x = flatten(self.torso_space, seen)
        return x.reshape(-1, x.shape[-1]).numpy()

    def run(self, x: np.ndarray, side: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(parameters of the distribution [N, K], V [N]); ``side`` [N, S] beside the features."""
        h = [torso(x) for torso in self.torsos]
        if self.beside:
            h = [np.concatenate([part, side], 1) for part in h]
        return self.heads[0](h[0]), self.heads[1](h[-1])[:, 0]

    def say(self, head: np.ndarray, action: np.ndarray, *, entropy: bool) -> ActionLogProb:
        """Of the actions [N, *A]."""
        if self.sizes:
            return policy_losses.categorical(head, action, self.sizes, entropy=entropy)
        return policy_losses.gaussian(head, self.log_std, action, entropy=entropy)

    def descend(
        self,
        drawn: ActionLogProb,
        log_prob: np.ndarray,
        value: np.ndarray,
        entropy: np.ndarray | None,
    ) -> None:
        """The slopes over the parameters, of those over log pi, V and entropy [N]; once a ``run``.

        Fewer rows than ``run`` saw are the first of those; the loss does not know the others.
        """
        if self.sizes:
            slope = policy_losses.categorical_grad(drawn, log_prob, entropy)
        else:
            slope, self.over_std[:] = policy_losses.gaussian_grad(drawn, log_prob, entropy)
        needed = self.beside or bool(self.torsos[0].layers)
        slopes = [
            part.back(over, inputs=needed)
            for part, over in zip(self.heads, (slope, value[:, None]), strict=True)
        ]
        if not self.torsos[0].layers:
            return
        if len(self.torsos) == 1:
            slopes = [slopes[0] + slopes[1]]
        for torso, over in zip(self.torsos, slopes, strict=True):
            torso.back(over[:, : self.width], inputs=False)

    # -- Backprop --------------------------------------------------------------------------------

    def outputs(self, obs: Tree, side: Tensor, first: Tensor, state: Tree) -> tuple[Tensor, Tensor]:
        """See ``Backprop``."""
        lead = side.shape[:-1]
        head, value = self.run(self.inputs(obs), side.flatten(0, 1).numpy())
        return torch.from_numpy(head).reshape(*lead, -1), torch.from_numpy(value).reshape(lead)

    def choice(self, head: Tensor, action: Tensor) -> LogProbEntropy:
        """See ``Backprop``."""
        lead = action.shape[:2]
        self.drawn = self.say(
            head.flatten(0, 1).numpy(), action.flatten(0, 1).numpy(), entropy=True
        )
        return LogProbEntropy(*(torch.from_numpy(x).reshape(lead) for x in self.drawn.terms()))

    def back(self, choice: LogProbEntropy, value: Tensor, slopes: OutputGrads) -> None:
        """See ``Backprop``."""
        assert self.drawn is not None
        entropy = None if slopes.entropy is None else slopes.entropy.flatten().numpy()
        given = slopes.log_prob.flatten().numpy(), slopes.value.flatten().numpy()
        self.descend(self.drawn, *given, entropy)


def supports(net: ActorCritic) -> bool:
    """Whether the network is linear layers and activations, nothing else, masks included."""
    if net.recurrent or net.masked or not all(isinstance(t.torso, MLP) for t in net.trunks):
        return False
    chains = [*(cast("MLP", t.torso).layers for t in net.trunks), net.policy, net.value]
    return all(type(m) is nn.Linear or type(m) in FORWARD for chain in chains for m in chain)


def make_actor_critic_backprop(
    net: ActorCritic, flat: FlatParameters, compute: Compute
) -> NumpyActorCritic | AutogradActorCritic:
    """``Written`` where it can be, by a fixed rule; both give the same numbers to 1e-5."""
    cpu = next(net.parameters()).device.type == "cpu"
    plain = cpu and compute.precision == "float32" and supports(net)
    return NumpyActorCritic(net, flat) if plain else AutogradActorCritic(net, flat, compute)
