"""One greedy step of an actor as a function of tensors: what an exported policy computes."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from rlrun.acting.actor import NetActor
from rlrun.acting.box import BoxActor
from rlrun.acting.step import forward_net, trunks_of
from rlrun.acting.stochastic import OnPolicyActor, PolicyNetActor
from rlrun.acting.values import ValueActor
from rlrun.functional.continuous import LOG_STD_BOUNDS as TANH_BOUNDS
from rlrun.functional.masks import MASK, allowed_actions
from rlrun.functional.policy import mask_logits
from rlrun.functional.rows import shape_reward
from rlrun.functional.value import greedy, unrescale
from rlrun.nets.action_bounds import ActionBounds
from rlrun.nets.actor_and_critics import ActorNet
from rlrun.nets.actor_critic import ActorCritic
from rlrun.nets.memory import reset_state
from rlrun.nets.policy_net import LOG_STD_BOUNDS, PolicyNet
from rlrun.spaces import leaf_spaces
from rlrun.types import Spec, Tree, tree_leaves, tree_map

Choice = Callable[[Tensor, Tree], dict[str, Tensor]]  # of outputs [n, K] and observations
Named = dict[str, Tensor]


class GreedyStep(nn.Module):
    """The action of ``actor`` without exploration, from a raw row to the environment's own action.

    Frame stacking, normalisation, one-hot encoding, reward shaping, the reset of the state where an
    episode begins, the action mask and the bounds of a Box are inside. Actions are numbered as
    the environment's space numbers them; the actor numbers discrete ones from 0.
    """

    def __init__(self, actor: NetActor, choice: Choice, spec: Spec, frames: int) -> None:
        """``spec``: of one environment; ``frames``: length of the stacks that the actor reads."""
        super().__init__()
        self.net, self.choice, self.spec, self.frames = actor.net_step.net, choice, spec, frames
        self.scale, self.clip = actor.scale, actor.clip
        self.trunk = trunks_of(self.net)[0]  # a value's own is not read
        self.memory_state = self.trunk[1].initial_state(1, torch.device("cpu"))
        self.recurrent = len(tree_leaves(self.memory_state))
        self.start = np.asarray(getattr(spec.action, "start", 0))
        self.bounds: ActionBounds | None = None
        if isinstance(self.net, ActorNet | ActorCritic):
            self.bounds = self.net.bounds

    def inputs(self, count: int) -> dict[str, np.ndarray]:
        """Return zero inputs of ``count`` environments by name; names of states begin with state.

        An input is there only if the policy reads it.
        """
        obs = {name: empty(space, count) for name, space in named_leaves(self.spec.obs)}
        state = [np.zeros((count, *x.shape[1:]), x.numpy().dtype) for x in self._memory_leaves()]
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
        """Return action [n, *A], the distribution it is chosen from, next states, by name.

        ``inputs``: as of ``inputs``, [n, ...].
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
        outputs, (memory,) = forward_net(self.net, [(self.trunk, memory)], tree, previous)
        chosen = self.choice(outputs, tree)
        if self.start.any():
            chosen["action"] = chosen["action"] + torch.tensor(self.start)
        dtype = torch.from_numpy(np.zeros(0, self.spec.action.dtype)).dtype
        chosen["action"] = chosen["action"].to(dtype)
        after = [*tree_leaves(memory), *frames]
        return chosen | {f"next_state.{i}": x for i, x in enumerate(after)}

    def _memory_leaves(self) -> list[Tensor]:
        return tree_leaves(self.memory_state)

    def _encode_previous(self, inputs: Named) -> Tensor:
        """Return the previous action and reward as the memory reads them, 0 where ``first``."""
        action = inputs["prev_action"]
        if self.start.any():
            action = action - torch.tensor(self.start)
        reward = shape_reward(inputs["prev_reward"], self.scale, self.clip)
        if self.bounds is not None:
            action = self.bounds.to_unit(action)
        if isinstance(self.net, ActorNet):
            encoded = torch.cat([action, reward.unsqueeze(-1)], -1)
        else:
            assert not isinstance(self.net, PolicyNet)
            encoded = self.net.encode_previous(action, reward)
        return torch.where(inputs["first"].unsqueeze(-1), torch.zeros_like(encoded), encoded)


def make_greedy_step(actor: object, spec: Spec, frames: int) -> GreedyStep | None:
    """Return the greedy step of ``actor``; None: it is of no single network."""
    choice = greedy_choice(actor)
    if choice is None:
        return None
    assert isinstance(actor, NetActor)
    return GreedyStep(actor, choice, spec, frames)


# -- actions of a network's outputs ----------------------------------------------------------------


def greedy_choice(actor: object) -> Choice | None:
    """Return ``actor.choose`` without exploration, in torch."""
    match actor:
        case ValueActor():
            return partial(choose_value, actor.value_rescale_eps)
        case OnPolicyActor() if actor.sizes:
            return partial(choose_logits, actor.net)
        case OnPolicyActor():
            assert actor.bounds is not None
            assert actor.net.log_std is not None
            return partial(choose_gaussian, actor.bounds, actor.net.log_std)
        case PolicyNetActor() if actor.bounds is not None:
            assert actor.net.log_std is not None
            log_std = actor.net.log_std.clamp(*LOG_STD_BOUNDS)
            return partial(choose_gaussian, actor.bounds, log_std)
        case PolicyNetActor():
            return partial(choose_logits, actor.net)
        case BoxActor():
            return partial(choose_tanh, actor.bounds)
    return None


def choose_value(rescale_eps: float | None, outputs: Tensor, obs: Tree) -> Named:
    """Action values [n, A], or h of them: the largest one that the mask allows."""
    mask = allowed_actions(obs) if isinstance(obs, dict) and MASK in obs else None
    q = outputs if rescale_eps is None else unrescale(outputs, rescale_eps)
    return {"action": greedy(outputs, mask), "q_values": q}


def choose_logits(net: ActorCritic | PolicyNet, logits: Tensor, obs: Tree) -> Named:
    """Logits [n, sum of sizes]: the most probable choice of each component."""
    if net.masked:
        logits = mask_logits(logits, obs)
    sizes = list(net.sizes) if isinstance(net, ActorCritic) else [logits.shape[-1]]
    parts = [part.argmax(-1) for part in torch.split(logits, sizes, -1)]
    action = torch.stack(parts, -1).reshape(-1, *(net.space.shape or ()))
    return {"action": action, "logits": logits}


def choose_gaussian(bounds: ActionBounds, log_std: Tensor, mean: Tensor, obs: Tree) -> Named:
    """Means [n, A] in the network's unit: scaled and clipped to the Box."""
    action = bounds.from_unit_tensor(mean)
    return {"action": action, "mean": mean, "log_std": log_std.expand_as(mean)}


def choose_tanh(bounds: ActionBounds, outputs: Tensor, obs: Tree) -> Named:
    """Numbers before tanh [n, A], or means and log stds [n, 2 A]: tanh, scaled to the Box."""
    mean = outputs[:, : bounds.size]
    chosen = {"action": bounds.from_unit_tensor(mean.tanh()), "mean": mean}
    if outputs.shape[-1] > bounds.size:
        chosen["log_std"] = outputs[:, bounds.size :].clamp(*TANH_BOUNDS)
    return chosen


# -- observations ----------------------------------------------------------------------------------


def named_leaves(space: gym.Space[Any]) -> list[tuple[str, gym.Space[Any]]]:
    """Return the parts of Dicts and Tuples, named obs.KEY and obs.INDEX, in the tree's order."""
    return [(".".join(["obs", *map(str, path)]), leaf) for path, leaf in leaf_spaces(space)]


def as_tree(space: gym.Space[Any], leaves: Iterator[Any]) -> Tree:
    """Return the observation that ``leaves`` are the parts of."""
    match space:
        case gym.spaces.Dict():
            return {key: as_tree(part, leaves) for key, part in space.spaces.items()}
        case gym.spaces.Tuple():
            return tuple(as_tree(part, leaves) for part in space.spaces)
    return next(leaves)


def _index(space: gym.Space[Any], x: Tensor) -> Tensor:
    """Return discrete observations as int64: runtimes compare no narrower integers."""
    discrete = isinstance(space, gym.spaces.Discrete | gym.spaces.MultiDiscrete)
    return x.long() if discrete else x


def push(first: Tensor, frames: Tensor, obs: Tensor) -> Tensor:
    """Return stacks [n, k, *O] that end with ``obs`` [n, *O], after ``frames`` [n, k - 1, *O].

    Where ``first`` [n] a stack is k copies of ``obs``, as in ``FrameStack``.
    """
    row = obs.unsqueeze(1)
    filled = torch.where(first.reshape(-1, *[1] * obs.ndim), row, frames)
    return torch.cat([filled, row], 1)


def empty(space: gym.Space[Any], count: int) -> np.ndarray:
    """Return zeros [count, ...] of a space that is no tree."""
    return np.zeros((count, *(space.shape or ())), space.dtype)
