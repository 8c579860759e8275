"""What hindsight relabelling asks of an environment: the reward of a goal it did not have."""

import math
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rlrun.env.catalog import find_spec, make_single
from rlrun.env.contract import raised
from rlrun.errors import ConfigError, EnvError
from rlrun.schema import EnvConfig

KEYS = ("observation", "achieved_goal", "desired_goal")
_TRIED = (2, 3)  # leading axes of the goals that a function is tried with


class GoalFunctions:
    """``compute_reward`` and ``compute_terminated`` of a goal environment, over leading axes.

    ``goal_shape`` and ``goal_dtype`` are those of both goals. A function that takes one pair of
    goals only is called pair by pair; ``batched`` names those that need not be.
    """

    def __init__(self, env_id: str, env: gym.Env[Any, Any], space: spaces.Dict) -> None:
        """``env``: the unwrapped environment; kept, since its functions may need it.

        Raises:
            ConfigError: it has no compute_reward, or goals that cannot be exchanged.
            EnvError: its functions fail on goals of its space, or answer no numbers.
        """
        self._id = env_id
        goal, other = space["achieved_goal"], space["desired_goal"]
        if goal.shape is None or (goal.shape, goal.dtype) != (other.shape, other.dtype):
            what = f"achieved_goal is {goal}, desired_goal is {other}"
            raise self._unfit(f"{what}; allowed are two arrays of one shape and dtype")
        self.goal_shape, self.goal_dtype = goal.shape, goal.dtype
        self._functions = {
            name: function
            for name in ("compute_reward", "compute_terminated")
            if callable(function := getattr(env, name, None))
        }
        if "compute_reward" not in self._functions:
            need = "compute_reward(achieved_goal, desired_goal, info)"
            raise self._unfit(f"it observes goals but has no {need}")
        tried = {name: self._takes_batches(name, goal) for name in self._functions}
        self.batched = frozenset(name for name, batched in tried.items() if batched)

    def reward(self, achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
        """float32 [*]: the reward of steps to ``achieved`` [*, *G] had ``desired`` been the goal.

        ``achieved`` is the achieved goal of the observation *after* the step.
        """
        return self._of("compute_reward", achieved, desired, np.float32)

    def terminated(self, achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
        """bool [*]: whether those steps had ended the episode; never, without the function."""
        if "compute_terminated" not in self._functions:
            return np.zeros(self._lead(achieved), np.bool_)
        return self._of("compute_terminated", achieved, desired, np.bool_)

    def _unfit(self, what: str) -> ConfigError:
        return ConfigError(
            f"env.id = {self._id}: {what}; fix the environment or do without hindsight relabelling"
        )

    def _lead(self, goals: np.ndarray) -> tuple[int, ...]:
        return goals.shape[: goals.ndim - len(self.goal_shape)]

    def _of(self, name: str, achieved: np.ndarray, desired: np.ndarray, dtype: Any) -> np.ndarray:
        if name in self.batched:
            return np.asarray(self._call(name, achieved, desired), dtype)
        return self._one_by_one(name, achieved, desired, dtype)

    def _call(self, name: str, achieved: np.ndarray, desired: np.ndarray) -> Any:
        try:
            return self._functions[name](achieved, desired, {})
        except Exception as e:
            raise EnvError(f"env.id = {self._id}: {raised(e, name)}") from e

    def _one_by_one(
        self, name: str, achieved: np.ndarray, desired: np.ndarray, dtype: Any
    ) -> np.ndarray:
        flat = (goals.reshape(-1, *self.goal_shape) for goals in (achieved, desired))
        answers = [self._call(name, a, d) for a, d in zip(*flat, strict=True)]
        for answer in answers:
            if np.shape(answer) != () or not np.isfinite(answer):
                text = " ".join(repr(answer).split())[:60]
                raise EnvError(
                    f"env.id = {self._id}: {name}() of one pair of goals is {text}; allowed is one "
                    "finite number; fix the environment"
                )
        return np.array(answers, dtype).reshape(self._lead(achieved))

    def _takes_batches(self, name: str, goal: gym.Space[Any]) -> bool:
        """Whether a call for [2, 3, *G] goals is the same as six calls; these have to work."""
        goal.seed(0)
        shape = (*_TRIED, *self.goal_shape)
        drawn = [goal.sample() for _ in range(2 * math.prod(_TRIED))]
        achieved, desired = np.array(drawn, self.goal_dtype).reshape(2, *shape)
        desired[:, 1] = achieved[:, 1]  # else they would hardly ever be reached
        single = self._one_by_one(name, achieved, desired, np.float32)
        try:
            several = self._call(name, achieved, desired)
        except EnvError:  # whatever a function does that expects one pair
            return False
        if not isinstance(several, np.ndarray) or several.shape != _TRIED:
            return False
        return np.allclose(several, single)


def goal_functions(config: EnvConfig) -> GoalFunctions | None:
    """The reward functions of a goal environment, None when the environment is none.

    A goal environment observes a dict of ``observation``, ``achieved_goal``, ``desired_goal``; its
    functions are those of Gymnasium-Robotics' GoalEnv, on the unwrapped single environment.

    Raises:
        ConfigError: it cannot be made, observes goals but has no ``compute_reward``, or is
            envpool's.
        EnvError: a function fails on goals of its space, or answers no numbers.
    """
    if config.backend == "envpool":
        raise ConfigError(
            "env.backend = envpool: its environments have no compute_reward to ask; allowed: auto, "
            "vector, sync, async; set env.backend=auto or do without hindsight relabelling"
        )
    spec = find_spec(config.id)
    if spec.entry_point is None:
        return None  # only a native vector environment: nobody to ask
    kwargs = dict(config.kwargs)
    if config.max_episode_steps is not None:
        kwargs["max_episode_steps"] = config.max_episode_steps
    env = make_single(spec, kwargs, 0)
    space = env.observation_space
    if not isinstance(space, spaces.Dict) or set(space.spaces) != set(KEYS):
        env.close()
        return None
    return GoalFunctions(config.id, env.unwrapped, space)
