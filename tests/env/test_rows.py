"""Row semantics, for every preset and backend; actions and infos on their way through."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector.utils import create_empty_array

from rlrun.env import make_env, probe
from rlrun.env.catalog import NATIVE
from rlrun.errors import ConfigError, EnvError, NumericError
from rlrun.spaces import tree_leaves
from tests.benchmarks.autoreset import lines
from tests.compose import changed, config
from tests.env import faulty  # noqa: F401  registers the test/ ids
from tests.env.presets import (
    NAMES,
    OWN,
    assert_same,
    config_of,
    needs_envpool,
    preset,
    run,
    same_rows,
    table,
)
from tests.env.spelled import WRAPPED
from tests.env.telling import SPACES, STRANGE
from tests.installed import case

WORKERS = ["tmaze", "pendulum", "lunarlander_continuous", "halfcheetah", "minigrid_memory_s7"]
WORKERS += ["popgym_autoencode_easy", "atari"]  # one of each kind
CASES = [case(name, backend) for name in NAMES for backend in ("auto", "sync")]
CASES += [case(name, "async") for name in WORKERS]
POOLED = [  # presets whose ids envpool has too
    pytest.param(name, "envpool", marks=needs_envpool)
    for name in ("acrobot", "cartpole", "mountaincar_continuous", "lunarlander", "atari")
]
REMEMBERING = ("bipedalwalker",)  # Gymnasium's keeps its Box2D world over resets
SEEDLESS = ("counter", "bandit", "bandit_continuous", "chain", "conform")  # nothing shown is random


@pytest.mark.parametrize(("name", "backend"), [*CASES, *POOLED])
def test_rows_are_next_step_rows_that_a_seed_fixes(name, backend):
    config = preset(name, backend=backend, max_episode_steps=20)
    env, other = make_env(config, num_envs=3), make_env(config, num_envs=3)
    rows = run(env, 70, seed=5)
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
    same_rows(rows[:31], run(other, 30, seed=5))
    if name not in REMEMBERING or backend == "envpool":
        same_rows(rows[:31], run(env, 30, seed=5))
    if name not in SEEDLESS:
        (a,), (b,) = table(rows[:31], "obs"), table(run(env, 30, seed=6), "obs")
        assert any((x != y).any() for x, y in zip(tree_leaves(a), tree_leaves(b), strict=True))
    env.close()
    other.close()


OTHER_KWARGS = {
    "counter": {"random": True}, "bandit": {"noise": 0.5}, "tmaze": {"length": 2},
    "bitflip": {"bits": 3}, "chain": {"length": 3},
    "atari": {"game": "Breakout", "life_loss": True, "noop_max": 9},
}  # fmt: skip


@pytest.mark.parametrize("name", [*(n for n in OWN if n != "cartpole_novel"), case("atari")])
def test_backends_of_our_own_environments_agree(name):
    for limit in (None, 4):
        found = []
        for backend in ("vector", "sync", *(["async"] if name in ("tmaze", "bitflip") else [])):
            config = preset(name, kwargs=OTHER_KWARGS.get(name, {}), max_episode_steps=limit,
                            backend=backend)  # fmt: skip
            env = make_env(config, num_envs=3, keep_info=("is_success",))
            found.append(run(env, 60, seed=3))
            env.close()
        same_rows(*found)
        for rows in found[1:]:
            for one, other in zip(found[0][1:], rows[1:], strict=True):
                assert_same(one.info, other.info)


def test_no_rows_are_joined_and_every_final_observation_is_there_once():
    """The certificate of tests/benchmarks/autoreset.py in small: backends, wrappers, faults."""
    found = list(lines(640, envs=2))
    assert all(good for good, _ in found), "\n".join(text for _, text in found)
    assert sum("fault" in text.partition(":")[0] for _, text in found) == 3
    assert sum("wrapper" in text for _, text in found) == len(WRAPPED)


# -- native classic control environments, bit for bit --------------------------------------------

PUSHED = {"MountainCar-v0": (0, 2), "MountainCarContinuous-v0": (-1.0, 1.0)}  # left, right


def actions(env_id, env, obs, step, rng):
    """Random ones, held for a while; where there is a goal, half of the time towards it."""
    if env_id in PUSHED and step % 4:
        left, right = PUSHED[env_id]
        chosen = np.where(obs[:, 1] >= 0, right, left)
        return chosen.reshape(-1, *env.action_space.shape).astype(env.action_space.dtype)
    env.action_space.seed(int(rng.integers(2**31)))
    return np.array([env.action_space.sample() for _ in range(env.num_envs)])


ARGUMENTS = [
    ("Pendulum-v1", {"g": 9.8}),
    ("MountainCar-v0", {"goal_velocity": 0.01}),
    ("MountainCarContinuous-v0", {"goal_velocity": 0.01}),
]


@pytest.mark.parametrize(("env_id", "kwargs"), [*((env_id, {}) for env_id in NATIVE), *ARGUMENTS])
def test_native_classics_have_the_rows_of_gymnasiums_single_ones(env_id, kwargs):
    base = config("env=gym", f"env.id={env_id}").env
    envs = [
        make_env(changed(base, kwargs=kwargs, backend=backend), num_envs=3)
        for backend in ("vector", "sync")
    ]
    assert envs[0].native is not None
    assert envs[1].native is None
    assert envs[0].obs_space == envs[1].obs_space
    assert envs[0].action_space == envs[1].action_space
    rng, ends = np.random.default_rng(0), 0
    one, two = (env.reset(seed=5) for env in envs)
    assert one.tobytes() == two.tobytes()
    for step in range(1100):
        action = actions(env_id, envs[0], one, step, rng)
        rows = [env.step(action) for env in envs]
        for name in ("obs", "first", "reward", "terminated", "truncated"):
            got, want = (getattr(row, name) for row in rows)
            assert (got.dtype, got.tobytes()) == (want.dtype, want.tobytes()), (step, name)
        one, ends = rows[0].obs, ends + int(rows[0].first.sum())
    assert ends > 3
    for env in envs:
        env.close()


def test_gymnasiums_registry_stays_as_it_is():
    make_env(config("env=acrobot").env, num_envs=2).close()
    assert all(gym.spec(env_id).vector_entry_point is None for env_id in NATIVE)


# -- actions ---------------------------------------------------------------------------------------

GIVEN = {  # what a policy answers for two environments, counted from 0
    "box": np.array([[-2, 0.25], [1.5, 5]], np.float32),
    "box64": np.array([[-1, 0.5], [0.125, 1]], np.float32),
    "whole": np.array([[0, 9], [255, 1]], np.uint8),
    "multi": np.array([[0, 0], [2, 3]]),
    "short": np.array([[0, 0], [2, 3]]),  # int64: whoever draws does not ask for less
    "binary": np.array([[0, 1], [1, 1]], np.int8),
    "discrete": np.array([0, 2]),
}


@pytest.mark.parametrize("backend", ["vector", "sync", "async"])
def test_actions_arrive_unaltered_in_the_dtype_of_the_space(backend):
    for kind in ("box", "short") if backend == "async" else SPACES:  # processes are slow to start
        env = make_env(
            config_of("test/Echo-v0", kwargs={"kind": kind}, backend=backend), num_envs=2
        )
        env.reset(seed=0)
        given = GIVEN[kind].copy()
        told = env.step(given).obs
        env.close()
        want = GIVEN[kind] + getattr(SPACES[kind], "start", 0)
        np.testing.assert_array_equal(told[:, :2], want.reshape(2, -1) + np.zeros(2))
        assert told[:, 2].all()
        np.testing.assert_array_equal(given, GIVEN[kind])


@pytest.mark.parametrize(
    ("action", "kind", "text"),
    [
        ([[0, 0], [0, 5.25]], "box", r"environment 1 at step 1: action .*5.25 .*\[1\]; .*0, 5"),
        ([[-2.5, 0], [0, 0]], "box", r"environment 0 at step 1: action .*-2.5 .*\[-2, 2\]"),
        ([[0], [0]], "box", r"environments 0 and 1 at step 1: action .*float32 \(2, 1\)"),
        (np.zeros((2, 2)), "multi", r"action .*float64 \(2, 2\); .*int64 \(2, 2\)"),
        (np.zeros((2, 2), bool), "multi", r"action .*bool \(2, 2\)"),
        ([[0, 0], [0, np.nan]], "box", r"policy: action .*nan .*\[1\]"),
        ([[0, 0], [0, np.inf]], "box", r"policy: action .*inf .*\[1\]"),
    ],
)
def test_what_is_not_of_the_space_is_an_error_and_is_not_clipped(action, kind, text):
    action = np.array(action, np.float32) if isinstance(action, list) else action
    env = make_env(config_of("test/Echo-v0", kwargs={"kind": kind}), num_envs=2)
    env.reset(seed=0)
    with pytest.raises(NumericError if text.startswith("policy") else EnvError, match=text):
        env.step(action)


def test_what_is_nearly_of_the_space_and_spaces_that_rows_cannot_hold():
    env = make_env(config_of("test/Echo-v0"), num_envs=2)
    env.reset(seed=0)
    action = np.nextafter(np.array([[2, 5], [2, 5]], np.float32), np.float32(np.inf))
    assert (env.step(action).obs[:, :2] == action).all(), "a rounding beyond the bounds"
    with pytest.raises(ConfigError, match=r"test/Echo-v0: .* Dict\('a': Discrete"):
        probe(config_of("test/Echo-v0", kwargs={"kind": "dict"}))


# -- infos -----------------------------------------------------------------------------------------


def told(backend: str, keep_info: tuple[str, ...], **kwargs: Any) -> list[Any]:
    """Seven rows of an environment with infos."""
    config = config_of("test/Telling-v0", backend=backend, kwargs=kwargs)
    env = make_env(config, num_envs=2, keep_info=keep_info)
    try:
        env.reset(seed=0)
        return [env.step(np.zeros(2, int)) for _ in range(7)]
    finally:
        env.close()


@pytest.mark.parametrize("backend", ["sync", "async", "vector"])
def test_only_infos_that_are_asked_for_are_read(backend):
    rows = told(backend, ("won", "never"))
    won = [row.info["won"].tolist() for row in rows]
    assert won == [[0.5] * 2, [0.0] * 2, [0.5] * 2, [0.5] * 2, [0.0] * 2, [0.0] * 2, [0.5] * 2]
    assert rows[0].info["won"].dtype == np.float32
    assert not rows[0].info["never"].any()
    assert [row.reward[0] for row in rows] == [1, 1, 1, 1, 1, 0, 1]
    assert told(backend, ())[0].info == {}
    wrong = [("event", "'goal'"), ("huge", "1000"), ("grows", r"\[1\]")]
    for key, value in wrong[:1] if backend == "async" else wrong:
        with pytest.raises(EnvError, match=rf"environment 0 at step 1: info\['{key}'\] .*{value}"):
            told(backend, (key,))
    keep = ("won",) if backend == "vector" else ()
    with pytest.raises(EnvError, match=r"at step 2: info .*\[\('t', 2\)\]; .*dict"):
        told(backend, keep, bare=[("t", 2)])


def test_numbers_of_every_kind_are_kept_and_nothing_else(monkeypatch):
    for value in (True, np.float16(2), np.bool_(True), np.array(2), 2**70):
        monkeypatch.setitem(STRANGE, "path", lambda t, value=value: value)
        found = told("sync", ("path",))[0].info["path"].tolist()
        assert found == [np.float32(float(value))] * 2
    for value in ("2", None, [2], np.array([2]), 2j, np.complex64(2), {}, b"2"):
        monkeypatch.setitem(STRANGE, "path", lambda t, value=value: value)
        with pytest.raises(EnvError, match=r"info\['path'\] "):
            told("sync", ("path",))
