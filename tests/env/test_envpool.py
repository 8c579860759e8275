"""env.backend=envpool: of a stand-in for the package, and of envpool where it is installed."""

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from rlrun.env import goal_functions, make_env
from rlrun.env.contract import unsupported_space
from rlrun.errors import ConfigError, EnvError
from rlrun.schema import EnvConfig
from tests.env.presets import (
    assert_names,
    assert_same,
    config_of,
    needs_envpool,
    refusal,
    run,
    same_rows,
    table,
)

SPACE = spaces.Dict({"count": spaces.Discrete(99), "late": spaces.MultiBinary(2)})
DEFAULTS = {"num_threads": 0, "max_episode_steps": 9, "max_num_players": 1}


class StandIn:
    """A fake envpool of environments that count their steps and end after 4 (i even) or never.

    dtypes are int32 and bool, a reset row has reward 7, the flag at the limit is truncated only.
    """

    made: tuple[dict[str, Any], ...] = ()  # the arguments of every pool

    def __init__(self, env_id: str, *, num_envs: int, max_episode_steps: int = 9, **more: Any):
        self.made = StandIn.made = (*StandIn.made, more)
        self.keeps, self.limit = "Endless" not in env_id, max_episode_steps
        self.index = np.arange(num_envs, dtype=np.int32)
        self.t, self.done = np.zeros(num_envs, np.int32), np.zeros(num_envs, bool)

    def _obs(self) -> dict[str, np.ndarray]:
        return {"count": self.t.copy(), "late": np.stack([self.t > 1, self.t > 2], -1)}

    def reset(self) -> tuple[Any, dict[str, Any]]:
        self.t[:] = 0
        return self._obs(), {"elapsed_step": self.t.copy()}

    def step(self, action: np.ndarray) -> tuple[Any, ...]:
        opened = self.done
        self.t = np.where(opened, 0, self.t + 1).astype(np.int32)
        over = (self.t == 4) & (self.index % 2 == 0)
        cut = (self.t >= self.limit) & self.keeps
        self.done = over | cut
        reward = np.where(opened, 7, self.t).astype(np.float32)
        return self._obs(), reward, over & ~cut, cut, {"elapsed_step": self.t.copy()}


def make_spec(env_id: str, *, num_envs: int, **kwargs: Any) -> SimpleNamespace:
    if unknown := set(kwargs) - set(DEFAULTS):
        raise TypeError(f"got an unexpected keyword argument {min(unknown)!r}\nand more")
    if env_id == "NoLibrary-v0":
        raise ImportError("it needs Qt.\nInstall it")
    config = {**DEFAULTS, **kwargs, "max_num_players": 2 if env_id == "Go-v1" else 1}
    return SimpleNamespace(
        observation_space=spaces.Text(3) if env_id == "Words-v0" else SPACE,
        action_space=spaces.Discrete(2),
        config=SimpleNamespace(**config),
    )


IDS = ["Count-v0", "Endless-v0", "Go-v1", "NoLibrary-v0", "Pong-v5", "Words-v0"]


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    package = SimpleNamespace(
        list_all_envs=lambda: IDS, make_spec=make_spec, make_gymnasium=StandIn
    )
    monkeypatch.setitem(sys.modules, "envpool", package)
    monkeypatch.setattr(StandIn, "made", ())


def pooled(env_id: str = "Count-v0", **changes: Any) -> EnvConfig:
    return config_of(env_id, backend="envpool", **changes)


@pytest.mark.usefixtures("stand_in")
def test_answers_are_brought_to_what_a_row_promises():
    env = make_env(pooled(), num_envs=2, keep_info=("elapsed_step",))
    rows = run(env, 12, seed=3)
    obs, reward, terminated, truncated, first = table(
        rows, "obs", "reward", "terminated", "truncated", "first"
    )
    assert (obs["count"].dtype, obs["late"].dtype) == (np.int64, np.int8)
    assert obs["count"][:, 0].tolist() == reward[:, 0].tolist() == [0, 1, 2, 3, 4] * 2 + [0, 1, 2]
    assert np.flatnonzero(first[:, 0]).tolist() == [0, 5, 10]
    assert np.flatnonzero(terminated[:, 0]).tolist() == [4, 9]
    assert np.flatnonzero(truncated[:, 1]).tolist() == [9]
    assert not (terminated[:, 1] | truncated[:, 0]).any()
    assert [row.info["elapsed_step"].tolist() for row in rows[1:]] == obs["count"][1:].tolist()
    assert run(env, 4, seed=0)[-1].terminated[0]
    assert run(env, 1, seed=0)[-1].reward.tolist() == [1, 1], "a reset forgets the end before"


@pytest.mark.usefixtures("stand_in")
def test_the_seed_is_given_when_a_pool_is_made():
    env = make_env(pooled(kwargs={"num_threads": 2}), num_envs=2)
    assert StandIn.made == ()  # a probe starts no threads
    for seed in (5, 6, 2**31 + 5):
        env.reset(seed=seed)
    assert [more["seed"] for more in StandIn.made] == [5, 6, 7]  # the last two fit into int32
    assert {more["num_threads"] for more in StandIn.made} == {2}


@pytest.mark.usefixtures("stand_in")
def test_the_step_limit_is_passed_on_and_watched():
    rows = run(make_env(pooled(max_episode_steps=3), num_envs=2), 8, seed=0)
    (truncated,) = table(rows, "truncated")
    assert np.flatnonzero(truncated.all(axis=1)).tolist() == [3, 7]
    env = make_env(pooled("Endless-v0", max_episode_steps=5), num_envs=2)
    text = "Endless-v0: environment 1 at step 6: .*env.max_episode_steps"
    with pytest.raises(EnvError, match=text):
        run(env, 8, seed=0)
    run(make_env(pooled("Endless-v0"), num_envs=2), 20, seed=0)


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize(
    ("config", "text"),
    [
        (("ALE/Pong-v5", {}), "env.id = ALE/Pong-v5: closest: Pong-v5"),
        (("Go-v1", {}), "env.id = Go-v1: 2 players"),
        (("NoLibrary-v0", {}), "env.id = NoLibrary-v0: (it needs Qt)"),
        (("Words-v0", {}), "env.id = Words-v0: Text"),
        (("Count-v0", {"oops": 1}), "Count-v0 oops"),
        (("Count-v0", {"batch_size": 1, "seed": 2}), "batch_size, seed: env.id, collector"),
        (("Count-v0", {"num_threads": -1}), "num_threads = -1: >= 0"),
    ],
)
def test_what_envpool_cannot_serve(config, text):
    env_id, kwargs = config
    found = refusal(pooled(env_id, kwargs=kwargs))
    assert_names(found, text)
    assert found.startswith(("env.id = ", f"env.kwargs = {kwargs}: "))


def test_a_missing_package_and_goals(monkeypatch):
    monkeypatch.setitem(sys.modules, "envpool", None)
    text = refusal(pooled("CartPole-v1"))
    assert text.startswith("env.backend = envpool: ")
    assert text.endswith("[envpool]'")
    with pytest.raises(ConfigError, match=r"env\.backend = envpool: "):
        goal_functions(pooled("FetchReach-v4"))


@needs_envpool
@pytest.mark.parametrize("env_id", ["CartPole-v1", "CliffWalking-v1", "CartpoleBalance-v1"])
def test_threads_change_no_row_of_the_package(env_id):
    found = []
    for threads in (1, 3):
        config = pooled(env_id, kwargs={"num_threads": threads}, max_episode_steps=20)
        env = make_env(config, num_envs=5)
        assert unsupported_space(env.obs_space) is None
        found.append(run(env, 60, seed=4))
        env.close()
    same_rows(*found)
    reward, first = table(found[0], "reward", "first")
    assert not reward[first].any(), "the control suite repeats a reward in an opening row"
    env = make_env(pooled(env_id), num_envs=3)
    opened = np.array(env.reset(seed=7))
    assert_same(opened[1:], env.reset(seed=8)[:-1])  # environment i gets seed + i
    env.close()
    assert "closest: CartPole-v0, CartPole-v1" in refusal(pooled("CartPole-v2"))
    assert "2 players" in refusal(pooled("TicTacToe-v1"))
    assert "'oops'" in refusal(pooled("CartPole-v1", kwargs={"oops": 1}))
