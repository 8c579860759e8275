"""The configs under test: every conf/env preset, and small configs written down here."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rlrun.config.reader import read_dataclass
from rlrun.env import Env, Step, probe
from rlrun.errors import ConfigError, ResourceError
from rlrun.schema import WRAPPER_CONFIGS, EnvConfig
from rlrun.spaces import tree_map
from tests.installed import FOLDER, PRESETS, needs, preset_values

__all__ = ["FOLDER", "NAMES", "OWN", "config_of", "needs_envpool", "preset", "wrapper"]
ROW = ("obs", "reward", "terminated", "truncated", "first")
NAMES = PRESETS
needs_envpool = needs("envpool")
OWN = ["counter", "cartpole_novel", "repeat_previous", "tmaze", "bandit", "identity", "bitflip"]
OWN += ["battleship", "minesweeper", "chain", "bandit_continuous", "tracking"]
OWN += ["count_recall", "position_only_cartpole"]
OWN += ["multiarmed_bandit", "concentration", "hidden_battleship", "hidden_minesweeper"]
OWN += ["labyrinth_escape", "labyrinth_explore", "position_only_pendulum"]


def preset(name: str, **changes: Any) -> EnvConfig:
    """The config of conf/env/<name>.yaml; ``kwargs`` are laid over its own."""
    values = preset_values(name)
    if values["id"] == "???":
        values["id"] = ""
    config: EnvConfig = read_dataclass(EnvConfig, values, "env")
    kwargs = {**config.kwargs, **changes.pop("kwargs", {})}
    return replace(config, kwargs=kwargs, **changes)


def config_of(env_id: str, **changes: Any) -> EnvConfig:
    """A config for any id, without arguments."""
    base = preset("cartpole")
    return replace(base, **{"id": env_id, "kwargs": {}, "eval_kwargs": {}, **changes})


def wrapper(name: str, **arguments: Any) -> Any:
    """An entry of ``env.wrappers``."""
    return WRAPPER_CONFIGS[name](name=name, **arguments)


def run(env: Env, steps: int, seed: int, look: Callable[[Env], object] = id) -> list[Step]:
    """Rows of random actions, copied; the reset observation stands in a leading row.

    ``look`` is called behind every row.
    """
    env.action_space.seed(seed)
    obs, none = env.reset(seed=seed), np.zeros(env.num_envs, bool)
    zero = np.zeros(env.num_envs, np.float32)
    rows = [Step(tree_map(np.array, obs), zero, none, none, ~none, {})]
    for _ in range(steps):
        s = env.step(np.stack([env.action_space.sample() for _ in range(env.num_envs)]))
        parts = (s.obs, s.reward, s.terminated, s.truncated, s.first, s.info)
        rows.append(Step(*tree_map(np.array, parts)))
        look(env)
    return rows


def table(rows: list[Step], *names: str) -> list[Any]:
    """Columns of ``run``, rows first."""
    columns = ([getattr(row, name) for row in rows] for name in names)
    return [tree_map(lambda *x: np.stack(x), *column) for column in columns]


def assert_names(error: str, words: str) -> None:
    """An error has these fields and values, whatever its sentences."""
    assert not [word for word in words.split() if word not in error], error


def assert_same(one: Any, other: Any) -> None:
    tree_map(np.testing.assert_array_equal, one, other)


def same_rows(one: list[Step], *others: list[Step]) -> None:
    for other in others:
        for a, b in zip(table(one, *ROW), table(other, *ROW), strict=True):
            assert_same(a, b)


def refusal(config: EnvConfig, exit_code: int | None = None) -> str:
    """The one line that refuses a config before a run."""
    with pytest.raises((ConfigError, ResourceError)) as caught:
        probe(config)
    assert exit_code in (None, caught.value.exit_code)
    assert "\n" not in str(caught.value)
    return str(caught.value)
