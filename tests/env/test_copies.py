"""Copies of an environment whose spaces differ."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from rlrun.env import make_env
from rlrun.env.contract import different_copies, space_difference
from rlrun.errors import EnvError
from tests.env.presets import config_of
from tests.env.sick import Healthy

BOX, FINE = spaces.Box(0, 1, (2, 3), np.float32), spaces.Box(0, 1, (2, 3), np.float32)
HIGH = np.ones((2, 3), np.float32)
HIGH[1, 2] = 2
CASES: list[tuple[gym.Space[Any], gym.Space[Any], str]] = [
    (spaces.Box(0, HIGH), BOX, "s.high[1, 2] is 2, that of the first 1"),
    (spaces.Box(-1, 1, (2, 3)), BOX, "s.low[0, 0] is -1, that of the first 0"),
    (spaces.Discrete(4), spaces.Discrete(3), "s is Discrete(4), that of the first Discrete(3)"),
    (spaces.Dict(a=spaces.Box(0, HIGH)), spaces.Dict(a=BOX), "s['a'].high[1, 2] is 2, that"),
    (spaces.Tuple((BOX, spaces.Discrete(2))), spaces.Tuple((BOX, spaces.Discrete(3))), "s[1] is"),
    (spaces.Dict(a=BOX), spaces.Dict(b=BOX), "s is Dict("),
    (BOX, spaces.Box(0, 1, (6,)), "s is Box(0.0, 1.0, (2, 3)"),
]


@pytest.mark.parametrize(("own", "first", "text"), CASES)
def test_the_first_bound_that_differs_is_named(own: Any, first: Any, text: str) -> None:
    assert str(space_difference(own, first, "s")).startswith(text)
    assert space_difference(BOX, FINE, "s") is None


def test_the_copy_is_named_and_breaks_the_contract() -> None:
    same, other = (BOX, spaces.Discrete(3)), (BOX, spaces.Discrete(4))
    error = different_copies("Mine-v0", [same, None, other], same)
    assert error is not None
    assert str(error).startswith("env.id = Mine-v0: copy 3 of 3: action_space is Discrete(4)")
    assert error.exit_code == 3
    assert different_copies("Mine-v0", [same, None], same) is None


class Varying(Healthy):
    """Its bounds depend on how many copies were made before: environments that count in a file."""

    def __init__(self, counter: str, same: int, size: int = 3) -> None:
        with open(counter, "a") as file:
            file.write(".")
        high = np.full(size, 2.0 if Path(counter).stat().st_size > same else 1.0, np.float32)
        self.observation_space = spaces.Box(-high, high)
        self.action_space = spaces.Discrete(2)


@pytest.mark.parametrize(
    ("backend", "same", "size", "copy"),
    [("sync", 2, 3, "copy 3 of 3"), ("async", 1, 90_000, "copy 1 of 3")],
)
def test_every_backend_compares_its_copies(
    tmp_path: Path, backend: str, same: int, size: int, copy: str
) -> None:
    """Of spaces larger than the memory of a pipe too: nobody waits for a reader."""
    gym.register("test/Varying-v0", Varying)
    kwargs = {"counter": str(tmp_path / "made"), "same": same, "size": size}
    config = config_of("test/Varying-v0", backend=backend, kwargs=kwargs)
    try:
        with pytest.raises(EnvError, match=r"observation_space.low\[0\] is -2") as caught:
            make_env(config, num_envs=3)
    finally:
        gym.registry.pop("test/Varying-v0")
    assert copy in str(caught.value)
