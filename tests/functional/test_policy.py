"""Squashed actions at their limits, statistics over valid rows; densities: tests/policy."""

import math

import numpy as np
import pytest
import torch

from rlrun.functional.policy import (
    LOG_STD_BOUNDS,
    explained_variance,
    log_tanh_derivative,
    squashed_gaussian,
    standardise,
)
from rlrun.functional.value import td_metrics

D = torch.float64


def t(*values):
    return torch.tensor(values, dtype=D)


# -- statistics -----------------------------------------------------------------------------------


def test_standardised_over_valid_rows():
    valid = torch.tensor([1, 1, 0, 1]) > 0
    out = standardise(t(1, 2, math.nan, 3), valid)
    np.testing.assert_allclose(out, [-1, 0, 0, 1], atol=1e-7)
    one = standardise(t(5, 7), torch.tensor([True, False]))
    np.testing.assert_allclose(one, [5, 0])


def test_explained_variance():
    target, valid = t(1, 2, 3, math.nan), torch.tensor([1, 1, 1, 0]) > 0
    assert explained_variance(target, target, valid) == 1
    assert explained_variance(t(2, 2, 2, 9), target, valid).item() == pytest.approx(0, abs=1e-6)
    assert explained_variance(t(3, 2, 1, 9), target, valid).item() == pytest.approx(-3)
    assert explained_variance(t(1, 2, 3, 9), t(2, 2, 2, 9), valid) == 0


# -- tanh(Normal) ----------------------------------------------------------------------------------


def test_log_prob_is_finite_and_exact_where_tanh_is_one():
    """In float32 1 - tanh(u)^2 is 0 from about 9.1 on; the exact log is log 4 - 2 |u| there."""
    u = torch.tensor([-80.0, -20.0, -9.5, 9.5, 20.0, 80.0])
    assert (1 - u.tanh() ** 2 == 0).all(), "the textbook form would be fine"
    exact = math.log(4) - 2 * u.abs()
    torch.testing.assert_close(log_tanh_derivative(u), exact, rtol=1e-6, atol=1e-6)
    x = torch.linspace(-8, 8, 1001)
    exact = torch.log1p(-(x.double().tanh() ** 2)).float()
    torch.testing.assert_close(log_tanh_derivative(x), exact, rtol=1e-5, atol=1e-6)
    mean = u[:, None].clone().requires_grad_()
    got = squashed_gaussian(mean, torch.zeros(6, 1), torch.zeros(6, 1))
    (grad,) = torch.autograd.grad(got.log_prob.sum(), mean)
    torch.testing.assert_close(grad, 2 * u.sign()[:, None])


def test_the_deviation_is_bounded():
    zero, noise = torch.zeros(1, 1), torch.ones(1, 1)
    for raw, bound in ((-100.0, LOG_STD_BOUNDS[0]), (100.0, LOG_STD_BOUNDS[1])):
        got = squashed_gaussian(zero, torch.full((1, 1), raw), noise)
        same = squashed_gaussian(zero, torch.full((1, 1), bound), noise)
        assert torch.equal(got.action, same.action)
        assert torch.equal(got.log_prob, same.log_prob)


def test_metrics_are_means_over_valid_rows():
    valid = torch.tensor([[True, False, True]])
    q = torch.tensor([[[1.0, math.nan, 3.0]], [[2.0, math.nan, 6.0]]], requires_grad=True)
    td, y = torch.tensor([[0.5, 0.0, 1.5]]), torch.tensor([[1.0, math.nan, 2.0]])
    got = td_metrics(q[0, 0, 0], td, q.mean(0), y, valid)
    assert {k: v.item() for k, v in got.items()} == pytest.approx(
        {"train/loss": 1, "train/td_abs": 1, "train/q_taken": 3, "train/target": 1.5,
         "train/valid_fraction": 2 / 3}
    )  # fmt: skip
    assert not any(x.requires_grad for x in got.values())
