"""Checks of environments from outside: a sick one is found by its check, a healthy one by none."""

import sys
import time
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from rlrun.env.examine import FINDING, OK, UNKNOWN, Actions, Check, examine, walk_single
from rlrun.schema import AgentsConfig, EnvConfig
from tests.env import telling  # noqa: F401  registers test/Telling-v0
from tests.env.presets import config_of, preset
from tests.env.sick import SICK, Healthy
from tests.env.spelled import SpelledPool, fake_envpool
from tests.env.zoo_example import Leaving

SECONDS = 600.0  # never reached: the number of steps is what ends a walk
SHARED = AgentsConfig("shared", False, "mean", "env")


def checks(config: EnvConfig) -> dict[str, Check]:
    return {check.name: check for check in examine(config, None, seconds=SECONDS)}


def findings(config: EnvConfig) -> dict[str, str]:
    return {n: c.text for n, c in checks(config).items() if c.verdict == FINDING}


def test_each_sickness_is_found_by_its_check() -> None:
    for sick, (name, words) in SICK.items():
        found = findings(config_of(f"sick/{sick.__name__}-v0"))
        assert words in found[name], (sick, found)
        others = {"Clock": {"state"}, "Shared": {"state"}}.get(sick.__name__, set())
        assert set(found) <= {name} | others, (sick, found)


def test_healthy_environments_have_no_finding() -> None:
    for config in (
        config_of("sick/Healthy-v0", backend="sync"),
        config_of("tests/Masked-v0"),
        config_of("test/Telling-v0", backend="sync"),
        *map(preset, ("cartpole", "pendulum", "tmaze", "bitflip", "tracking", "twostep")),
    ):
        assert findings(config) == {}, config.id


def test_a_healthy_environment_passes_every_check() -> None:
    found = checks(config_of("sick/Healthy-v0"))
    names = ["spaces", "reward", "flags", "time limit", "final observation", "determinism"]
    assert list(found) == [*names, "step after the end", "state"]
    assert {check.verdict for check in found.values()} == {OK}
    bare = checks(config_of("test/Telling-v0", backend="sync", kwargs={"bare": 3}))
    assert any("info is 3" in c.text for c in bare.values() if c.verdict == FINDING)


def test_vector_environments_that_reset_in_another_step() -> None:
    found = findings(config_of("sick/Same-v0"))
    assert "set env.backend=sync" in found["step after the end"]
    assert set(found) == {"step after the end", "state"}  # Gymnasium's SyncVectorEnv
    assert set(findings(config_of("sick/Next-v0"))) == {"state"}
    assert "has a reward" in findings(config_of("sick/Rewarded-v0"))["step after the end"]
    quiet = findings(config_of("sick/Quiet-v0"))["step after the end"]
    assert "not that of the single environment" in quiet
    limited = findings(config_of("sick/Limited-v0"))["step after the end"]
    assert "truncated episodes have 6 steps, the limit is 7" in limited
    assert "step after the end" not in findings(config_of("tests/Spelled-next-v0"))


class WalkPool(SpelledPool):
    """envpool's protocol around ``Healthy``; ``fault``: as in SpelledPool."""

    def __init__(self, env_id: str, *, num_envs: int, seed: int = 0, **more: Any) -> None:
        self.envs = [Healthy() for _ in range(num_envs)]
        self.seed, self.ended = seed, [False] * num_envs

    def reset(self) -> Any:
        obs = [env.reset(seed=self.seed + i)[0] for i, env in enumerate(self.envs)]
        return np.stack(obs), {"elapsed_step": np.array([0] * len(obs))}

    def step(self, action: np.ndarray) -> Any:
        rows = []
        for i, env in enumerate(self.envs):
            if self.ended[i]:
                row: Any = (env.reset()[0], 0.0, False, False)
            else:
                row = env.step(action[i])[:4]
            self.ended[i] = row[2] or row[3]
            if self.fault == "same_step" and self.ended[i]:
                row, self.ended[i] = (env.reset()[0], *row[1:]), False
            rows.append(row)
        obs, *rest = (np.array(column) for column in zip(*rows, strict=True))
        elapsed = {"elapsed_step": np.array([env.t for env in self.envs])}
        return obs, rest[0].astype(np.float32), *rest[1:], elapsed


def test_envpool(monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of("Spelled-v0", backend="envpool")
    for fault in (None, "same_step"):
        package: SimpleNamespace = fake_envpool()
        spec = package.make_spec("", num_envs=1)
        spec.observation_space = Healthy().observation_space
        package.make_gymnasium = type("Pool", (WalkPool,), {"fault": fault})
        monkeypatch.setitem(sys.modules, "envpool", package)
        found = checks(config)
        assert found["step after the end"].verdict == (FINDING if fault else OK)
        assert found["determinism"].verdict == OK
        assert found["spaces"].verdict == found["state"].verdict == UNKNOWN
        assert "no single environments" in found["spaces"].text


def test_agents_that_wait_are_no_finding() -> None:
    config = config_of("pettingzoo:tests.env.zoo_example")
    found = {check.name: check for check in examine(config, SHARED, seconds=SECONDS)}
    assert {c.verdict for c in found.values()} == {OK, UNKNOWN}
    assert found["step after the end"].verdict == OK


def test_what_cannot_be_checked_says_why() -> None:
    found = checks(preset("bandit"))
    assert found["final observation"].verdict == UNKNOWN
    assert "do not change" in found["final observation"].text
    endless = checks(config_of("test/Endless-v0"))
    assert endless["time limit"].verdict == FINDING
    assert "env.max_episode_steps" in endless["time limit"].text
    for name in ("flags", "time limit", "final observation", "step after the end"):
        assert "no episode ended" in endless[name].text
    fixed = checks(preset("repeat_previous"))["time limit"]
    assert (fixed.verdict, "the task's own end?" in fixed.text) == (UNKNOWN, True)


class Slow(Healthy):
    """A step takes longer than all checks may."""

    def step(self, action: Any) -> Any:
        time.sleep(0.02)
        obs, reward, *rest = super().step(action)
        return obs, "one" if self.t == 2 else reward, *rest


gym.register("test/Slow-v0", entry_point=Slow, disable_env_checker=True)


def test_a_slow_environment_makes_a_few_steps() -> None:
    found = [*examine(config_of("test/Slow-v0"), None, seconds=0.0)]
    assert [c.name for c in found if c.verdict == FINDING] == ["reward"]
    found = [*examine(config_of("sick/Healthy-v0"), None, seconds=0.0)]
    by_name = {check.name: check for check in found}
    assert "the same 3 rows" in by_name["determinism"].text
    for name in ("flags", "final observation", "step after the end"):
        assert by_name[name].verdict == UNKNOWN
        assert "3 steps that the time allowed" in by_name[name].text


class Interrupting(Healthy):
    """Whatever it raises is its fault, not Ctrl-C: in steps after ``fine`` of them, in the copy
    of its state.
    """

    def __init__(self, fine: int = 30, load: bool = False) -> None:
        super().__init__()
        self.fine, self.load = fine, load

    def step(self, action: Any) -> Any:
        self.fine -= 1
        if self.fine < 0:
            raise KeyboardInterrupt
        return super().step(action)

    def state_dict(self) -> Any:
        if self.load:
            return {}
        raise KeyboardInterrupt

    def load_state_dict(self, state: Any) -> None:
        raise SystemExit(0)


gym.register("test/Interrupting-v0", entry_point=Interrupting, disable_env_checker=True)


def test_what_an_environment_raises_is_no_ctrl_c() -> None:
    found = findings(config_of("test/Interrupting-v0"))
    assert "raised KeyboardInterrupt" in found["spaces"]
    endless = {"fine": 10**6}
    state = checks(config_of("test/Interrupting-v0", kwargs=endless))["state"]
    assert state.verdict == OK, "its actions are repeated"
    found = findings(config_of("test/Interrupting-v0", kwargs=endless | {"load": True}))
    assert "a second environment raised SystemExit" in found["state"]


def test_a_busy_machine_loses_no_steps() -> None:
    """Limits are CPU time: a machine that is busy elsewhere takes longer for the same steps."""
    env = Healthy()
    step, given = env.step, {"seed": 0, "steps": 100, "seconds": 0.2}
    env.step = lambda a: (time.sleep(0.004), step(a))[1]  # type: ignore[method-assign]
    assert walk_single(env, **given).steps == 100  # type: ignore[arg-type]
    env.step = lambda a: (time.sleep(0.1), step(a))[1]  # type: ignore[method-assign]
    slow = walk_single(env, **given | {"seconds": 0.03})  # type: ignore[arg-type]
    assert slow.late
    assert slow.steps <= 4, "0.3 s of the clock"


def test_what_a_run_refuses_is_a_finding_without_single_environments() -> None:
    config = config_of("pettingzoo:tests.env.test_examine")
    found = {c.name: c for c in examine(config, SHARED, seconds=1.0)}
    assert found["determinism"].verdict == FINDING
    assert "reward is 1e+39" in found["determinism"].text


class Rich(Leaving):
    def step(self, actions: Any) -> Any:
        out = super().step(actions)
        out[1]["agent_0"] = 1e39
        return out


def parallel_env() -> Rich:
    return Rich()


class Endless(Healthy):
    def step(self, action: Any) -> Any:
        obs, reward, *_ = super().step(action)
        self.place, self.t = self.place % 1.0, self.t % 12
        return obs, reward, False, False, {}


gym.register("test/Endless-v0", entry_point=Endless, disable_env_checker=True)


def test_random_actions_under_a_mask_count_from_the_start_of_their_space():
    """Private: an examination draws more than the forbidden action would show."""
    obs = spaces.Dict({"action_mask": spaces.MultiBinary(3), "x": spaces.Box(0, 1)})
    draw = Actions(spaces.Discrete(3, start=5), obs, seed=0)
    mask = np.array([1, 0, 1], np.int8)
    assert {int(draw({"action_mask": mask})) for _ in range(30)} == {5, 7}
    rows = {"action_mask": np.stack([mask] * 30), "x": np.zeros((30, 1))}
    assert {*draw.batch(rows, 30).tolist()} == {0, 2}
