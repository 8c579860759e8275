"""Base classes of the diagnostic environments, whose rules are written once for E columns.

``LockstepVectorEnv`` is the native vector environment (NEXT_STEP rows). ``SingleFromVector``
derives the environment of ``gymnasium.make`` from it, so that sync, async and native backends run
the same code. Column i has its own generator, seeded ``seed + i`` as in Gymnasium's SyncVectorEnv:
all three backends return the same numbers.
"""

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from rlrun.env.diagnostic.picture import observation_picture
from rlrun.tree import Tree, tree_map

NO_LIMIT = np.iinfo(np.int64).max
SINGLE_METADATA: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 5}
NEXT_STEP_METADATA: dict[str, Any] = {"render_modes": [], "autoreset_mode": AutoresetMode.NEXT_STEP}


def require_int(name: str, value: Any, low: int, high: int = NO_LIMIT) -> None:
    """Raise ValueError unless the argument ``name`` is an integer within [low, high]."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        span = f">= {low}" if high == NO_LIMIT else f"within [{low}, {high}]"
        raise ValueError(f"{name} = {value}: must be an integer {span}")


class LockstepVectorEnv(VectorEnv[Any, Any, Any]):
    """E columns of one environment. Subclasses define ``_advance`` and ``_observe``.

    ``index`` [E] is the environment number of a column, ``episode`` [E] counts its episodes from 0,
    ``t`` [E] the steps of the current one. The episode count continues over autoresets and over
    ``reset()`` without a seed; ``reset(seed=...)`` restarts it at 0.
    A step in a column whose episode has ended ignores the action and starts the next episode.

    ``full_state``: the length of the vector that replaces the observation (``_full_state``); None:
    observations are the environment's own. Actions, rewards and random numbers are the same.
    """

    metadata = NEXT_STEP_METADATA

    def __init__(
        self,
        num_envs: int,
        *,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        max_episode_steps: int | None,
        full_state: int | None = None,
    ) -> None:
        self.num_envs = num_envs
        self.full_state = full_state is not None  # observations are those of ``_full_state``
        if full_state is not None:
            observation_space = spaces.Box(-np.inf, np.inf, (full_state,), np.float32)
        self.single_observation_space = observation_space
        self.single_action_space = action_space
        self.observation_space = batch_space(observation_space, num_envs)
        self.action_space = batch_space(action_space, num_envs)
        self.columns = np.arange(num_envs)
        self.index = np.arange(num_envs)
        self.episode = np.full(num_envs, -1)
        self.t = np.zeros(num_envs, np.int64)
        self.limit = np.full(num_envs, NO_LIMIT)  # steps after which an episode is truncated
        self.rngs: list[np.random.Generator] = []
        self._max_episode_steps = NO_LIMIT if max_episode_steps is None else max_episode_steps
        self._done = np.zeros(num_envs, np.bool_)

    def _reset_columns(self, columns: np.ndarray) -> None:
        """Sample the initial state of these columns' new episodes; may set ``limit``."""

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return reward [E] float32 and terminated [E] of the step from ``t`` to ``t + 1``.

        Called for all columns; its effect on columns whose episode has ended is discarded.
        """
        raise NotImplementedError

    def _observe(self) -> Tree:
        """Return a new observation [E, ...] at ``t``: an array or a tree of arrays."""
        raise NotImplementedError

    def _full_state(self) -> np.ndarray:
        """Return what an optimal policy without memory needs to know at ``t``, float32 [E, N]."""
        raise NotImplementedError

    def _observation(self) -> Tree:
        return self._full_state() if self.full_state else self._observe()

    def _info(self, done: np.ndarray) -> dict[str, Any]:
        """Return Gymnasium's vector info of the last step."""
        return {}

    def picture(self, column: int) -> np.ndarray:
        """Return a picture of a column after its last step, uint8 [H, W, 3]: its observation."""
        obs = tree_map(lambda x: x[column], self._observation())
        share = float(self.t[column] / max(self.limit[column], 1))
        return observation_picture(obs, self.single_observation_space, share)

    def _start_episodes(self, columns: np.ndarray) -> None:
        self.episode[columns] += 1
        self.t[columns] = 0
        self._reset_columns(columns)
        self.limit[columns] = np.minimum(self.limit[columns], self._max_episode_steps)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Tree, dict[str, Any]]:
        if seed is not None or not self.rngs:
            seeds = [None if seed is None else seed + i for i in range(self.num_envs)]
            self.rngs = [seeding.np_random(s)[0] for s in seeds]
            self.episode[:] = -1
        self._done = np.zeros(self.num_envs, np.bool_)
        self._start_episodes(self.columns)
        return self._observation(), {}

    def step(
        self, actions: np.ndarray
    ) -> tuple[Tree, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        if not self.rngs:
            raise gym.error.ResetNeeded("call reset() before step()")
        reward, terminated = self._advance(actions)
        self.t += 1
        truncated = self.t >= self.limit
        if self._done.any():
            columns = np.flatnonzero(self._done)
            reward[columns] = 0
            terminated[columns] = truncated[columns] = False
            self._start_episodes(columns)
        self._done = terminated | truncated
        return self._observation(), reward, terminated, truncated, self._info(self._done)


class SingleFromVector(gym.Env[Any, Any]):
    """Single environment (``gymnasium.make``) backed by a vector environment of one column."""

    vector: ClassVar[type[Any]]
    metadata = SINGLE_METADATA

    def __init__(self, *, render_mode: str | None = None, **kwargs: Any) -> None:
        self._vector = self.vector(1, **kwargs)
        if render_mode is not None:  # else it is part of no saved state
            self.render_mode = render_mode
        self.observation_space = self._vector.single_observation_space
        self.action_space = self._vector.single_action_space

    def set_index(self, index: int) -> None:
        """Act as environment number ``index`` of a vector."""
        if isinstance(self._vector, LockstepVectorEnv):
            self._vector.index = np.array([index])

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        obs, _ = self._vector.reset(seed=seed)
        return self._own(obs), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self._vector.step(np.asarray(action)[None])
        own = {key: info[key][0] for key in info if f"_{key}" in info and info[f"_{key}"][0]}
        return self._own(obs), float(reward[0]), bool(terminated[0]), bool(truncated[0]), own

    def render(self) -> np.ndarray | None:
        """Return a picture, uint8 [H, W, 3]; None without ``render_mode``."""
        if self.render_mode is None:
            return None
        image: np.ndarray = self._vector.picture(0)
        return image

    @staticmethod
    def _own(obs: Tree) -> Tree:
        return tree_map(lambda x: x[0], obs)
