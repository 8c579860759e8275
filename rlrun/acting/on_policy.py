"""Acting with a stochastic policy: its distribution's parameters in numpy or torch, then a draw.

As in ``rlrun.acting.step``: an MLP torso on the CPU steps in numpy. The value is left out: nobody
needs it before the learner, which has every row at once.
"""

import copy
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rlrun.acting.step import QNetStep
from rlrun.functional.explore import draw_categorical, draw_gaussian
from rlrun.functional.masks import mask_logits_numpy
from rlrun.kernels.cells import GRUCell, LSTMCell
from rlrun.kernels.mlp import ForwardMLP
from rlrun.kernels.observations import flatten
from rlrun.nets.actor_critic import ActorCritic, Trunk
from rlrun.nets.memory.recurrent import GRU, LSTM, NoMemory
from rlrun.nets.running_moments import CLIP
from rlrun.nets.torso import MLP
from rlrun.schema import OnPolicyConfig
from rlrun.types import Act, Tree, tree_map


class OnPolicyActor:
    """Draws actions and writes down their log-probability.

    Real actions are drawn from an unbounded Gaussian; the environment gets them clipped to its box,
    ``extras["raw_action"]`` keeps what was drawn, and ``log_prob`` is of that.
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
        self.step: QNetStep = make_actor_critic_step(net, num_envs)
        self.initial_state = self.step.initial_state
        self.generator, self.scale, self.clip = generator, config.reward_scale, config.reward_clip
        self.shape = (num_envs, *(net.space.shape or ()))
        self.extras: dict[str, np.ndarray] = {"log_prob": np.zeros(num_envs, np.float32)}
        if not self.sizes:
            self.extras["raw_action"] = np.zeros(self.shape, np.float32)
        self.refresh()

    def refresh(self) -> None:
        """See ``Actor``."""
        self.step.refresh()
        if self.net.log_std is not None:
            self.log_std = self.net.log_std.detach().numpy(force=True).copy()

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
        """See ``Actor``; ``explore`` None: the most probable action. Its numbers play no part."""
        reward = prev_reward if self.scale == 1 else prev_reward * np.float32(self.scale)
        if self.clip is not None:
            reward = np.clip(reward, -self.clip, self.clip)
        head, state = self.step(obs, first, prev_action, reward, state)
        generator = None if explore is None else self.generator
        if self.net.masked:
            head = mask_logits_numpy(head, obs)
        if self.sizes:
            action, log_prob = draw_categorical(head, self.sizes, generator)
            if action.shape != self.shape:
                action = action.reshape(self.shape)
            return Act(action, {"log_prob": log_prob}, state)
        raw, log_prob = draw_gaussian(head, self.log_std, generator)
        raw = raw.reshape(self.shape)
        assert isinstance(self.space, gym.spaces.Box)
        action = np.clip(raw, self.space.low, self.space.high).astype(self.space.dtype)
        return Act(action, {"log_prob": log_prob, "raw_action": raw}, state)


class TorchActorCriticStep:
    """Any actor-critic, on its own device."""

    def __init__(self, net: ActorCritic, num_envs: int) -> None:
        self.source, self.num_envs = net, num_envs
        self.net = copy.deepcopy(net).requires_grad_(False)
        self.device = next(net.parameters()).device

    @torch.no_grad()
    def refresh(self) -> None:
        """See ``Step``."""
        self.net.load_state_dict(self.source.state_dict())

    def initial_state(self) -> Tree:
        """See ``Step``."""
        return tree_map(Tensor.numpy, self.net.initial_state(self.num_envs, torch.device("cpu")))

    @torch.inference_mode()
    def __call__(
        self, obs: Tree, first: np.ndarray, action: np.ndarray, reward: np.ndarray, state: Tree
    ) -> tuple[np.ndarray, Tree]:
        """See ``Step``; the distribution's parameters [E, K] instead of values."""

        def tensor(x: np.ndarray) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(x)).to(self.device)

        given = (tree_map(tensor, x) for x in (obs, first, action, reward, state))
        head, state = self.net.step(*given)
        return head.numpy(force=True), tree_map(lambda x: x.numpy(force=True), state)


class NumpyTrunk:
    """A trunk with an MLP torso."""

    def __init__(self, trunk: Trunk, num_envs: int, extra: int) -> None:
        assert isinstance(trunk.torso, MLP)
        self.num_envs, self.width = num_envs, trunk.torso.size
        self.torso = ForwardMLP(trunk.torso.layers)
        self.memory: LSTMCell | GRUCell | None = None
        if isinstance(trunk.memory, LSTM):
            self.memory = LSTMCell(trunk.memory, num_envs)
        elif isinstance(trunk.memory, GRU):
            self.memory = GRUCell(trunk.memory)
        self.inputs = np.zeros((num_envs, self.width + extra), np.float32)

    def refresh(self) -> None:
        self.torso.refresh()
        if self.memory is not None:
            self.memory.refresh()

    def __call__(
        self, x: np.ndarray, side: np.ndarray | None, state: Tree
    ) -> tuple[np.ndarray, Tree]:
        """Features of flat observations ``x`` [E, *], and the state behind them."""
        x = self.torso(x)
        if side is not None:
            self.inputs[:, : self.width], self.inputs[:, self.width :] = x, side
            x = self.inputs
        return (x, ()) if self.memory is None else self.memory(x, state)


class NumpyActorCriticStep:
    """An actor-critic with MLP torsos, on the CPU."""

    def __init__(self, net: ActorCritic, num_envs: int) -> None:
        assert isinstance(net.trunk.torso, MLP)
        self.net, self.num_envs, self.sizes = net, num_envs, net.sizes
        self.space, self.recurrent = net.trunk.torso.space, net.recurrent
        outputs = sum(net.sizes) + net.numbers
        self.side = np.zeros((num_envs, outputs + 1), np.float32) if net.prev_inputs else None
        extra = 0 if self.side is None else self.side.shape[1]
        stepped = net.trunks if self.recurrent else [net.trunk]  # no value is asked for
        self.trunks = [NumpyTrunk(trunk, num_envs, extra) for trunk in stepped]
        self.head = ForwardMLP(net.policy)
        self.numbers = [np.arange(n) for n in self.sizes]
        self.mean: np.ndarray | None = None
        self.refresh()

    def refresh(self) -> None:
        """See ``Step``."""
        self.head.refresh()
        for trunk in self.trunks:
            trunk.refresh()
        if self.net.moments is not None:
            self.mean = self.net.moments.mean.float().numpy().copy()
            self.scale = self.net.moments.scale().numpy().copy()

    def initial_state(self) -> Tree:
        """See ``Step``."""
        return tree_map(Tensor.numpy, self.net.initial_state(self.num_envs, torch.device("cpu")))

    def __call__(
        self, obs: Tree, first: np.ndarray, action: np.ndarray, reward: np.ndarray, state: Tree
    ) -> tuple[np.ndarray, Tree]:
        """See ``Step``; the distribution's parameters [E, K] instead of values."""
        if self.mean is not None:
            obs = np.clip((obs.astype(np.float32) - self.mean) * self.scale, -CLIP, CLIP)
        x = flatten(self.space, obs)
        if not self.recurrent:
            return self.head(self.trunks[0](x, self._beside(first, action, reward), ())[0]), ()
        if first.any():
            state = tree_map(lambda s: np.where(first[:, None], np.float32(0), s), state)
        side = self._beside(first, action, reward)
        out = [trunk(x, side, part) for trunk, part in zip(self.trunks, state, strict=True)]
        return self.head(out[0][0]), tuple(part for _, part in out)

    def _beside(
        self, first: np.ndarray, action: np.ndarray, reward: np.ndarray
    ) -> np.ndarray | None:
        """[E, A + 1] previous action as the network sees it, and reward; none where ``first``."""
        if self.side is None:
            return None
        chosen, at = action.reshape(len(action), -1), 0
        for i, numbers in enumerate(self.numbers):
            self.side[:, at : at + len(numbers)] = chosen[:, i : i + 1] == numbers
            at += len(numbers)
        if not self.sizes:
            self.side[:, :-1] = chosen
        self.side[:, -1] = reward
        self.side[first] = 0
        return self.side


def make_actor_critic_step(net: ActorCritic, num_envs: int) -> Any:
    """The faster ``Step`` for this network, by a fixed rule; both give the same to 1e-5."""
    cpu = next(net.parameters()).device.type == "cpu"
    known = (LSTM, GRU, NoMemory)
    plain = isinstance(net.trunk.torso, MLP) and isinstance(net.trunk.memory, known)
    return (
        NumpyActorCriticStep(net, num_envs)
        if cpu and plain
        else TorchActorCriticStep(net, num_envs)
    )
