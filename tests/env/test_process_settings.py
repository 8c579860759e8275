"""Settings of the process that environments change: the run's are back after every call."""

import os
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from rlrun import blas
from rlrun.env import make_env
from rlrun.env.process_settings import _of_environments  # private: of the process, to be cleared
from tests.env.base import Env
from tests.env.presets import config_of


def settings() -> list[Any]:
    """Return what a run depends on."""
    threads = [library.get_num_threads() for library in blas.libraries()]
    torchs = torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads()
    algorithms = torch.are_deterministic_algorithms_enabled(), torch.get_default_device().type
    return [os.getcwd(), threads, *torchs, *algorithms, np.geterr()]


class Careless(Env):
    """Sets everything in ``where``; fails in a later step that does not find it again."""

    def __init__(self, where: str, directory: str) -> None:
        self.observation_space = spaces.Box(0, 1, (1,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.where, self.directory, self.t = where, directory, 0
        self._change("init")

    def _change(self, where: str) -> None:
        if where != self.where:
            return
        os.chdir(self.directory)
        for library in blas.libraries():
            library.set_num_threads(2)
        if where == "later":
            return
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)
        torch.set_num_threads(3)
        torch.use_deterministic_algorithms(True)
        torch.set_default_device("meta")
        np.seterr(all="raise")
        self.own = settings()

    def begin(self) -> None:
        self._change("reset")

    def _obs(self) -> Any:
        return np.zeros(1, np.float32)

    def step(self, action: Any) -> Any:
        if self.where == "later" and self.t == 5:
            self._change("later")
        if self.where in ("init", "reset") or (self.where == "step" and self.t):
            assert settings() == self.own, "its own settings are in force in its calls"
        self._change("step")
        self.t += 1
        last = 99 if self.where == "later" else 3
        return self._obs(), 1.0, False, self.t == last, {}

    def close(self) -> None:
        self._change("close")


gym.register("test/Careless-v0", entry_point=Careless, disable_env_checker=True)


@pytest.mark.parametrize("where", ["init", "reset", "step", "close"])
def test_settings_are_put_back(where: str, tmp_path: Any) -> None:
    before = settings()
    kwargs = {"where": where, "directory": str(tmp_path)}
    env = make_env(config_of("test/Careless-v0", kwargs=kwargs), num_envs=1)
    assert settings() == before
    env.reset(seed=0)
    assert settings() == before
    for _ in range(5):
        env.step(np.zeros(1, int))
        assert settings() == before
    env.state_dict()
    env.close()
    assert settings() == before
    _of_environments.clear()


def test_a_directory_that_a_later_step_sets_is_put_back(tmp_path: Any) -> None:
    before = settings()
    kwargs = {"where": "later", "directory": str(tmp_path)}
    env = make_env(config_of("test/Careless-v0", kwargs=kwargs), num_envs=1)
    env.reset(seed=0)
    for _ in range(6):
        env.step(np.zeros(1, int))
    assert settings() == before
    _of_environments.clear()
