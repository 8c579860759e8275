"""The greedy step of an actor as a function of tensors, for exported policies."""

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from rlrun.functional.rows import shape_reward
from rlrun.nets.memory import reset_state
from rlrun.policy.actor import NetActor
from rlrun.spaces import leaf_spaces
from rlrun.types import Spec, Tree, tree_leaves, tree_map

Named = dict[str, Tensor]


class GreedyStep(nn.Module):
    """The action of ``actor`` without exploration, from a raw row to the environment's own action.

    It includes frame stacking, normalisation, one-hot encoding, reward shaping, the reset of the
    state at an episode's start, the action mask and the bounds of a Box. Actions are numbered as in
    the environment's space, while the actor numbers discrete ones from 0.
    """

    def __init__(self, actor: NetActor, spec: Spec, frames: int) -> None:
        """``spec``: of one environment. ``frames``: length of the stacks that the actor reads."""
        super().__init__()
        self.net, self.choose, self.spec, self.frames = actor.net, actor.greedy, spec, frames
        self.scale, self.clip = actor.scale, actor.clip
        memory = self.net.acting_trunks()[0][1]  # the value network's memory is not needed
        self.memory_state = memory.initial_state(1, torch.device("cpu"))
        self.recurrent = len(tree_leaves(self.memory_state))
        self.start = np.asarray(getattr(spec.action, "start", 0))

    def inputs(self, count: int) -> dict[str, np.ndarray]:
        """Return zero inputs of ``count`` environments by name; names of states begin with state.

        Only inputs that the policy reads are included.
        """
        obs = {name: empty(space, count) for name, space in named_leaves(self.spec.obs)}
        memory = [x.numpy() for x in tree_leaves(self.memory_state)]
        state = [np.zeros((count, *x.shape[1:]), x.dtype) for x in memory]
        if self.frames > 1:
            state += [x[:, None].repeat(self.frames - 1, 1) for x in obs.values()]
        previous = {}
        if self.net.prev_inputs:
            previous["prev_action"] = empty(self.spec.action, count)
            previous["prev_reward"] = np.zeros(count, np.float32)
        first = {"first": np.zeros(count, np.bool_)} if previous or state else {}
        return obs | first | previous | {f"state.{i}": x for i, x in enumerate(state)}

    def forward(self, inputs: Named) -> tuple[Tensor, ...]:
        """Return the values of ``step``."""
        return tuple(self.step(inputs).values())

    def step(self, inputs: Named) -> Named:
        """Return by name: action [n, *A], what it is selected from, and the next states.

        ``inputs``: [n, ...] by the names of ``inputs``.
        """
        first = inputs.get("first")
        obs = [_index(space, inputs[name]) for name, space in named_leaves(self.spec.obs)]
        state = [x for name, x in inputs.items() if name.startswith("state.")]
        frames: list[Tensor] = []
        if self.frames > 1:
            assert first is not None
            obs = [push(first, *x) for x in zip(state[self.recurrent :], obs, strict=True)]
            frames = [x[:, 1:] for x in obs]
        tree = as_tree(self.spec.obs, iter(obs))
        leaves = iter(state)
        memory = tree_map(lambda _: next(leaves), self.memory_state)
        if self.recurrent:
            assert first is not None
            memory = reset_state(first, memory)
        previous = self._encode_previous(inputs) if self.net.prev_inputs else None
        outputs, (memory,) = self.net.step(tree, previous, (memory,))
        chosen = self.choose(outputs, tree)
        if self.start.any():
            chosen["action"] = chosen["action"] + torch.tensor(self.start)
        dtype = torch.from_numpy(np.zeros(0, self.spec.action.dtype)).dtype
        chosen["action"] = chosen["action"].to(dtype)
        after = [*tree_leaves(memory), *frames]
        return chosen | {f"next_state.{i}": x for i, x in enumerate(after)}

    def _encode_previous(self, inputs: Named) -> Tensor:
        """Return the previous action and reward as the memory reads them, 0 where ``first``."""
        action = inputs["prev_action"]
        if self.start.any():
            action = action - torch.tensor(self.start)
        reward = shape_reward(inputs["prev_reward"], self.scale, self.clip)
        if self.net.bounds is not None:
            action = self.net.bounds.to_unit(action)
        encoded = self.net.encode_previous(action, reward)
        return torch.where(inputs["first"].unsqueeze(-1), torch.zeros_like(encoded), encoded)


def make_greedy_step(actor: object, spec: Spec, frames: int) -> GreedyStep | None:
    """Return the greedy step of ``actor``, or None if it does not have a single network."""
    if isinstance(actor, NetActor) and actor.exported:
        return GreedyStep(actor, spec, frames)
    return None


# -- observations ----------------------------------------------------------------------------------


def named_leaves(space: gym.Space[Any]) -> list[tuple[str, gym.Space[Any]]]:
    """Return the leaves of Dicts and Tuples, named obs.KEY and obs.INDEX, in the tree's order."""
    names: dict[str, gym.Space[Any]] = {}
    for path, leaf in leaf_spaces(space):
        name = ".".join(["obs", *map(str, path)])
        while name in names:  # a key may have a dot
            name += "#"
        names[name] = leaf
    return list(names.items())


def as_tree(space: gym.Space[Any], leaves: Iterator[Any]) -> Tree:
    """Return the observation that consists of ``leaves``."""
    match space:
        case gym.spaces.Dict():
            return {key: as_tree(part, leaves) for key, part in space.spaces.items()}
        case gym.spaces.Tuple():
            return tuple(as_tree(part, leaves) for part in space.spaces)
    return next(leaves)


def _index(space: gym.Space[Any], x: Tensor) -> Tensor:
    """Return discrete observations as int64, because runtimes do not compare narrower integers."""
    discrete = isinstance(space, gym.spaces.Discrete | gym.spaces.MultiDiscrete)
    return x.long() if discrete else x


def push(first: Tensor, frames: Tensor, obs: Tensor) -> Tensor:
    """Return stacks [n, k, *O] of ``frames`` [n, k - 1, *O] followed by ``obs`` [n, *O].

    Where ``first`` [n], a stack is k copies of ``obs``, as in ``FrameStack``.
    """
    row = obs.unsqueeze(1)
    filled = torch.where(first.reshape(-1, *[1] * obs.ndim), row, frames)
    return torch.cat([filled, row], 1)


def empty(space: gym.Space[Any], count: int) -> np.ndarray:
    """Return zeros [count, ...] of a space that is not a tree."""
    return np.zeros((count, *(space.shape or ())), space.dtype)
