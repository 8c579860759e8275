"""BitFlip bit by bit; the functions hindsight relabelling gets from any goal environment."""

from itertools import product
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.env import goal_functions, make_env
from rlrun.errors import ConfigError, EnvError
from rlrun.spaces import tree_map
from tests.env import faulty  # noqa: F401  registers the test/ ids
from tests.env.presets import assert_names, config_of, preset

# -- the environment -------------------------------------------------------------------------------


@settings(max_examples=30)
@given(
    st.integers(1, 6), st.integers(1, 4), st.none() | st.integers(1, 5),
    st.sampled_from(["vector", "sync"]), st.integers(0, 99),
)  # fmt: skip
def test_every_row_is_the_flip_of_one_bit(bits, num_envs, limit, backend, seed):
    """Re-enacted with lists from the first observation of every episode on."""
    config = preset("bitflip", kwargs={"bits": bits}, max_episode_steps=limit, backend=backend)
    env = make_env(config, num_envs=num_envs, keep_info=("is_success",))
    rng = np.random.default_rng(seed)
    obs, t, over = tree_map(np.copy, env.reset(seed=seed)), [0] * num_envs, [False] * num_envs
    state = [list(x) for x in obs["observation"]]
    goal = [list(x) for x in obs["desired_goal"]]
    for _ in range(30):
        action = rng.integers(bits, size=num_envs)
        step = env.step(action)
        obs = tree_map(np.copy, step.obs)
        for i in range(num_envs):
            assert step.first[i] == over[i]
            if over[i]:
                state[i], goal[i] = list(obs["observation"][i]), list(obs["desired_goal"][i])
                t[i] = 0
                assert state[i] != goal[i]
                assert (step.reward[i], step.terminated[i], step.truncated[i]) == (0, False, False)
                assert step.info["is_success"][i] == 0
                over[i] = False
                continue
            state[i][action[i]] = 1 - state[i][action[i]]
            t[i] += 1
            reached = state[i] == goal[i]
            last = t[i] == min(bits, limit or bits)
            assert list(obs["observation"][i]) == list(obs["achieved_goal"][i]) == state[i]
            assert list(obs["desired_goal"][i]) == goal[i]
            assert step.reward[i] == (0 if reached else -1)
            assert step.terminated[i] == reached
            assert step.truncated[i] == (last and not reached)
            assert step.info["is_success"][i] == reached
            over[i] = reached or last
    env.close()


def test_starts_and_goals_are_uniform_and_never_equal():
    env = make_env(preset("bitflip", kwargs={"bits": 2}), num_envs=4000)
    obs = env.reset(seed=1)
    pairs = obs["observation"] @ [8, 4] + obs["desired_goal"] @ [2, 1]
    count = np.bincount(pairs, minlength=16)
    assert (count[[0, 5, 10, 15]] == 0).all()
    assert count[count > 0].size == 12
    assert (abs(count[count > 0] - 4000 / 12) < 5 * np.sqrt(4000 / 12)).all()


# -- any other goal environment --------------------------------------------------------------------


class Reach(gym.Env[Any, Any]):
    """Where goals are points; one mistake on demand."""

    def __init__(self, mistake: str = "none", length: float = 0.5) -> None:
        point = spaces.Box(-2, 2, (2,), np.float64)
        goals = {"observation": spaces.Box(-1, 1, (1,), np.float32)}
        goals |= {"achieved_goal": point, "desired_goal": point}
        if mistake == "spaces":
            goals["desired_goal"] = spaces.Box(-2, 2, (3,), np.float64)
        if mistake == "trees":
            goals |= {k: spaces.Dict({"at": point}) for k in ("achieved_goal", "desired_goal")}
        self.observation_space, self.action_space = spaces.Dict(goals), spaces.Discrete(2)
        self.mistake, self.length = mistake, length
        if mistake == "missing":
            self.compute_reward = None

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        if self.mistake == "raises":
            raise ZeroDivisionError("division by zero in physics")
        if self.mistake == "nan":
            return np.nan
        if self.mistake == "vector":
            return np.abs(achieved_goal - desired_goal)
        if self.mistake == "pairs":  # whole arrays would give one number
            return -np.linalg.norm(achieved_goal - desired_goal)
        if self.mistake == "strict":
            assert np.shape(achieved_goal) == (2,)
        if self.mistake == "first":  # the right shape, the wrong numbers
            far = np.linalg.norm(achieved_goal - desired_goal, axis=-1)
            return -far if np.ndim(far) == 0 else np.full_like(far, -far.flat[0])
        return -np.linalg.norm(achieved_goal - desired_goal, axis=-1)


class Ending(Reach):
    def compute_terminated(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        if self.mistake == "arrays" and np.ndim(achieved_goal) > 1:  # of the right shape
            return np.zeros(np.shape(achieved_goal)[:-1], bool)
        return False if self.mistake == "never" else self.close(achieved_goal - desired_goal)

    def close(self, apart: Any = np.inf) -> Any:
        return bool(np.linalg.norm(apart) <= self.length)  # as Gymnasium-Robotics' mazes do


for _name, _entry in {"Reach": Reach, "Ending": Ending}.items():
    gym.register(f"goal/{_name}-v0", _entry, disable_env_checker=True)


def found(env_id="goal/Reach-v0", **kwargs):
    return goal_functions(config_of(env_id, kwargs=kwargs))


def goals(*lead):
    return np.random.default_rng(0).uniform(-2, 2, size=(2, *lead, 2))


@pytest.mark.parametrize("mistake", ["none", "pairs", "strict", "first"])
@pytest.mark.parametrize("lead", [(), (2, 3), (0, 2)])
def test_functions_of_one_pair_are_called_pair_by_pair(mistake, lead):
    functions = found(mistake=mistake)
    assert functions.batched == ({"compute_reward"} if mistake == "none" else set())
    achieved, desired = goals(*lead)
    reward = functions.reward(achieved, desired)
    assert (reward.shape, reward.dtype) == (lead, np.float32)
    for place in product(*map(range, lead)):
        far = np.hypot(*(achieved[place] - desired[place]))
        assert reward[place] == pytest.approx(-far, rel=1e-6)


@pytest.mark.parametrize(("mistake", "length"), [("none", 1.0), ("none", 2.0), ("never", 2.0)])
def test_ends_of_an_environment_that_takes_one_pair(mistake, length):
    """Its arguments are those of the config."""
    functions = found("goal/Ending-v0", mistake=mistake, length=length)
    achieved, desired = goals(40)
    ends = functions.terminated(achieved, desired)
    assert ends.dtype == np.bool_
    assert not found().terminated(achieved, desired).any(), "without compute_terminated"
    near = np.hypot(*(achieved - desired).T) <= length
    assert ends.tolist() == (near & (mistake == "none")).tolist()
    assert near.any()


def test_functions_are_compared_where_goals_are_reached():
    """Which random goals hardly ever are."""
    functions = found("goal/Ending-v0", mistake="arrays", length=0.01)
    assert functions.batched == {"compute_reward"}


def test_environments_without_goals_have_no_functions():
    for config in (preset("cartpole"), preset("tmaze"), config_of("test/Nested-v0")):
        assert goal_functions(config) is None


@pytest.mark.parametrize(
    ("mistake", "error", "text"),
    [
        ("missing", ConfigError, "compute_reward(achieved_goal, "),
        ("spaces", ConfigError, "shape dtype"),
        ("trees", ConfigError, "shape dtype"),
        ("raises", EnvError, "compute_reward() ZeroDivisionError: division by zero in p"),
        ("nan", EnvError, "compute_reward() nan; "),
        ("vector", EnvError, "compute_reward() array(["),
    ],
)
def test_functions_that_cannot_serve(mistake, error, text):
    with pytest.raises(error) as caught:
        found(mistake=mistake)
    assert str(caught.value).startswith("env.id = goal/Reach-v0: ")
    assert_names(str(caught.value), text)
    assert "\n" not in str(caught.value)


def test_what_else_is_refused():
    with pytest.raises(EnvError, match=r"goal/Reach-v0: compute_reward\(\) .*ValueError"):
        found(mistake="none").reward(np.zeros((3, 2)), np.zeros((2, 2)))
    with pytest.raises(ConfigError, match=r"env\.id = Nope-v0"):
        goal_functions(config_of("Nope-v0"))
    with pytest.raises(ConfigError, match="bits = 0: "):
        goal_functions(preset("bitflip", kwargs={"bits": 0}))
