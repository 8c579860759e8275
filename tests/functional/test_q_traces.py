"""Retrace and Q(lambda): hand numbers with all flags, naive sums, limits, what padding may hold."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.functional.q_traces import TraceTarget, retrace_coefficient, trace_return
from rlrun.functional.value import rescale, unrescale
from tests.functional.test_returns import NO, REWARD, VALUE, YES, column, flags
from tests.reference.traces import target_of

KINDS = ["retrace", "peng_q_lambda", "watkins_q_lambda", "harutyunyan_q_lambda"]


def test_by_hand():
    """gamma 1/2, c = 1, 1/2, 1/4, B = 8, 16, 24, V = 10, 20, 30, 40, r = 1, 2, 4.

    G_2 = 4 + 40/2 = 24; G_1 = 2 + (30 + (24 - 24)/4)/2 = 17; G_0 = 1 + (20 + (17 - 16)/2)/2.
    """
    c, base = column(1, 0.5, 0.25), column(8, 16, 24)
    cases = [
        (NO, NO, YES, [11.25, 17, 24]),
        (flags(0, 1, 0), NO, YES, [1 + (20 + (2 - 16) / 2) / 2, 2, 24]),  # no value behind row 1
        (NO, flags(0, 1, 0), YES, [11.25, 17, 24]),  # the trace ends where its correction was 0
        (flags(0, 0, 1), NO, YES, [1 + (20 + (14.5 - 16) / 2) / 2, 2 + (30 + (4 - 24) / 4) / 2, 4]),
        (NO, flags(0, 1, 0), flags(1, 1, 0), [11.25, 17, 0]),  # row 2 is the end row
        (flags(1, 0, 0), NO, flags(1, 0, 0), [1, 0, 0]),
    ]
    for terminated, truncated, valid, want in cases:
        got = trace_return(REWARD, VALUE, base, c, terminated, truncated, valid, gamma=0.5)
        np.testing.assert_allclose(got[:, 0], want)


def test_retrace_coefficient_by_hand():
    pi, mu = torch.tensor([0.9, 0.1, 0.0, 1.0]), torch.tensor([0.6, 0.4, 0.5, 1e-40])
    got = retrace_coefficient(pi, mu.double().log().float(), 0.5)
    np.testing.assert_allclose(got, [0.5, 0.125, 0.0, 0.5])


def config(trace, **changes):
    made = {"trace": trace, "trace_lambda": 0.8, "trace_epsilon": 0.2, "gamma": 0.9}
    return SimpleNamespace(**(made | {"value_rescale_eps": None} | changes))


def drawn(length, seed, columns=3, actions=3):
    """Rows with all flags, masks and rare actions; rows that are not valid hold NaN."""
    rng = np.random.default_rng(seed)
    q, choice = rng.normal(size=(2, length + 1, columns, actions)) * 3
    mask = rng.random(q.shape) < 0.8
    mask[..., 0] |= ~mask.any(-1)
    terminated, truncated = rng.random((2, length, columns)) < 0.15
    valid = rng.random((length, columns)) < 0.85
    action = (rng.random((length, columns, actions)) * mask[:-1]).argmax(-1)
    reward, log_mu = rng.normal(size=valid.shape), np.log(rng.uniform(0.05, 1, valid.shape))
    reward, log_mu = (np.where(valid, x, np.nan) for x in (reward, log_mu))
    action = np.where(valid, action, 99)
    rows = (reward, log_mu, action, terminated, truncated, valid)
    return [torch.from_numpy(x) for x in (q, choice, mask, *rows)]


def targets(c, rows):
    q, choice, mask, reward, log_mu, action, terminated, truncated, valid = rows
    segment = SimpleNamespace(
        action=action, terminated=terminated, truncated=truncated, valid=valid,
        extras={"log_prob": log_mu},
    )  # fmt: skip
    return TraceTarget(c)(choice, q, segment, reward, mask)


@settings(max_examples=60)
@given(st.sampled_from(KINDS), st.integers(1, 9), st.floats(0, 1), st.integers(0, 2**32 - 1))
def test_equals_the_naive_sums(kind, length, trace, seed):
    rows = drawn(length, seed)
    got = targets(config(kind, trace_lambda=trace), rows)
    q, choice, mask, reward, log_mu, action, terminated, truncated, valid = (
        x.numpy() for x in rows
    )
    for b in range(got.shape[1]):
        for t in range(length):
            if not valid[t, b]:
                assert got[t, b] == 0
                continue
            want = target_of(
                kind, t, reward=reward[:, b], q=q[:, b], choice=choice[:, b], allowed=mask[:, b],
                action=action[:, b], mu=np.exp(log_mu[:, b]), terminated=terminated[:, b],
                truncated=truncated[:, b], valid=valid[:, b], gamma=0.9, trace=trace, epsilon=0.2,
            )  # fmt: skip
            assert got[t, b].item() == pytest.approx(want, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_rescaled_targets_are_h_of_the_returns_of_real_values(kind):
    """Transformed Retrace: h(G of h^-1(Q)); what is greedy is the same in either unit."""
    eps, rows = 1e-2, drawn(6, 3)
    real = targets(config(kind), rows)
    rescaled = [rescale(rows[0], eps), *rows[1:]]
    got = targets(config(kind, value_rescale_eps=eps), rescaled)
    torch.testing.assert_close(got, rescale(real, eps), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(unrescale(got, eps), real, rtol=1e-7, atol=1e-7)
