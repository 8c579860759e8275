"""Policies that are a network: logits of actions, or a Gaussian in a box; and who acts by them."""

import copy

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from rlrun.functional.masks import has_mask, unmasked, without_forbidden
from rlrun.functional.offline import categorical_log_prob, normal_log_prob, to_unit
from rlrun.functional.policy import within_mask
from rlrun.nets.acting import GRUCell, Layers, LSTMCell, flatten
from rlrun.nets.memory import GRU, LSTM, Cell, make_memory
from rlrun.nets.mingru import MinGRU, MinGRUCell
from rlrun.nets.torso import MLP, make_torso, mlp
from rlrun.schema import MemoryConfig, TorsoConfig
from rlrun.types import Act, Spec, Tree, torch_seed, tree_map

LOG_STD = (-5.0, 2.0)  # bounds of a Gaussian's spread; Kostrikov et al. 2022 (IQL), their code


class PolicyNet(nn.Module):
    """pi(action | observations): torso, memory, head.

    Discrete: logits. Box: a normal in the box scaled to [-1, 1], its mean a tanh, its spread one
    learned number per dimension.
    """

    def __init__(
        self, torso: TorsoConfig, memory: MemoryConfig, head: tuple[int, ...], spec: Spec
    ) -> None:
        super().__init__()
        self.space, self.masked = spec.action, has_mask(spec.obs)
        self.torso = make_torso(torso, unmasked(spec.obs))
        self.memory = make_memory(memory, self.torso.size)
        size = actions_of(spec.action)
        self.head = mlp([self.memory.size, *head, size], torso.activation, last=False)
        self.log_std: nn.Parameter | None = None
        if isinstance(spec.action, gym.spaces.Box):
            self.log_std = nn.Parameter(torch.zeros(size))
            low, high = (torch.as_tensor(x).float().flatten() for x in bounds(spec.action))
            self.register_buffer("low", low, persistent=False)
            self.register_buffer("high", high, persistent=False)

    def inputs(self, obs: Tree) -> Tensor:
        """[*, F] what the memory sees."""
        features: Tensor = self.torso(obs)
        return features

    def unroll(self, inputs: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        """Logits or means [T, B, N] of ``inputs`` [T, B, F], and the state behind them."""
        h, state = self.memory.unroll(inputs, state)
        return self.out(h), state

    def out(self, h: Tensor) -> Tensor:
        """Memory outputs [*, H] -> logits, or means in [-1, 1]."""
        out: Tensor = self.head(h)
        return out if self.log_std is None else out.tanh()

    def within(self, out: Tensor, obs: Tree) -> Tensor:
        """``out`` [*, N], without the actions that observations ``obs`` forbid."""
        return within_mask(out, obs) if self.masked else out

    def log_prob(self, out: Tensor, action: Tensor) -> Tensor:
        """log pi(action) [*] under ``out`` [*, N]; ``action`` [*, *A] as stored.

        In a box: the density over the box scaled to [-1, 1].
        """
        if self.log_std is None:
            return categorical_log_prob(out, action)
        return normal_log_prob(out, self.log_std.clamp(*LOG_STD), self.unit(action))

    def miss(self, out: Tensor, action: Tensor) -> Tensor:
        """How far [*] the mode is from ``action``: 1 - its probability, or the mean distance."""
        if self.log_std is None:
            return 1 - categorical_log_prob(out, action).exp()
        return (out - self.unit(action)).abs().mean(-1)

    def unit(self, action: Tensor) -> Tensor:
        """Stored actions [*, *A] of a box as [*, N] in [-1, 1]."""
        lead = action.shape[: action.ndim - len(self.space.shape or ())]
        low, high = self.get_buffer("low"), self.get_buffer("high")
        return to_unit(action.reshape(*lead, -1).float(), low, high)

    def step(self, obs: Tree, first: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        """Logits or means [B, N] of one row; where ``first`` the state starts afresh."""
        if first.any():
            opens = first.unsqueeze(-1)
            state = tree_map(lambda x: torch.where(opens, torch.zeros_like(x), x), state)
        h, state = self.memory.step(self.inputs(obs), state)
        return self.out(h), state


def actions_of(space: gym.Space[object]) -> int:
    """Logits of a Discrete space, numbers of a Box."""
    if isinstance(space, gym.spaces.Discrete):
        return int(space.n)
    assert isinstance(space, gym.spaces.Box), "checked in rlrun.config"
    return int(np.prod(space.shape))


def bounds(space: gym.spaces.Box) -> tuple[np.ndarray, np.ndarray]:
    """(low, high) of a box."""
    return space.low, space.high


def make_policy_net(
    torso: TorsoConfig, memory: MemoryConfig, head: tuple[int, ...], spec: Spec, *, seed: int
) -> PolicyNet:
    """A PolicyNet whose parameters depend on ``seed`` only; torch's generator stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(seed, "network"))
        return PolicyNet(torso, memory, head, spec)


class PolicyActor:
    """Acts by a PolicyNet: its mode when greedy, else a draw from it.

    With weights of its own; in numpy where the torso is an MLP on the CPU, in torch elsewhere.
    """

    def __init__(self, net: PolicyNet, generator: np.random.Generator, *, num_envs: int) -> None:
        self.net, self.generator, self.space = net, generator, net.space
        on_cpu = next(net.parameters()).device.type == "cpu"
        fast = on_cpu and isinstance(net.torso, MLP) and not isinstance(net.memory, Cell)
        self.step: _NumpyStep | _TorchStep
        self.step = _NumpyStep(net, num_envs) if fast else _TorchStep(net, num_envs)
        self.initial_state = self.step.initial_state
        self.extras: dict[str, np.ndarray] = {}
        self.spread: np.ndarray | None = None
        self.refresh()

    def refresh(self) -> None:
        """See ``Actor``."""
        self.step.refresh()
        if self.net.log_std is not None:
            self.spread = self.net.log_std.detach().clamp(*LOG_STD).exp().numpy(force=True)

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
            out = without_forbidden(out, obs) if self.net.masked else out
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


class _TorchStep:
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


class _NumpyStep:
    """A network with an MLP torso, on the CPU."""

    def __init__(self, net: PolicyNet, num_envs: int) -> None:
        assert isinstance(net.torso, MLP)
        self.num_envs, self.space, self.bounded = num_envs, net.torso.space, net.log_std is not None
        self.torso, self.head = Layers(net.torso.layers), Layers(net.head)
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
        """See ``_TorchStep``."""
        if first.any():
            state = tree_map(lambda s: np.where(first[:, None], np.float32(0), s), state)
        x = self.torso(flatten(self.space, obs))
        if self.memory is not None:
            x, state = self.memory(x, state)
        out = self.head(x)
        return (np.tanh(out) if self.bounded else out), state
