"""env.wrappers: what each does, the order of the list as order of application, refusals."""

from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from rlrun.config.reader import read_dataclass
from rlrun.env import make_env, probe
from rlrun.env.wrappers import WRAPPERS, require_one_skip
from rlrun.errors import ConfigError
from rlrun.schema import WRAPPER_CONFIGS, EnvConfig
from tests.env import faulty, masked  # noqa: F401  register their ids
from tests.env.base import Env
from tests.env.presets import (
    assert_same,
    config_of,
    preset,
    refusal,
    run,
    same_rows,
    table,
    wrapper,
)
from tests.env.spelled import WRAPPED
from tests.installed import needs


class Recorder(Env):
    """Observes (steps, 10 x steps), always in one array; pays the steps; records its actions."""

    shown = np.zeros(2, np.float32)
    seen: list[Any] = []  # noqa: RUF012
    observation_space = spaces.Box(0, 100, (2,), np.float32)
    action_space = spaces.Box(-2, 2, (1,), np.float32)

    def _obs(self) -> np.ndarray:
        self.shown[:] = self.t, 10 * self.t
        return self.shown

    def step(self, action: Any) -> Any:
        Recorder.seen.append(np.array(action).ravel().tolist())
        self.t += 1
        return self._obs(), float(self.t), self.t >= 6, False, {}


class Picture(Recorder):
    """A coloured image: its action is not recorded."""

    observation_space = spaces.Box(0, 255, (8, 6, 3), np.uint8)
    action_space = spaces.Discrete(2)

    def _obs(self) -> np.ndarray:
        return np.full((8, 6, 3), 50 - 10 * (self.t % 2) if self.t else 0, np.uint8)


class Pair(Recorder):
    """A Tuple of (steps, 10 x steps) and 1."""

    observation_space = spaces.Tuple((Recorder.observation_space, spaces.Discrete(2)))

    def _obs(self) -> Any:
        return super()._obs(), 1


for _name, _entry in (("Recorder", Recorder), ("Picture", Picture), ("Pair", Pair)):
    gym.register(f"test/{_name}-v0", _entry, disable_env_checker=True)


def wrapped(*wrappers: Any, env_id: str = "test/Recorder-v0", **changes: Any) -> EnvConfig:
    return config_of(env_id, wrappers=wrappers, **changes)


def walk(config: EnvConfig, actions: list[Any]) -> tuple[list[Any], list[float], list[Any]]:
    """Observations and rewards of environment 0, and what the environment was told."""
    env = make_env(config, num_envs=1)
    Recorder.seen = []
    obs, rewards = [np.array(env.reset(seed=0))[0].tolist()], []
    for action in actions:
        step = env.step(np.array([action], env.action_space.dtype))
        obs.append(np.array(step.obs)[0].tolist())
        rewards.append(float(step.reward[0]))
    return obs, rewards, Recorder.seen


STILL = [[0.0]] * 3


def test_the_tables_agree():
    """Every wrapper has keys, says of each what it is, and is certified (test_rows.py)."""
    assert list(WRAPPERS) == list(WRAPPER_CONFIGS)
    for name, config in WRAPPER_CONFIGS.items():
        assert all(f"`{field.name}`" in WRAPPERS[name][1] for field in fields(config)[1:]), name
    assert {case.name for case in WRAPPED} == set(WRAPPERS)


def test_observations():
    for given, at, seen in (
        (wrapper("mask_obs", keep=(1,)), slice(None), [[0], [10], [20], [30]]),
        (wrapper("mask_obs", keep=(1, 0)), 3, [30, 3]),
        (wrapper("delay_obs", steps=2), slice(None), [[0, 0]] * 3 + [[1, 10]]),
        (wrapper("rescale_obs", low=-1, high=1), 2, pytest.approx([-0.96, -0.6])),
        (wrapper("time_obs"), 2, [2, 20, 0.5]),
    ):
        assert walk(wrapped(given, max_episode_steps=4), STILL)[0][at] == seen
    env = make_env(wrapped(wrapper("cast_obs", dtype="float64")), num_envs=2)
    assert env.reset(seed=0).dtype == env.obs_space.dtype == np.float64


def test_an_action_mask_stays_that_of_its_row():
    for given in (wrapper("time_obs"), wrapper("delay_obs", steps=2)):
        env = make_env(wrapped(given, env_id="tests/Masked-v0", max_episode_steps=9), num_envs=1)
        obs = env.reset(seed=0)
        for _ in range(5):  # raises if the mask shows another row's actions
            obs = env.step(np.array([obs["action_mask"][0].argmax()])).obs
        assert ("time" in obs) == (given.name == "time_obs")


def test_observations_that_are_dicts():
    nested = {"env_id": "test/Nested-v0"}
    space, *_ = probe(wrapped(wrapper("filter_obs", keys=("image",)), **nested))
    assert list(space.spaces) == ["image"]
    space, *_ = probe(wrapped(wrapper("pick_obs", key="image"), **nested))
    assert space == spaces.Box(0, 255, (2, 2, 1), np.uint8)
    space, *_ = probe(wrapped(wrapper("flatten_obs"), **nested))
    assert space.shape == (4 + 5 + 2,)
    text = refusal(config_of("test/Mixed-v0"))
    assert "'env.wrappers=[{name: filter_obs, keys: [image]}]'" in text
    assert probe(wrapped(wrapper("filter_obs", keys=("image",)), env_id="test/Mixed-v0"))


def test_entries_of_a_tuple_are_named_by_position():
    picked = entry({"name": "pick_obs", "key": 0}), entry({"name": "filter_obs", "keys": [1]})
    assert walk(wrapped(picked[0], env_id="test/Pair-v0"), [[0.0]])[0] == [[0, 0], [1, 10]]
    space, *_ = probe(wrapped(picked[1], env_id="test/Pair-v0"))
    assert space == spaces.Tuple((spaces.Discrete(2),))
    absent = entry({"name": "filter_obs", "keys": [2]})
    assert "2 is not a part of the observation" in refusal(wrapped(absent, env_id="test/Pair-v0"))


def test_a_mask_of_the_info_becomes_part_of_the_observation():
    """Whoever takes allowed actions is never refused."""
    given = {"env_id": "tests/Masked-v0", "kwargs": {"where": "info"}}
    env = make_env(wrapped(wrapper("mask_from_info"), **given), num_envs=2)
    obs = env.reset(seed=0)
    assert set(obs) == {"action_mask", "observation"}
    for _ in range(14):
        obs = env.step(obs["action_mask"].argmax(-1)).obs


def test_flicker_and_noise_draw_from_a_stream_of_their_own():
    plain = run(make_env(config_of("CartPole-v1", backend="sync"), num_envs=3), 60, seed=5)
    flicker = wrapped(wrapper("flicker_obs", probability=0.5), env_id="CartPole-v1")
    shown = run(make_env(flicker, num_envs=3), 60, seed=5)
    (true,), (seen,) = table(plain, "obs"), table(shown, "obs")
    dark = (seen == 0).all(axis=-1)
    assert 0.35 < dark.mean() < 0.65
    assert len({tuple(column) for column in dark.T}) == 3  # each environment has its own
    assert_same(seen[~dark], true[~dark])
    env = make_env(wrapped(wrapper("noise_obs", std=0.1), env_id="CartPole-v1"), num_envs=3)
    (obs,), (again,) = (table(run(env, 60, seed=5), "obs") for _ in range(2))
    assert_same(obs, again)
    assert obs.dtype == env.obs_space.dtype == np.float32
    assert (obs - true).std() == pytest.approx(0.1, rel=0.1)
    assert np.isinf(env.obs_space.high).all()


def test_noise_is_not_that_of_the_environment(monkeypatch):
    """Both generators are seeded with the same number: without a salt they would draw alike."""
    draw = lambda self: self.np_random.normal(size=2).astype(np.float32)  # noqa: E731
    monkeypatch.setattr(Recorder, "_obs", draw)
    clean, _ = Recorder().reset(seed=5)
    noisy, _ = WRAPPERS["noise_obs"][0](Recorder(), std=1.0).reset(seed=5)
    assert not np.isclose(noisy - clean, clean, atol=1e-3).any()


def test_actions():
    config = wrapped(wrapper("rescale_action", low=-1, high=1))
    assert probe(config)[1] == spaces.Box(-1, 1, (1,), np.float32)
    assert walk(config, [[0.5], [-1]])[2] == [[1], [-2]]
    config = wrapped(wrapper("discretize_action", bins=4))
    assert probe(config)[1] == spaces.Discrete(4)
    assert walk(config, [0, 3])[2] == [[-1.5], [1.5]]
    _, rewards, seen = walk(wrapped(wrapper("repeat_action", steps=3)), [[1], [2]])
    assert (rewards, seen) == ([6, 15], [[1]] * 3 + [[2]] * 3)
    _, _, seen = walk(wrapped(wrapper("sticky_action", probability=0.5)), [[0], [1], [2]] * 20)
    kept = np.mean([a == b for a, b in zip(seen[1:], seen, strict=False)])
    assert 0.25 < kept < 0.75


def test_rewards_and_images():
    assert walk(wrapped(wrapper("clip_reward", low=0, high=2)), STILL)[1] == [1, 2, 2]
    env = make_env(wrapped(wrapper("max_and_skip", steps=2), env_id="test/Picture-v0"), num_envs=1)
    env.reset(seed=0)
    step = env.step(np.zeros(1, int))
    assert (step.obs.max(), step.reward.tolist()) == (50, [3])


@needs("cv2")
def test_images_by_opencv():
    gray, resize = wrapper("grayscale_obs"), wrapper("resize_obs", height=4, width=5)
    for wrappers, shape in (([gray], (8, 6)), ([resize, gray], (4, 5))):
        space, *_ = probe(wrapped(*wrappers, env_id="test/Picture-v0"))
        assert (space.shape, space.dtype) == (shape, np.uint8)


@needs("minigrid")
def test_missions_become_words():
    config = wrapped(wrapper("encode_mission"), env_id="MiniGrid-MemoryS7-v0")
    words = make_env(config, num_envs=2).reset(seed=0)["mission"]
    assert words.shape[0] == 2
    assert np.count_nonzero(words[0]) == 11  # go to the matching object at the end of the hallway


def test_the_order_of_the_list_is_the_order_of_application():
    # Zeros stand for what is not there yet: in the raw unit before rescaling, else in the new one.
    delay, low = wrapper("delay_obs", steps=1), wrapper("rescale_obs", low=-1, high=1)
    assert walk(wrapped(delay, low), STILL)[0][0] == [-1, -1]
    assert walk(wrapped(low, delay), STILL)[0][0] == [0, 0]
    halves, scale = wrapper("repeat_action", steps=2), wrapper("clip_reward", low=0, high=2)
    assert walk(wrapped(halves, scale), STILL)[1] == [2, 2, 2]
    assert walk(wrapped(scale, halves), STILL)[1] == [3, 4, 4]
    inner, outer = wrapper("rescale_action", low=0, high=1), wrapper("discretize_action", bins=2)
    assert walk(wrapped(inner, outer), [0, 1])[2] == [[-1], [1]]
    with pytest.raises(ConfigError, match=r"env\.wrappers\[1\] = rescale_action"):
        probe(wrapped(outer, inner))


def test_wrappers_in_workers_and_at_the_edge_of_episodes():
    wrappers = (wrapper("delay_obs", steps=1), wrapper("flicker_obs", probability=0.3))
    found = []
    for backend in ("auto", "sync", "async"):
        config = preset("cartpole", wrappers=wrappers, backend=backend, max_episode_steps=7)
        env = make_env(config, num_envs=3)
        found.append(run(env, 40, seed=2))
        env.close()
    same_rows(*found)
    (obs, first) = table(found[0], "obs", "first")
    assert not obs[first].any()  # delayed by one: an episode opens with zeros
    assert first.sum() > 10


def test_native_backends_cannot_be_wrapped():
    for backend in ("vector", "envpool"):
        config = preset("cartpole", wrappers=(wrapper("flatten_obs"),), backend=backend)
        assert f"env.backend = {backend}: wrappers (flatten_obs)" in refusal(config)


@pytest.mark.parametrize(
    ("wrappers", "text"),
    [
        ([("mask_obs", {"keep": (0, 2)})], "[0] = mask_obs: keep = [0, 2]: allowed are"),
        ([("pick_obs", {"key": "image"})], "[0] = pick_obs: image "),
        ([("flatten_obs", {}), ("filter_obs", {"keys": ("a",)})], "[1] = filter_obs: "),
        ([("time_obs", {})], "[0] = time_obs: "),
        ([("grayscale_obs", {})], "[0] = grayscale_obs: "),
        ([("encode_mission", {})], "[0] = encode_mission: "),
        ([("cast_obs", {"dtype": "int64"}), ("noise_obs", {"std": 1.0})], "[1] = noise"),
    ],
)
def test_wrappers_that_do_not_fit(wrappers, text):
    found = refusal(wrapped(*(wrapper(n, **a) for n, a in wrappers)))
    assert found.startswith(f"env.wrappers{text}")


def entry(value: object) -> Any:
    values = {f.name: getattr(preset("cartpole"), f.name) for f in fields(EnvConfig)}
    return read_dataclass(EnvConfig, {**values, "wrappers": [value]}, "env").wrappers[0]


def test_entries_are_read():
    assert entry("flatten_obs") == entry({"name": "flatten_obs"}) == wrapper("flatten_obs")
    assert entry({"name": "mask_obs", "keep": [0, 2]}) == wrapper("mask_obs", keep=(0, 2))


def test_frames_are_skipped_once():
    """Private: the games of ale-py are not installed where the suite runs."""
    both = [wrapper("max_and_skip", steps=4), wrapper("sticky_action", probability=0.25)]
    names = {"ale_py.env": ("frameskip", "repeat_action_probability")}
    names["rlrun.env.atari"] = "frame_skip", "sticky"
    for module, (skip, sticky) in names.items():
        game = type("AtariEnv", (gym.Env,), {"__module__": module})()
        fix = f"set env.kwargs.{skip}=1 env.kwargs.{sticky}=0"
        with pytest.raises(ConfigError, match=rf"max_and_skip, sticky_action: Pong .*{fix}"):
            require_one_skip("Pong", game, {}, both)
        with pytest.raises(ConfigError, match=r"sticky_action: Pong itself .* 0\.5"):
            require_one_skip("Pong", game, {skip: 1, sticky: 0.5}, both)
        require_one_skip("Pong", game, {skip: 1, sticky: 0}, both)
    require_one_skip("other", gym.Env(), {}, both)


def test_actions_whose_width_overflows_are_not_rescaled():
    env = SimpleNamespace(action_space=spaces.Box(-3e38, 3e38, (1,), np.float32))
    with pytest.raises(ValueError, match="float32"):
        WRAPPERS["rescale_action"][0](env, low=-1, high=1)
