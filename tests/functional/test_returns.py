"""n-step returns: golden numbers, the naive loop, limits."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.functional.returns import nstep_return
from tests.reference.nstep import nstep_rows


def column(*values):
    return torch.tensor(values, dtype=torch.float64).unsqueeze(1)


def flags(*values):
    return torch.tensor(values, dtype=torch.bool).unsqueeze(1)


def run(reward, terminated, truncated, valid, nstep, gamma):
    out = nstep_return(reward, terminated, truncated, valid, nstep=nstep, gamma=gamma)
    return [(r.item(), k.item(), d.item()) for r, k, d in zip(*out, strict=True)]


def test_golden():
    no, yes = flags(0, 0), flags(1, 1)
    first = run(column(1, 1), no, no, yes, 2, 0.99)[0]
    assert first == pytest.approx((1.99, 2, 0.99**2))
    assert run(column(1, 1), flags(0, 1), no, yes, 2, 0.99)[0] == pytest.approx((1.99, 2, 0.0))


def test_tails():
    """T < n, n = 1, all terminal, terminal and truncated on the last row."""
    no, yes = flags(0, 0, 0), flags(1, 1, 1)
    r = column(1, 2, 4)
    cases = [
        (no, no, yes, 5, [(3.0, 3, 0.125), (4.0, 2, 0.25), (4.0, 1, 0.5)]),
        (no, no, yes, 1, [(1, 1, 0.5), (2, 1, 0.5), (4, 1, 0.5)]),
        (yes, no, yes, 2, [(1, 1, 0), (2, 1, 0), (4, 1, 0)]),
        (no, flags(0, 1, 0), yes, 3, [(2.0, 2, 0.25), (2, 1, 0.5), (4, 1, 0.5)]),
        (flags(0, 0, 1), no, yes, 2, [(2.0, 2, 0.25), (4.0, 2, 0.0), (4, 1, 0)]),
        (no, no, flags(1, 0, 0), 3, [(1, 1, 0.5), (0, 0, 1), (0, 0, 1)]),
    ]
    for terminated, truncated, valid, nstep, expected in cases:
        got = run(r, terminated, truncated, valid, nstep, 0.5)
        np.testing.assert_allclose(got, expected)


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 12), st.integers(1, 7), st.floats(0, 1), st.integers(0, 2**32 - 1))
def test_equals_the_naive_loop(length, nstep, gamma, seed):
    rng = np.random.default_rng(seed)
    reward = rng.normal(size=(length, 3))
    term, trunc = rng.random((2, length, 3)) < 0.2
    valid = rng.random((length, 3)) < 0.8
    poisoned = np.where(valid, reward, np.nan)
    out = nstep_return(
        *(torch.from_numpy(x) for x in (poisoned, term & valid, trunc, valid)),
        nstep=nstep,
        gamma=gamma,
    )
    for b in range(3):
        rows = (reward[:, b], (term & valid)[:, b], trunc[:, b], valid[:, b])
        expected = nstep_rows(*rows, nstep, gamma)
        got = [tuple(x[t, b].item() for x in out) for t in range(length)]
        np.testing.assert_allclose(got, expected, atol=1e-12)


def test_long_horizon_is_monte_carlo():
    reward = torch.rand(20, 4, dtype=torch.float64)
    yes = torch.ones(20, 4, dtype=torch.bool)
    ends = torch.zeros_like(yes)
    ends[-1] = True
    out = nstep_return(reward, ends, ~yes, yes, nstep=25, gamma=0.9)
    total = torch.zeros(4, dtype=torch.float64)
    for t in reversed(range(20)):
        total = reward[t] + 0.9 * total
        torch.testing.assert_close(out.reward[t], total)
    assert not out.discount.any()
