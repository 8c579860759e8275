"""A vector environment of Gymnasium's interface whose rows are those of a run."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from rlrun.env.rows import Env
from rlrun.errors import ConfigError
from rlrun.tree import tree_map


class RowsVectorEnv(VectorEnv[Any, Any, Any]):
    """``rlrun.env.Env`` as a ``gymnasium.vector.VectorEnv`` with NEXT_STEP autoreset.

    The step after a ``terminated`` or ``truncated`` one ignores the action and returns the first
    observation of the next episode, with reward 0. Arrays are the caller's. ``info`` holds what
    the rows keep (env.success).
    """

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, rows: Env) -> None:
        self.rows, self.num_envs = rows, rows.num_envs
        self.single_observation_space, self.single_action_space = rows.obs_space, rows.action_space
        self.observation_space: gym.Space[Any] = batch_space(rows.obs_space, rows.num_envs)
        self.action_space: gym.Space[Any] = batch_space(rows.action_space, rows.num_envs)
        self._start = np.asarray(getattr(rows.action_space, "start", 0))

    def reset(
        self, *, seed: Any = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Return first observations [n, ...]; environment i gets ``seed`` + i. Raises: ConfigError.

        None: a seed of the operating system's entropy.
        """
        if seed is None:
            seed = int(np.random.SeedSequence().generate_state(1)[0]) >> 1
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
            raise ConfigError(
                f"seed = {seed}: is no seed; an integer >= 0, that of the first environment, or "
                "None is allowed; e.g. seed=0"
            )
        return tree_map(np.array, self.rows.reset(seed=int(seed))), {}

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Return observations, rewards, terminated, truncated [n, ...] and the kept info."""
        action = np.asarray(actions)
        step = self.rows.step(action - self._start if self._start.any() else action)
        info: dict[str, Any] = {key: np.array(x) for key, x in step.info.items()}
        flags = np.array(step.terminated), np.array(step.truncated)
        return tree_map(np.array, step.obs), np.array(step.reward), *flags, info

    def render(self) -> Any:
        """Return a picture of environment 0, uint8 [height, width, 3].

        Raises: ConfigError: it cannot be drawn.
        """
        if self.rows.picture is None:
            raise ConfigError(
                "env.render: the environment was made without pictures; those of "
                "agent.env(n, render=True) can be drawn; make it so"
            )
        return self.rows.render()

    def close_extras(self, **kwargs: Any) -> None:
        """Close the environments."""
        self.rows.close()
