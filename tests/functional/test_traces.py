"""GAE, lambda-returns and V-trace: hand numbers, naive loops, limits, what padding may hold."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.functional.returns import gae, lambda_return, nstep_return, reverse_scan, vtrace
from tests.reference.traces import gae_rows, lambda_rows, vtrace_rows


def column(*values):
    return torch.tensor(values, dtype=torch.float64).unsqueeze(1)


def flags(*values):
    return torch.tensor(values, dtype=torch.bool).unsqueeze(1)


NO, YES = flags(0, 0, 0), flags(1, 1, 1)
REWARD, VALUE = column(1, 2, 4), column(10, 20, 30, 40)
EXACT = {"gamma": 0.5, "trace": 0.5, "rho_clip": 1.0, "c_clip": 1.0}


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5, 7, 8, 9, 31, 32, 33, 200])
def test_the_scan_is_the_loop(steps):
    rng = np.random.default_rng(steps)
    x, decay = (torch.from_numpy(rng.normal(size=(steps, 3))) for _ in range(2))
    got, after = reverse_scan(x, decay), torch.zeros(3, dtype=torch.float64)
    for t in reversed(range(steps)):
        after = x[t] + decay[t] * after
        torch.testing.assert_close(got[t], after, rtol=1e-9, atol=1e-9)


def test_gae_by_hand():
    """gamma = lambda = 1/2: deltas are 1, -3, -6 in the middle of an episode."""
    cases = [
        (NO, NO, YES, [1 - 3 / 4 - 6 / 16, -3 - 6 / 4, -6]),
        (flags(0, 1, 0), NO, YES, [1 - 18 / 4, 2 - 20, -6]),  # no value behind row 1
        (NO, flags(0, 1, 0), YES, [1 - 3 / 4, -3, -6]),  # the value counts, the sum ends
        (NO, flags(0, 1, 0), flags(1, 1, 0), [1 - 3 / 4, -3, 0]),  # row 2 is the end row
        (flags(0, 0, 1), NO, YES, [1 - 3 / 4 - 26 / 16, -3 - 26 / 4, -26]),
    ]
    for terminated, truncated, valid, want in cases:
        got = gae(REWARD, VALUE, terminated, truncated, valid, gamma=0.5, trace=0.5)
        np.testing.assert_allclose(got.advantage[:, 0], want)
        np.testing.assert_allclose(got.target, torch.where(valid, VALUE[:-1] + got.advantage, 0.0))


def test_lambda_return_by_hand():
    """gamma = lambda = 1/2: r + V_{t+1} / 4 + G_{t+1} / 4 in the middle of an episode."""
    cases = [
        (NO, NO, YES, [1 + 5 + (2 + 7.5 + 24 / 4) / 4, 2 + 7.5 + 24 / 4, 4 + 20]),
        (flags(0, 1, 0), NO, YES, [1 + 5 + 2 / 4, 2, 24]),  # no value behind row 1
        (NO, flags(0, 1, 0), YES, [1 + 5 + 17 / 4, 2 + 15, 24]),  # the value counts, the sum ends
        (NO, flags(0, 1, 0), flags(1, 1, 0), [1 + 5 + 17 / 4, 17, 0]),  # row 2 is the end row
        (flags(0, 0, 1), NO, YES, [1 + 5 + (2 + 7.5 + 1) / 4, 2 + 7.5 + 1, 4]),
    ]
    for terminated, truncated, valid, want in cases:
        ends = (terminated, truncated, valid)
        got = lambda_return(REWARD, VALUE, *ends, gamma=0.5, trace=0.5)
        np.testing.assert_allclose(got[:, 0], want)


def test_vtrace_by_hand():
    """Ratios 2, 1/2, 1 under clips of 1: rho = c = 1, 1/2, 1 (c times lambda 1/2)."""
    ratio = column(2, 0.5, 1).log()
    got = vtrace(ratio, REWARD, VALUE, NO, NO, YES, **EXACT)
    # rho delta = 1, -1.5, -6; c gamma = 1/4, 1/8
    above = [1 + (-1.5 + -6 / 8) / 4, -1.5 - 6 / 8, -6]
    np.testing.assert_allclose(got.target[:, 0], [10 + above[0], 20 + above[1], 30 + above[2]])
    want = [1 + 0.5 * (20 + above[1]) - 10, 0.5 * (2 + 0.5 * (30 + above[2]) - 20), 4 + 20 - 30]
    np.testing.assert_allclose(got.advantage[:, 0], want)


def draw(seed, length, columns=3):
    rng = np.random.default_rng(seed)
    shape = (length, columns)
    reward, value = rng.normal(size=shape), rng.normal(size=(length + 1, columns))
    valid = rng.random(shape) < 0.8
    terminated, truncated = (rng.random((2, *shape)) < 0.2) & valid
    ratio = np.exp(rng.normal(size=shape))
    return reward, value, terminated, truncated & ~terminated, valid, ratio


def poisoned(reward, value, terminated, truncated, valid):
    """NaN wherever nothing may be read: rewards of invalid rows, values no valid row needs."""
    needed = np.zeros(value.shape, bool)
    needed[:-1] |= valid
    needed[1:] |= valid & ~terminated
    arrays = np.where(valid, reward, np.nan), np.where(needed, value, np.nan)
    return [torch.from_numpy(x) for x in (*arrays, terminated, truncated, valid)]


ANY = (st.integers(1, 12), st.floats(0, 1), st.floats(0, 1), st.integers(0, 2**32 - 1))


@settings(max_examples=200, deadline=None)
@given(*ANY)
def test_gae_equals_the_naive_loop(length, gamma, trace, seed):
    *rows, _ = draw(seed, length)
    got = gae(*poisoned(*rows), gamma=gamma, trace=trace)
    for b in range(3):
        want = gae_rows(*(x[:, b] for x in rows), gamma, trace)
        np.testing.assert_allclose(got.advantage[:, b], want, atol=1e-10)
    assert got.target.isfinite().all()


@settings(max_examples=200, deadline=None)
@given(*ANY)
def test_lambda_return_equals_the_naive_loop_and_the_target_of_gae(length, gamma, trace, seed):
    *rows, _ = draw(seed, length)
    got = lambda_return(*poisoned(*rows), gamma=gamma, trace=trace)
    for b in range(3):
        want = lambda_rows(*(x[:, b] for x in rows), gamma, trace)
        np.testing.assert_allclose(got[:, b], want, atol=1e-10)
    target = gae(*poisoned(*rows), gamma=gamma, trace=trace).target
    torch.testing.assert_close(got, target, rtol=1e-9, atol=1e-9)


@settings(max_examples=200, deadline=None)
@given(*ANY, st.floats(0.1, 3), st.floats(0.1, 3))
def test_vtrace_equals_the_naive_loop(length, gamma, trace, seed, rho, c):
    *rows, ratio = draw(seed, length)
    log_ratio = torch.from_numpy(np.where(rows[-1], np.log(ratio), np.nan))
    clips = {"rho_clip": rho, "c_clip": c}
    got = vtrace(log_ratio, *poisoned(*rows), gamma=gamma, trace=trace, **clips)
    for b in range(3):
        column = [x[:, b] for x in (ratio, *rows)]
        targets, advantages = vtrace_rows(*column, gamma, trace, rho, c)
        np.testing.assert_allclose(got.target[:, b], targets, atol=1e-9)
        np.testing.assert_allclose(got.advantage[:, b], advantages, atol=1e-9)


def test_lambda_1_is_return_minus_value_and_0_is_delta():
    reward, value, terminated, truncated, valid, _ = draw(5, 20)
    rows = [torch.from_numpy(x) for x in (reward, value, terminated, truncated, valid)]
    n = nstep_return(rows[0], *rows[2:], nstep=20, gamma=0.9)
    behind = torch.arange(20).unsqueeze(-1) + n.steps
    full = n.reward + n.discount * rows[1].gather(0, behind)
    got = gae(*rows, gamma=0.9, trace=1.0)
    torch.testing.assert_close(got.target, torch.where(rows[4], full, 0.0))
    torch.testing.assert_close(got.advantage, torch.where(rows[4], full - rows[1][:-1], 0.0))
    one = nstep_return(rows[0], *rows[2:], nstep=1, gamma=0.9)
    delta = one.reward + one.discount * rows[1][1:] - rows[1][:-1]
    got = gae(*rows, gamma=0.9, trace=0.0).advantage
    torch.testing.assert_close(got, torch.where(rows[4], delta, 0.0))


def test_on_policy_vtrace_is_the_nstep_return():
    reward, value, terminated, truncated, valid, _ = draw(6, 20)
    rows = [torch.from_numpy(x) for x in (reward, value, terminated, truncated, valid)]
    zero = torch.zeros_like(rows[0])
    clips = {"rho_clip": 1.0, "c_clip": 1.0}
    got = vtrace(zero, *rows, gamma=0.9, trace=1.0, **clips)
    torch.testing.assert_close(got.target, gae(*rows, gamma=0.9, trace=1.0).target)
    torch.testing.assert_close(got.advantage, gae(*rows, gamma=0.9, trace=1.0).advantage)


def test_no_gradient_flows_out():
    value = VALUE.clone().requires_grad_()
    for out in (
        gae(REWARD, value, NO, NO, YES, gamma=0.9, trace=0.9),
        vtrace(value[:-1] * 0, REWARD, value, NO, NO, YES, **EXACT),
    ):
        assert not out.advantage.requires_grad
        assert not out.target.requires_grad
    assert not lambda_return(REWARD, value, NO, NO, YES, gamma=0.9, trace=0.9).requires_grad
