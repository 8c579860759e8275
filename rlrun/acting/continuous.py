"""Acting with bounded real actions: the actor of policy=sac, td3, ddpg and cql_sac."""

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch

from rlrun.acting.step import (
    NetStep,
    NumpyStep,
    TorchStep,
    reset_state,
    shape_reward,
    uses_numpy,
)
from rlrun.functional.continuous import LOG_STD_BOUNDS
from rlrun.functional.explore import uniform_actions
from rlrun.kernels.mlp import ForwardMLP
from rlrun.kernels.observations import flatten
from rlrun.nets.action_bounds import ActionBounds
from rlrun.nets.continuous_actor import ActorNet
from rlrun.nets.encoder import FlatObs
from rlrun.nets.torso import MLP
from rlrun.schema import ControlConfig
from rlrun.types import Act, Tree

ExplorationFunction = Callable[[np.ndarray, float, np.random.Generator], np.ndarray]


def add_gaussian_noise(
    outputs: np.ndarray, sigma: float, generator: np.random.Generator
) -> np.ndarray:
    """Return clip(tanh(outputs) + sigma N(0, 1), -1, 1): exploration of a deterministic policy.

    ``outputs`` [E, A]. Source: Fujimoto et al. 2018, section 6.1 (the original DDPG has correlated
    noise).
    """
    action: np.ndarray = np.tanh(outputs)
    action += np.float32(sigma) * generator.standard_normal(action.shape, np.float32)
    return np.clip(action, -1, 1, out=action)


def sample_squashed(
    outputs: np.ndarray, sigma: float, generator: np.random.Generator
) -> np.ndarray:
    """Return tanh(mean + std N(0, 1)) [E, A] of outputs [E, 2 A] (means, log stds).

    ``sigma`` is not used: the network has a standard deviation of its own.
    """
    mean, log_std = np.split(outputs, 2, -1)
    std = np.exp(np.clip(log_std, *LOG_STD_BOUNDS))
    action: np.ndarray = np.tanh(mean + std * generator.standard_normal(mean.shape, np.float32))
    return action


class ActorStep(NetStep, Protocol):
    """Outputs [E, O] of one row; the previous action is [E, *A], as the environment has it."""

    learned: bool  # after the first update
    noise: float  # standard deviation of the exploration noise


class ContinuousActor:
    """Actions of an actor network with ``explore_with``; uniform ones before the first update.

    Evaluations (``explore`` None) take tanh of the first A outputs: mode or mean before tanh.
    """

    def __init__(
        self,
        net: ActorNet,
        config: ControlConfig,
        bounds: ActionBounds,
        explore_with: ExplorationFunction,
        generator: np.random.Generator,
        *,
        num_envs: int,
    ) -> None:
        self.step = make_actor_step(net, bounds, num_envs)
        self.bounds, self.explore_with, self.generator = bounds, explore_with, generator
        self.scale, self.clip = config.reward_scale, config.reward_clip
        self.extras: dict[str, np.ndarray] = {}

    def refresh(self) -> None:
        self.step.refresh()

    def initial_state(self) -> Tree:
        return self.step.initial_state()

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
        reward = shape_reward(prev_reward, self.scale, self.clip)
        outputs, state = self.step(obs, first, prev_action, reward, state)
        if explore is None:
            return Act(self.bounds.from_unit(np.tanh(outputs[:, : self.bounds.size])), {}, state)
        space, count = self.bounds.space, len(first)
        if not self.step.learned:
            return Act(uniform_actions(space, count, self.generator), {}, state)
        unit = self.explore_with(outputs, self.step.noise, self.generator)
        action = self.bounds.from_unit(unit)
        if explore.any():
            coin = self.generator.random(count) < explore
            uniform = uniform_actions(space, count, self.generator)
            action = np.where(coin.reshape(-1, *[1] * self.bounds.dims), uniform, action)
        return Act(action, {}, state)


class TorchActorStep(TorchStep[ActorNet]):
    """Any actor network, on its own device."""

    def __init__(self, net: ActorNet, bounds: ActionBounds, num_envs: int) -> None:
        super().__init__(net, net.encoder.memory, num_envs)
        self.bounds, self.learned, self.noise = bounds, bool(net.learned), float(net.noise)

    def refresh(self) -> None:
        super().refresh()
        self.learned, self.noise = bool(self.source.learned), float(self.source.noise)

    @torch.inference_mode()
    def __call__(
        self, obs: Tree, first: np.ndarray, action: np.ndarray, reward: np.ndarray, state: Tree
    ) -> tuple[np.ndarray, Tree]:
        obs, first_, action_, reward_, state = self.tensors(obs, first, action, reward, state)
        unit = self.bounds.to_unit(action_)
        return self.arrays(*self.net.step(obs, first_, unit, reward_, state))


class NumpyActorStep(NumpyStep):
    """An actor network without convolutions, on the CPU."""

    def __init__(self, net: ActorNet, bounds: ActionBounds, num_envs: int) -> None:
        encoder, self.bounds, self.net = net.encoder, bounds, net
        assert isinstance(encoder.torso, (FlatObs, MLP))
        self.space, self.prev_inputs = encoder.torso.space, encoder.prev_inputs
        self.torso = ForwardMLP(encoder.torso.layers) if isinstance(encoder.torso, MLP) else None
        self.head = ForwardMLP(net.head)
        super().__init__(encoder.memory, num_envs, self.torso, self.head)
        self.learned, self.noise = bool(net.learned), float(net.noise)

    def refresh(self) -> None:
        super().refresh()
        self.learned, self.noise = bool(self.net.learned), float(self.net.noise)

    def __call__(
        self, obs: Tree, first: np.ndarray, action: np.ndarray, reward: np.ndarray, state: Tree
    ) -> tuple[np.ndarray, Tree]:
        opens = first[:, None]
        if first.any():
            state = reset_state(first, state)
        x = flatten(self.space, obs)
        if self.torso is not None:
            x = self.torso(x)
        if self.prev_inputs:
            unit = np.where(opens, np.float32(0), self.bounds.to_unit_array(action))
            reward = np.where(first, np.float32(0), reward)
            x = np.concatenate([x, unit, reward[:, None]], 1)
        x, state = self.recur(x, state)
        return self.head(x), state


def make_actor_step(net: ActorNet, bounds: ActionBounds, num_envs: int) -> ActorStep:
    """Return the faster step for this network, by a fixed rule; outputs agree to 1e-5."""
    numpy = uses_numpy(net, net.encoder.torso, net.encoder.memory)
    return (NumpyActorStep if numpy else TorchActorStep)(net, bounds, num_envs)
