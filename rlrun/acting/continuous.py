"""Acting with bounded real actions: numpy in, numpy out, with weights of its own."""

import copy
from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from rlrun.functional.continuous import LOG_STD_BOUNDS
from rlrun.functional.explore import uniform_actions
from rlrun.kernels.cells import GRUCell, LSTMCell, MinGRUCell
from rlrun.kernels.mlp import ForwardMLP
from rlrun.kernels.observations import flatten
from rlrun.nets.action_bounds import ActionBounds
from rlrun.nets.continuous_actor import ActorNet
from rlrun.nets.encoder import FlatObs
from rlrun.nets.memory.cell import Cell
from rlrun.nets.memory.mingru import MinGRU
from rlrun.nets.memory.recurrent import GRU, LSTM
from rlrun.nets.torso import MLP
from rlrun.schema import ControlConfig
from rlrun.types import Act, Tree, tree_map

ExplorationFunction = Callable[[np.ndarray, float, np.random.Generator], np.ndarray]


def add_gaussian_noise(
    outputs: np.ndarray, sigma: float, generator: np.random.Generator
) -> np.ndarray:
    """clip(tanh(outputs) + sigma N(0, 1), -1, 1): a deterministic policy's exploration; [E, A].

    Source: Fujimoto et al. 2018, section 6.1 (the original DDPG has correlated noise).
    """
    action: np.ndarray = np.tanh(outputs)
    action += np.float32(sigma) * generator.standard_normal(action.shape, np.float32)
    return np.clip(action, -1, 1, out=action)


def sample_squashed(
    outputs: np.ndarray, sigma: float, generator: np.random.Generator
) -> np.ndarray:
    """tanh(mean + std N(0, 1)) of outputs [E, 2 A] (means, log standard deviations); [E, A]."""
    mean, log_std = np.split(outputs, 2, -1)
    std = np.exp(np.clip(log_std, *LOG_STD_BOUNDS))
    action: np.ndarray = np.tanh(mean + std * generator.standard_normal(mean.shape, np.float32))
    return action


class ActorStep(Protocol):
    """A snapshot of an actor's weights that can take steps."""

    learned: bool
    noise: float

    def refresh(self) -> None:
        """Copy the network's present weights."""

    def initial_state(self) -> Tree:
        """The state before an episode's first row, arrays [E, ...]."""

    def __call__(
        self, obs: Tree, first: np.ndarray, action: np.ndarray, reward: np.ndarray, state: Tree
    ) -> tuple[np.ndarray, Tree]:
        """Outputs [E, O] and the state behind the row; where ``first`` it starts afresh.

        ``action`` [E, *A], as the environment has it, and ``reward``: those of the row before.
        """


class ContinuousActor:
    """Actions of an actor network, explored by ``explored``; uniform ones before it has learned.

    Evaluations (``explore`` None) take tanh of the first A outputs: mode or mean before tanh.
    """

    def __init__(
        self,
        net: ActorNet,
        config: ControlConfig,
        bounds: ActionBounds,
        explored: ExplorationFunction,
        generator: np.random.Generator,
        *,
        num_envs: int,
    ) -> None:
        self.step = make_actor_step(net, bounds, num_envs)
        self.refresh, self.initial_state = self.step.refresh, self.step.initial_state
        self.bounds, self.explored, self.generator = bounds, explored, generator
        self.scale, self.clip = config.reward_scale, config.reward_clip
        self.extras: dict[str, np.ndarray] = {}

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
        """See ``Actor``."""
        reward = prev_reward if self.scale == 1 else prev_reward * np.float32(self.scale)
        if self.clip is not None:
            reward = np.clip(reward, -self.clip, self.clip)
        outputs, state = self.step(obs, first, prev_action, reward, state)
        if explore is None:
            return Act(self.bounds.own(np.tanh(outputs[:, : self.bounds.size])), {}, state)
        space, count = self.bounds.space, len(first)
        if not self.step.learned:
            return Act(uniform_actions(space, count, self.generator), {}, state)
        action = self.bounds.own(self.explored(outputs, self.step.noise, self.generator))
        if explore.any():
            coin = self.generator.random(count) < explore
            other = uniform_actions(space, count, self.generator)
            action = np.where(coin.reshape(-1, *[1] * self.bounds.dims), other, action)
        return Act(action, {}, state)


class TorchActorStep:
    """Any network, on its own device."""

    def __init__(self, net: ActorNet, bounds: ActionBounds, num_envs: int) -> None:
        self.source, self.bounds, self.num_envs = net, bounds, num_envs
        self.net = copy.deepcopy(net).requires_grad_(False)
        self.device = next(net.parameters()).device
        self.learned, self.noise = bool(net.learned), float(net.noise)

    @torch.no_grad()
    def refresh(self) -> None:
        """See ``ActorStep``."""
        torch._foreach_copy_(list(self.net.parameters()), list(self.source.parameters()))
        self.learned, self.noise = bool(self.source.learned), float(self.source.noise)

    def initial_state(self) -> Tree:
        """See ``ActorStep``."""
        state = self.net.encoder.memory.initial_state(self.num_envs, torch.device("cpu"))
        return tree_map(Tensor.numpy, state)

    @torch.inference_mode()
    def __call__(
        self, obs: Tree, first: np.ndarray, action: np.ndarray, reward: np.ndarray, state: Tree
    ) -> tuple[np.ndarray, Tree]:
        """See ``ActorStep``."""

        def tensor(x: np.ndarray) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(x)).to(self.device)

        obs, first_, taken, paid, state = (
            tree_map(tensor, x) for x in (obs, first, action, reward, state)
        )
        out, state = self.net.step(obs, first_, self.bounds.unit(taken), paid, state)
        return out.numpy(force=True), tree_map(lambda x: x.numpy(force=True), state)


class NumpyActorStep:
    """A network without convolutions, on the CPU."""

    def __init__(self, net: ActorNet, bounds: ActionBounds, num_envs: int) -> None:
        encoder, self.bounds, self.num_envs = net.encoder, bounds, num_envs
        assert isinstance(encoder.torso, (FlatObs, MLP))
        self.net, self.space, self.side = net, encoder.torso.space, encoder.prev_inputs
        self.torso = ForwardMLP(encoder.torso.layers) if isinstance(encoder.torso, MLP) else None
        self.head = ForwardMLP(net.head)
        self.memory: LSTMCell | GRUCell | MinGRUCell | None = None
        if isinstance(encoder.memory, LSTM):
            self.memory = LSTMCell(encoder.memory, num_envs)
        elif isinstance(encoder.memory, GRU):
            self.memory = GRUCell(encoder.memory)
        elif isinstance(encoder.memory, MinGRU):
            self.memory = MinGRUCell(encoder.memory)
        self.learned, self.noise = bool(net.learned), float(net.noise)

    def refresh(self) -> None:
        """See ``ActorStep``."""
        for part in (self.torso, self.head, self.memory):
            if part is not None:
                part.refresh()
        self.learned, self.noise = bool(self.net.learned), float(self.net.noise)

    def initial_state(self) -> Tree:
        """See ``ActorStep``."""
        return () if self.memory is None else self.memory.initial_state(self.num_envs)

    def __call__(
        self, obs: Tree, first: np.ndarray, action: np.ndarray, reward: np.ndarray, state: Tree
    ) -> tuple[np.ndarray, Tree]:
        """See ``ActorStep``."""
        opens = first[:, None]
        if first.any():
            state = tree_map(lambda s: np.where(opens, np.float32(0), s), state)
        x = flatten(self.space, obs)
        if self.torso is not None:
            x = self.torso(x)
        if self.side:
            unit = np.where(opens, np.float32(0), self.bounds.unit_array(action))
            paid = np.where(first, np.float32(0), reward)[:, None]
            x = np.concatenate([x, unit, paid], 1)
        if self.memory is not None:
            x, state = self.memory(x, state)
        return self.head(x), state


def make_actor_step(net: ActorNet, bounds: ActionBounds, num_envs: int) -> ActorStep:
    """The faster step for this network, by a fixed rule; both give the same values to 1e-5."""
    cpu = next(net.parameters()).device.type == "cpu"
    own = isinstance(net.encoder.memory, Cell)
    plain = isinstance(net.encoder.torso, (FlatObs, MLP)) and not own
    kind = NumpyActorStep if cpu and plain else TorchActorStep
    return kind(net, bounds, num_envs)
