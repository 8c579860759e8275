"""Saved environments: every method continues bit for bit, and what cannot is known."""

import json
import random
import threading
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from rlrun.env import make_env
from rlrun.env.state import Unsupported, capture, restore
from rlrun.rundir.checkpoint import load_newest, save
from rlrun.schema import AgentsConfig
from tests.env.presets import config_of, preset, wrapper
from tests.env.walks import Walk
from tests.installed import PRESETS, case

AGENTS = AgentsConfig("shared", "auto", True, "mean")


def rows(env: Any, actions: np.ndarray) -> list[Any]:
    """What the environments return, in bytes."""
    found = []
    for action in actions:
        step = env.step(action)
        parts = [*leaves(step.obs), step.reward, step.terminated, step.truncated, step.first]
        found.append([np.array(x).tobytes() for x in parts])
    return found


def leaves(obs: Any) -> list[Any]:
    if isinstance(obs, dict):
        return [x for part in obs.values() for x in leaves(part)]
    return [x for part in obs for x in leaves(part)] if isinstance(obs, tuple) else [obs]


def check(config: Any, tmp_path: Any, *, steps: int = 37, num_envs: int = 2, after: int = 40,
          **given: Any) -> dict[str, Any]:  # fmt: skip
    """Assert that restored environments return the rows of those that went on; return the state."""
    one, two = (make_env(config, num_envs=num_envs, resumable=True, **given) for _ in range(2))
    one.action_space.seed(0)
    actions = np.stack([[one.action_space.sample() for _ in range(one.num_envs)]
                        for _ in range(steps + after)])  # fmt: skip
    if isinstance(one.action_space, spaces.Discrete):
        actions -= one.action_space.start
    one.reset(seed=5)
    two.reset(seed=99)
    rows(one, actions[:steps])
    save(tmp_path, one.state_dict(), env_steps=1, keep=1)
    state = load_newest(tmp_path)[0]
    assert one.inexact is None
    assert two.load_state_dict(state) == []
    assert not two.cut.any()
    assert rows(one, actions[steps:]) == rows(two, actions[steps:])
    one.close()
    two.close()
    return state


CLASSICS = ["CartPole-v1", "Acrobot-v1", "Pendulum-v1", "MountainCar-v0", "FrozenLake-v1",
            "Taxi-v4", "Blackjack-v1", "CliffWalking-v1"]  # fmt: skip
OURS = ["counter", "cartpole_novel", "repeat_previous", "tmaze", "bitflip", "chain", "tracking"]
OURS += ["count_recall", "position_only_cartpole", "multiarmed_bandit", "memory_chain"]
OURS += ["battleship", "minesweeper"]
