"""Actions reach the environment as they are, in every backend, if they are of its space."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space

from rlrun.env import make_env, probe
from rlrun.env.diagnostic.vector import NEXT_STEP_METADATA
from rlrun.env.walk import Actions
from rlrun.errors import ConfigError, EnvError, NumericError
from tests.env.presets import config_of, needs_envpool, preset

SPACES = {
    "box": spaces.Box(np.array([-2, 0], np.float32), np.array([2, 5], np.float32)),
    "box64": spaces.Box(-1, 1, (2,), np.float64),
    "whole": spaces.Box(0, 255, (2,), np.uint8),
    "multi": spaces.MultiDiscrete([3, 4], start=[1, -1]),
    "short": spaces.MultiDiscrete([3, 4], dtype=np.int32, start=[1, -1]),
    "binary": spaces.MultiBinary(2),
}
GIVEN = {  # what a policy answers for two environments
    "box": np.array([[-2, 0.25], [1.5, 5]], np.float32),
    "box64": np.array([[-1, 0.5], [0.125, 1]], np.float32),
    "whole": np.array([[0, 9], [255, 1]], np.uint8),
    "multi": np.array([[0, 0], [2, 3]]),
    "short": np.array([[0, 0], [2, 3]]),  # int64: whoever draws does not ask for less
    "binary": np.array([[0, 1], [1, 1]], np.int8),
}


class Echo(gym.Env[Any, Any]):
    """Observes the action it was told and, in the last place, whether its dtype was right."""

    def __init__(self, kind: str = "box") -> None:
        self.action_space = SPACES[kind]
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float64)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return np.zeros(3), {}

    def step(self, action: Any) -> Any:
        right = action.dtype == self.action_space.dtype and self.action_space.contains(action)
        return np.array([*action, right], np.float64), 0.0, False, False, {}


class EchoVector(VectorEnv[Any, Any, Any]):
    metadata = NEXT_STEP_METADATA

    def __init__(self, num_envs: int, kind: str = "box") -> None:
        self.num_envs, self.single = num_envs, Echo(kind)
        self.single_action_space = self.single.action_space
        self.single_observation_space = self.single.observation_space
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.observation_space = batch_space(self.single_observation_space, num_envs)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return np.zeros((self.num_envs, 3)), {}

    def step(self, actions: np.ndarray) -> Any:
        right = actions.dtype == self.single_action_space.dtype
        obs = np.concatenate([actions, np.full((self.num_envs, 1), right)], axis=1)
        flags = np.zeros(self.num_envs, bool)
        return obs.astype(np.float64), np.zeros(self.num_envs), flags, flags.copy(), {}


class Pair(Echo):
    """An action space no row can hold."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Dict({"a": spaces.Discrete(2)})


for _name, _native in (("Echo", f"{__name__}:EchoVector"), ("Pair", None)):
    if f"test/{_name}-v0" not in gym.registry:
        gym.register(
            f"test/{_name}-v0", f"{__name__}:{_name}", vector_entry_point=_native,
            disable_env_checker=True,
        )  # fmt: skip


@pytest.mark.parametrize("backend", ["vector", "sync", "async"])
@pytest.mark.parametrize("kind", SPACES)
def test_actions_arrive_unaltered_in_the_dtype_of_the_space(kind, backend):
    if kind == "box" or backend != "async":  # processes are slow to start
        env = make_env(
            config_of("test/Echo-v0", kwargs={"kind": kind}, backend=backend), num_envs=2
        )
        env.reset(seed=0)
        given = GIVEN[kind].copy()
        told = env.step(given).obs
        env.close()
        start = getattr(SPACES[kind], "start", 0)
        np.testing.assert_array_equal(told[:, :2], GIVEN[kind] + start)
        assert told[:, 2].all()
        np.testing.assert_array_equal(given, GIVEN[kind])


def breach(action: Any, kind: str = "box") -> str:
    env = make_env(config_of("test/Echo-v0", kwargs={"kind": kind}), num_envs=2)
    env.reset(seed=0)
    with pytest.raises(EnvError) as caught:
        env.step(action)
    return str(caught.value)


def test_what_is_not_of_the_space_is_an_error_and_is_not_clipped():
    action = np.array([[0, 0], [0, 5.001]], np.float32)
    text = breach(action)
    assert text.startswith(
        f"env.id = test/Echo-v0: environment 1 at step 1: action is {action[1, 1]}"
    )
    assert "at position [1]; allowed is [0, 5]" in text
    for wrong in (np.nan, np.inf):
        with pytest.raises(NumericError, match=f"policy: action is {wrong} at position .1. at "):
            breach(np.array([[0, 0], [0, wrong]], np.float32))
    assert "environment 0 at step 1: action is -2.5 at position [0]; allowed is [-2, 2]" in breach(
        np.array([[-2.5, 0], [0, 0]], np.float32)
    )
    assert "environments 0 to 1 at step 1: action is float32 (2, 1)" in breach(
        np.zeros((2, 1), np.float32)
    )
    assert "action is float64 (2, 2); allowed is int64 (2, 2)" in breach(np.zeros((2, 2)), "multi")
    assert "action is bool (2, 2)" in breach(np.zeros((2, 2), bool))


def test_a_rounding_beyond_the_bounds_is_let_through():
    env = make_env(config_of("test/Echo-v0"), num_envs=2)
    env.reset(seed=0)
    action = np.nextafter(np.array([[2, 5], [2, 5]], np.float32), np.float32(np.inf))
    assert (env.step(action).obs[:, :2] == action).all()


def test_action_spaces_that_rows_cannot_hold():
    with pytest.raises(ConfigError, match=r"test/Pair-v0: its action space is Dict\('a': Discrete"):
        probe(config_of("test/Pair-v0"))


CONTINUOUS = [("pendulum", -16.3, 0), ("mountaincar_continuous", -0.11, 0.01)]


@pytest.mark.parametrize(("name", "worst", "best"), CONTINUOUS)
@pytest.mark.parametrize("backend", ["sync", pytest.param("envpool", marks=needs_envpool)])
def test_the_largest_actions_do_what_they_should(name, worst, best, backend):
    """Rewards depend on the action: of the torque's square, or of the force's."""
    rewards = {}
    for scale in (0.0, 1.0):
        env = make_env(preset(name, backend=backend), num_envs=2)
        env.reset(seed=3)
        action = np.full((2, 1), scale, np.float32) * env.action_space.high
        rewards[scale] = env.step(action).reward
        env.close()
        assert ((rewards[scale] >= worst) & (rewards[scale] <= best)).all()
    cost = {"pendulum": 0.001 * 2**2, "mountaincar_continuous": 0.1}[name]
    np.testing.assert_allclose(rewards[0.0] - rewards[1.0], cost, rtol=1e-4)


def test_random_actions_under_a_mask_count_from_the_start_of_their_space():
    obs = spaces.Dict({"action_mask": spaces.MultiBinary(3), "x": spaces.Box(0, 1)})
    draw = Actions(spaces.Discrete(3, start=5), obs, seed=0)
    mask = np.array([1, 0, 1], np.int8)
    assert {int(draw({"action_mask": mask})) for _ in range(30)} == {5, 7}
    rows = {"action_mask": np.stack([mask] * 30), "x": np.zeros((30, 1))}
    assert {*draw.batch(rows, 30).tolist()} == {0, 2}
