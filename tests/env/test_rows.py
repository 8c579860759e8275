"""Row semantics, for every preset and backend."""

import re
from dataclasses import fields, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from gymnasium.vector.utils import create_empty_array
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.env import Env, Step, make_env
from rlrun.env.diagnostic.counter import counter_reward
from rlrun.env.rows import SyncEnv
from rlrun.schema import EnvConfig
from rlrun.tree import tree_leaves, tree_map
from tests.env import faulty  # noqa: F401  registers the test/ ids
from tests.env.presets import FOLDER, NAMES, OWN, config_of, needs_envpool, preset
from tests.installed import case

WORKERS = ["cartpole", "tmaze", "counter", "pendulum", "lunarlander_continuous", "halfcheetah"]
WORKERS += ["minigrid_memory_s7", "popgym_autoencode_easy", "atari"]  # one of each kind
CASES = [case(name, backend) for name in NAMES for backend in ("auto", "sync")]
CASES += [case(name, "async") for name in WORKERS]
POOLED = [  # presets whose ids envpool has too
    pytest.param(name, "envpool", marks=needs_envpool)
    for name in (
        *("acrobot", "cartpole", "cartpole_v0", "mountaincar", "pendulum", "atari"),
        *("mountaincar_continuous", "lunarlander", "lunarlander_continuous", "bipedalwalker"),
    )
]
REMEMBERING = ("bipedalwalker",)  # Gymnasium's keeps its Box2D world over resets
SEEDLESS = ("counter", "bandit", "bandit_continuous", "chain")  # nothing in them is random


def run(env: Env, steps: int, seed: int) -> list[Step]:
    """Rows of random actions, copied; the reset observation stands in a leading row."""
    env.action_space.seed(seed)
    obs, none = env.reset(seed=seed), np.zeros(env.num_envs, bool)
    rows = [
        Step(tree_map(np.array, obs), np.zeros(env.num_envs, np.float32), none, none, ~none, {})
    ]
    for _ in range(steps):
        action = np.stack([env.action_space.sample() for _ in range(env.num_envs)])
        s = env.step(action)
        parts = (s.obs, s.reward, s.terminated, s.truncated, s.first, s.info)
        rows.append(Step(*tree_map(np.array, parts)))
    return rows


def table(rows: list[Step], *names: str) -> list[Any]:
    columns = ([getattr(row, name) for row in rows] for name in names)
    return [tree_map(lambda *x: np.stack(x), *column) for column in columns]


def assert_same(one: Any, other: Any) -> None:
    tree_map(np.testing.assert_array_equal, one, other)


@pytest.mark.parametrize("name", [*NAMES, "gym"])
def test_a_preset_is_the_schema_and_explains_every_key(name):
    text = (FOLDER / f"{name}.yaml").read_text()
    keys = re.findall(r"^(\w+):", text, re.MULTILINE)
    assert keys == [field.name for field in fields(EnvConfig)]
    for line in text.splitlines()[1:]:
        assert re.search(r"  # \w+", line), f"no comment: {line}"
    assert preset(name).note


@pytest.mark.parametrize(("name", "backend"), [*CASES, *POOLED])
def test_rows_are_next_step_rows(name, backend):
    config = preset(name, backend=backend, max_episode_steps=20)
    env = make_env(config, num_envs=3)
    rows = run(env, 70, seed=5)
    env.close()
    obs, reward, terminated, truncated, first = table(
        rows, "obs", "reward", "terminated", "truncated", "first"
    )
    for x, like in zip(*map(tree_leaves, (obs, create_empty_array(env.obs_space, 3))), strict=True):
        assert (x.shape, x.dtype) == ((71, *like.shape), like.dtype)
    assert reward.dtype == np.float32
    assert reward.shape == terminated.shape == truncated.shape == first.shape == (71, 3)
    assert terminated.dtype == truncated.dtype == first.dtype == np.bool_
    done = terminated | truncated
    assert not (terminated & truncated).any()
    assert done.any(axis=0).all()
    np.testing.assert_array_equal(first[1:], done[:-1])
    assert not done[first].any()
    assert not reward[first].any()
    for column in done.T:
        ends = np.flatnonzero(column)
        assert (np.diff(ends, prepend=-1) <= 21).all()  # 20 steps and the reset row


@pytest.mark.parametrize(("name", "backend"), [*(case(name, "auto") for name in NAMES), *POOLED])
def test_a_seed_fixes_the_rows(name, backend):
    config = preset(name, backend=backend, max_episode_steps=20)
    env, other = make_env(config, num_envs=2), make_env(config, num_envs=2)
    once, again, elsewhere = run(env, 30, seed=7), run(env, 30, seed=7), run(other, 30, seed=7)
    for field in ("obs", "reward", "terminated", "truncated", "first"):
        (a,), (b,), (c,) = table(once, field), table(again, field), table(elsewhere, field)
        if name not in REMEMBERING or backend == "envpool":
            assert_same(a, b)
        assert_same(a, c)
    if name not in SEEDLESS:
        (a,), (b,) = table(once, "obs"), table(run(env, 30, seed=8), "obs")
        assert any((x != y).any() for x, y in zip(tree_leaves(a), tree_leaves(b), strict=True))


@pytest.mark.parametrize("name", [*(n for n in OWN if n != "cartpole_novel"), case("atari")])
@pytest.mark.parametrize("limit", [None, 4])
def test_backends_of_our_own_environments_agree(name, limit):
    kwargs = {"counter": {"random": True}, "bandit": {"noise": 0.5}, "tmaze": {"length": 2}}
    kwargs["bitflip"], kwargs["chain"] = {"bits": 3}, {"length": 3}
    kwargs["atari"] = {"game": "Breakout", "life_loss": True, "noop_max": 9}
    config = preset(name, kwargs=kwargs.get(name, {}), max_episode_steps=limit)
    found = []
    for backend in ("vector", "sync", "async"):
        env = make_env(
            preset(name, kwargs=config.kwargs, max_episode_steps=limit, backend=backend),
            num_envs=3,
            keep_info=("is_success",),
        )
        found.append(run(env, 80, seed=3))
        env.close()
    for field in ("obs", "reward", "terminated", "truncated", "first"):
        native, sync, workers = (table(rows, field)[0] for rows in found)
        assert_same(native, sync)
        assert_same(native, workers)
    for native, sync, workers in zip(*(rows[1:] for rows in found), strict=True):
        np.testing.assert_array_equal(native.info["is_success"], sync.info["is_success"])
        np.testing.assert_array_equal(native.info["is_success"], workers.info["is_success"])


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    end=st.sampled_from(["terminated", "truncated", "alternate"]),
    num_envs=st.integers(1, 4),
    backend=st.sampled_from(["vector", "sync"]),
)
def test_counter_spells_env_episode_and_t(lengths, end, num_envs, backend):
    kwargs = {"lengths": lengths, "end": end}
    config = config_of("rlrun/Counter-v0", kwargs=kwargs, backend=backend)
    rows = run(make_env(config, num_envs=num_envs), 25, seed=0)
    for i in range(num_envs):
        episode, t = 0, 0
        for row, after in pairwise(rows):
            assert row.obs[i].tolist() == [i, episode, t]
            if row.terminated[i] or row.truncated[i]:
                assert after.first[i]
                assert after.reward[i] == 0
                episode, t = episode + 1, 0
                continue
            over = t + 1 == lengths[(i + episode) % len(lengths)]
            terminates = end == "terminated" or (end == "alternate" and (i + episode) % 2 == 0)
            assert after.reward[i] == counter_reward(np.int64(i), np.int64(episode), np.int64(t))
            assert (after.terminated[i], after.truncated[i]) == (
                over and terminates,
                over and not terminates,
            )
            t += 1


def test_counter_numbers_episodes_on_over_unseeded_resets():
    import gymnasium as gym

    env = gym.make("rlrun/Counter-v0", lengths=[2])
    assert env.reset(seed=0)[0].tolist() == [0, 0, 0]
    assert env.reset()[0].tolist() == [0, 1, 0]
    assert env.step(0)[0].tolist() == [0, 1, 1]
    assert env.reset(seed=0)[0].tolist() == [0, 0, 0]


@pytest.mark.parametrize("backend", ["sync", "async"])
def test_terminated_wins_over_truncated(backend):
    config = config_of("test/Faulty-v0", kwargs={"length": 3}, backend=backend)
    env = make_env(config, num_envs=2)
    rows = run(env, 6, seed=10)
    env.close()
    terminated, truncated = table(rows, "terminated", "truncated")
    assert terminated[3].all()
    assert not truncated.any()


@pytest.mark.parametrize("backend", ["sync", "async"])
def test_nested_observations_stay_trees(backend):
    env = make_env(config_of("test/Nested-v0", backend=backend), num_envs=2)
    obs = env.reset(seed=0)
    assert obs["image"].shape == (2, 2, 2, 1)
    assert obs["image"].dtype == np.uint8
    action = np.array([[0.5, 0], [0.25, 0]], np.float32)
    for t in (1, 2, 3, 4, 0, 1):
        step = env.step(action)
        count, half = step.obs["pair"]
        assert (step.obs["image"] == t).all()
        assert (half == t / 8).all()
        assert count.tolist() == [1 + t] * 2
        assert count.dtype == np.int64
        assert step.reward.tolist() == ([0.5, 0.25] if t else [0, 0])
    env.close()


def test_keep_info_brings_numbers_and_zero_where_there_are_none():
    env = make_env(config_of("test/Faulty-v0"), num_envs=2, keep_info=("odd", "never"))
    env.reset(seed=10)
    step = env.step(np.zeros(2, int))
    assert step.info["odd"].tolist() == [1, 1]
    assert step.info["odd"].dtype == np.float32
    assert step.info["never"].tolist() == [0, 0]
    assert env.step(np.zeros(2, int)).info["odd"].tolist() == [0, 0]


def test_eval_kwargs_are_laid_over_kwargs():
    cues = set()
    for evaluate in (False, True):
        env = make_env(preset("tmaze"), num_envs=8, evaluate=evaluate)
        cues.add(tuple(env.reset(seed=1)[:, 1].tolist()))
    assert (0.0, 1.0) * 4 in cues
    assert len(cues) == 2


def test_actions_are_counted_from_zero_whatever_the_space_calls_them():
    """Discrete(3, start=-1): policy action 0 is the environment's -1."""
    import gymnasium as gym
    from gymnasium import spaces

    seen = []

    class Shifted(gym.Env):
        observation_space = spaces.Box(0, 1, (1,), np.float32)
        action_space = spaces.Discrete(3, start=-1)

        def reset(self, *, seed=None, options=None):
            return np.zeros(1, np.float32), {}

        def step(self, action):
            seen.append(int(action))
            return np.zeros(1, np.float32), 0.0, False, False, {}

    gym.register("Shifted-v0", Shifted, disable_env_checker=True)
    try:
        env = make_env(config_of("Shifted-v0"), num_envs=3)
        env.reset(seed=0)
        env.step(np.array([0, 1, 2]))
        assert seen == [-1, 0, 1]
        env.close()
    finally:
        gym.registry.pop("Shifted-v0")


def test_auto_takes_one_environment_of_gymnasium_by_itself():
    made = {n: make_env(preset("cartpole"), num_envs=n) for n in (1, 2)}
    assert isinstance(made[1], SyncEnv)
    assert not isinstance(made[2], SyncEnv)
    vector = replace(preset("cartpole"), backend="vector")
    assert not isinstance(make_env(vector, num_envs=1), SyncEnv)
