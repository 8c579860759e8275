"""Checks of environments from outside: a sick one is found by its check, a healthy one by none."""

import time
from typing import Any

import gymnasium as gym
import numpy as np

from rlrun.env.examine import FINDING, OK, UNKNOWN, Check, examine
from rlrun.schema import AgentsConfig, EnvConfig
from tests.env import spelled, telling  # noqa: F401  register their ids
from tests.env.presets import assert_names, config_of, preset
from tests.env.sick import SICK, Healthy

SECONDS = 600.0  # never reached: the number of steps is what ends a walk
SHARED = AgentsConfig("shared", False, "mean", "env")


def checks(config: EnvConfig) -> dict[str, Check]:
    return {check.name: check for check in examine(config, None, seconds=SECONDS)}


def findings(config: EnvConfig) -> dict[str, str]:
    return {n: c.text for n, c in checks(config).items() if c.verdict == FINDING}


def test_each_sickness_is_found_by_its_check() -> None:
    for sick, (name, words) in SICK.items():
        found = findings(config_of(f"sick/{sick.__name__}-v0"))
        assert_names(found.get(name, f"{sick}: not found"), words)
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
    assert any("info" in c.text for c in bare.values() if c.verdict == FINDING)


def test_vector_environments_that_reset_in_another_step() -> None:
    found = findings(config_of("sick/Same-v0"))
    assert "set env.backend=sync" in found["step after the end"]
    assert set(found) == {"step after the end", "state"}  # Gymnasium's SyncVectorEnv
    assert set(findings(config_of("sick/Next-v0"))) == {"state"}
    assert "reward" in findings(config_of("sick/Rewarded-v0"))["step after the end"]
    quiet = findings(config_of("sick/Quiet-v0"))["step after the end"]
    assert "single environment" in quiet
    assert "step after the end" in findings(config_of("sick/Twice-v0"))
    assert "step after the end" not in findings(config_of("sick/Once-v0")), "it may be chance"
    limited = findings(config_of("sick/Limited-v0"))["step after the end"]
    assert_names(limited, "truncated 6 limit 7")
    assert "step after the end" not in findings(config_of("tests/Spelled-next-v0"))


def test_agents_that_wait_are_no_finding() -> None:
    config = config_of("pettingzoo:tests.env.zoo_example")
    found = {check.name: check for check in examine(config, SHARED, seconds=SECONDS)}
    assert {c.verdict for c in found.values()} == {OK, UNKNOWN}
    assert found["step after the end"].verdict == OK


def test_a_vector_environment_without_single_ones_is_examined(monkeypatch) -> None:
    monkeypatch.setattr(gym.registry["sick/Next-v0"], "entry_point", None)
    found = checks(config_of("sick/Next-v0"))
    assert found["spaces"].verdict == UNKNOWN
    assert found["step after the end"].verdict == OK


def test_what_cannot_be_checked_says_why() -> None:
    found = checks(preset("bandit"))
    assert found["final observation"].verdict == UNKNOWN
    assert found["final observation"].text
    endless = checks(config_of("test/Endless-v0"))
    assert endless["time limit"].verdict == FINDING
    assert "env.max_episode_steps" in endless["time limit"].text
    for name in ("flags", "time limit", "final observation", "step after the end"):
        assert_names(endless[name].text, "no episode steps")
    fixed = checks(preset("repeat_previous"))["time limit"]
    assert fixed.verdict == UNKNOWN
    assert_names(fixed.text, "terminated limit")


class Ends(Healthy):
    """Terminated and truncated at once."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length

    def step(self, action: Any) -> Any:
        self.t += 1
        return self._obs() / 1000, 0.0, self.t >= self.length, self.t >= self.length, {}


class Resets(Healthy):
    """Episodes of 9 steps, whose last one is a reset, and endless ones."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def begin(self) -> None:
        super().begin()
        self.short = self.np_random.random() < self.share

    def step(self, action: Any) -> Any:
        self.place = -self.place * (1 - 0.01 * int(action))  # within the range of first ones
        self.t += 1
        late = self.short and self.t >= 9
        return self.reset()[0] if late else self._obs(), 0.0, False, late, {}

    def _obs(self) -> Any:
        return np.full(2, self.place, np.float32)


for name, env in (("Ends", Ends), ("Resets", Resets)):
    gym.register(f"test/{name}-v0", entry_point=env, disable_env_checker=True)


def test_one_suspicious_end_is_no_finding_and_two_are_one() -> None:
    for env, check, once, twice in (
        ("test/Ends-v0", "flags", {"length": 1100}, {"length": 900}),
        # of three episodes one has a draw below 0.75, two have one below 0.85
        ("test/Resets-v0", "final observation", {"share": 0.75}, {"share": 0.85}),
    ):
        assert check not in findings(config_of(env, kwargs=once)), env
        assert check in findings(config_of(env, kwargs=twice)), env


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
    assert "3 rows" in by_name["determinism"].text
    for name in ("flags", "final observation", "step after the end"):
        assert by_name[name].verdict == UNKNOWN
        assert "3 steps" in by_name[name].text


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
    assert "KeyboardInterrupt" in found["spaces"]
    endless = {"fine": 10**6}
    state = checks(config_of("test/Interrupting-v0", kwargs=endless))["state"]
    assert state.verdict == OK, "its actions are repeated"
    found = findings(config_of("test/Interrupting-v0", kwargs=endless | {"load": True}))
    assert "SystemExit" in found["state"]


class Endless(Healthy):
    def step(self, action: Any) -> Any:
        obs, reward, *_ = super().step(action)
        self.place, self.t = self.place % 1.0, self.t % 12
        return obs, reward, False, False, {}


gym.register("test/Endless-v0", entry_point=Endless, disable_env_checker=True)
