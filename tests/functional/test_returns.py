"""n-step returns, GAE, lambda-returns, V-trace: naive loops, padding."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.functional.returns import gae, lambda_return, nstep_return, vtrace
from tests.reference.traces import gae_rows, lambda_rows, nstep_rows, vtrace_rows


def column(*values):
    return torch.tensor(values, dtype=torch.float64).unsqueeze(1)


def flags(*values):
    return torch.tensor(values, dtype=torch.bool).unsqueeze(1)


NO, YES = flags(0, 0, 0), flags(1, 1, 1)
REWARD, VALUE = column(1, 2, 4), column(10, 20, 30, 40)
EXACT = {"gamma": 0.5, "trace": 0.5, "rho_clip": 1.0, "c_clip": 1.0}


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


@settings(max_examples=60)
@given(*ANY)
def test_gae_equals_the_naive_loop(length, gamma, trace, seed):
    *rows, _ = draw(seed, length)
    got = gae(*poisoned(*rows), gamma=gamma, trace=trace)
    for b in range(3):
        want = gae_rows(*(x[:, b] for x in rows), gamma, trace)
        np.testing.assert_allclose(got.advantage[:, b], want, atol=1e-10)
    assert got.target.isfinite().all()


@settings(max_examples=60)
@given(*ANY)
def test_lambda_return_equals_the_naive_loop_and_the_target_of_gae(length, gamma, trace, seed):
    *rows, _ = draw(seed, length)
    got = lambda_return(*poisoned(*rows), gamma=gamma, trace=trace)
    for b in range(3):
        want = lambda_rows(*(x[:, b] for x in rows), gamma, trace)
        np.testing.assert_allclose(got[:, b], want, atol=1e-10)
    target = gae(*poisoned(*rows), gamma=gamma, trace=trace).target
    torch.testing.assert_close(got, target, rtol=1e-9, atol=1e-9)


@settings(max_examples=60)
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


def test_no_gradient_flows_out():
    value = VALUE.clone().requires_grad_()
    for out in (
        gae(REWARD, value, NO, NO, YES, gamma=0.9, trace=0.9),
        vtrace(value[:-1] * 0, REWARD, value, NO, NO, YES, **EXACT),
    ):
        assert not out.advantage.requires_grad
        assert not out.target.requires_grad
    assert not lambda_return(REWARD, value, NO, NO, YES, gamma=0.9, trace=0.9).requires_grad


# -- n-step returns -------------------------------------------------------------------------------


@settings(max_examples=100)
@given(st.integers(1, 12), st.integers(1, 7), st.floats(0, 1), st.integers(0, 2**32 - 1))
def test_nstep_equals_the_naive_loop(length, nstep, gamma, seed):
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
