"""Spaces and trees of arrays: bounds, images, joint spaces of agents. Does not import torch."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space

Tree: TypeAlias = Any  # an array, or a dict / tuple of trees of arrays
Path = tuple[Any, ...]  # keys and indices from the root of an observation
CNN_SIDE = 36  # pixels: what the three convolutions of Mnih et al. 2015 leave one of
CNN_SIDES = {"nature_cnn": CNN_SIDE, "small_cnn": 3}  # of torsos of convolutions alone


def bounded(space: gym.spaces.Box) -> np.ndarray:
    """Return bool [A]: which numbers of a Box have a range that float32 can hold."""
    with np.errstate(over="ignore", invalid="ignore"):
        low, high = (np.asarray(x, np.float32).reshape(-1) for x in (space.low, space.high))
        finite: np.ndarray = np.isfinite(high - low)
    return finite


def image_size(space: gym.Space[Any], side: int = CNN_SIDE) -> bool:
    """Return whether a Box has two sides, or a flat row, of ``side`` pixels, as images have."""
    shape = space.shape if isinstance(space, gym.spaces.Box) else None
    if not shape:
        return False
    if len(shape) == 1:
        return shape[0] >= side**2
    return sorted(shape)[-2] >= side


def image_scale(space: gym.Space[Any], side: int = CNN_SIDE) -> float:
    """Return the divisor of the numbers of ``space``: 255 for pixels of 0 to 255.

    It is the largest bound of a Box as large as an image if that is finite and above 1. It is 1 for
    all other spaces, whose numbers are codes, counts or measurements. The dtype does not matter.
    """
    if not image_size(space, side):
        return 1.0
    assert isinstance(space, gym.spaces.Box)
    largest = float(max(abs(space.low.min()), abs(space.high.max())))
    return largest if math.isfinite(np.float32(largest)) and largest > 1 else 1.0


def is_image(space: gym.Space[Any], side: int = CNN_SIDE) -> bool:
    """Return whether convolutions read ``space``: a Box of three dimensions, of an image's size."""
    return image_size(space, side) and len(space.shape or ()) == 3


def space_parts(space: gym.Space[Any]) -> list[tuple[Any, gym.Space[Any]]] | None:
    """Return (key or index, space) of the parts of a Dict or Tuple; None: another space."""
    if isinstance(space, gym.spaces.Dict):
        return list(space.spaces.items())
    return list(enumerate(space.spaces)) if isinstance(space, gym.spaces.Tuple) else None


def value_range(space: gym.Space[Any]) -> tuple[Any, Any]:
    """Return the lowest and the highest value of each number of a space that is one array."""
    match space:
        case spaces.Discrete():
            return int(space.start), int(space.start + space.n - 1)
        case spaces.MultiDiscrete():
            return space.start, space.start + space.nvec - 1
        case spaces.MultiBinary():
            return 0, 1
        case spaces.Box():
            return space.low, space.high
    raise AssertionError(f"checked in rlrun.config: {space}")


def leaf_name(path: Path, root: str = "observation") -> str:
    """Return the name of a leaf in messages, ``observation['position'][0]``."""
    return root + "".join(f"[{key!r}]" for key in path)


def leaf_spaces(space: gym.Space[Any], path: Path = ()) -> Iterator[tuple[Path, gym.Space[Any]]]:
    """Yield (path, space) of the leaves of Dicts and Tuples, in the order of the tree."""
    if (parts := space_parts(space)) is None:
        yield path, space
    for key, part in parts or ():
        yield from leaf_spaces(part, (*path, key))


def tree_map(function: Callable[..., Any], tree: Tree, *rest: Tree) -> Tree:
    """Return the tree of ``function(leaf, *leaves of rest)``. Dicts and tuples are inner nodes."""
    if isinstance(tree, Mapping):
        return {k: tree_map(function, v, *(r[k] for r in rest)) for k, v in tree.items()}
    if isinstance(tree, tuple):
        return tuple(tree_map(function, v, *(r[i] for r in rest)) for i, v in enumerate(tree))
    return function(tree, *rest)


def tree_leaves(tree: Tree) -> list[Any]:
    """Return the leaves in the order of the tree (dict insertion order)."""
    if isinstance(tree, Mapping):
        return [leaf for value in tree.values() for leaf in tree_leaves(value)]
    if isinstance(tree, tuple):
        return [leaf for value in tree for leaf in tree_leaves(value)]
    return [tree]


def leaf_of(tree: Tree, path: Path) -> Any:
    """Return the part of an observation at ``path``."""
    for key in path:
        tree = tree[key]
    return tree


class JointSpace(spaces.Dict):
    """The observations of ``num_agents`` agents and their global state."""

    def __init__(self, agent: gym.Space[Any], state: gym.Space[Any], num_agents: int) -> None:
        super().__init__(
            {
                "agents": batch_space(agent, num_agents),
                "alive": spaces.MultiBinary(num_agents),
                "state": state,
            }
        )
        self.agent, self.num_agents = agent, num_agents


def joint_actions(agents: list[gym.Space[Any]]) -> gym.Space[Any] | None:
    """Return the joint action space of N agents, or None if their spaces cannot be joined.

    It is MultiDiscrete [N], [N, K] for agents with K discrete actions each, or Box [N, *A].
    """
    counts = [int(a.n) for a in agents if isinstance(a, spaces.Discrete) and a.start == 0]
    if len(counts) == len(agents):
        return spaces.MultiDiscrete(counts)
    several = [a for a in agents if isinstance(a, spaces.MultiDiscrete) and not a.start.any()]
    if len(several) == len(agents) and len({a.nvec.shape for a in several}) == 1:
        nvec = np.stack([a.nvec for a in several])
        return spaces.MultiDiscrete(nvec) if nvec.ndim == 2 else None
    boxes = [a for a in agents if isinstance(a, spaces.Box)]
    same = {(a.shape, a.dtype) for a in boxes}
    if len(boxes) < len(agents) or len(same) > 1:
        return None
    low, high = (np.stack([getattr(a, end) for a in boxes]) for end in ("low", "high"))
    return spaces.Box(low, high, dtype=boxes[0].dtype.type)


def agent_action(joint: gym.Space[Any]) -> gym.Space[Any] | None:
    """Return the action space of each agent of a joint space, or None if they differ."""
    if isinstance(joint, spaces.MultiDiscrete) and joint.nvec.ndim == 1:
        same = (joint.nvec == joint.nvec[0]).all()
        return spaces.Discrete(int(joint.nvec[0])) if same else None
    if isinstance(joint, spaces.MultiDiscrete):
        same = (joint.nvec == joint.nvec[0]).all()
        return spaces.MultiDiscrete(joint.nvec[0]) if same else None
    if isinstance(joint, spaces.Box) and joint.shape:
        same = (joint.low == joint.low[0]).all() and (joint.high == joint.high[0]).all()
        box = spaces.Box(joint.low[0], joint.high[0], dtype=joint.dtype.type)
        return box if same else None
    return None


class AgentSpace(spaces.Dict):
    """One agent's observation and its number, one-hot [N], which identifies its columns."""

    def __init__(self, observation: gym.Space[Any], num_agents: int) -> None:
        number = spaces.Box(0, 1, (num_agents,), np.float32)
        super().__init__({"agent": number, "observation": observation})
        self.num_agents = num_agents
