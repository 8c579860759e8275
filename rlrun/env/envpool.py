"""Environments of the package envpool as rows. They are written in C++ and stepped by threads.

An episode that reaches ``max_episode_steps`` counts as truncated even if the same step terminates
it, because envpool sets only one of the flags.
"""

import warnings
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space

from rlrun.env.atari import ATARI_ID, envpool_arguments
from rlrun.env.catalog import closest_ids, construction_errors, first_line
from rlrun.env.contract import ResetResult, VectorResult, contract_error
from rlrun.env.diagnostic.vector import NEXT_STEP_METADATA, require_int
from rlrun.errors import ConfigError, ResourceError
from rlrun.spaces import Tree

# Arguments set by env.id, collector.num_envs and seed, or incompatible with rows.
_RESERVED = ("base_path", "batch_size", "env_seed", "max_num_players", "num_envs", "seed", "task")
_NUM_SEEDS = 2**31  # envpool's seeds are int32


class EnvPoolVectorEnv(VectorEnv[Any, Any, Any]):
    """``num_envs`` environments of an id in ``envpool.list_all_envs()``.

    envpool takes a seed only when a pool is made, so ``reset(seed=...)`` makes a new pool.
    Environment i gets seed + i. The number of threads (``num_threads``, 0: one per core) does not
    affect rows. Integer and boolean observations are cast to the dtype of their space. The reward
    of a reset is set to 0.
    """

    metadata = NEXT_STEP_METADATA

    def __init__(self, env_id: str, num_envs: int, kwargs: dict[str, Any]) -> None:
        """Raises: ConfigError without envpool, for an unknown id or unknown arguments."""
        try:
            import envpool
        except ImportError as e:
            raise ResourceError(
                f"env.backend = envpool: the package envpool cannot be imported ({e}); allowed: "
                "auto, vector, sync, async, or install it: pip install 'rlrun[envpool]'"
            ) from e
        self._id, self._limit = env_id, kwargs.get("max_episode_steps")
        self._frames = env_id == ATARI_ID  # envpool returns stacks of one frame
        if self._frames:
            with self._errors(env_id, kwargs):
                env_id, kwargs = envpool_arguments(kwargs, envpool.list_all_envs())
        if env_id not in (ids := envpool.list_all_envs()):
            similar = ", ".join(closest_ids(env_id, ids))
            raise ConfigError(
                f"env.id = {env_id}: envpool has no such environment; closest: {similar}; choose "
                "one of envpool.list_all_envs() or set env.backend=auto"
            )
        with self._errors(env_id, kwargs):
            if reserved := sorted(set(kwargs) & set(_RESERVED)):
                raise ValueError(f"{', '.join(reserved)}: set by env.id, collector.num_envs, seed")
            require_int("num_threads", kwargs.get("num_threads", 0), 0)  # below, it would crash
            spec = envpool.make_spec(env_id, num_envs=num_envs, **kwargs)
            single, action = spec.observation_space, spec.action_space
        if (players := spec.config.max_num_players) > 1:
            raise ConfigError(
                f"env.id = {env_id}: it has {players} players; allowed is one agent per "
                "environment; choose another"
            )
        if self._frames:
            single = spaces.Box(0, 255, single.shape[1:], single.dtype)
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = single, action
        self.observation_space = batch_space(single, num_envs)
        self.action_space = batch_space(action, num_envs)
        self._make = partial(envpool.make_gymnasium, env_id, num_envs=num_envs, **kwargs)
        self._pool: Any = None
        self._done, self._steps = np.zeros(num_envs, np.bool_), 0

    def _errors(self, env_id: str, kwargs: dict[str, Any]) -> Any:
        """Convert envpool's errors within the block to ConfigError."""

        def missing(error: Exception) -> ConfigError:
            text = f"envpool cannot make it ({first_line(error)}); choose another"
            return ConfigError(f"env.id = {env_id}: {text} or set env.backend=auto")

        refusals = AssertionError, TypeError, ValueError
        return construction_errors(env_id, kwargs, f"envpool's {env_id}", missing, refusals)

    def reset(self, *, seed: int | None = None, options: Any = None) -> ResetResult:
        self._done, self._steps = np.zeros(self.num_envs, np.bool_), 0
        with warnings.catch_warnings():  # Gymnasium warns about the bounds of envpool's spaces
            warnings.filterwarnings("ignore", module=r"gymnasium\.")
            if seed is not None or self._pool is None:
                self._pool = None  # ends its threads before the next pool starts
                self._pool = self._make(seed=(seed or 0) % (_NUM_SEEDS - self.num_envs))
            obs, info = self._pool.reset()
        return self._obs(obs), info

    def step(self, actions: np.ndarray) -> VectorResult:
        if self._pool is None:
            raise gym.error.ResetNeeded("call reset() before step()")
        obs, reward, terminated, truncated, info = self._pool.step(actions)
        self._steps += 1
        reward[self._done] = 0
        self._done = terminated | truncated
        if self._limit is not None and (elapsed := info["elapsed_step"]).max() > self._limit:
            message = (
                f"its episode exceeds env.max_episode_steps = {self._limit}; envpool does not "
                "truncate episodes of this id; set env.max_episode_steps=null or env.backend=auto"
            )
            raise contract_error(self._id, [int(elapsed.argmax())], self._steps, message)
        return self._obs(obs), reward, terminated, truncated, info

    def _obs(self, obs: Any) -> Tree:
        return obs[:, 0] if self._frames else _cast(self.single_observation_space, obs)

    def close_extras(self, **kwargs: Any) -> None:
        self._pool = None


def _cast(space: gym.Space[Any], obs: Any) -> Tree:
    """Cast ``obs`` to the dtypes of its space: envpool uses int32 for int64, and bool for int8."""
    if isinstance(space, spaces.Dict):
        return {key: _cast(part, obs[key]) for key, part in space.spaces.items()}
    return obs.astype(space.dtype, copy=False)
