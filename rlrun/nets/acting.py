"""The base of acting networks: previous inputs, burn-in, forward pass of a row, action units."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from rlrun.functional.rows import network_inputs, readable_obs
from rlrun.nets.memory import Memory, make_memory
from rlrun.nets.noise import MEAN_WEIGHTS, ForwardNoise
from rlrun.nets.torso import Torso, one_hot
from rlrun.schema import ActionValueConfig, ControlConfig, MemoryConfig, OnPolicyConfig
from rlrun.spaces import bounded
from rlrun.types import Segment, Tree, torch_seed, tree_map

TorsoMemory = tuple[nn.Module, Memory]


@contextmanager
def seeded(seed: int, name: str = "network") -> Iterator[None]:
    """Initialise networks from ``seed``; torch's global generator does not change."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(seed, name))
        yield


def discrete_sizes(space: gym.Space[Any]) -> tuple[int, ...]:
    """Return the number of actions of each discrete component of ``space``; () for a Box."""
    if isinstance(space, gym.spaces.Discrete):
        return (int(space.n),)
    if isinstance(space, gym.spaces.MultiDiscrete):
        return tuple(int(n) for n in space.nvec.reshape(-1))
    assert isinstance(space, gym.spaces.Box), "checked in rlrun.config"
    return ()


def action_size(space: gym.Space[Any]) -> int:
    """Return the number of an action's logits, or of the numbers of a Box."""
    return sum(discrete_sizes(space)) or math.prod(space.shape or ())


class ActingNet(nn.Module, ABC):
    """A network of torsos, memories and a head, which an actor evaluates row by row.

    ``space``: the action space. ``bounds``: the unit of real actions, None for discrete ones.
    ``prev_inputs``: memories also read the previous action (one-hot if discrete) and reward.
    """

    prev_inputs = False

    def __init__(self, space: gym.Space[Any]) -> None:
        super().__init__()
        self.space, self.sizes = space, discrete_sizes(space)
        self.bounds: ActionBounds | None = None

    @abstractmethod
    def acting_trunks(self) -> list[TorsoMemory]:
        """Return the (torso, memory) pairs that acting evaluates. The head reads the first one."""

    @abstractmethod
    def head_outputs(self, h: Tensor, noise: ForwardNoise = MEAN_WEIGHTS) -> Tensor:
        """Return the outputs [*, K] from which an actor selects actions, for memory outputs [*,
        H].
        """

    @property
    def previous_size(self) -> int:
        """The number of inputs of a memory that bypass its torso."""
        return action_size(self.space) + 1 if self.prev_inputs else 0

    def normalise(self, obs: Tree) -> Tree:
        """Return observations in the form that the torsos read."""
        return obs

    def window_inputs(
        self, segment: Segment, config: ActionValueConfig | OnPolicyConfig | ControlConfig
    ) -> tuple[Tree, Tensor]:
        """Return (obs [T+1, B, *O], encoded previous action and reward [T+1, B, F]).

        Positions that are not read are zero, because a gradient of zero times a NaN in padding
        would be NaN. ``config`` defines the reward shaping.
        """
        if not self.prev_inputs:
            return readable_obs(segment), segment.reward.new_empty(*segment.first.shape, 0)
        if self.bounds is not None:
            unit, extras = self.bounds.to_unit, segment.extras
            extras = {**extras, "prev_action": unit(extras["prev_action"])}
            segment = replace(segment, action=unit(segment.action), extras=extras)
        scale, clip = config.reward_scale, config.reward_clip
        obs, *previous = network_inputs(segment, scale=scale, clip=clip)
        return obs, self.encode_previous(*previous)

    def encode_previous(self, prev_action: Tensor, prev_reward: Tensor) -> Tensor:
        """Return previous actions (one-hot if discrete; -1: none) and rewards, [*, K + 1].

        Real actions [*, A] are in the network's unit. Returns [*, 0] if the network does not use
        them.
        """
        if not self.prev_inputs:
            return prev_reward.new_empty(*prev_reward.shape, 0)
        parts = [prev_action]
        if self.sizes:
            choices = prev_action.reshape(*prev_reward.shape, -1)
            parts = [one_hot(choices[..., i], n) for i, n in enumerate(self.sizes)]
        return torch.cat([*parts, prev_reward.unsqueeze(-1)], -1)

    def step(
        self,
        obs: Tree,
        previous: Tensor | None,
        states: Sequence[Tree],
        noise: ForwardNoise = MEAN_WEIGHTS,
    ) -> tuple[Tensor, tuple[Tree, ...]]:
        """Return outputs [E, K] of one row of E environments, and the next states.

        ``states``: of the first trunks, one each. ``previous`` [E, F]: of ``encode_previous``;
        None: the network does not use it.
        """
        obs, extra = self.normalise(obs), [] if previous is None else [previous]
        out = [
            memory.step(torch.cat([torso(obs), *extra], -1), state)
            for (torso, memory), state in zip(self.acting_trunks(), states, strict=False)
        ]
        return self.head_outputs(out[0][0], noise), tuple(state for _, state in out)


class Trunk(nn.Module):
    """A torso and a memory, which reads ``extra`` inputs in addition to the torso's features."""

    def __init__(self, torso: Torso, memory: MemoryConfig, extra: int) -> None:
        super().__init__()
        self.torso = torso
        self.memory = make_memory(memory, torso.size + extra)
        self.size = self.memory.size

    def inputs(self, obs: Tree, previous: Tensor) -> Tensor:
        """Return the memory's inputs [*, F]; ``previous`` [*, extra] may be empty."""
        features: Tensor = self.torso(obs)
        return torch.cat([features, previous], -1) if previous.shape[-1] else features


def burn_in(
    memory: Memory,
    x: Tensor,
    state: Tree,
    valid: Tensor,
    partial: tuple[int, ...] = (),
    *,
    select_partial: bool | None = None,
) -> Tree:
    """Return the state [B, H] after the burn-in rows ``x`` [bs, B, F] of every window.

    The last ``valid[:, b].sum()`` rows of window b are real; filler before them does not change the
    state. A window with no real rows keeps the stored state. Windows with one of the ``partial``
    numbers of rows (0 < rows < bs, possible if bs exceeds the stride L - learned_overlap) are
    unrolled over those rows only. ``select_partial``: unroll only those windows (None: on the CPU).
    False unrolls all windows and discards the other results, which avoids a synchronisation with a
    GPU.
    """
    _, warm = memory.unroll(x, state)
    none = ~valid[-1].unsqueeze(-1)  # real rows are right before the learned ones
    warm = tree_map(lambda w, s: torch.where(none, s, w), warm, state)
    for count in partial:
        if not (x.device.type == "cpu" if select_partial is None else select_partial):
            _, part = memory.unroll(x[len(x) - count :], state)
            selected = (valid.sum(0) == count).unsqueeze(-1)
            warm = tree_map(lambda w, p, selected=selected: torch.where(selected, p, w), warm, part)
            continue
        which = (valid.sum(0) == count).nonzero().squeeze(-1)
        if len(which):
            part = tree_map(lambda s, which=which: s[which], state)
            _, part = memory.unroll(x[len(x) - count :, which], part)
            warm = tree_map(lambda w, p, which=which: w.index_copy(0, which, p), warm, part)
    return warm


class ActionBounds(nn.Module):
    """Conversion between the actions of a Box and those of a network, flat [A].

    A bounded dimension is [-1, 1] for the network: (action - middle) / half width. An unbounded one
    keeps its unit, and its 0 is the allowed number nearest to 0.
    """

    middle_tensor: Tensor
    scale_tensor: Tensor

    def __init__(self, space: gym.Space[np.ndarray], *, rescale: bool = True) -> None:
        """``rescale`` False: the network's unit is the environment's in every dimension."""
        super().__init__()
        assert isinstance(space, gym.spaces.Box), "checked in rlrun.config"
        self.space, self.dims = space, len(space.shape)
        self.size = math.prod(space.shape)
        low, high = (np.asarray(x, np.float64).reshape(-1) for x in (space.low, space.high))
        self.middle, self.half_width = np.zeros(self.size), np.ones(self.size)
        if rescale:
            bounded_dims = bounded(space)
            self.middle = np.clip(0.0, low, high)
            self.middle[bounded_dims] = (high[bounded_dims] + low[bounded_dims]) / 2
            self.half_width[bounded_dims] = (high[bounded_dims] - low[bounded_dims]) / 2
        # Where low = high the unit action is 0.
        self.scale = np.where(self.half_width > 0, self.half_width, 1.0)
        for name, x in (("middle_tensor", self.middle), ("scale_tensor", self.scale)):
            self.register_buffer(name, torch.from_numpy(x), persistent=False)

    def to_unit(self, action: Tensor) -> Tensor:
        """Return float32 [*, A], in [-1, 1] where bounded, of actions [*, *shape]."""
        flat = action.reshape(*action.shape[: action.ndim - self.dims], self.size)
        flat = flat if flat.dtype == torch.float64 else flat.float()
        middle, scale = self.middle_tensor.to(flat.dtype), self.scale_tensor.to(flat.dtype)
        return ((flat - middle) / scale).float()

    def to_unit_array(self, action: np.ndarray) -> np.ndarray:
        """Return ``to_unit`` of actions [E, *shape] in numpy, with the same bits."""
        flat = action.reshape(len(action), self.size)
        flat = flat if flat.dtype == np.float64 else flat.astype(np.float32)
        unit: np.ndarray = (flat - self.middle.astype(flat.dtype)) / self.scale.astype(flat.dtype)
        single: np.ndarray = unit.astype(np.float32, copy=False)
        return single

    def from_unit(self, unit: np.ndarray) -> np.ndarray:
        """Return actions [E, *shape] of unit actions [E, A], in the Box's dtype and bounds."""
        action = self.middle + self.half_width * unit
        action = action if self.space.dtype.kind == "f" else np.rint(action)
        action = action.astype(self.space.dtype).reshape(len(unit), *self.space.shape)
        # Rounding may leave the bounds, and samples of a Gaussian do.
        clipped: np.ndarray = np.clip(action, self.space.low, self.space.high)
        return clipped

    def from_unit_tensor(self, unit: Tensor) -> Tensor:
        """Return ``from_unit`` of tensors [E, A] on the CPU."""
        action = torch.from_numpy(self.middle) + torch.from_numpy(self.half_width) * unit.double()
        action = action if self.space.dtype.kind == "f" else action.round()
        action = action.reshape(-1, *self.space.shape)
        low, high = torch.tensor(self.space.low), torch.tensor(self.space.high)
        action = action.to(low.dtype)
        free = np.isinf(self.space.low).all() and np.isinf(self.space.high).all()
        return action if free else action.clamp(low, high)
