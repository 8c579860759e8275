"""Environments of the package envpool as rows: written in C++, stepped by a pool of threads.

``Pool`` is a NEXT_STEP vector environment around one pool, ``PoolEnv`` its rows. An episode that
ends at ``max_episode_steps`` counts as truncated even where that very step also terminated it:
envpool tells one flag only. Its other answers are brought to what a row promises.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space

from rlrun.env.atari import ATARI, pooled
from rlrun.env.catalog import closest
from rlrun.env.contract import fault
from rlrun.env.diagnostic.lockstep import NEXT_STEP_METADATA, need_count
from rlrun.env.rows import Env
from rlrun.errors import ConfigError, extra
from rlrun.tree import Tree

# What env.id, collector.num_envs and the seed decide, and what rows cannot be made of.
_TAKEN = ("base_path", "batch_size", "env_seed", "max_num_players", "num_envs", "seed", "task")
_SEEDS = 2**31  # envpool's seeds are int32


def _package() -> Any:
    try:
        import envpool
    except ImportError as e:
        raise ConfigError(
            f"env.backend = envpool: the package envpool cannot be imported ({e}); allowed without "
            f"it: auto, vector, sync, async; install it: pip install {extra('envpool')}"
        ) from e
    return envpool


@contextmanager
def _narrated(env_id: str, kwargs: dict[str, Any]) -> Iterator[None]:
    """Turn what goes wrong while envpool reads the arguments into a ConfigError."""
    try:
        with _silenced():
            yield
    except (AssertionError, TypeError, ValueError) as e:
        raise ConfigError(
            f"env.kwargs = {kwargs}: envpool's {env_id} does not accept them ({_line(e)}); "
            "allowed are the keys and types of envpool.make_spec(id).config; change env.kwargs"
        ) from e
    except Exception as e:
        what = f"envpool cannot make it ({_line(e)}); choose another or set env.backend=auto"
        raise ConfigError(f"env.id = {env_id}: {what}") from e


@contextmanager
def _silenced() -> Iterator[None]:
    """Without Gymnasium's remarks about the bounds of envpool's spaces."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"gymnasium\.")
        yield


def _line(error: Exception) -> str:
    first = (str(error).strip() or type(error).__name__).splitlines()[0]
    return first.rstrip(".:")


class Pool(VectorEnv[Any, Any, Any]):
    """``num_envs`` environments of one id of envpool's own list.

    envpool takes a seed only when a pool is made, so ``reset(seed=...)`` makes a new one;
    environment i gets seed + i, and the number of threads (``num_threads``, 0: one per core)
    changes no row. Integer and boolean observations come in the dtype of their space, and a row
    that opens an episode has reward 0, whatever the environment says of its reset.
    """

    metadata = NEXT_STEP_METADATA

    def __init__(self, env_id: str, num_envs: int, kwargs: dict[str, Any]) -> None:
        """Raises: ConfigError (no envpool, no such id, arguments it does not take)."""
        envpool = _package()
        self._frames = env_id == ATARI  # stacks of one frame, of which the frame is taken
        if self._frames:
            with _narrated(env_id, kwargs):
                env_id, kwargs = pooled(kwargs, envpool.list_all_envs())
        if env_id not in (ids := envpool.list_all_envs()):
            raise ConfigError(
                f"env.id = {env_id}: envpool has no such environment; closest: "
                f"{', '.join(closest(env_id, ids))}; take one of envpool.list_all_envs() or set "
                "env.backend=auto"
            )
        with _narrated(env_id, kwargs):
            spec = envpool.make_spec(env_id, num_envs=num_envs, **_allowed(kwargs))
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
        self._done = np.zeros(num_envs, np.bool_)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Tree, dict[str, Any]]:
        self._done = np.zeros(self.num_envs, np.bool_)
        with _silenced():
            if seed is not None or self._pool is None:
                self._pool = None  # its threads end before others start
                self._pool = self._make(seed=(seed or 0) % (_SEEDS - self.num_envs))
            obs, info = self._pool.reset()
        return self._obs(obs), info

    def step(
        self, actions: np.ndarray
    ) -> tuple[Tree, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        if self._pool is None:
            raise gym.error.ResetNeeded("call reset() before step()")
        obs, reward, terminated, truncated, info = self._pool.step(actions)
        reward[self._done] = 0
        self._done = terminated | truncated
        return self._obs(obs), reward, terminated, truncated, info

    def _obs(self, obs: Any) -> Tree:
        return obs[:, 0] if self._frames else _fit(self.single_observation_space, obs)

    def close_extras(self, **kwargs: Any) -> None:
        self._pool = None


def _allowed(kwargs: dict[str, Any]) -> dict[str, Any]:
    """``kwargs``; ValueError for keys that are not the config's to set.

    A negative number of threads would end the process.
    """
    if taken := sorted(set(kwargs) & set(_TAKEN)):
        raise ValueError(f"{', '.join(taken)}: set by env.id, collector.num_envs and seed")
    need_count("num_threads", kwargs.get("num_threads", 0), 0)
    return kwargs


def _fit(space: gym.Space[Any], obs: Any) -> Tree:
    """``obs`` in the dtypes of its space: envpool has int32 for int64, bool for int8."""
    if isinstance(space, spaces.Dict):
        return {key: _fit(part, obs[key]) for key, part in space.spaces.items()}
    return obs.astype(space.dtype, copy=False)


class PoolEnv(Env):
    """Rows of a ``Pool``; checks that ``env.max_episode_steps`` is kept, which few ids ignore."""

    def __init__(
        self, pool: Pool, *, env_id: str, keep_info: tuple[str, ...], limit: int | None
    ) -> None:
        super().__init__(pool, env_id=env_id, keep_info=keep_info)
        self._limit = limit

    def _advance(self, action: np.ndarray) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        answer = super()._advance(action)
        if self._limit is not None:
            self._check_limit(answer[-1]["elapsed_step"], self._limit)
        return answer

    def _check_limit(self, elapsed: np.ndarray, limit: int) -> None:
        if elapsed.max() > limit:
            who = f"environment {int(elapsed.argmax())}"
            what = (
                f"its episode goes on behind env.max_episode_steps = {limit}; envpool does not cut "
                "episodes of this id there; set env.max_episode_steps=null or env.backend=auto"
            )
            raise fault(self._id, who, self._steps, what)
