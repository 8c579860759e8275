"""Random walks through an environment, recorded for ``rlrun.env.examine``.

``walk_single`` records a single environment as it is, before anything of rlrun validates it;
``walk_rows`` the rows that a run would get.
"""

import time
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np

from rlrun.env.bounds import Bounds
from rlrun.env.contract import (
    exception_text,
    flag_violation,
    info_violation,
    is_ctrl_c,
    obs_violation,
    reward_violation,
)
from rlrun.env.probe import row_hash
from rlrun.env.rows import Env
from rlrun.functional.masks import MASK, allowed_actions, has_mask
from rlrun.tree import tree_map

AnyEnv = gym.Env[Any, Any]
NO_END = "no episode ended within the steps made; env.max_episode_steps=100 makes them end"
LATE = "no episode ended within the {} steps that there was time for; they take long"
FEW = 3  # steps that are made however long they take
WAITS = 10  # times its CPU seconds that a walk may take where an environment waits


class Actions:
    """Random actions of a space, allowed ones where the observation has a mask."""

    def __init__(self, action: gym.Space[Any], obs: gym.Space[Any], seed: int) -> None:
        self._space: Any = deepcopy(action)
        self._space.seed(seed)
        self._rng = np.random.default_rng(seed)
        self._masked = has_mask(obs) and isinstance(action, gym.spaces.Discrete)
        self._start = getattr(action, "start", 0)

    def __call__(self, obs: Any) -> Any:
        """Return an action of one environment whose observation is ``obs``."""
        if not self._masked:
            return self._space.sample()
        allowed = np.flatnonzero(allowed_actions({MASK: np.asarray(obs[MASK])}))
        return self._space.dtype.type(self._start + self._rng.choice(allowed))

    def batch(self, obs: Any, num_envs: int) -> np.ndarray:
        """Return actions [E, *A] of all environments, counted from 0."""
        own = [self(tree_map(lambda x, i=i: x[i], obs)) for i in range(num_envs)]
        actions: np.ndarray = np.stack(own) - np.asarray(self._start)
        return actions


@dataclass
class Episode:
    """An episode of a single environment."""

    obs: list[Any]  # length + 1 observations, the last is the final one
    hashes: list[str]  # of the observations
    actions: list[Any] = field(default_factory=list)
    terminated: bool = False
    truncated: bool = False

    @property
    def length(self) -> int:
        return len(self.actions)

    @property
    def ended(self) -> bool:
        return self.terminated or self.truncated


@dataclass
class SingleWalk:
    """Episodes of a single environment; a violation of the contract ends the walk."""

    episodes: list[Episode] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    violations: dict[str, str] = field(default_factory=dict)
    """Keys "observation", "reward", "flags" or "exception", values what is wrong."""
    outside: str | None = None  # the first float beyond the bounds of its space
    late: bool = False  # the time was over before all steps were made

    @property
    def steps(self) -> int:
        return sum(episode.length for episode in self.episodes)

    @property
    def no_end(self) -> str:
        """Why nothing can be said of ends."""
        return LATE.format(self.steps) if self.late else NO_END

    @property
    def ended(self) -> list[Episode]:
        return [episode for episode in self.episodes if episode.ended]


def walk_single(
    env: AnyEnv, *, seed: int, steps: int, seconds: float, episodes: int | None = None
) -> SingleWalk:
    """Return ``steps`` steps of random actions, fewer (not less than FEW) after ``seconds`` of CPU
    time, which a busy machine does not shorten, ``WAITS`` times as long, or ``episodes``.
    """
    walk, busy, deadline = SingleWalk(), time.thread_time(), time.monotonic() + WAITS * seconds
    actions = Actions(env.action_space, env.observation_space, seed)
    bounds = [Bounds(env.observation_space, "", batched=False, floats=f) for f in (False, True)]
    try:
        obs, ordered = _opened(walk, env, bounds, env.reset(seed=seed))
        while ordered and walk.steps < steps:
            late = time.thread_time() - busy > seconds or time.monotonic() > deadline
            if walk.steps >= FEW and late:
                walk.late = True
                break
            episode = walk.episodes[-1]
            if episode.ended:
                if len(walk.episodes) == episodes:
                    break
                obs, ordered = _opened(walk, env, bounds, env.reset())
                continue
            episode.actions.append(actions(obs))
            result = env.step(episode.actions[-1])
            ordered = _stepped(walk, env, bounds, result)
            obs = result[0] if ordered else obs
    except BaseException as e:
        if is_ctrl_c(e):
            raise
        walk.violations["exception"] = exception_text(e, "reset or step").partition(";")[0]
    return walk


def _opened(walk: SingleWalk, env: AnyEnv, bounds: list[Bounds], result: Any) -> tuple[Any, bool]:
    """Begin an episode; return its first observation and whether that is in order."""
    if not isinstance(result, tuple) or len(result) != 2:
        walk.violations["exception"] = "reset() must return (observation, info)"
        return None, False
    obs, info = result
    if (message := info_violation(info)) is not None:
        walk.violations["exception"] = message
    elif _observed(walk, env, bounds, obs):
        walk.episodes.append(Episode([tree_map(np.array, obs)], [row_hash(obs)]))
    return obs, not walk.violations


def _stepped(walk: SingleWalk, env: AnyEnv, bounds: list[Bounds], result: Any) -> bool:
    """Add a step to the open episode; return whether it is in order."""
    if not isinstance(result, tuple) or len(result) != 5:
        walk.violations["exception"] = (
            "step() must return (observation, reward, terminated, truncated, info)"
        )
        return False
    obs, reward, terminated, truncated, info = result
    if (message := info_violation(info)) is not None:
        walk.violations["exception"] = message
        return False
    if not _observed(walk, env, bounds, obs):
        return False
    if (message := reward_violation(reward)) is not None:
        walk.violations["reward"] = message
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if (message := flag_violation(name, flag)) is not None:
            walk.violations["flags"] = message
    if walk.violations:
        return False
    episode = walk.episodes[-1]
    episode.obs.append(tree_map(np.array, obs))
    episode.hashes.append(row_hash(obs))
    episode.terminated, episode.truncated = bool(terminated), bool(truncated)
    walk.rewards.append(float(reward))
    return True


def _observed(walk: SingleWalk, env: AnyEnv, bounds: list[Bounds], obs: Any) -> bool:
    message = obs_violation(env.observation_space, obs) or bounds[0].violation(obs)
    if message is not None:
        walk.violations["observation"] = message
        return False
    walk.outside = walk.outside or bounds[1].floats_violation(obs)
    return True


@dataclass
class RowsWalk:
    """Rows [T, E] of a vector environment; row 0 is the reset."""

    hashes: np.ndarray  # [T, E] str: of the observations
    reward: np.ndarray  # [T, E] float32
    ended: np.ndarray  # [T, E] bool: terminated or truncated
    truncated: np.ndarray  # [T, E] bool
    first: np.ndarray  # [T, E] bool
    last: Any  # observation [E, ...] of the last row

    @property
    def steps(self) -> int:
        return len(self.hashes) - 1


def walk_rows(
    env: Env,
    *,
    seed: int,
    steps: int,
    seconds: float,
    other_after_end: bool = False,
    last: Any = None,
) -> RowsWalk:
    """Return rows of random actions, ``steps`` of them or fewer (not less than FEW) after
    ``seconds``.

    ``other_after_end``: those that a NEXT_STEP environment ignores, of the step after an episode's
    end, are others. ``last``: the observation to go on from without a reset.

    Raises: EnvError: the environment violated its contract.
    """
    count, deadline = env.num_envs, time.monotonic() + seconds
    actions = Actions(env.action_space, env.obs_space, seed)
    other = Actions(env.action_space, env.obs_space, seed + 1)
    obs = env.reset(seed=seed) if last is None else last
    done = np.zeros(count, np.bool_)
    rows = [(row_hashes(obs, count), np.zeros(count, np.float32), done, done, ~done)]
    while len(rows) <= steps and (len(rows) <= FEW or time.monotonic() <= deadline):
        action = actions.batch(obs, count)
        if other_after_end and done.any():
            ignored = other.batch(obs, count)
            action = np.where(done.reshape(-1, *[1] * (action.ndim - 1)), ignored, action)
        s = env.step(action)
        obs = s.obs
        done = s.terminated | s.truncated
        flags = s.truncated.copy(), s.first.copy()
        rows.append((row_hashes(obs, count), s.reward.copy(), done, *flags))
    hashes, reward, ended, truncated, first = map(np.stack, zip(*rows, strict=True))
    return RowsWalk(hashes, reward, ended, truncated, first, tree_map(np.array, obs))


def row_hashes(obs: Any, count: int) -> np.ndarray:
    """Return the hashes [E] of the observations of E environments."""
    return np.array([row_hash(tree_map(lambda x, i=i: x[i], obs)) for i in range(count)])
