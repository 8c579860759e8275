"""Certificate of rows in its small form: see tests/benchmarks/autoreset.py."""

import pytest

from rlrun.env import make_env
from rlrun.env.wrappers import WRAPPERS
from rlrun.errors import EnvError
from tests.benchmarks.autoreset import lines
from tests.env.presets import config_of
from tests.env.spelled import WRAPPED


def test_no_rows_are_joined_and_every_final_observation_is_there_once() -> None:
    said = list(lines(640, envs=2))
    assert all(good for good, _ in said), "\n".join(text for _, text in said)
    assert sum("fault" in text.partition(":")[0] for _, text in said) == 3
    assert sum("wrapper" in text for _, text in said) == len(WRAPPED)


def test_every_wrapper_is_certified() -> None:
    assert {case.name for case in WRAPPED} == set(WRAPPERS)


def test_only_next_step_environments_are_taken_as_they_are() -> None:
    for name in ("same", "disabled"):
        with pytest.raises(EnvError, match=f"resets {name.upper()}"):
            make_env(config_of(f"tests/Spelled-{name}-v0", backend="vector"), num_envs=2)
