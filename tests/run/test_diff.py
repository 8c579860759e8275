"""``differences`` of two states, on which every test of an exact resume relies."""

import numpy as np
import pytest
import torch

from rlrun.run.diff import differences
from rlrun.run.tensors import RingRows, RowFiles

RING = np.arange(6.0).reshape(1, 6)


def rows(array: np.ndarray, first: int = 0, stop: int = 4) -> RingRows:
    return RingRows(array, first, stop, RowFiles())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 2), (1, 1.0), (1.0, float("nan")), ("a", "b"), (None, 0), (True, 1),
        ({"x": 1}, {}), ({}, {"x": 1}), ([1], [1, 2]), ([1], (1,)), ((1, [2]), (1, [3])),
        (np.float32([0.0]), np.float32([-0.0])), (np.zeros(2), np.zeros((2, 1))),
        (np.zeros(1, np.int32), np.zeros(1, np.int64)), (np.zeros(1), torch.zeros(1)),
        (torch.zeros(2), torch.ones(2)), (torch.zeros(1), torch.zeros(1, dtype=torch.bfloat16)),
        (torch.zeros(3).bfloat16(), torch.ones(3).bfloat16()),
        (rows(RING), rows(RING + 1)), (rows(RING), rows(RING, 1, 5)),
    ],
)  # fmt: skip
def test_every_difference_is_found_where_it_lies(one, other) -> None:
    assert not [*differences({"a": {"b": one}}, {"a": {"b": one}})]
    (found,) = differences({"a": {"b": one}}, {"a": {"b": other}})
    assert found.startswith("a/b")
