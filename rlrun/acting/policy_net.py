"""Acting with a ``PolicyNet`` (bc, iql): numpy in, numpy out, with weights of its own."""

import copy

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rlrun.functional.masks import mask_logits_numpy
from rlrun.kernels.cells import GRUCell, LSTMCell, MinGRUCell
from rlrun.kernels.mlp import ForwardMLP
from rlrun.kernels.observations import flatten
from rlrun.nets.memory.cell import Cell
from rlrun.nets.memory.mingru import MinGRU
from rlrun.nets.memory.recurrent import GRU, LSTM
from rlrun.nets.policy_net import LOG_STD_BOUNDS, PolicyNet, bounds
from rlrun.nets.torso import MLP
from rlrun.types import Act, Tree, tree_map


class PolicyNetActor:
    """Acts by a PolicyNet: its mode when greedy, else a draw from it.

    With weights of its own; in numpy where the torso is an MLP on the CPU, in torch elsewhere.
    """

    def __init__(self, net: PolicyNet, generator: np.random.Generator, *, num_envs: int) -> None:
        self.net, self.generator, self.space = net, generator, net.space
        on_cpu = next(net.parameters()).device.type == "cpu"
        fast = on_cpu and isinstance(net.torso, MLP) and not isinstance(net.memory, Cell)
        self.step: NumpyPolicyNetStep | TorchPolicyNetStep
        self.step = NumpyPolicyNetStep(net, num_envs) if fast else TorchPolicyNetStep(net, num_envs)
        self.initial_state = self.step.initial_state
        self.extras: dict[str, np.ndarray] = {}
        self.spread: np.ndarray | None = None
        self.refresh()

    def refresh(self) -> None:
        """See ``Actor``."""
        self.step.refresh()
        if self.net.log_std is not None:
            self.spread = self.net.log_std.detach().clamp(*LOG_STD_BOUNDS).exp().numpy(force=True)

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
        """See ``Actor``; ``explore``, a number or not: draw from the policy."""
        out, state = self.step(obs, first, prev_action, prev_reward, state)
        if self.spread is None:
            out = mask_logits_numpy(out, obs) if self.net.masked else out
            if explore is not None:  # argmax of logits + Gumbel noise is a draw from the softmax
                out = out + self.generator.gumbel(size=out.shape).astype(out.dtype)
            return Act(out.argmax(-1), {}, state)
        if explore is not None:
            noise = self.generator.standard_normal(out.shape, dtype=np.float32)
            out = np.clip(out + self.spread * noise, -1, 1)
        return Act(self._in_box(out), {}, state)

    def _in_box(self, unit: np.ndarray) -> np.ndarray:
        """[E, N] in [-1, 1] -> [E, *A] in the box, in its dtype."""
        space = self.space
        assert isinstance(space, gym.spaces.Box)
        low, high = bounds(space)
        action = low + (unit.reshape(len(unit), *low.shape) + 1) / 2 * (high - low)
        action = action if space.dtype.kind == "f" else np.rint(action)
        bounded: np.ndarray = np.clip(action, low, high).astype(space.dtype)
        return bounded


class TorchPolicyNetStep:
    """Any network, on its own device."""

    def __init__(self, net: PolicyNet, num_envs: int) -> None:
        self.source, self.num_envs = net, num_envs
        self.net = copy.deepcopy(net).requires_grad_(False)
        self.device = next(net.parameters()).device

    @torch.no_grad()
    def refresh(self) -> None:
        torch._foreach_copy_(list(self.net.parameters()), list(self.source.parameters()))

    def initial_state(self) -> Tree:
        state = self.net.memory.initial_state(self.num_envs, torch.device("cpu"))
        return tree_map(Tensor.numpy, state)

    @torch.inference_mode()
    def __call__(
        self, obs: Tree, first: np.ndarray, action: np.ndarray, reward: np.ndarray, state: Tree
    ) -> tuple[np.ndarray, Tree]:
        """(logits or means [E, N], state behind the row); the previous ones are not looked at."""

        def tensor(x: np.ndarray) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(x)).to(self.device)

        out, state = self.net.step(*(tree_map(tensor, x) for x in (obs, first, state)))
        return out.numpy(force=True), tree_map(lambda x: x.numpy(force=True), state)


class NumpyPolicyNetStep:
    """A network with an MLP torso, on the CPU."""

    def __init__(self, net: PolicyNet, num_envs: int) -> None:
        assert isinstance(net.torso, MLP)
        self.num_envs, self.space, self.bounded = num_envs, net.torso.space, net.log_std is not None
        self.torso, self.head = ForwardMLP(net.torso.layers), ForwardMLP(net.head)
        self.memory: LSTMCell | GRUCell | MinGRUCell | None = None
        match net.memory:
            case LSTM():
                self.memory = LSTMCell(net.memory, num_envs)
            case GRU():
                self.memory = GRUCell(net.memory)
            case MinGRU():
                self.memory = MinGRUCell(net.memory)

    def refresh(self) -> None:
        for part in (self.torso, self.memory, self.head):
            if part is not None:
                part.refresh()

    def initial_state(self) -> Tree:
        return () if self.memory is None else self.memory.initial_state(self.num_envs)

    def __call__(
        self, obs: Tree, first: np.ndarray, action: np.ndarray, reward: np.ndarray, state: Tree
    ) -> tuple[np.ndarray, Tree]:
        """See ``TorchPolicyNetStep``."""
        if first.any():
            state = tree_map(lambda s: np.where(first[:, None], np.float32(0), s), state)
        x = self.torso(flatten(self.space, obs))
        if self.memory is not None:
            x, state = self.memory(x, state)
        out = self.head(x)
        return (np.tanh(out) if self.bounded else out), state
