"""Frame stacking for whoever acts: environments, rows and storage know single frames only.

A stack is the last k observations of one episode, oldest first, on an axis in front of the
observation's own shape; before the episode's first frame stand copies of it. Torch-free.
Source: Mnih et al. 2015, methods (k = 4); Gymnasium's FrameStackObservation, padding_type="reset".
"""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import batch_space, create_empty_array

from rlrun.errors import ConfigError
from rlrun.tree import Tree, tree_map


def stack_space(space: gym.Space[Any], k: int, where: str = "observation") -> gym.Space[Any]:
    """The space of stacks of ``k`` frames: every Box [*O] becomes a Box [k, *O]; k = 1: ``space``.

    Raises:
        ConfigError: a part of the observation is no Box; it has no axis to stack along.
    """
    if k == 1:
        return space
    match space:
        case gym.spaces.Dict():
            parts = space.spaces.items()
            named = {key: stack_space(s, k, f"{where}[{key!r}]") for key, s in parts}
            return gym.spaces.Dict(named)
        case gym.spaces.Tuple():
            several = enumerate(space.spaces)
            return gym.spaces.Tuple([stack_space(s, k, f"{where}[{i}]") for i, s in several])
        case gym.spaces.Box():
            return batch_space(space, k)
        case _:
            raise ConfigError(
                f"env.frame_stack = {k}: {where} space is {space}; allowed is 1, or an observation "
                "of Box spaces only; set env.frame_stack=1"
            )


class FrameStack:
    """The stacks of E environments, one ``push`` per row.

    Frames lie on a tape of 2k per environment on which the stack moves on; only every k + 1 rows
    k - 1 of them are copied back to its start.
    """

    def __init__(self, k: int, example: Tree) -> None:
        """``example``: observations [E, *O] that show shapes and dtypes."""
        assert k > 1, "who sees single frames needs no FrameStack"
        self.k = k
        self._start = 0  # where the stack lies on the tape
        self._tape = tree_map(lambda x: np.zeros((len(x), 2 * k, *x.shape[1:]), x.dtype), example)

    def push(self, obs: Tree, first: np.ndarray) -> Tree:
        """The stacks [E, k, *O] that end with ``obs`` [E, *O]; they begin anew where ``first`` [E].

        Arrays are views, overwritten by the next push.
        """
        k = self.k
        full = self._start == k
        self._start = 0 if full else self._start + 1
        stop = self._start + k
        opens = np.flatnonzero(first)

        def put(tape: np.ndarray, x: np.ndarray) -> np.ndarray:
            if full:
                tape[:, : k - 1] = tape[:, k + 1 :]
            tape[:, stop - 1] = x
            if len(opens):
                tape[opens, self._start : stop] = x[opens, None]
            return tape[:, self._start : stop]

        return tree_map(put, self._tape, obs)

    def state_dict(self) -> dict[str, Any]:
        """Copies of the stacks after the last push."""
        stop = self._start + self.k
        return {"frames": tree_map(lambda tape: tape[:, self._start : stop].copy(), self._tape)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of ``state_dict``."""
        self._start = 0
        tree_map(lambda tape, x: np.copyto(tape[:, : self.k], x), self._tape, state["frames"])


def make_stack(k: int, space: gym.Space[Any], num_envs: int) -> FrameStack | None:
    """A FrameStack for observations of this (single) space; None where nothing is stacked."""
    return FrameStack(k, create_empty_array(space, num_envs)) if k > 1 else None
