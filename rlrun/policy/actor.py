"""Actors: actions of E environments from a copy of a network's weights, with numpy arrays.

An actor runs one row of its network, then selects actions from the outputs. On the CPU ``copy_of``
uses numpy, because acting consists of tiny matrix products, for which numpy needs 0.6 to 0.9 of
torch's time (measured at widths 32 to 512 and 1 to 256 environments, one thread). It uses torch on
a GPU, for convolutions, and for memories that are a ``Cell`` (but minGRU and BMRU).
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from rlrun.functional.masks import FORBIDDEN, allowed_actions
from rlrun.functional.policy import mask_logits
from rlrun.functional.rows import shape_reward
from rlrun.nets.acting import ActingNet
from rlrun.nets.actor_critic import ActorCritic
from rlrun.nets.memory import Cell
from rlrun.nets.memory.bmru import BMRU
from rlrun.nets.memory.gated import MinGRU
from rlrun.nets.noise import MEAN_WEIGHTS, ForwardNoise, noise_size, noisy_layers, split_noise
from rlrun.nets.policy_net import PolicyNet
from rlrun.nets.torso import MLP, FlatObs
from rlrun.policy.numpy_net import NumpyNet, Outputs, PreviousInputs
from rlrun.schema import ActionValueConfig, ControlConfig, OnPolicyConfig, PolicyConfig
from rlrun.types import Act, Actor, Tree, tree_leaves, tree_map

_READS_REWARDS = (ActionValueConfig, OnPolicyConfig, ControlConfig)
Chosen = tuple[np.ndarray, dict[str, np.ndarray]]  # actions [E, *A], extras [E, ...]


class TorchNet:
    """A copy of any network's weights on its device. ``NumpyNet`` has the same methods."""

    def __init__(self, net: ActingNet, num_envs: int) -> None:
        self.net, self.num_envs = net, num_envs
        self.copy, self.device = copy.deepcopy(net).requires_grad_(False), device_of(net)
        self.noisy_layers, self.noise = noisy_layers(self.copy), MEAN_WEIGHTS

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the network's current weights."""
        torch._foreach_copy_(list(self.copy.parameters()), list(self.net.parameters()))
        for buffer, source in zip(self.copy.buffers(), self.net.buffers(), strict=True):
            buffer.copy_(source)

    def perturb(self, generator: np.random.Generator | None) -> None:
        """Draw weight noise for every environment, kept until the next call. None: mean weights."""
        self.noise = MEAN_WEIGHTS
        if generator is not None:
            shape = self.num_envs, noise_size(self.noisy_layers)
            eps = self._tensor(generator.standard_normal(shape, np.float32))
            self.noise = ForwardNoise(tuple(split_noise(eps, self.noisy_layers)))

    @torch.inference_mode()
    def forward(self, obs: Tree, previous: np.ndarray | None, states: Sequence[Tree]) -> Outputs:
        """Return outputs [E, K] and the next states, one per trunk.

        ``previous`` [E, F]: output of ``PreviousInputs``, zero in an episode's first row.
        """
        obs, states = tree_map(self._tensor, obs), tree_map(self._tensor, tuple(states))
        read = None if previous is None else self._tensor(previous)
        outputs, after = self.copy.step(obs, read, states, self.noise)
        return outputs.numpy(force=True), tree_map(lambda x: x.numpy(force=True), after)

    def _tensor(self, x: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(x)).to(self.device)


def copy_of(net: ActingNet, num_envs: int) -> TorchNet | NumpyNet:
    """Return the faster copy of this network by a fixed rule. Outputs of both agree to 1e-5."""
    numpy = device_of(net).type == "cpu" and all(
        isinstance(torso, (MLP, FlatObs))
        and (isinstance(memory, (MinGRU, BMRU)) or not isinstance(memory, Cell))
        for torso, memory in net.acting_trunks()
    )
    return (NumpyNet if numpy else TorchNet)(net, num_envs)


def device_of(net: ActingNet) -> torch.device:
    """Return the device of the network's parameters."""
    return next(net.parameters()).device


class NetActor(ABC):
    """Base class of actors with a copy of a network. Subclasses select actions from its outputs."""

    exported: ClassVar[bool] = False  # whether ``greedy`` is defined
    outputs: np.ndarray  # [E, K] from which the last action was selected

    def __init__(
        self, net: ActingNet, config: PolicyConfig, generator: np.random.Generator, *, num_envs: int
    ) -> None:
        self.net, self.copy, self.generator = net, copy_of(net, num_envs), generator
        self.trunks = net.acting_trunks()
        # The state of an actor-critic is a tuple with one state per trunk.
        self.state_per_trunk = isinstance(net, ActorCritic) and net.recurrent
        shaping = config if isinstance(config, _READS_REWARDS) else None
        self.scale = 1.0 if shaping is None else shaping.reward_scale
        self.clip = None if shaping is None else shaping.reward_clip
        self.previous = PreviousInputs(net, num_envs) if net.prev_inputs else None
        self.columns = num_envs
        self.has_past = self.previous is not None or bool(NetActor.initial_state(self))
        self.config, self.extras = config, dict[str, np.ndarray]()
        self.set_up()
        self.refresh()

    def set_up(self) -> None:  # noqa: B027
        """Make what ``choose`` reads besides the network's outputs."""

    def refresh(self) -> None:
        self.copy.refresh()

    def initial_state(self) -> Tree:
        cpu = torch.device("cpu")
        states = tuple(memory.initial_state(self.columns, cpu) for _, memory in self.trunks)
        return tree_map(Tensor.numpy, states if self.state_per_trunk else states[0])

    def act(
        self,
        obs: Tree,
        first: np.ndarray,
        prev_action: np.ndarray,
        prev_reward: np.ndarray,
        state: Tree,
        *,
        explore: np.ndarray | None,
    ) -> Act:
        self.perturb(explore)
        reward = shape_reward(prev_reward, self.scale, self.clip)
        self.outputs, state = self.step(obs, first, prev_action, reward, state)
        action, extras = self.choose(self.outputs, obs, explore)
        return Act(action, extras, state)

    def perturb(self, explore: np.ndarray | None) -> None:
        """Draw the weight noise of the next step. Does nothing for networks without noise."""
        return

    def step(
        self, obs: Tree, first: np.ndarray, action: np.ndarray, reward: np.ndarray, state: Tree
    ) -> Outputs:
        """Return the network's outputs [E, K] and the next state.

        ``action`` [E, *A] and ``reward`` [E] are those of the previous row: the action as the
        environment takes it, the reward scaled and clipped. Rows with ``first`` [E] start from a
        zero state and ignore them.
        """
        previous = None if self.previous is None else self.previous(action, reward)
        if self.has_past and first.any():
            state = tree_map(lambda s: np.where(first[:, None], s.dtype.type(0), s), state)
            if previous is not None:
                previous[first] = 0
        if self.state_per_trunk:
            return self.copy.forward(obs, previous, state)
        outputs, states = self.copy.forward(obs, previous, (state,))
        return outputs, states[0]

    @abstractmethod
    def choose(self, outputs: np.ndarray, obs: Tree, explore: np.ndarray | None) -> Chosen:
        """Return actions [E, *A] and extras [E, ...]; ``explore`` None: greedy."""

    def greedy(self, outputs: Tensor, obs: Tree) -> dict[str, Tensor]:
        """Return ``choose`` without exploration as tensors, for the export.

        They are the action [n, *A] and what it is selected from: q_values, logits, or mean and
        log_std.
        """
        raise NotImplementedError

    def read(self, outputs: np.ndarray, obs: Tree) -> tuple[str, np.ndarray]:
        """Return (kind, values [K]) of column 0 from ``outputs`` [E, ...]; see ``Reading``."""
        return "", np.zeros(0)


class DistributionActor(NetActor):
    """Selects actions from logits of discrete actions, or from means of a Gaussian."""

    exported = True
    net: ActorCritic | PolicyNet

    def masked(self, logits: np.ndarray, obs: Tree) -> np.ndarray:
        """Return ``logits`` with those of masked actions set to -1e8."""
        if not self.net.masked:
            return logits
        return np.where(allowed_actions(obs), logits, np.float32(FORBIDDEN))

    def greedy(self, outputs: Tensor, obs: Tree) -> dict[str, Tensor]:
        net = self.net
        if net.log_std is not None and net.bounds is not None:
            log_std = net.action_log_std().expand_as(outputs)
            action = net.bounds.from_unit_tensor(outputs)
            return {"action": action, "mean": outputs, "log_std": log_std}
        logits = mask_logits(outputs, obs) if net.masked else outputs
        parts = [part.argmax(-1) for part in torch.split(logits, list(net.sizes), -1)]
        action = torch.stack(parts, -1).reshape(-1, *(net.space.shape or ()))
        return {"action": action, "logits": logits}

    def read(self, outputs: np.ndarray, obs: Tree) -> tuple[str, np.ndarray]:
        if self.net.bounds is not None:
            return "mean", self.net.bounds.from_unit(outputs)[0].ravel()
        return "probability", softmax(self.masked(outputs, obs)[0], list(self.net.sizes))


def softmax(logits: np.ndarray, sizes: list[int]) -> np.ndarray:
    """Return the probabilities within each part of ``logits`` [K]; ``sizes``: of the parts."""
    parts = np.split(logits.astype(np.float64), np.cumsum(sizes)[:-1])
    weights = [np.exp(part - part.max()) for part in parts]
    return np.concatenate([w / w.sum() for w in weights])


# -- readings --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reading:
    """State, values and action of one row of one environment (of a team: of its first agent).

    ``kind`` names ``values`` [K]: Q of each action, probability of each action (component after
    component), mean of each number of a Box action, or "" with no values if unknown. ``state`` [H]:
    the recurrent state after the row (of an LSTM the output h without its cell), empty without a
    memory. ``action`` [*A]: as the environment takes it.
    """

    kind: str
    values: np.ndarray
    state: np.ndarray
    action: np.ndarray


class RecordingActor:
    """An actor that passes the outputs of ``actor`` for column 0 to ``receive``."""

    def __init__(self, actor: Actor, receive: Callable[[Reading], None]) -> None:
        self.actor, self.receive, self.extras = actor, receive, actor.extras

    def refresh(self) -> None:
        self.actor.refresh()

    def initial_state(self) -> Tree:
        return self.actor.initial_state()

    def act(self, *row: Any, explore: np.ndarray | None) -> Act:
        kind, values = "", np.zeros(0)
        act = self.actor.act(*row, explore=explore)
        if isinstance(self.actor, NetActor):
            kind, values = self.actor.read(self.actor.outputs, row[0])
        arrays = (x for x in tree_leaves(act.state) if isinstance(x, np.ndarray))
        state = next((x[0].ravel() for x in arrays if x.dtype.kind == "f"), np.zeros(0))
        self.receive(Reading(kind, values, state, np.asarray(act.action[0])))
        return act
