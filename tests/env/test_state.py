"""Saved environments: every method continues bit for bit, and what cannot is known."""

import random
import threading
from collections import OrderedDict, deque
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from rlrun.env import make_env
from rlrun.env.state import Unsupported, capture, restore
from rlrun.run.checkpoint import load_newest
from rlrun.schema import AgentsConfig
from rlrun.spaces import tree_leaves
from tests.env.presets import config_of, preset, wrapper
from tests.env.telling import EchoVector
from tests.env.walks import Walk
from tests.installed import PRESETS, case
from tests.run.forge import save

AGENTS = AgentsConfig("shared", "auto", True, "mean")


def rows(env: Any, actions: np.ndarray) -> list[Any]:
    """What the environments return, in bytes."""
    found = []
    for action in actions:
        step = env.step(action)
        parts = [*tree_leaves(step.obs), step.reward, step.terminated, step.truncated, step.first]
        found.append([np.array(x).tobytes() for x in parts])
    return found


def goes_on(config: Any, tmp_path: Any, *, num_envs: int = 2, **given: Any) -> dict[str, Any]:
    """Assert that restored environments return the rows of those that went on; return the state."""
    one, two = (make_env(config, num_envs=num_envs, resumable=True, **given) for _ in range(2))
    one.action_space.seed(0)
    actions = np.stack([[one.action_space.sample() for _ in range(one.num_envs)]
                        for _ in range(37 + 40)])  # fmt: skip
    if isinstance(one.action_space, spaces.Discrete):
        actions -= one.action_space.start
    one.reset(seed=5)
    two.reset(seed=99)
    rows(one, actions[:37])
    save(tmp_path, one.state_dict(), env_steps=1, keep=1)
    state = load_newest(tmp_path)[0]
    assert one.inexact is None
    assert two.load_state_dict(state) == []
    assert not two.cut.any()
    assert rows(one, actions[37:]) == rows(two, actions[37:])
    one.close()
    two.close()
    return state


def walking(hidden: str = "none", **changes: Any) -> Any:
    return config_of("test/Walk-v0", kwargs={"hidden": hidden}, **changes)


@pytest.mark.parametrize("name", [case(name) for name in PRESETS if name != "atari"])
def test_every_preset_goes_on(name, tmp_path):
    goes_on(preset(name), tmp_path, num_envs=3)
    if preset(name).id.startswith("rlrun/"):
        goes_on(preset(name, backend="sync"), tmp_path)


def test_what_the_class_says_of_itself_is_no_state():
    env = Walk()
    env.reset(seed=0)
    env.metadata = {"viewer": threading.Lock()}
    before = capture(env)
    env.metadata = {}
    restore(env, before)
    env.other = {"viewer": threading.Lock()}
    with pytest.raises(Unsupported):
        capture(env)


@pytest.mark.parametrize("env_id", ["FrozenLake-v1", "Taxi-v4", "Blackjack-v1", "CliffWalking-v1"])
def test_classics_go_on(env_id, tmp_path):
    goes_on(config_of(env_id, backend="sync"), tmp_path)


@pytest.mark.parametrize("backend", ["sync", "async"])
@pytest.mark.parametrize("hidden", ["none", "world"])
def test_a_walk_goes_on(hidden, backend, tmp_path):
    """What its attributes do not hold as well: an object in a list."""
    goes_on(walking(hidden, backend=backend), tmp_path)


WRAPPED = [
    ["flatten_obs", "time_obs", ("delay_obs", {"steps": 2})],
    [("flicker_obs", {"probability": 0.5}), ("noise_obs", {"std": 0.1}),
     ("sticky_action", {"probability": 0.5}), ("repeat_action", {"steps": 2})],
]  # fmt: skip


@pytest.mark.parametrize("hidden", ["none", "world"])
def test_an_environment_that_changes_its_action_goes_on(hidden, tmp_path):
    goes_on(config_of("test/Halving-v0", kwargs={"hidden": hidden}), tmp_path)


@pytest.mark.parametrize("hidden", ["none", "world"])
@pytest.mark.parametrize("names", WRAPPED, ids=["plain", "random"])
def test_wrappers_go_on(names, hidden, tmp_path):
    given = [(n, {}) if isinstance(n, str) else n for n in names]
    wrappers = tuple(wrapper(name, **arguments) for name, arguments in given)
    goes_on(walking(hidden, wrappers=wrappers, max_episode_steps=9), tmp_path)


@pytest.mark.parametrize("hidden", ["none", "world"])
def test_running_statistics_go_on(hidden, tmp_path):
    """A user's wrapper that carries numbers from one episode to the next."""
    gym.register("test/Normalized-v0", entry_point=lambda: gym.wrappers.NormalizeReward(
        gym.wrappers.NormalizeObservation(Walk(hidden))))  # fmt: skip
    goes_on(config_of("test/Normalized-v0", backend="sync"), tmp_path)
    del gym.registry["test/Normalized-v0"]


@pytest.mark.parametrize("backend", ["sync", "vector"])
def test_agents_go_on(backend, tmp_path):
    goes_on(preset("relay", backend=backend), tmp_path, agents=AGENTS)


def test_an_environment_with_its_own_state_goes_on(tmp_path):
    """By that state alone: no episode is replayed."""
    goes_on(config_of("test/Own-v0", backend="sync"), tmp_path)
    goes_on(config_of("test/Own-v0", backend="sync", max_replay_steps=1), tmp_path)


@pytest.mark.parametrize("hidden", ["global", "random", "clock", "entropy", "class"])
def test_hidden_state_is_known_at_the_first_checkpoint(hidden):
    env = make_env(walking(hidden), num_envs=2, resumable=True)
    env.reset(seed=0)
    rows(env, np.zeros((20, 2), int))
    before = np.random.get_state()[1].copy(), random.getstate()
    state = env.state_dict()
    assert env.inexact
    assert random.getstate() == before[1]
    assert (np.random.get_state()[1] == before[0]).all(), "a checkpoint changes no generator"
    assert env.load_state_dict(state)
    assert env.cut[0]
    step = env.step(np.zeros(2, int))
    assert step.first[env.cut].all()
    assert not step.reward[env.cut].any()
    opened = np.array(step.obs)[env.cut]
    again = make_env(walking(hidden), num_envs=2, resumable=True)
    again.reset(seed=3)
    again.load_state_dict(state)
    assert (again.step(np.zeros(2, int)).obs[env.cut] == opened).all(), "they open one episode"


class Drifting(EchoVector):
    """A native vector environment that draws from numpy's global generator."""

    def step(self, actions: np.ndarray) -> Any:
        obs, *rest = super().step(actions)
        return obs + np.random.random(), *rest


gym.register("test/Drifting-v0", vector_entry_point=Drifting)


@pytest.mark.parametrize(("env_id", "exact"), [("test/Echo-v0", True), ("test/Drifting-v0", False)])
def test_hidden_state_of_a_native_vector_environment(env_id, exact):
    env = make_env(config_of(env_id, backend="vector"), num_envs=2, resumable=True)
    env.reset(seed=0)
    rows(env, np.zeros((20, 2, 2), np.float32))
    env.state_dict()
    assert (env.inexact is None) == exact


def test_a_vector_environment_without_a_state_opens_other_episodes():
    config = preset("cartpole", backend="vector")
    one, two = (make_env(config, num_envs=2) for _ in range(2))
    start = np.array(one.reset(seed=3))
    rows(one, np.zeros((4, 2), int))
    state = one.state_dict()
    two.reset(seed=3)
    assert len(two.load_state_dict(state)) == 1
    assert two.cut.all()
    step = two.step(np.zeros(2, int))
    assert step.first.all()
    assert not step.reward.any()
    assert (step.obs != start).any(), "not those of the run's start"


def exactness(config, *steps):
    """Whether the environments are exact at checkpoints after so many steps, and why not."""
    env = make_env(config, num_envs=2, resumable=True)
    env.reset(seed=0)
    found = []
    for number in steps:
        rows(env, np.zeros((number, 2), int))
        env.state_dict()
        found.append(env.inexact)
    return found


def test_episodes_that_cannot_be_replayed():
    """Too long ones; those that depend on the one before, known at a checkpoint of the second."""
    exact, reason = exactness(walking("world", max_replay_steps=5), 5, 1)
    assert exact is None
    assert "env.max_replay_steps = 5" in reason
    assert [bool(reason) for reason in exactness(walking("count"), 5, 9)] == [False, True]


def test_another_version_of_an_environment_is_cut(tmp_path, monkeypatch):
    """A replay that ends with other observations."""
    config = walking("world", backend="sync")
    state = goes_on(config, tmp_path)
    step = Walk.step
    monkeypatch.setattr(Walk, "step", lambda self, action: step(self, 1 - int(action)))
    env = make_env(config, num_envs=2, resumable=True)
    env.reset(seed=0)
    assert len(env.load_state_dict(state)) > 0
    assert env.cut.all()
    assert env.step(np.zeros(2, int)).first.all()


# -- private: what a capture of attributes holds; users' environments have what no preset has ------


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
    restore(two, capture(one))
    two.a += 1
    assert two.b.tolist() == two.deep["c"][0].tolist() == [2, 2, 2]
    assert one.a.tolist() == [1, 1, 1]
    assert two.draw() == one.draw(), "methods stay bound to the generator that was restored"


@pytest.mark.parametrize("value", [
    b"", b"ab", np.str_("a"), np.float32(0.1), np.bool_(True), np.datetime64("2020-01-01"),
    np.array(["a", "bc"]), np.array([1 + 2j]), np.zeros((0, 3), ">f4"), np.array(2.0),
    deque([1, 2], maxlen=3), {("a", 1): [{2}], 3: frozenset({4})}, OrderedDict(b=(1,), a=None),
])  # fmt: skip
def test_every_kind_of_value_comes_back(value):
    one, two = gym.Env(), gym.Env()
    one.x, two.x = value, None
    before = capture(one)
    restore(two, before)
    assert type(two.x) is type(value)
    assert repr(two.x) == repr(value)
    assert getattr(two.x, "dtype", None) == getattr(value, "dtype", None)
    assert getattr(two.x, "maxlen", None) == getattr(value, "maxlen", None)


@pytest.mark.parametrize("make", [
    lambda: [object()], lambda: (x := np.zeros(4), x[:2]), threading.Lock,
    lambda: np.array([object()]), lambda: iter([1]), lambda: {("a",): threading.Lock()},
])  # fmt: skip
def test_what_cannot_be_saved_is_named(make):
    env = gym.Env()
    env.thing = make()
    with pytest.raises(Unsupported, match="thing"):
        capture(env)


@pytest.mark.parametrize("forged", [
    {"class": "Walk", "object": {"__class__": 1}}, {"class": "Env", "object": {}},
    {"engine": "ale_py.ALEInterface", "state": {}}, {"same": 7},
    {"container": "list", "items": [{"same": 0}]}, {"container": "eval", "items": ["1"]},
    {"array": np.zeros(8, np.uint8), "dtype": "O", "shape": [1], "form": "array"},
    {"generator": {"bit_generator": "eval"}}, {"constant": "function"}, {},
])  # fmt: skip
def test_a_forged_state_is_refused(forged):
    with pytest.raises(Unsupported):
        restore(Walk(), forged)
