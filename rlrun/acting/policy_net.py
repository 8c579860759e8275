"""Acting with a ``PolicyNet``: the actor of policy=bc and iql."""

import gymnasium as gym
import numpy as np
import torch

from rlrun.acting.mlp import ForwardMLP
from rlrun.acting.observations import flatten
from rlrun.acting.step import NumpyStep, TorchStep, reset_state, uses_numpy
from rlrun.functional.masks import mask_logits_numpy
from rlrun.nets.policy_net import LOG_STD_BOUNDS, PolicyNet
from rlrun.nets.torso import MLP
from rlrun.types import Act, Tree


class PolicyNetActor:
    """The mode of a ``PolicyNet`` when greedy, else a sample."""

    def __init__(self, net: PolicyNet, generator: np.random.Generator, *, num_envs: int) -> None:
        self.net, self.generator, self.space = net, generator, net.space
        numpy = uses_numpy(net, net.torso, net.memory)
        step = NumpyPolicyNetStep if numpy else TorchPolicyNetStep
        self.step: NumpyPolicyNetStep | TorchPolicyNetStep = step(net, num_envs)
        self.extras: dict[str, np.ndarray] = {}
        self.std: np.ndarray | None = None
        self.refresh()

    def refresh(self) -> None:
        self.step.refresh()
        if self.net.log_std is not None:
            self.std = self.net.log_std.detach().clamp(*LOG_STD_BOUNDS).exp().numpy(force=True)

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
        outputs, state = self.step(obs, first, prev_action, prev_reward, state)
        if self.std is None:
            logits = mask_logits_numpy(outputs, obs) if self.net.masked else outputs
            if explore is not None:  # argmax of logits + Gumbel noise samples the softmax
                logits = logits + self.generator.gumbel(size=logits.shape).astype(logits.dtype)
            return Act(logits.argmax(-1), {}, state)
        if explore is not None:
            noise = self.generator.standard_normal(outputs.shape, dtype=np.float32)
            outputs = np.clip(outputs + self.std * noise, -1, 1)
        return Act(self._from_unit(outputs), {}, state)

    def _from_unit(self, unit: np.ndarray) -> np.ndarray:
        """[E, N] in [-1, 1] -> [E, *A] within the action space's bounds, in its dtype."""
        space = self.space
        assert isinstance(space, gym.spaces.Box)
        low, high = space.low, space.high
        action = low + (unit.reshape(len(unit), *low.shape) + 1) / 2 * (high - low)
        action = action if space.dtype.kind == "f" else np.rint(action)
        bounded: np.ndarray = np.clip(action, low, high).astype(space.dtype)
        return bounded


class TorchPolicyNetStep(TorchStep[PolicyNet]):
    """Any policy network, on its own device; previous action and reward are not used."""

    def __init__(self, net: PolicyNet, num_envs: int) -> None:
        super().__init__(net, net.memory, num_envs)

    @torch.inference_mode()
    def __call__(
        self, obs: Tree, first: np.ndarray, action: np.ndarray, reward: np.ndarray, state: Tree
    ) -> tuple[np.ndarray, Tree]:
        return self.arrays(*self.net.step(*self.tensors(obs, first, state)))


class NumpyPolicyNetStep(NumpyStep):
    """A policy network with an MLP torso, on the CPU; previous action and reward are not used."""

    def __init__(self, net: PolicyNet, num_envs: int) -> None:
        assert isinstance(net.torso, MLP)
        self.space, self.bounded = net.torso.space, net.log_std is not None
        self.torso, self.head = ForwardMLP(net.torso.layers), ForwardMLP(net.head)
        super().__init__(net.memory, num_envs, self.torso, self.head)

    def __call__(
        self, obs: Tree, first: np.ndarray, action: np.ndarray, reward: np.ndarray, state: Tree
    ) -> tuple[np.ndarray, Tree]:
        if first.any():
            state = reset_state(first, state)
        x, state = self.recur(self.torso(flatten(self.space, obs)), state)
        outputs = self.head(x)
        return (np.tanh(outputs) if self.bounded else outputs), state
