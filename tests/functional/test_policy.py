"""Distributions of actions, squashed ones, statistics over valid rows: hand numbers, loops."""

import math

import numpy as np
import pytest
import torch

from rlrun.functional.explore import draw_gaussian
from rlrun.functional.policy import (
    LOG_STD_BOUNDS,
    categorical,
    explained_variance,
    gaussian,
    log_tanh_derivative,
    squashed_gaussian,
    standardise,
)
from rlrun.functional.value import td_metrics
from tests.reference.traces import gaussian_log_density

D = torch.float64


def t(*values):
    return torch.tensor(values, dtype=D)


def numbers(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


# -- distributions ---------------------------------------------------------------------------------


def test_categorical_by_hand():
    out = categorical(t([0, math.log(3)], [5, 5]), torch.tensor([1, 0]), (2,))
    np.testing.assert_allclose(out.log_prob, [math.log(3 / 4), math.log(1 / 2)])
    quarter = -(math.log(1 / 4) / 4 + 3 * math.log(3 / 4) / 4)
    np.testing.assert_allclose(out.entropy, [quarter, math.log(2)])


def test_gaussian_by_hand_and_number_by_number():
    one = gaussian(t([1.0]), t(math.log(2)).reshape(1), t([5.0]))
    np.testing.assert_allclose(one.log_prob, -2 - math.log(2) - 0.5 * math.log(2 * math.pi))
    np.testing.assert_allclose(one.entropy, math.log(2) + 0.5 * math.log(2 * math.pi * math.e))
    mean, action, log_std = numbers(5, 3), numbers(5, 3, seed=1), numbers(3, seed=2)
    got = gaussian(mean, log_std, action).log_prob
    for i in range(5):
        want = sum(
            gaussian_log_density(action[i, a].item(), mean[i, a].item(), log_std[a].exp().item())
            for a in range(3)
        )
        assert got[i].item() == pytest.approx(want)


def test_sampled_real_actions():
    mean, log_std = np.ones((50_000, 2), np.float32), np.array([-1.0, 0.5], np.float32)
    action, log_prob = draw_gaussian(mean, log_std, np.random.default_rng(0))
    np.testing.assert_allclose(action.mean(0), 1, atol=0.03)
    np.testing.assert_allclose(action.std(0), np.exp(log_std), rtol=0.02)
    given = (torch.from_numpy(x) for x in (mean, log_std, action))
    np.testing.assert_allclose(log_prob, gaussian(*given).log_prob, rtol=1e-4, atol=1e-5)
    mode, of_mode = draw_gaussian(mean[:3], log_std, None)
    np.testing.assert_array_equal(mode, mean[:3])
    assert (of_mode >= log_prob.max() - 1e-5).all()


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
    q = torch.tensor([[[1.0, NAN, 3.0]], [[2.0, NAN, 6.0]]], requires_grad=True)
    td, y = torch.tensor([[0.5, 0.0, 1.5]]), torch.tensor([[1.0, NAN, 2.0]])
    got = td_metrics(q[0, 0, 0], td, q.mean(0), y, valid)
    assert {k: v.item() for k, v in got.items()} == pytest.approx(
        {"train/loss": 1, "train/td_abs": 1, "train/q_taken": 3, "train/target": 1.5,
         "train/valid_fraction": 2 / 3}
    )  # fmt: skip
    assert not any(x.requires_grad for x in got.values())
