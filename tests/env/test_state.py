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
OURS += ["battleship", "minesweeper"]
OURS += ["count_recall", "position_only_cartpole", "multiarmed_bandit", "memory_chain"]


@pytest.mark.parametrize("env_id", CLASSICS)
def test_classics_go_on(env_id, tmp_path):
    check(config_of(env_id, backend="sync"), tmp_path)


@pytest.mark.parametrize("backend", ["vector", "sync"])
@pytest.mark.parametrize("name", OURS)
def test_diagnostic_environments_go_on(name, backend, tmp_path):
    check(preset(name, backend=backend), tmp_path, num_envs=3)


def test_the_native_cartpole_goes_on(tmp_path):
    check(config_of("CartPole-v1", backend="vector"), tmp_path, num_envs=4)


@pytest.mark.parametrize("backend", ["sync", "async"])
@pytest.mark.parametrize("hidden", ["none", "world"])
def test_a_walk_goes_on(hidden, backend, tmp_path):
    """By its attributes, or by a replay of its open episode."""
    config = config_of("test/Walk-v0", kwargs={"hidden": hidden}, backend=backend)
    state = check(config, tmp_path)
    env = state["raw"]["environments"][0]
    assert ("actions" in env) == (hidden == "world")
    if hidden == "world":
        assert len(env["actions"]) == 37 % 13 - 1 + 1, "of the open episode alone"


WRAPPED = [
    ["flatten_obs", "time_obs", ("delay_obs", {"steps": 2})],
    [("flicker_obs", {"probability": 0.5}), ("noise_obs", {"std": 0.1})],
    [("sticky_action", {"probability": 0.5}), ("repeat_action", {"steps": 2})],
]


@pytest.mark.parametrize("hidden", ["none", "world"])
@pytest.mark.parametrize("names", WRAPPED, ids=lambda x: "+".join(map(str, x))[:30])
def test_wrappers_go_on(names, hidden, tmp_path):
    given = [(n, {}) if isinstance(n, str) else n for n in names]
    wrappers = tuple(wrapper(name, **arguments) for name, arguments in given)
    config = replace(config_of("test/Walk-v0", kwargs={"hidden": hidden}), wrappers=wrappers,
                     max_episode_steps=9)  # fmt: skip
    check(config, tmp_path)


@pytest.mark.parametrize("hidden", ["none", "world"])
def test_running_statistics_go_on(hidden, tmp_path):
    """A user's wrapper that carries numbers from one episode to the next, replayed too."""
    gym.register("test/Normalized-v0", entry_point=lambda: normalized(hidden))
    check(config_of("test/Normalized-v0", backend="sync"), tmp_path)
    del gym.registry["test/Normalized-v0"]


def normalized(hidden: str) -> Any:
    env = gym.wrappers.NormalizeObservation(Walk(hidden))
    return gym.wrappers.NormalizeReward(env)


@pytest.mark.parametrize("backend", ["sync", "vector"])
def test_agents_go_on(backend, tmp_path):
    check(preset("relay", backend=backend), tmp_path, agents=AGENTS)


@pytest.mark.parametrize("hidden", ["global", "random", "clock", "entropy", "class"])
def test_hidden_state_is_known_at_the_first_checkpoint(hidden):
    env = make_env(config_of("test/Walk-v0", kwargs={"hidden": hidden}), num_envs=2,
                   resumable=True)  # fmt: skip
    env.reset(seed=0)
    rows(env, np.zeros((20, 2), int))
    before = np.random.get_state()[1].copy(), random.getstate()
    state = env.state_dict()
    assert "gives other rows" in env.inexact
    assert random.getstate() == before[1]
    assert (np.random.get_state()[1] == before[0]).all(), "a checkpoint changes no generator"
    assert "gives other rows" in env.load_state_dict(state)[0]
    assert env.cut.tolist() == [True, False] if hidden == "none" else env.cut[0]
    step = env.step(np.zeros(2, int))
    assert step.first[env.cut].all()
    assert not step.reward[env.cut].any()


def test_an_episode_too_long_to_replay_is_cut():
    config = replace(config_of("test/Walk-v0", kwargs={"hidden": "world"}), max_replay_steps=5)
    env = make_env(config, num_envs=2, resumable=True)
    env.reset(seed=0)
    rows(env, np.zeros((5, 2), int))
    env.state_dict()
    assert env.inexact is None
    rows(env, np.zeros((1, 2), int))
    env.state_dict()
    assert env.inexact == "its episode is longer than env.max_replay_steps = 5"


def test_a_replay_that_ends_elsewhere_is_cut(tmp_path):
    """Another version of the environment, or a changed state."""
    config = config_of("test/Walk-v0", kwargs={"hidden": "world"}, backend="sync")
    state = check(config, tmp_path)
    state["raw"]["environments"][1]["actions"][0] ^= 1
    env = make_env(config, num_envs=2, resumable=True)
    env.reset(seed=0)
    [reason] = env.load_state_dict(state)
    assert "ends with another observation" in reason
    assert env.cut.tolist() == [False, True]
    first = env.step(np.zeros(2, int)).first
    assert first.tolist() == [False, True]


def test_an_environment_with_its_own_state_goes_on(tmp_path):
    state = check(config_of("test/Own-v0", backend="sync"), tmp_path)
    assert "actions" not in state["raw"]["environments"][0]


def test_what_is_shared_stays_shared():
    class Two(gym.Env[Any, Any]):
        def __init__(self) -> None:
            self.a = np.zeros(3)
            self.b, self.deep = self.a, {"c": [self.a]}
            self.rng = np.random.default_rng(0)
            self.draw = self.rng.random

    one, two = Two(), Two()
    one.a += 1
    one.rng.random(5)
    restore(two, json_like(capture(one)))
    two.a += 1
    assert two.b.tolist() == two.deep["c"][0].tolist() == [2, 2, 2]
    assert two.draw() == one.draw(), "methods stay bound to the generator that was restored"


def json_like(tree: Any) -> Any:
    """A copy without shared objects, as a checkpoint returns it."""
    if isinstance(tree, dict):
        return {k: json_like(v) for k, v in tree.items()}
    if isinstance(tree, list):
        return [json_like(v) for v in tree]
    return np.array(tree) if isinstance(tree, np.ndarray) else tree


@pytest.mark.parametrize("make", [
    lambda: [object()], lambda: (x := np.zeros(4), x[:2]), threading.Lock,
    lambda: np.array([object()]), lambda: iter([1]), lambda: {("a",): json.JSONEncoder()},
])  # fmt: skip
def test_what_cannot_be_saved_is_named(make):
    env = gym.Env()
    env.thing = make()
    with pytest.raises(Unsupported, match="thing"):
        capture(env)


@pytest.mark.parametrize("forged", [
    {"class": "Walk", "object": {"__class__": 1}}, {"class": "Env", "object": {}},
    {"engine": "ale", "state": np.zeros(3, np.uint8)}, {"same": 7}, {"list": [{"same": 0}]},
    {"generator": {"bit_generator": "eval"}}, {"constant": "function"}, {},
])  # fmt: skip
def test_a_forged_state_is_refused(forged):
    with pytest.raises(Unsupported, match="does not fit"):
        restore(Walk(), forged)


REST = [name for name in PRESETS if name not in (*OURS, "atari")]


@pytest.mark.parametrize("name", [case(name) for name in REST])
def test_every_preset_goes_on(name, tmp_path):
    check(preset(name), tmp_path)
