"""Acting with an ``ActorCritic``: the actor of policy=ppo, a2c and impala.

Values are not computed: the learner computes them for all rows of a rollout at once.
"""

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

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
from rlrun.functional.explore import draw_categorical, draw_gaussian
from rlrun.functional.masks import mask_logits_numpy
from rlrun.nets.actor_critic import ActorCritic, Trunk
from rlrun.nets.memory.mingru import MinGRU
from rlrun.nets.running_moments import CLIP
from rlrun.nets.torso import MLP
from rlrun.schema import OnPolicyConfig
from rlrun.types import Act, Tree, tree_map


class OnPolicyActor:
    """Sampled actions with their log-probability in ``extras["log_prob"]``.

    Real actions are samples of an unbounded Gaussian: the environment gets them clipped to its box,
    ``extras["raw_action"]`` holds the sample, and ``log_prob`` is that of the sample.
    """

    def __init__(
        self,
        net: ActorCritic,
        config: OnPolicyConfig,
        generator: np.random.Generator,
        *,
        num_envs: int,
    ) -> None:
        self.net, self.space, self.sizes = net, net.space, net.sizes
        self.step = make_actor_critic_step(net, num_envs)
        self.generator, self.scale, self.clip = generator, config.reward_scale, config.reward_clip
        self.shape = (num_envs, *(net.space.shape or ()))
        self.extras: dict[str, np.ndarray] = {"log_prob": np.zeros(num_envs, np.float32)}
        if not self.sizes:
            self.extras["raw_action"] = np.zeros(self.shape, np.float32)
        self.refresh()

    def refresh(self) -> None:
        self.step.refresh()
        if self.net.log_std is not None:
            self.log_std = self.net.log_std.detach().numpy(force=True).copy()

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
        """Return the mode where ``explore`` is None, else a sample; its values are not used."""
        reward = shape_reward(prev_reward, self.scale, self.clip)
        outputs, state = self.step(obs, first, prev_action, reward, state)
        generator = None if explore is None else self.generator
        if self.net.masked:
            outputs = mask_logits_numpy(outputs, obs)
        if self.sizes:
            action, log_prob = draw_categorical(outputs, self.sizes, generator)
            if action.shape != self.shape:
                action = action.reshape(self.shape)
            return Act(action, {"log_prob": log_prob}, state)
        raw, log_prob = draw_gaussian(outputs, self.log_std, generator)
        raw = raw.reshape(self.shape)
        assert isinstance(self.space, gym.spaces.Box)
        action = np.clip(raw, self.space.low, self.space.high).astype(self.space.dtype)
        return Act(action, {"log_prob": log_prob, "raw_action": raw}, state)


class TorchActorCriticStep(TorchStep[ActorCritic]):
    """Any actor-critic, on its own device: the distribution's parameters [E, K]."""

    def __init__(self, net: ActorCritic, num_envs: int) -> None:
        super().__init__(net, net, num_envs)

    @torch.no_grad()
    def refresh(self) -> None:
        self.net.load_state_dict(self.source.state_dict())  # with the moments of observations

    @torch.inference_mode()
    def __call__(
        self, obs: Tree, first: np.ndarray, action: np.ndarray, reward: np.ndarray, state: Tree
    ) -> tuple[np.ndarray, Tree]:
        return self.arrays(*self.net.step(*self.tensors(obs, first, action, reward, state)))


class NumpyTrunk(NumpyStep):
    """A trunk with an MLP torso, on the CPU."""

    def __init__(self, trunk: Trunk, num_envs: int, extra: int) -> None:
        assert isinstance(trunk.torso, MLP)
        self.width, self.torso = trunk.torso.size, ForwardMLP(trunk.torso.layers)
        super().__init__(trunk.memory, num_envs, self.torso)
        self.inputs = np.zeros((num_envs, self.width + extra), np.float32)

    def __call__(
        self, x: np.ndarray, previous: np.ndarray | None, state: Tree
    ) -> tuple[np.ndarray, Tree]:
        """Return features of flat observations ``x`` [E, F], and the next state."""
        x = self.torso(x)
        if previous is not None:
            self.inputs[:, : self.width], self.inputs[:, self.width :] = x, previous
            x = self.inputs
        return self.recur(x, state)


class NumpyActorCriticStep:
    """An actor-critic with MLP torsos, on the CPU: the distribution's parameters [E, K]."""

    def __init__(self, net: ActorCritic, num_envs: int) -> None:
        assert isinstance(net.trunk.torso, MLP)
        self.net, self.num_envs, self.sizes = net, num_envs, net.sizes
        self.space, self.recurrent = net.trunk.torso.space, net.recurrent
        outputs = sum(net.sizes) + net.action_dims
        self.previous = np.zeros((num_envs, outputs + 1), np.float32) if net.prev_inputs else None
        extra = 0 if self.previous is None else self.previous.shape[1]
        # A recurrent value trunk runs too: its state is stored with the rows.
        trunks = net.trunks if self.recurrent else [net.trunk]
        self.trunks = [NumpyTrunk(trunk, num_envs, extra) for trunk in trunks]
        self.head = ForwardMLP(net.policy)
        self.choices = [np.arange(n) for n in self.sizes]
        self.mean: np.ndarray | None = None
        self.refresh()

    def refresh(self) -> None:
        self.head.refresh()
        for trunk in self.trunks:
            trunk.refresh()
        if self.net.moments is not None:
            self.mean = self.net.moments.mean.float().numpy().copy()
            self.scale = self.net.moments.scale().numpy().copy()

    def initial_state(self) -> Tree:
        return tree_map(Tensor.numpy, self.net.initial_state(self.num_envs, torch.device("cpu")))

    def __call__(
        self, obs: Tree, first: np.ndarray, action: np.ndarray, reward: np.ndarray, state: Tree
    ) -> tuple[np.ndarray, Tree]:
        if self.mean is not None:
            obs = np.clip((obs.astype(np.float32) - self.mean) * self.scale, -CLIP, CLIP)
        x, previous = flatten(self.space, obs), self._encode_previous(first, action, reward)
        if not self.recurrent:
            return self.head(self.trunks[0](x, previous, ())[0]), ()
        if first.any():
            state = reset_state(first, state)
        out = [trunk(x, previous, part) for trunk, part in zip(self.trunks, state, strict=True)]
        return self.head(out[0][0]), tuple(part for _, part in out)

    def _encode_previous(
        self, first: np.ndarray, action: np.ndarray, reward: np.ndarray
    ) -> np.ndarray | None:
        """[E, K + 1] previous action (one-hot where discrete) and reward; zeros where ``first``."""
        if self.previous is None:
            return None
        flat, start = action.reshape(len(action), -1), 0
        for i, choices in enumerate(self.choices):
            self.previous[:, start : start + len(choices)] = flat[:, i : i + 1] == choices
            start += len(choices)
        if not self.sizes:
            self.previous[:, :-1] = flat
        self.previous[:, -1] = reward
        self.previous[first] = 0
        return self.previous


def make_actor_critic_step(net: ActorCritic, num_envs: int) -> NetStep:
    """Return the faster step for this network, by a fixed rule; outputs agree to 1e-5."""
    memory = net.trunk.memory
    numpy = uses_numpy(net, net.trunk.torso, memory) and not isinstance(memory, MinGRU)
    return (NumpyActorCriticStep if numpy else TorchActorCriticStep)(net, num_envs)
