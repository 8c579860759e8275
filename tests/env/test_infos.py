"""Infos of environments: only what is asked for is read, value by value, in every backend."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from rlrun.env import make_env
from rlrun.env.agents.columns import AGENT_REWARD, AGENT_TERMINATED, AGENT_TRUNCATED
from rlrun.env.contract import KEPT, as_number
from rlrun.env.examine import examine
from rlrun.env.examine_single import FINDING
from rlrun.errors import EnvError
from rlrun.schema import AgentsConfig
from tests.env.presets import config_of
from tests.env.zoo_example import Leaving

STRANGE = {  # value of t -> what simulators put beside numbers
    "path": lambda t: np.zeros(1 + t % 3),
    "event": lambda t: (0, "goal", None)[t % 3],
    "nested": lambda t: {"a": 1} if t % 2 else 0,
    "huge": lambda t: 10**400,
    "grows": lambda t: [1] * t,
    KEPT: lambda t: 7.0,
    AGENT_REWARD: lambda t: 100.0,
}


class Telling(gym.Env[Any, Any]):
    """Infos of all kinds; ``won`` is an integer at first, then 0.5, and absent in every third."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012

    def __init__(self, bare: Any = None) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.t, self.bare = 0, bare

    def _info(self) -> Any:
        if self.bare is not None and self.t == 2:
            return self.bare
        own = {} if self.t % 3 == 2 else {"won": 0 if self.t == 0 else np.float64(0.5)}
        return {key: value(self.t) for key, value in STRANGE.items()} | own

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return np.full(1, self.t, np.float32), 1.0, False, self.t == 5, self._info()


class TellingVector(VectorEnv[Any, Any, Any]):
    """``Telling`` as a native vector environment whose infos are lists."""

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, num_envs: int, bare: Any = None) -> None:
        self.num_envs, self.envs = num_envs, [Telling(bare) for _ in range(num_envs)]
        single = self.envs[0]
        self.single_observation_space = single.observation_space
        self.single_action_space = single.action_space
        self.observation_space = batch_space(single.observation_space, num_envs)
        self.action_space = batch_space(single.action_space, num_envs)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.done = False
        return np.stack([env.reset()[0] for env in self.envs]), {}

    def step(self, actions: Any) -> Any:
        each = [(*e.reset(), 0, 0, 0) if self.done else e.step(0) for e in self.envs]
        if self.done:
            each = [(obs, 0.0, False, False, info) for obs, info, *_ in each]
        obs, reward, terminated, truncated, infos = zip(*each, strict=True)
        self.done = truncated[0]
        if not isinstance(infos[0], dict):
            info = infos[0]
        else:
            info = {key: [one[key] for one in infos] for key in infos[0]}
            info |= {f"_{key}": np.ones(self.num_envs, bool) for key in infos[0]}
        flags = np.array(terminated), np.array(truncated)
        return np.stack(obs), np.array(reward), *flags, info


gym.register(
    "test/Telling-v0",
    entry_point="tests.env.test_infos:Telling",
    vector_entry_point="tests.env.test_infos:TellingVector",
    disable_env_checker=True,
)
BACKENDS = ["sync", "async", "vector"]


def walk(backend: str, keep_info: tuple[str, ...], steps: int = 7, **kwargs: Any) -> list[Any]:
    config = config_of("test/Telling-v0", backend=backend, kwargs=kwargs)
    env = make_env(config, num_envs=2, keep_info=keep_info)
    try:
        env.reset(seed=0)
        return [env.step(np.zeros(2, int)) for _ in range(steps)]
    finally:
        env.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_only_what_is_asked_for_is_read(backend: str) -> None:
    rows = walk(backend, ("won",))
    won = [row.info["won"].tolist() for row in rows]
    assert won == [[0.5] * 2, [0.0] * 2, [0.5] * 2, [0.5] * 2, [0.0] * 2, [0.0] * 2, [0.5] * 2]
    assert rows[0].info["won"].dtype == np.float32
    assert [row.reward[0] for row in rows] == [1, 1, 1, 1, 1, 0, 1]
    assert walk(backend, ())[0].info == {}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("key", "value"),
    [("event", "'goal'"), ("huge", "1000"), ("grows", r"\[1\]"), ("nested", "{'a'")],
)
def test_what_is_asked_for_and_is_no_number(backend: str, key: str, value: str) -> None:
    with pytest.raises(EnvError, match=rf"environment 0 at step 1: info\['{key}'\] is {value}"):
        walk(backend, (key,))


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_info_that_is_no_dict(backend: str) -> None:
    keep = ("won",) if backend == "vector" else ()
    with pytest.raises(EnvError, match=r"at step 2: info is \[\('t', 2\)\]; allowed is a dict"):
        walk(backend, keep, bare=[("t", 2)])


def test_the_examination_of_an_environment_with_infos() -> None:
    found = [*examine(config_of("test/Telling-v0", backend="sync"), None, seconds=2)]
    assert [check for check in found if check.verdict == FINDING] == []
    bare = config_of("test/Telling-v0", backend="sync", kwargs={"bare": 3})
    found = [*examine(bare, None, seconds=2)]
    assert "info is 3" in next(check.text for check in found if check.verdict == FINDING)


def test_numbers() -> None:
    for value in (True, 2, 2.0, np.float16(2), np.bool_(True), np.array(2), 2**70):
        assert as_number(value) == float(value)
    assert as_number(-(10**400)) == -np.inf
    for nothing in ("2", None, np.str_("2"), [2], np.array([2]), 2j, np.complex64(2), {}, b"2"):
        assert as_number(nothing) is None, nothing


class Named(Leaving):
    """Infos with every name that rlrun uses itself; agent_1 is told apart by ``own``."""

    names = (
        AGENT_REWARD,
        AGENT_TERMINATED,
        AGENT_TRUNCATED,
        KEPT,
        "agent_reward",
        "alive",
        "state",
    )

    def step(self, actions: Any) -> Any:
        out = super().step(actions)
        for i, name in enumerate(out[4]):
            out[4][name] = dict.fromkeys((*self.names, *STRANGE), 100.0) | {"own": i + 1}
            out[4][name] |= {"event": "text", "path": np.zeros(i + 2)}
        return out


def parallel_env(**kwargs: Any) -> Named:
    return Named(**kwargs)


@pytest.mark.parametrize("agents", ["shared", "separate", "joint"])
def test_infos_of_agents(agents: str) -> None:
    config = config_of("pettingzoo:tests.env.test_infos", kwargs={"lives": (2, 2)})
    layout = AgentsConfig(agents, False, "mean", "env")
    keep = ("own", "agent_reward")
    env = make_env(config, num_envs=2, keep_info=keep, agents=layout)
    env.reset(seed=0)
    joint = agents == "joint"
    zero = np.zeros((env.num_envs, *(env.action_space.shape or ())), np.int64)
    rows = [env.step(zero) for _ in range(2)]
    assert rows[0].reward.tolist() == ([51.0] * 2 if joint else [1.0, 101.0] * 2)
    assert rows[0].info["own"].tolist() == ([1.5] * 2 if joint else [1.0, 2.0] * 2)
    assert rows[0].info["agent_reward"].tolist() == [100.0] * env.num_envs
    assert [row.terminated.all() for row in rows] == [False, True]
    env = make_env(config, num_envs=1, keep_info=("event",), agents=layout)
    env.reset(seed=0)
    with pytest.raises(EnvError, match=r"at step 1: agent agent_0: info\['event'\] is 'text'"):
        env.step(zero[: env.num_envs])
