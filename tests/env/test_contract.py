"""Broken contracts: EnvError (exit code 3) naming environment, step and what was got."""

import warnings
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from rlrun.env import make_env, rows
from rlrun.errors import ConfigError, EnvError
from rlrun.functional.masks import allowed_actions
from tests.env import faulty, sick, spelled  # noqa: F401  register their ids
from tests.env.base import Vector
from tests.env.presets import assert_names, config_of, wrapper

FAULTS = {  # what an error names
    "raise": "step() ZeroDivisionError: division by zero in physics",
    "nan": "observation nan [1] float32 (3,)",
    "inf": "observation inf [0]",
    "shape": "observation (2,) float32 (3,)",
    "scalar": "observation () float32 (3,)",
    "dtype": "observation float64 float32",
    "list": "observation list float32 (3,)",
    "nan_reward": "reward nan finite",
    "array_reward": "reward array([1., 1.]) finite",
    "no_reward": "reward None finite",
    "text_reward": "reward '1' finite",
    "flag": "terminated 'yes' True False",
    "four": "step() (observation, reward, terminated, truncated, info)",
    "huge_reward": "reward 1e+39 finite",
    "long_reward": "reward int finite",
    "interrupt": "step() KeyboardInterrupt",
    "exit": "step() sys.exit(7)",
    "base": "step() Unforeseen: not an Exception",
}


def walk(env, steps):
    env.reset(seed=20)
    for _ in range(steps):
        env.step(np.zeros(env.num_envs, int))


def breach(config, steps=6, num_envs=3):
    """The error of a run; the environment with seed 21 (number 1) misbehaves."""
    env = make_env(config, num_envs=num_envs)
    try:
        with pytest.raises(EnvError) as caught:
            walk(env, steps)
    finally:
        env.close()
    assert caught.value.exit_code == 3
    return str(caught.value)


def bad(fault, at=3, bad_seed=21, length=1000, **changes):
    """The config of an environment that breaks its contract, where its seed is ``bad_seed``."""
    kwargs = {"fault": fault, "bad_seed": bad_seed, "at": at, "length": length}
    return config_of("test/Faulty-v0", kwargs=kwargs, **changes)


IN_RESET = {fault: FAULTS[fault].replace("step()", "reset()") for fault in ("nan", "raise")}
SINGLE = [  # arguments, where, what the error of environment 1 names
    *(({"fault": fault}, "at step 3", words) for fault, words in FAULTS.items()),
    *(({"fault": fault, "at": 0}, "in reset", words) for fault, words in IN_RESET.items()),
    ({"fault": "nan", "at": 6, "length": 5}, "at step 6", FAULTS["nan"]),  # in an autoreset
]
WORKERS = [case for case in SINGLE if case[0]["fault"] in ("raise", "interrupt")]
ONE, ALL = "environment 1 at step 3: ", "environments 0 to 2 at step 3: "
NATIVE = {  # fault of a native vector environment -> where, what the error names
    **{x: (ONE, FAULTS[x]) for x in ("nan", "inf", "nan_reward", "huge_reward")},
    **{x: (ALL, FAULTS[x]) for x in ("raise", "exit", "base", "interrupt")},
    "shape": ("", "(3, 2)"),
    "dtype": ("", "float64"),
    "list": ("", "observation list"),
    "reward_list": ("at step 3: ", "rewards"),
    "flag_shape": ("at step 1: ", "terminated bools"),
}


@pytest.mark.parametrize(("kwargs", "where", "words"), SINGLE)
def test_faults_name_environment_and_step(kwargs, where, words):
    error = breach(bad(backend="sync", **kwargs))
    assert error.startswith(f"env.id = test/Faulty-v0: environment 1 {where}: ")
    assert_names(error, words)


@pytest.mark.parametrize(("kwargs", "where", "words"), WORKERS)
def test_faults_of_worker_processes_arrive_as_they_are(kwargs, where, words):
    error = breach(bad(backend="async", **kwargs))
    assert error.startswith(f"env.id = test/Faulty-v0: environment 1 {where}: ")
    assert_names(error, f"{words} env.backend=sync")


def native(fault, at):
    """The config of a native vector environment whose column 1 breaks its contract."""
    kwargs = {"fault": fault, "bad_seed": 1, "at": at}
    return config_of("test/FaultyVector-v0", kwargs=kwargs, backend="vector")


@pytest.mark.parametrize("fault", NATIVE)
def test_faults_of_a_native_vector_name_the_column_or_all(fault):
    error = breach(native(fault, at=3))
    where, words = NATIVE[fault]
    assert where in error
    assert_names(error, words)
    assert ("env.backend=sync" in error) == (fault in ("shape", "dtype", "list", "reward_list",
                                                       "flag_shape"))  # fmt: skip


def test_faults_of_a_native_vector_in_its_reset():
    assert_names(breach(native("nan", at=0)), f"environment 1 in reset: {FAULTS['nan']}")


def nested(fault, steps):
    """Rows of an environment of nested observations that is wrong in its second step."""
    env = make_env(config_of("test/Nested-v0", kwargs={"fault": fault}), num_envs=1)
    env.reset(seed=0)
    for _ in range(steps):
        env.step(np.zeros((1, 2), np.float32))


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("key", "observation ['image'] dict ['image', 'pair']"),
        ("range", "observation['pair'][0] 6 integer [1, 5]"),
        ("nan", "observation['pair'][1] nan [0]"),
    ],
)
def test_faults_in_nested_observations(fault, words):
    nested(fault, 1)
    with pytest.raises(EnvError) as caught:
        nested(fault, 2)
    assert_names(str(caught.value), f"environment 0 at step 2: {words}")


def test_floats_out_of_bounds_are_reported_once(caplog):
    """Many environments exceed the bounds of their space: not an error."""
    nested("number", 700)
    [record] = caplog.records
    assert_names(record.getMessage(), "observation['pair'][1] 1.5 [0] [-1, 1]")


class Numbers(Vector):
    """A native vector of Discrete(3) whose column ``place`` shows ``wrong`` in step 1."""

    def __init__(self, num_envs, low=0, wrong=0, place=0):
        super().__init__(num_envs, spaces.Discrete(3, start=low), spaces.Discrete(2))
        self.low, self.wrong, self.place = low, wrong, place

    def reset(self, *, seed=None, options=None):
        return np.full(self.num_envs, self.low), {}

    def step(self, actions):
        obs = np.array([self.low, self.low + 2, self.low, self.low])
        obs[self.place] = self.wrong
        return obs, np.zeros(4), np.zeros(4, bool), np.zeros(4, bool), {}


gym.register("test/Numbers-v0", vector_entry_point=f"{__name__}:Numbers")


@pytest.mark.parametrize("low", [0, -2])
def test_integers_out_of_bounds_of_a_native_environment(low):
    def step(wrong, place):
        kwargs = {"low": low, "wrong": wrong, "place": place}
        env = make_env(config_of("test/Numbers-v0", kwargs=kwargs), num_envs=4)
        env.reset(seed=0)
        env.step(np.zeros(4, int))

    step(low + 2, 3)
    for wrong, place in ((low + 3, 2), (low - 1, 3)):
        text = rf"environment {place} at step 1: .* {wrong}; .* \[{low}, {low + 2}\]"
        with pytest.raises(EnvError, match=text):
            step(wrong, place)


@pytest.mark.parametrize("backend", ["sync", "vector"])
def test_a_signal_during_a_step_stays_a_keyboard_interrupt(backend):
    env_id = "test/FaultyVector-v0" if backend == "vector" else "test/Faulty-v0"
    config = config_of(env_id, backend=backend, kwargs={"fault": "ctrl_c", "at": 1})
    env = make_env(config, num_envs=2)
    env.reset(seed=0)
    with pytest.raises(KeyboardInterrupt):
        env.step(np.zeros(2, int))


def test_an_environment_whose_init_raises_keyboard_interrupt(monkeypatch):
    def interrupt(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(faulty.Boxes, "__init__", interrupt)
    with pytest.raises(EnvError, match=r"__init__.* KeyboardInterrupt"):
        make_env(config_of("test/Boxes-v0"), num_envs=1)


@pytest.mark.parametrize("backend", ["sync", "async"])
def test_an_exception_in_close(backend):
    with pytest.raises(EnvError, match=r"0: close\(\) .*RuntimeError"):
        make_env(bad("close", backend=backend), num_envs=1).close()
    error = breach(bad("raise", backend=backend))  # closed while that is under way
    assert "ZeroDivisionError" in error


def test_only_next_step_vectors_are_taken():
    for env_id in ("test/Undeclared-v0", "tests/Spelled-same-v0", "tests/Spelled-disabled-v0"):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            make_env(config_of(env_id), num_envs=2)
            with pytest.raises(EnvError, match=r"env.backend = vector: .*env.backend=sync"):
                make_env(config_of(env_id, backend="vector"), num_envs=2)


def test_no_fix_is_named_that_a_vector_environment_does_not_have(monkeypatch):
    config = config_of("test/Numbers-v0", kwargs={})
    for changes in ({"backend": "sync"}, {"wrappers": [wrapper("flatten_obs")]}):
        with pytest.raises(ConfigError, match="wrappers"):
            make_env(replace(config, **changes), num_envs=4)
    monkeypatch.setattr(Numbers, "metadata", {})
    with pytest.raises(EnvError, match="NEXT_STEP"):
        make_env(config, num_envs=4)


class Copies(faulty.Faulty):
    """The third copy has other spaces."""

    made, spaces = 0, (None, None)

    def __init__(self):
        super().__init__()
        type(self).made += 1
        self.observation_space = self.spaces[0 if Copies.made % 3 else 1]


gym.register("test/Copies-v0", Copies, disable_env_checker=True)
BOX, HIGH = spaces.Box(0, 1, (2, 3), np.float32), np.ones((2, 3), np.float32)
HIGH[1, 2] = 2
BOUND = "high[1, 2] 2, 1"


@pytest.mark.parametrize(
    ("other", "first", "text"),
    [
        (spaces.Box(0, HIGH), BOX, f"observation_space.{BOUND}"),
        (spaces.Discrete(4), spaces.Discrete(3), "Discrete(4), Discrete(3)"),
        (spaces.Dict(a=spaces.Box(0, HIGH)), spaces.Dict(a=BOX), f"observation_space['a'].{BOUND}"),
        (spaces.Dict(a=BOX), spaces.Dict(b=BOX), "observation_space Dict("),
        (BOX, spaces.Box(0, 1, (6,)), "observation_space Box(0.0, 1.0, (2, 3)"),
    ],
)
def test_the_copy_whose_spaces_differ_is_named(other, first, text, monkeypatch):
    monkeypatch.setattr(Copies, "spaces", (first, other))
    monkeypatch.setattr(Copies, "made", 0)
    with pytest.raises(EnvError, match="copy 3 of 3") as caught:
        make_env(config_of("test/Copies-v0"), num_envs=3)
    assert_names(str(caught.value), text)


def test_a_mask_without_an_action_is_said_once_and_counted(caplog):
    env = make_env(config_of("sick/Stuck-v0"), num_envs=2)
    obs, counts = env.reset(seed=0), []
    for _ in range(13):
        step = env.step(allowed_actions(obs).argmax(-1))
        obs = step.obs
        counts.append(step.without_action)
    assert step.terminated.all()
    assert counts[2] == counts[9] == 2, "both environments forbid all in their third step"
    assert sum(counts) == 4, "the mask of a row that ends an episode does not count"
    assert caplog.text.count("environment 0 at step 3: ") == caplog.text.count("action_mask") == 1


def test_a_first_observation_without_an_action_is_said_too(caplog, monkeypatch):
    monkeypatch.setattr(rows, "mask_warned", set())
    monkeypatch.setattr(
        sick.Stuck, "_draw", lambda env, *, ended: sick.Masked._draw(env, ended=True)
    )
    make_env(config_of("sick/Stuck-v0"), num_envs=2).reset(seed=0)
    assert caplog.text.count("in reset: ") == caplog.text.count("action_mask") == 1
