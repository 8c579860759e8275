"""Squashed Gaussians and smoothed actions: naive references, hand numbers, autograd."""

import math

import pytest
import torch

from rlrun.functional.policy import (
    LOG_STD_BOUNDS,
    log_tanh_derivative,
    smoothed_action,
    squashed_gaussian,
)
from rlrun.functional.value import td_metrics

NAN = math.nan


def draw(*shape, seed=0, scale=1.0):
    g = torch.Generator().manual_seed(seed)
    return scale * torch.randn(*shape, generator=g, dtype=torch.float64)


# -- tanh(Normal) ----------------------------------------------------------------------------------


def test_log_prob_is_that_of_torchs_transformed_normal():
    mean, log_std, noise = draw(7, 3), draw(7, 3, seed=1, scale=0.5), draw(7, 3, seed=2)
    got = squashed_gaussian(mean, log_std, noise)
    normal = torch.distributions.Normal(mean, log_std.exp())
    squash = torch.distributions.TanhTransform()
    other = torch.distributions.TransformedDistribution(normal, [squash])
    torch.testing.assert_close(got.action, torch.tanh(mean + log_std.exp() * noise))
    torch.testing.assert_close(got.log_prob, other.log_prob(got.action).sum(-1), rtol=1e-9, atol=0)


def test_log_prob_by_hand():
    """mean 0, std 1, noise 0: log(1 / sqrt(2 pi)) = -0.918939, grad 1; a second dimension adds."""
    zero = torch.zeros(1, 1)
    assert squashed_gaussian(zero, zero, zero).log_prob.item() == pytest.approx(-0.918939, abs=1e-6)
    one = torch.ones(1, 1)  # u = 1: -0.918939 - 0.5 - log(1 - tanh(1)^2) = -1.418939 + 0.867562
    assert squashed_gaussian(zero, zero, one).log_prob.item() == pytest.approx(-0.551377, abs=1e-6)
    both = squashed_gaussian(torch.zeros(1, 2), torch.zeros(1, 2), torch.tensor([[0.0, 1.0]]))
    assert both.log_prob.item() == pytest.approx(-0.918939 - 0.551377, abs=1e-6)


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


# -- actions ---------------------------------------------------------------------------------------


def test_smoothing_by_hand():
    action = torch.tensor([0.0, 0.0, 0.9, -0.9], requires_grad=True)
    noise = torch.tensor([1.0, -9.0, 1.0, -1.0])
    got = smoothed_action(action, noise, sigma=0.2, clip=0.5)
    torch.testing.assert_close(got, torch.tensor([0.2, -0.5, 1.0, -1.0]))
    assert not got.requires_grad


def test_metrics_are_means_over_valid_rows():
    valid = torch.tensor([[True, False, True]])
    q = torch.tensor([[[1.0, NAN, 3.0]], [[2.0, NAN, 6.0]]], requires_grad=True)
    td, y = torch.tensor([[0.5, 0.0, 1.5]]), torch.tensor([[1.0, NAN, 2.0]])
    got = td_metrics(q[0, 0, 0], td, q.mean(0), y, valid)
    assert {k: v.item() for k, v in got.items()} == pytest.approx(
        {"train/loss": 1, "train/td_abs": 1, "train/q_taken": 3, "train/target": 1.5,
         "train/valid_fraction": 2 / 3}
    )  # fmt: skip
    assert not any(x.requires_grad for x in got.values())
