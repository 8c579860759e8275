"""Acting with bounded real actions: the actor of policy=sac, td3, ddpg and cql_sac."""

from abc import ABC, abstractmethod
from typing import Protocol

import numpy as np
import torch

from rlrun.acting.mlp import ForwardMLP
from rlrun.acting.observations import flatten
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
from rlrun.nets.actor_and_critics import ActionBounds, ActorNet, FlatObs
from rlrun.nets.torso import MLP
from rlrun.schema import ControlConfig
from rlrun.types import Act, Tree


class ActorStep(NetStep, Protocol):
    """Outputs [E, O] of one row; the previous action is [E, *A], as the environment has it."""

    learned: bool  # after the first update
    noise: float  # standard deviation of the exploration noise


class BoxActor(ABC):
    """Actions of an actor network in a bounded Box; uniform ones before the first update.

    Evaluations (``explore`` None) take tanh of the first A outputs: mode or mean before tanh.
    """

    def __init__(
        self,
        net: ActorNet,
        config: ControlConfig,
        bounds: ActionBounds,
        generator: np.random.Generator,
        *,
        num_envs: int,
    ) -> None:
        self.step = make_actor_step(net, bounds, num_envs)
        self.bounds, self.generator = bounds, generator
        self.scale, self.clip = config.reward_scale, config.reward_clip
        self.extras: dict[str, np.ndarray] = {}

    def refresh(self) -> None:
        self.step.refresh()

    def initial_state(self) -> Tree:
        return self.step.initial_state()

    @abstractmethod
    def sample(self, outputs: np.ndarray) -> np.ndarray:
        """Return exploring actions [E, A] in [-1, 1] of the network's outputs [E, O]."""

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
        action = self.bounds.from_unit(self.sample(outputs))
        if explore.any():
            coin = self.generator.random(count) < explore
            uniform = uniform_actions(space, count, self.generator)
            action = np.where(coin.reshape(-1, *[1] * self.bounds.dims), uniform, action)
        return Act(action, {}, state)


class SquashedGaussianActor(BoxActor):
    """tanh(mean + std N(0, 1)); outputs [E, 2 A] are means and log stds (SAC)."""

    def sample(self, outputs: np.ndarray) -> np.ndarray:
        mean, log_std = np.split(outputs, 2, -1)
        std = np.exp(np.clip(log_std, *LOG_STD_BOUNDS))
        noise = self.generator.standard_normal(mean.shape, np.float32)
        action: np.ndarray = np.tanh(mean + std * noise)
        return action


class GaussianNoiseActor(BoxActor):
    """clip(tanh(outputs) + sigma N(0, 1), -1, 1): exploration of a deterministic policy.

    Source: Fujimoto et al. 2018, section 6.1 (the original DDPG has correlated noise).
    """

    def sample(self, outputs: np.ndarray) -> np.ndarray:
        action: np.ndarray = np.tanh(outputs)
        sigma = np.float32(self.step.noise)
        action += sigma * self.generator.standard_normal(action.shape, np.float32)
        return np.clip(action, -1, 1, out=action)


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
