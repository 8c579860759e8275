"""Copies of an environment whose spaces differ."""

from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from rlrun.env.adapter import _different_copies
from rlrun.env.contract import space_difference

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
    same = SimpleNamespace(observation_space=BOX, action_space=spaces.Discrete(3))
    other = SimpleNamespace(observation_space=BOX, action_space=spaces.Discrete(4))
    copies: Any = [same, same, other]
    error = _different_copies("Mine-v0", copies)
    assert error is not None
    assert str(error).startswith("env.id = Mine-v0: copy 3 of 3: action_space is Discrete(4)")
    assert error.exit_code == 3
    assert _different_copies("Mine-v0", copies[:2]) is None
