"""Reward functions of goal environments, for hindsight relabelling."""

import math
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rlrun.env.catalog import env_arguments, find_spec, make_single
from rlrun.env.contract import exception_text, pass_ctrl_c
from rlrun.errors import ConfigError, EnvError
from rlrun.schema import EnvConfig

GOAL_KEYS = ("observation", "achieved_goal", "desired_goal")
_PROBE_SHAPE = (2, 3)  # leading axes of the goals that the functions are probed with


class GoalFunctions:
    """Vectorised ``compute_reward`` and ``compute_terminated`` of a goal environment.

    ``goal_shape`` and ``goal_dtype`` are those of achieved and desired goals. ``batched`` names the
    functions that take batches; others are called once per pair of goals.
    """

    def __init__(self, env_id: str, env: gym.Env[Any, Any], space: spaces.Dict) -> None:
        """Probe the functions of ``env``, the unwrapped environment, with goals of ``space``.

        ``env`` is kept open, because its functions may need it.

        Raises:
            ConfigError: it has no compute_reward, or its two goals differ in shape or dtype.
            EnvError: its functions fail on goals of its space, or do not return numbers.
        """
        self._id = env_id
        goal, desired = space["achieved_goal"], space["desired_goal"]
        if goal.shape is None or (goal.shape, goal.dtype) != (desired.shape, desired.dtype):
            message = f"achieved_goal is {goal}, desired_goal is {desired}"
            raise self._goal_error(f"{message}; allowed are two arrays of one shape and dtype")
        self.goal_shape, self.goal_dtype = goal.shape, goal.dtype
        functions = {
            name: getattr(env, name, None) for name in ("compute_reward", "compute_terminated")
        }
        self._functions = {name: f for name, f in functions.items() if callable(f)}
        if "compute_reward" not in self._functions:
            missing = "compute_reward(achieved_goal, desired_goal, info)"
            raise self._goal_error(f"it observes goals but has no {missing}")
        self.batched = frozenset(x for x in self._functions if self._is_batched(x, goal))

    def reward(self, achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
        """Return the reward, float32 [*], of steps to ``achieved`` [*, *G] under goal ``desired``.

        ``achieved`` is the achieved goal of the observation *after* the step.
        """
        return self._compute("compute_reward", achieved, desired).astype(np.float32)

    def terminated(self, achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
        """Return bool [*]: the step terminates the episode; False without compute_terminated."""
        if "compute_terminated" not in self._functions:
            return np.zeros(achieved.shape[: achieved.ndim - len(self.goal_shape)], np.bool_)
        return self._compute("compute_terminated", achieved, desired).astype(np.bool_)

    def _goal_error(self, message: str) -> ConfigError:
        fix = "fix the environment or do without hindsight relabelling"
        return ConfigError(f"env.id = {self._id}: {message}; {fix}")

    def _compute(self, name: str, achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
        call = self._call if name in self.batched else self._call_per_pair
        return np.asarray(call(name, achieved, desired))

    def _call(self, name: str, achieved: np.ndarray, desired: np.ndarray) -> Any:
        try:
            return self._functions[name](achieved, desired, {})
        except BaseException as e:
            pass_ctrl_c(e)
            raise EnvError(f"env.id = {self._id}: {exception_text(e, name)}") from e

    def _call_per_pair(self, name: str, achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
        leading = achieved.shape[: achieved.ndim - len(self.goal_shape)]
        flat = (goals.reshape(-1, *self.goal_shape) for goals in (achieved, desired))
        results = [self._call(name, a, d) for a, d in zip(*flat, strict=True)]
        for result in results:
            if np.shape(result) != () or not np.isfinite(result):
                text = " ".join(repr(result).split())[:60]
                raise EnvError(
                    f"env.id = {self._id}: {name}() of one pair of goals is {text}; allowed is one "
                    "finite number; fix the environment"
                )
        return np.array(results).reshape(leading)

    def _is_batched(self, name: str, goal: gym.Space[Any]) -> bool:
        """Return True if one call for goals [2, 3, *G] equals six calls, which must succeed."""
        goal.seed(0)
        shape = (*_PROBE_SHAPE, *self.goal_shape)
        samples = [goal.sample() for _ in range(2 * math.prod(_PROBE_SHAPE))]
        achieved, desired = np.array(samples, self.goal_dtype).reshape(2, *shape)
        desired[:, 1] = achieved[:, 1]  # random goals would hardly ever be reached
        per_pair = self._call_per_pair(name, achieved, desired)
        try:
            batched = self._call(name, achieved, desired)
        except EnvError:  # a function of one pair may fail in any way
            return False
        if not isinstance(batched, np.ndarray) or batched.shape != _PROBE_SHAPE:
            return False
        return np.allclose(batched, per_pair.astype(np.float32))


def goal_functions(config: EnvConfig) -> GoalFunctions | None:
    """Return the reward functions of a goal environment, or None for other environments.

    A goal environment observes a dict of ``observation``, ``achieved_goal`` and ``desired_goal``.
    Its functions are those of Gymnasium-Robotics' GoalEnv, on the unwrapped single environment.

    Raises:
        ConfigError: it cannot be made, observes goals but has no ``compute_reward``, or the
            backend is envpool.
        EnvError: a function fails on goals of its space, or does not return numbers.
    """
    if config.backend == "envpool":
        raise ConfigError(
            "env.backend = envpool: its environments have no compute_reward; allowed: auto, "
            "vector, sync, async; set env.backend=auto or do without hindsight relabelling"
        )
    spec = find_spec(config.id)
    if spec.entry_point is None:
        return None  # a native vector environment has no compute_reward
    env = make_single(spec, env_arguments(config), 0)
    space = env.observation_space
    if not isinstance(space, spaces.Dict) or set(space.spaces) != set(GOAL_KEYS):
        env.close()
        return None
    return GoalFunctions(config.id, env.unwrapped, space)
