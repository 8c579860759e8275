"""Acting by action values: the actor of policy=dqn, r2d2 and cql."""

from typing import Protocol

import numpy as np
import torch

from rlrun.acting.mlp import ForwardMLP
from rlrun.acting.observations import flatten
from rlrun.acting.q_heads import NumpyQHead
from rlrun.acting.step import (
    NetStep,
    NumpyStep,
    TorchStep,
    reset_state,
    shape_reward,
    uses_numpy,
)
from rlrun.functional.explore import select_action
from rlrun.functional.masks import MASK, allowed_actions
from rlrun.nets.forward_noise import MEAN_WEIGHTS, ForwardNoise
from rlrun.nets.noisy import noise_size, noisy_layers, split_noise
from rlrun.nets.qnet import DistNet, QNet
from rlrun.nets.torso import MLP
from rlrun.schema import SwitchedConfig, ValueConfig
from rlrun.types import Act, Tree


class QNetStep(NetStep, Protocol):
    """Action values [E, A] of one row."""

    def perturb(self, generator: np.random.Generator | None) -> None:
        """Draw weight noise for every environment, kept until the next call; None: mean weights."""


class ValueActor:
    """Greedy actions of a Q-network, replaced by uniform ones with a probability.

    Noisy networks: every environment has noise of its own; greedy actions are those of the mean
    weights. ``policy.noisy_resample`` sets how long the noise is kept: ``step``, until the next
    action (Fortunato et al. 2018, section 3.1, for DQN), or ``chunk``, until the next ``refresh``
    (the same section, for A3C's rollouts). With ``chunk`` an environment follows one perturbed
    policy for many steps, which explores states that independent deviations do not reach.
    """

    def __init__(
        self, net: QNet, config: ValueConfig, generator: np.random.Generator, *, num_envs: int
    ) -> None:
        self.step: QNetStep = make_qnet_step(net, num_envs)
        self.generator, self.scale, self.clip = generator, config.reward_scale, config.reward_clip
        switches = config if isinstance(config, SwitchedConfig) else None
        self.noisy = switches is not None and switches.noisy is not None
        self.noise_per_chunk = switches is not None and switches.noisy_resample == "chunk"
        self.needs_noise = True  # the next exploring action draws noise, whatever the hold
        self.extras: dict[str, np.ndarray] = {}

    def refresh(self) -> None:
        self.step.refresh()
        self.needs_noise = True

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
        if self.noisy and (explore is None or self.needs_noise or not self.noise_per_chunk):
            self.step.perturb(None if explore is None else self.generator)
            self.needs_noise = explore is None
        q, state = self.step(obs, first, prev_action, reward, state)
        mask = allowed_actions(obs) if isinstance(obs, dict) and MASK in obs else None
        return Act(select_action(q, explore, self.generator, mask), {}, state)


class TorchQNetStep(TorchStep[QNet]):
    """Any Q-network, on its own device."""

    def __init__(self, net: QNet, num_envs: int) -> None:
        super().__init__(net, net.memory, num_envs)
        self.noisy_layers, self.noise = noisy_layers(self.net), MEAN_WEIGHTS

    def perturb(self, generator: np.random.Generator | None) -> None:
        self.noise = MEAN_WEIGHTS
        if generator is not None:
            shape = self.num_envs, noise_size(self.noisy_layers)
            eps = torch.from_numpy(generator.standard_normal(shape, np.float32))
            self.noise = ForwardNoise(tuple(split_noise(eps.to(self.device), self.noisy_layers)))

    @torch.inference_mode()
    def __call__(
        self, obs: Tree, first: np.ndarray, action: np.ndarray, reward: np.ndarray, state: Tree
    ) -> tuple[np.ndarray, Tree]:
        obs, first_, action_, reward_, state = self.tensors(obs, first, action, reward, state)
        return self.arrays(*self.net.step(obs, first_, action_, reward_, state, self.noise))


class NumpyQNetStep(NumpyStep):
    """A Q-network with an MLP torso, on the CPU."""

    def __init__(self, net: QNet, num_envs: int) -> None:
        assert isinstance(net.torso, MLP)
        self.space, self.width, self.prev_inputs = net.torso.space, net.torso.size, net.prev_inputs
        self.torso = ForwardMLP(net.torso.layers)
        self.head = NumpyQHead(net, num_envs) if isinstance(net, DistNet) else None
        streams = [] if self.head else [m for m in (net.advantage, net.value) if m is not None]
        self.streams = [ForwardMLP(stream) for stream in streams]
        super().__init__(net.memory, num_envs, self.torso, *self.streams, self.head)
        features = self.width + (net.actions + 1 if self.prev_inputs else 0)
        self.inputs = np.zeros((num_envs, features), np.float32)
        self.actions = np.arange(net.actions)

    def perturb(self, generator: np.random.Generator | None) -> None:
        assert self.head is not None, "a network without noise"
        self.head.perturb(generator)

    def __call__(
        self, obs: Tree, first: np.ndarray, action: np.ndarray, reward: np.ndarray, state: Tree
    ) -> tuple[np.ndarray, Tree]:
        if first.any():
            state = reset_state(first, state)
            action, reward = np.where(first, -1, action), np.where(first, np.float32(0), reward)
        x = self.torso(flatten(self.space, obs))
        if self.prev_inputs:
            self.inputs[:, : self.width] = x
            self.inputs[:, self.width : -1] = action[:, None] == self.actions
            self.inputs[:, -1] = reward
            x = self.inputs
        x, state = self.recur(x, state)
        if self.head is not None:
            return self.head(x), state
        q = self.streams[0](x)
        if len(self.streams) > 1:
            q -= q.sum(-1, keepdims=True) * np.float32(1 / len(self.actions))
            q += self.streams[1](x)
        return q, state


def make_qnet_step(net: QNet, num_envs: int) -> QNetStep:
    """Return the faster step for this network, by a fixed rule; values agree to 1e-5."""
    step = NumpyQNetStep if uses_numpy(net, net.torso, net.memory) else TorchQNetStep
    return step(net, num_envs)
