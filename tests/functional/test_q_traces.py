"""Retrace and Q(lambda): naive sums with all flags, what padding may hold."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.functional.q_traces import TraceTarget, retrace_coefficient
from tests.reference.traces import target_of

KINDS = ["retrace", "peng_q_lambda", "watkins_q_lambda", "harutyunyan_q_lambda"]


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
