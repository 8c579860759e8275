"""Frame stacking for actors. Environments, rows and storage hold single frames.

A stack holds the last k observations of one episode, oldest first, on a new leading axis. At the
start of an episode it is padded with copies of the first frame. Does not import torch. Source: Mnih
et al. 2015, methods (k = 4); Gymnasium's FrameStackObservation, padding_type="reset".
"""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import batch_space, create_empty_array

from rlrun.errors import ConfigError
from rlrun.spaces import Tree, space_parts, tree_map


def stack_space(space: gym.Space[Any], k: int, path: str = "observation") -> gym.Space[Any]:
    """Return the space of stacks of ``k`` frames: Box [*O] becomes Box [k, *O]; k = 1: ``space``.

    Raises:
        ConfigError: a part of the observation is not a Box.
    """
    if k == 1:
        return space
    if (parts := space_parts(space)) is not None:
        stacked = {key: stack_space(part, k, f"{path}[{key!r}]") for key, part in parts}
        several = isinstance(space, gym.spaces.Tuple)
        return gym.spaces.Tuple(stacked.values()) if several else gym.spaces.Dict(stacked)
    if isinstance(space, gym.spaces.Box):
        return batch_space(space, k)
    raise ConfigError(
        f"env.frame_stack = {k}: {path} space is {space}; allowed is 1, or an observation "
        "of Box spaces only; set env.frame_stack=1"
    )


class FrameStack:
    """Frame stacks of E environments, updated by one ``push`` per row."""

    def __init__(self, k: int, example: Tree) -> None:
        """Allocate for observations of the shapes [E, *O] and dtypes of ``example``."""
        assert k > 1, "single frames need no FrameStack"
        self._frames = tree_map(lambda x: np.zeros((len(x), k, *x.shape[1:]), x.dtype), example)

    def push(self, obs: Tree, first: np.ndarray) -> Tree:
        """Return stacks [E, k, *O] that end with ``obs`` [E, *O]; ``first`` [E] restarts a stack.

        The next push overwrites the arrays.
        """
        restarts = np.flatnonzero(first)

        def put(frames: np.ndarray, x: np.ndarray) -> None:
            frames[:, :-1] = frames[:, 1:]
            frames[:, -1] = x
            frames[restarts] = x[restarts, None]

        tree_map(put, self._frames, obs)
        return self._frames

    def present(self) -> Tree:
        """Return the stacks of the last push again."""
        return self._frames

    def state_dict(self) -> dict[str, Any]:
        """Return copies of the stacks after the last push."""
        return {"frames": tree_map(np.copy, self._frames)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the stacks of ``state_dict``."""
        tree_map(np.copyto, self._frames, state["frames"])


def make_frame_stack(k: int, space: gym.Space[Any], num_envs: int) -> FrameStack | None:
    """Return a FrameStack for observations of a single environment's space, or None for k = 1."""
    return FrameStack(k, create_empty_array(space, num_envs)) if k > 1 else None
