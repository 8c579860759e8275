"""Windows, rollouts and acting rows made by a fixed numpy generator."""

from typing import Any

import gymnasium as gym
import numpy as np

AGENT = "agent"  # the part of an observation that says whose row it is, one-hot


def draw(space: gym.Space[Any], lead: tuple[int, ...], g: np.random.Generator) -> Any:
    """Random observations or actions [*lead, ...]; ``lead`` ends with the columns."""
    if isinstance(space, gym.spaces.Dict):
        return {name: _part(name, space[name], lead, g) for name in space.spaces}
    size = (*lead, *(space.shape or ()))
    if isinstance(space, gym.spaces.Discrete | gym.spaces.MultiDiscrete):
        count = space.n if isinstance(space, gym.spaces.Discrete) else space.nvec
        return g.integers(0, count, size)
    if isinstance(space, gym.spaces.MultiBinary):
        return np.ones(size, np.int8)
    assert isinstance(space, gym.spaces.Box)
    if space.dtype == np.uint8:
        return g.integers(0, 256, size).astype(np.uint8)
    if space.is_bounded():
        return g.uniform(space.low, space.high, size).astype(space.dtype)
    return g.normal(size=size).astype(space.dtype)


def _part(name: str, space: gym.Space[Any], lead: tuple[int, ...], g: np.random.Generator) -> Any:
    if name == AGENT:
        number = np.arange(lead[-1]) % space.shape[0]
        return np.broadcast_to(np.eye(space.shape[0], dtype=np.float32)[number], (*lead, 2)).copy()
    x = draw(space, lead, g)
    if name == "action_mask":
        x = (g.random(x.shape) < 0.6).astype(np.int8)
        x[..., 0] = 1
    return x


def random_state(zero: Any, lead: tuple[int, ...], g: np.random.Generator) -> Any:
    """Recurrent states [*lead, ...] shaped like those of one column in ``zero`` [B, ...]."""
    if isinstance(zero, tuple):
        return tuple(random_state(x, lead, g) for x in zero)
    return (0.5 * g.normal(size=(*lead, *zero.shape[1:]))).astype(zero.dtype)


def _select(tree: Any, keep: np.ndarray) -> Any:
    """``tree`` with zeros where ``keep`` [B] is false."""
    if isinstance(tree, tuple):
        return tuple(_select(x, keep) for x in tree)
    return np.where(keep.reshape(-1, *[1] * (tree.ndim - 1)), tree, 0).astype(tree.dtype)


def windows(
    obs: gym.Space[Any], action: gym.Space[Any], window: Any, zero: Any, g: np.random.Generator
) -> dict[str, Any]:
    """The fields of a batch of windows: of 16, some open their episode and some end in it.

    Filler stands before a window's own rows, an end row and null rows behind its episode's end.
    """
    burnin, steps, columns = window.burnin, window.rows - 1, 16
    column = np.arange(columns)
    filler = np.where(column % 4 == 1, burnin, np.where(column % 4 == 2, burnin // 2, 0))
    opens = (column % 4 == 1) | ((column % 4 == 2) & (burnin > 1))
    stop = np.where(column % 3 == 0, g.integers(burnin, steps, columns), steps)  # the last row
    row = np.arange(steps)[:, None]
    valid = (row >= filler) & (row <= stop)
    first = np.zeros((steps + 1, columns), bool)
    first[filler[opens], column[opens]] = True
    last = row == stop
    before = draw(action, (columns,), g)
    keep = ~opens.reshape(-1, *[1] * (before.ndim - 1))
    past = {
        "prev_action": np.where(keep, before, 0).astype(before.dtype),
        "prev_reward": np.where(opens, 0, g.normal(size=columns)).astype(np.float32),
    }
    owned = {int(burnin - x) for x in filler} - {0, burnin}
    return {
        "obs": draw(obs, (steps + 1, columns), g),
        "first": first,
        "action": draw(action, (steps, columns), g),
        "reward": g.normal(size=(steps, columns)).astype(np.float32),
        "terminated": last & (column % 2 == 0),
        "truncated": last & (column % 2 == 1),
        "valid": valid,
        "extras": past,
        "state": _select(random_state(zero, (columns,), g), ~opens),
        "partial": tuple(sorted(owned)),
    }


def rollout(
    obs: gym.Space[Any], action: gym.Space[Any], actor: Any, columns: int, g: np.random.Generator
) -> dict[str, Any]:
    """The fields of 24 rows of every column: episodes of 5 to 13 steps, end rows between them."""
    steps, zero = 24, actor.initial_state()
    shape = (steps + 1, columns)
    first, valid = np.zeros(shape, bool), np.zeros(shape, bool)
    terminated, truncated = np.zeros(shape, bool), np.zeros(shape, bool)
    for c in range(columns):
        row, episode = -(c % 3), c
        while row <= steps:
            length = 5 + (3 * episode + c) % 9
            inside = np.arange(max(row, 0), min(row + length, steps + 1))
            valid[inside, c] = True
            if row >= 0:
                first[row, c] = True
            if row + length <= steps:
                (terminated if episode % 2 else truncated)[row + length - 1, c] = True
            row, episode = row + length + 1, episode + 1
    low = -1.3 if isinstance(action, gym.spaces.Discrete) else -3.3
    acted = {
        name: (g.uniform(low, low + 0.6, (steps, *x.shape)) if name == "log_prob"
               else g.normal(size=(steps, *x.shape))).astype(x.dtype)
        for name, x in actor.extras.items()
    }  # fmt: skip
    past = {
        "prev_action": draw(action, (columns,), g),
        "prev_reward": g.normal(size=columns).astype(np.float32),
    }
    states = random_state(zero, (steps, columns), g)
    return {
        "obs": draw(obs, shape, g),
        "first": first,
        "action": draw(action, (steps, columns), g),
        "reward": g.normal(size=(steps, columns)).astype(np.float32),
        "terminated": terminated[:-1],
        "truncated": truncated[:-1],
        "valid": valid[:-1],
        "extras": acted | past,
        "state": _first(states),
        "states": states,
    }


def _first(tree: Any) -> Any:
    return tuple(_first(x) for x in tree) if isinstance(tree, tuple) else tree[0]
