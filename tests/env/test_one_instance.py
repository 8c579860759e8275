"""env.instances=1: evaluation in the one environment that collects."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from rlrun.env import make_env
from rlrun.env.examine import FINDING, examine
from rlrun.errors import ConfigError
from tests.env.base import Env
from tests.env.presets import config_of
from tests.env.telling import EchoVector


class Only(Env):
    """One at a time. Observes its seed and step; 5 steps."""

    exists = False

    def __init__(self) -> None:
        if Only.exists:
            raise RuntimeError("port 5005 is in use")
        Only.exists = True
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.action_space = spaces.Discrete(2)

    def begin(self) -> None:
        self.place = float(self.np_random.random())

    def _obs(self) -> Any:
        return np.array([self.place, self.t])

    def step(self, action: Any) -> Any:
        self.t += 1
        return self._obs(), 1.0, False, self.t == 5, {}

    def close(self) -> None:
        Only.exists = False


gym.register("test/Only-v0", entry_point=Only, disable_env_checker=True)
ONE = config_of("test/Only-v0", instances=1)


def test_episodes_after_others_do_not_depend_on_them() -> None:
    found = []
    for steps in (0, 3, 7):
        env = make_env(ONE, num_envs=1, resumable=True)
        env.reset(seed=3)
        env.step(np.zeros(1, int))
        with env.lent():
            env.reset(seed=99)
            for _ in range(steps):
                env.step(np.zeros(1, int))
        state = env.state_dict()
        step = env.step(np.zeros(1, int))
        assert (step.first.all(), step.reward[0], step.terminated[0]) == (True, 0.0, False)
        rows = [step.obs.copy()] + [env.step(np.zeros(1, int)).obs.copy() for _ in range(7)]
        env.close()
        env = make_env(ONE, num_envs=1, resumable=True)
        env.reset(seed=3)
        assert env.load_state_dict(state) == []
        again = [env.step(np.zeros(1, int)).obs.copy() for _ in range(8)]
        env.close()
        np.testing.assert_array_equal(rows, again)
        found.append(rows)
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


def test_a_second_instance_is_told_as_such() -> None:
    with pytest.raises(ConfigError, match=r"environment 1, .*env.instances=1"):
        make_env(config_of("test/Only-v0"), num_envs=2)
    Only.exists = False


class OnlyVector(EchoVector):
    """Counts how many were made."""

    made = 0

    def __init__(self, num_envs: int) -> None:
        OnlyVector.made += 1
        super().__init__(num_envs)


gym.register("test/OnlyVector-v0", vector_entry_point=OnlyVector)


def test_a_native_environment_is_saved_without_a_second_one() -> None:
    config = config_of("test/OnlyVector-v0", backend="vector", instances=1)
    env = make_env(config, num_envs=1, resumable=True)
    env.reset(seed=0)
    for _ in range(10):
        env.step(np.zeros((1, 2), np.float32))
    state = env.state_dict()
    assert OnlyVector.made == 1
    assert env.inexact is None
    assert env.load_state_dict(state) == []


def test_one_instance_is_examined_alone() -> None:
    found = [*examine(ONE, None, seconds=1.0)]
    assert [check for check in found if check.verdict == FINDING] == []
