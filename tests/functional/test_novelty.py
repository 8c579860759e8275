"""Novelty: moments against two passes, whitening by hand; sums: tests/pipeline/test_bonus.py."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlrun.functional.novelty import empty_moments, merge_moments, whiten
from tests.reference import novelty as naive

CPU = torch.device("cpu")
finite = st.floats(-1e4, 1e4, width=32)


@given(st.lists(st.lists(finite, max_size=7), min_size=1, max_size=6), st.floats(-1e6, 1e6))
def test_moments_in_pieces_are_those_of_the_whole(chunks, offset):
    """A large offset would ruin sums of squares."""
    chunks = [[v + offset for v in chunk] for chunk in chunks]
    flat = [v for chunk in chunks for v in chunk]
    moments = empty_moments((2,), CPU)
    for chunk in chunks:
        x = torch.tensor(chunk, dtype=torch.float64)
        moments = merge_moments(moments, torch.stack([x, -2 * x], -1))
    assert moments.count == len(flat)
    if flat:
        mean, var = naive.moments(flat)
        want = pytest.approx([mean, -2 * mean], rel=1e-9, abs=1e-6)
        assert moments.mean.tolist() == want
        assert moments.var.tolist() == pytest.approx([var, 4 * var], rel=1e-6, abs=1e-6)


def test_whiten_by_hand():
    """Mean 3, std 2: 5 -> 1, 100 -> the clip; a feature that never moved: 0, then the clip."""
    moments = merge_moments(empty_moments((2,), CPU), torch.tensor([[1.0, 0.1], [5.0, 0.1]]))
    x = torch.tensor([[5.0, 0.1], [100.0, 0.2], [-100.0, 0.0]])
    out = whiten(x, moments, 5.0)
    assert out.dtype == torch.float32
    assert out[:, 0].tolist() == pytest.approx([1.0, 5.0, -5.0], abs=1e-6)
    assert out[:, 1].tolist() == pytest.approx([0.0, 5.0, -5.0], abs=1e-6)
