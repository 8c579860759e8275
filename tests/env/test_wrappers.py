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
from rlrun.errors import ConfigError, ResourceError
from rlrun.functional.masks import allowed_actions
from rlrun.schema import WRAPPER_CONFIGS, EnvConfig
from rlrun.schema.wrappers import MaxAndSkipConfig, ProbabilityConfig
from tests.env import faulty, sick  # noqa: F401  registers the test/ ids
from tests.env.presets import config_of, preset, wrapper
from tests.env.test_rows import assert_same, run, table
from tests.installed import needs


class Recorder(gym.Env[Any, Any]):
    """Observes (steps, 10 x steps), pays the steps; records the actions it gets."""

    metadata = {"render_modes": []}  # noqa: RUF012
    seen: list[Any] = []  # noqa: RUF012

    def __init__(self, discrete: bool = False, length: int = 6) -> None:
        self.observation_space = spaces.Box(0, 100, (2,), np.float32)
        self.action_space = spaces.Discrete(3) if discrete else spaces.Box(-2, 2, (1,), np.float32)
        self.length = length

    def _obs(self) -> np.ndarray:
        return np.array([self.t, 10 * self.t], np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        Recorder.seen.append(np.array(action).ravel().tolist())
        self.t += 1
        return self._obs(), float(self.t), self.t >= self.length, False, {}


class Picture(gym.Env[Any, Any]):
    """A coloured image."""

    observation_space = spaces.Box(0, 255, (8, 6, 3), np.uint8)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return np.full((8, 6, 3), 0, np.uint8), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return np.full((8, 6, 3), 50 - 10 * (self.t % 2), np.uint8), 1.0, False, False, {}


for _name, _entry in (("Recorder", Recorder), ("Picture", Picture)):
    if f"test/{_name}-v0" not in gym.registry:
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
    assert list(WRAPPERS) == list(WRAPPER_CONFIGS)
    for name, config in WRAPPER_CONFIGS.items():
        for field in fields(config)[1:]:
            assert f"`{field.name}`" in WRAPPERS[name][1], (
                f"{name} does not say what {field.name} is"
            )


def test_observations():
    assert walk(wrapped(wrapper("mask_obs", keep=(1,))), STILL)[0] == [[0], [10], [20], [30]]
    assert walk(wrapped(wrapper("mask_obs", keep=(1, 0))), STILL)[0][3] == [30, 3]
    assert walk(wrapped(wrapper("delay_obs", steps=2)), STILL)[0] == [[0, 0]] * 3 + [[1, 10]]
    assert walk(wrapped(wrapper("rescale_obs", low=-1, high=1)), STILL)[0][2] == pytest.approx(
        [-0.96, -0.6]
    )
    timed, _ = probe(wrapped(wrapper("time_obs"), max_episode_steps=4))
    assert timed.shape == (3,)
    assert walk(wrapped(wrapper("time_obs"), max_episode_steps=4), STILL)[0][2] == [2, 20, 0.5]
    env = make_env(wrapped(wrapper("cast_obs", dtype="float64")), num_envs=2)
    assert env.reset(seed=0).dtype == env.obs_space.dtype == np.float64


def test_observations_that_are_dicts():
    nested = {"env_id": "test/Nested-v0"}
    space, _ = probe(wrapped(wrapper("filter_obs", keys=("image",)), **nested))
    assert isinstance(space, spaces.Dict)
    assert list(space.spaces) == ["image"]
    space, _ = probe(wrapped(wrapper("pick_obs", key="image"), **nested))
    assert space == spaces.Box(0, 255, (2, 2, 1), np.uint8)
    space, _ = probe(wrapped(wrapper("flatten_obs"), **nested))
    assert space.shape == (4 + 5 + 2,)
    text = refusal(config_of("test/Mixed-v0"))
    assert "'env.wrappers=[{name: filter_obs, keys: [image]}]'" in text
    assert probe(wrapped(wrapper("filter_obs", keys=("image",)), env_id="test/Mixed-v0"))


def test_flicker_and_noise_draw_from_a_stream_of_their_own():
    plain = run(make_env(config_of("CartPole-v1", backend="sync"), num_envs=3), 60, seed=5)
    flicker = wrapped(wrapper("flicker_obs", probability=0.5), env_id="CartPole-v1")
    shown = run(make_env(flicker, num_envs=3), 60, seed=5)
    (true,), (seen,) = table(plain, "obs"), table(shown, "obs")
    dark = (seen == 0).all(axis=-1)
    assert 0.35 < dark.mean() < 0.65
    assert len({tuple(column) for column in dark.T}) == 3  # each environment has its own
    assert_same(seen[~dark], true[~dark])
    noisy = wrapped(wrapper("noise_obs", std=0.1), env_id="CartPole-v1")
    env = make_env(noisy, num_envs=3)
    (obs,) = table(run(env, 60, seed=5), "obs")
    (again,) = table(run(env, 60, seed=5), "obs")
    assert_same(obs, again)
    assert obs.dtype == env.obs_space.dtype == np.float32
    assert (obs - true).std() == pytest.approx(0.1, rel=0.1)
    assert np.isinf(env.obs_space.high).all()


class Draws(Recorder):
    """Observes normal numbers of its own generator."""

    def _obs(self) -> np.ndarray:
        return self.np_random.normal(size=2).astype(np.float32)


def test_noise_is_not_that_of_the_environment():
    """Both generators are seeded with the same number: without a salt they would draw alike."""
    clean, _ = Draws().reset(seed=5)
    noisy, _ = WRAPPERS["noise_obs"][0](Draws(), std=1.0).reset(seed=5)
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
    picture = {"env_id": "test/Picture-v0"}
    skipped = wrapped(wrapper("max_and_skip", steps=2), **picture)
    env = make_env(skipped, num_envs=1)
    env.reset(seed=0)
    step = env.step(np.zeros(1, int))
    assert (step.obs.max(), step.reward.tolist()) == (50, [2])


@pytest.mark.parametrize("names", [("grayscale_obs",), ("resize_obs", "grayscale_obs")])
@needs("cv2")
def test_images_by_opencv(names):
    given = {"grayscale_obs": {}, "resize_obs": {"height": 4, "width": 5}}
    wrappers = [wrapper(name, **given[name]) for name in names]
    space, _ = probe(wrapped(*wrappers, env_id="test/Picture-v0"))
    assert space.shape == ((4, 5) if "resize_obs" in names else (8, 6))
    assert space.dtype == np.uint8


@needs("minigrid")
def test_missions_become_words():
    config = wrapped(wrapper("encode_mission"), env_id="MiniGrid-MemoryS7-v0")
    env = make_env(config, num_envs=2)
    rows = run(env, 5, seed=0)
    words = rows[0].obs["mission"]
    assert words.shape[0] == 2
    assert np.count_nonzero(words[0]) == len(
        ["go", "to", "the", "matching", "object", "at", "the", "end", "of", "the", "hallway"]
    )


def test_the_order_of_the_list_is_the_order_of_application():
    mask, delay = wrapper("mask_obs", keep=(1,)), wrapper("delay_obs", steps=1)
    rescale = wrapper("rescale_obs", low=0, high=1)
    assert walk(wrapped(mask, rescale), STILL)[0] == walk(wrapped(rescale, mask), STILL)[0]
    # Zeros stand for what is not there yet: in the raw unit before rescaling, else in the new one.
    low = wrapper("rescale_obs", low=-1, high=1)
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
        assert type(env).__name__ == ("AsyncEnv" if backend == "async" else "SyncEnv")
        found.append(run(env, 40, seed=2))
        env.close()
    for field in ("obs", "reward", "terminated", "truncated", "first"):
        for rows in found[1:]:
            assert_same(table(found[0], field), table(rows, field))
    (obs, first) = table(found[0], "obs", "first")
    assert not obs[first].any()  # delayed by one: an episode opens with zeros
    assert first.sum() > 10


def refusal(config: EnvConfig) -> str:
    with pytest.raises((ConfigError, ResourceError)) as caught:
        probe(config)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("backend", ["vector", "envpool"])
def test_native_backends_cannot_be_wrapped(backend):
    config = preset("cartpole", wrappers=(wrapper("flatten_obs"),), backend=backend)
    assert (
        f"env.backend = {backend}: wrappers (flatten_obs) apply to single environments"
        in refusal(config)
    )


@pytest.mark.parametrize(
    ("wrappers", "text"),
    [
        (
            [("mask_obs", {"keep": (0, 2)})],
            "env.wrappers[0] = mask_obs: keep = [0, 2]: allowed are",
        ),
        ([("pick_obs", {"key": "image"})], "env.wrappers[0] = pick_obs: key = image: it must be"),
        ([("flatten_obs", {}), ("filter_obs", {"keys": ("a",)})], "env.wrappers[1] = filter_obs: "),
        ([("time_obs", {})], "env.wrappers[0] = time_obs: "),
        ([("grayscale_obs", {})], "env.wrappers[0] = grayscale_obs: "),
        ([("encode_mission", {})], "env.wrappers[0] = encode_mission: "),
        (
            [("cast_obs", {"dtype": "int64"}), ("noise_obs", {"std": 1.0})],
            "env.wrappers[1] = noise",
        ),
    ],
)
def test_wrappers_that_do_not_fit(wrappers, text):
    assert refusal(wrapped(*(wrapper(n, **a) for n, a in wrappers))).startswith(text)


def entry(value: object) -> Any:
    values = {f.name: getattr(preset("cartpole"), f.name) for f in fields(EnvConfig)}
    return read_dataclass(EnvConfig, {**values, "wrappers": [value]}, "env").wrappers[0]


def test_entries_are_read():
    assert entry("flatten_obs") == entry({"name": "flatten_obs"}) == wrapper("flatten_obs")
    assert entry({"name": "mask_obs", "keep": [0, 2]}) == wrapper("mask_obs", keep=(0, 2))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("dela_obs", "env.wrappers[0] = dela_obs: unknown option; .*did you mean .*delay_obs"),
        ({"name": "delay_obs"}, "steps is missing; {name: delay_obs, steps: STEPS} is allowed"),
        ({"name": "delay_obs", "steps": 0}, r"\[0\].steps = 0: must be within \[1, 1e"),
        ({"name": "delay_obs", "steps": 1, "k": 1}, r"env.wrappers\[0\].k = 1: unknown key"),
        ({"steps": 1}, "names no wrapper; one of pick_obs, "),
        (7, "names no wrapper"),
        ({"name": "max_and_skip", "steps": 1}, r"must be within \[2, 1e"),
        ({"name": "flicker_obs", "probability": 1.5}, r"must be within \[0, 1\]"),
        ({"name": "sticky_action", "probability": 1}, r"must be within \[0, 1\)"),
        ({"name": "clip_reward", "low": 1, "high": 1}, "must be below high"),
        ({"name": "mask_obs", "keep": [0, 0]}, "each once"),
        ({"name": "filter_obs", "keys": []}, "must name at least one"),
        ({"name": "noise_obs", "std": -1}, "must be >= 0"),
        ({"name": "cast_obs", "dtype": "float3"}, "did you mean .*float32"),
        ({"name": "resize_obs", "height": 0, "width": 4}, "must be >= 1"),
        ({"name": "discretize_action", "bins": 1}, "must be >= 2"),
    ],
)
def test_entries_that_are_refused(value, text):
    with pytest.raises(ConfigError, match=text.replace("[0] ", r"\[0\] ")) as caught:
        entry(value)
    assert "\n" not in str(caught.value)


def test_frames_are_skipped_once():
    game = type("AtariEnv", (gym.Env,), {"__module__": "ale_py.env", "_frameskip": 4})()
    game.ale = SimpleNamespace(getFloat=lambda name: 0.25)
    both = [MaxAndSkipConfig("max_and_skip", 4), ProbabilityConfig("sticky_action", 0.25)]
    fix = r"set env.kwargs.frameskip=1 env.kwargs.repeat_action_probability=0, or remove"
    with pytest.raises(ConfigError, match=rf"max_and_skip, sticky_action: ALE/Pong-v5 .*{fix}"):
        require_one_skip("ALE/Pong-v5", game, {}, both)
    game._frameskip, game.ale = 1, SimpleNamespace(getFloat=lambda name: 0.0)
    require_one_skip("ALE/Pong-v5", game, {}, both)
    require_one_skip("other", gym.Env(), {}, both)


def test_a_mask_without_an_action_is_said_once_and_counted(caplog):
    env = make_env(config_of("sick/Stuck-v0"), num_envs=2)
    obs, counts = env.reset(seed=0), []
    for _ in range(6):
        step = env.step(allowed_actions(obs).argmax(-1))
        obs = step.obs
        counts.append(step.without_action)
    assert counts[2] == 2, "both environments forbid all in their third step"
    assert sum(counts) == 2
    assert caplog.text.count("environment 0 at step 3: its action_mask allows no action") == 1
