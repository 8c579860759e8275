"""Values of recorded rows against their spaces."""

import re
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rlrun.functional.recorded import RowSpaces
from rlrun.spaces import JointSpace

BOX = spaces.Box(-1, 1, (2,), np.float32)
T, B = 5, 2
VALID = np.ones((T, B), bool)


def zeros(space: Any, rows: int = T + 1) -> Any:
    if isinstance(space, spaces.Dict):
        return {k: zeros(s, rows) for k, s in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(zeros(s, rows) for s in space.spaces)
    return np.zeros((rows, B, *space.shape), space.dtype)


@pytest.mark.parametrize(
    ("space", "good", "bad"),
    [
        (spaces.Discrete(2), [0, 1], [-1, 2, 2000, 10**15]),
        (spaces.Discrete(3, start=1), [0, 2], [-1, 3]),
        (spaces.Discrete(3, start=-1), [0, 2], [-1, 3]),
        (spaces.MultiDiscrete([2, 5], start=[1, -3]), [[1, 4], [0, 0]], [[2, 0], [0, 5], [0, -1]]),
        (spaces.MultiDiscrete([[2], [3]]), [[[1], [2]]], [[[2], [0]], [[0], [3]]]),
        (spaces.MultiBinary(2), [[0, 1]], [[0, 2], [-1, 0]]),
        (BOX, [[7.0, -9.0]], [[np.nan, 0], [0, np.inf]]),
    ],
    ids=str,
)
def test_actions_are_counted_from_0_within_their_space(space: Any, good: Any, bad: Any) -> None:
    check = RowSpaces(BOX, space)
    for value in [*good, *bad]:
        action = zeros(space, T)
        action[3, 1] = value
        wrong = check.violation(None, action, VALID)
        assert (wrong is None) == (value in good)
        ring = np.ascontiguousarray(action.swapaxes(0, 1))
        assert (
            check.violation(None, torch.from_numpy(ring), VALID.T, axes=("column", "row")) == wrong
        )
        assert wrong is None or re.match("row 3 of column 1: .*action", wrong)


def test_observations_that_are_indices_or_not_finite() -> None:
    space = spaces.Dict(
        {"a": spaces.Discrete(3, start=5), "b": spaces.Tuple((spaces.MultiDiscrete([2, 2]), BOX))}
    )
    check, obs = RowSpaces(space, spaces.Discrete(2)), zeros(space)
    action = np.zeros((T, B), np.int64)
    assert "observation['a'] is 0; allowed is [5, 7]" in str(check.violation(obs, action, VALID))
    obs["a"] += 7
    assert check.violation(obs, action, VALID) is None
    obs["b"][1][T, 0, 1] = np.nan
    assert re.match(f"row {T} of column 0: .*obs", str(check.violation(obs, action, VALID)))
    obs["b"][0][2, 0, 1] = 2
    assert "at position [1]" in str(check.violation(obs, action, VALID))


@pytest.mark.parametrize("joint", [False, True])
def test_an_action_is_one_that_its_mask_allows(joint: bool) -> None:
    space: Any = spaces.Dict({"action_mask": spaces.MultiBinary(3), "x": BOX})
    action_space: Any = spaces.Discrete(3)
    action = np.zeros((T, B), np.int64)
    if joint:
        space, action_space = JointSpace(space, BOX, 2), spaces.MultiDiscrete([3, 3])
        action = np.zeros((T, B, 2), np.int64)
    obs, valid = zeros(space), VALID.copy()
    mask = (obs["agents"] if joint else obs)["action_mask"]
    check = RowSpaces(space, action_space, masked=True)
    assert check.violation(obs, action, valid) is None  # a mask of zeros allows all
    mask[2, 1, ..., 1:] = 1
    assert "allows 1, 2" in str(check.violation(obs, action, valid))
    assert RowSpaces(space, action_space).violation(obs, action, valid) is None
    valid[2, 1] = False
    assert check.violation(obs, action, valid) is None
