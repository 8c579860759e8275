"""Squashed Gaussians, targets and losses: naive references, hand numbers, autograd."""

import math

import pytest
import torch

from rlrun.functional.continuous import (
    LOG_STD_BOUNDS,
    actor_loss,
    bootstrap_target,
    critic_loss,
    log_tanh_derivative,
    smoothed_action,
    soft_value,
    squashed_gaussian,
    temperature_loss,
    weighted_row_mean,
)

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


def test_the_density_integrates_to_one():
    """exp(log_prob) over a in (-1, 1), of a narrow, a wide and a shifted one."""
    for mean, std in ((0.0, 0.3), (0.0, 1.5), (0.8, 0.6)):
        u = torch.linspace(-12, 12, 200_001, dtype=torch.float64)
        m, s = torch.full_like(u, mean), torch.full_like(u, math.log(std))
        got = squashed_gaussian(m[:, None], s[:, None], ((u - mean) / std)[:, None])
        area = torch.trapezoid(got.log_prob.exp(), got.action[:, 0])
        assert area.item() == pytest.approx(1, abs=1e-6)


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


def test_gradients_reach_mean_and_deviation():
    mean, log_std = draw(4, 2).requires_grad_(), draw(4, 2, seed=1).requires_grad_()
    noise = draw(4, 2, seed=2)
    assert torch.autograd.gradcheck(
        lambda m, s: tuple(squashed_gaussian(m, s, noise)), (mean, log_std)
    )


def test_the_deviation_is_bounded():
    zero, noise = torch.zeros(1, 1), torch.ones(1, 1)
    for raw, bound in ((-100.0, LOG_STD_BOUNDS[0]), (100.0, LOG_STD_BOUNDS[1])):
        got = squashed_gaussian(zero, torch.full((1, 1), raw), noise)
        same = squashed_gaussian(zero, torch.full((1, 1), bound), noise)
        assert torch.equal(got.action, same.action)
        assert torch.equal(got.log_prob, same.log_prob)


# -- targets ---------------------------------------------------------------------------------------


def test_smoothing_by_hand():
    action = torch.tensor([0.0, 0.0, 0.9, -0.9], requires_grad=True)
    noise = torch.tensor([1.0, -9.0, 1.0, -1.0])
    got = smoothed_action(action, noise, sigma=0.2, clip=0.5)
    torch.testing.assert_close(got, torch.tensor([0.2, -0.5, 1.0, -1.0]))
    assert not got.requires_grad


def test_soft_value_and_target_by_hand():
    q = torch.tensor([[[3.0, 1.0]], [[2.0, 5.0]]], requires_grad=True)
    value = soft_value(q, torch.tensor([[-1.0, 2.0]]), torch.tensor(0.5))
    assert value.tolist() == [[2.5, 0.0]]
    target = bootstrap_target(torch.tensor([[1.0, 1.0]]), torch.tensor([[0.81, 0.9]]), value)
    torch.testing.assert_close(target, torch.tensor([[3.025, 1.0]]))
    assert not target.requires_grad


def test_behind_a_termination_no_value_is_read():
    value = torch.tensor([[NAN, math.inf, 2.0]])
    got = bootstrap_target(torch.ones(1, 3), torch.tensor([[0.0, 0.0, 0.5]]), value)
    assert got.tolist() == [[1.0, 1.0, 2.0]]


# -- losses ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("clip", [None, 0.7])
@pytest.mark.parametrize("critics", [1, 2])
def test_critic_loss_is_the_naive_loop_and_its_grad_is_autograds(critics, clip):
    q, target = draw(critics, 3, 4).requires_grad_(), draw(3, 4, seed=1)
    valid = torch.rand(3, 4, generator=torch.Generator().manual_seed(2)) < 0.7
    weight = torch.linspace(0.1, 1, 4, dtype=torch.float64)
    out = critic_loss(q, torch.where(valid, target, NAN), valid, weight, td_clip=clip)
    loss, td = torch.zeros((), dtype=torch.float64), torch.zeros(3, 4, dtype=torch.float64)
    for t in range(3):
        for b in range(4):
            if not valid[t, b]:
                continue
            for c in range(critics):
                delta = target[t, b] - q[c, t, b]
                error = 0.5 * delta**2
                if clip is not None and delta.abs() > clip:
                    error = clip * (delta.abs() - 0.5 * clip)
                loss = loss + weight[b] * error / 3 / 4
                td[t, b] += delta.abs().detach() / critics
    torch.testing.assert_close(out.loss, loss.detach())
    torch.testing.assert_close(out.td, td)
    torch.testing.assert_close(out.q_grad, torch.autograd.grad(loss, q)[0])
    assert not out.loss.requires_grad


def test_critic_loss_by_hand():
    """Targets 1, predictions 0 and 3: td (1 + 2) / 2, loss 0.5 (1 + 4) halved by the weight."""
    q = torch.tensor([[[0.0]], [[3.0]]])
    out = critic_loss(q, torch.ones(1, 1), torch.ones(1, 1, dtype=torch.bool), torch.tensor([0.5]),
                      td_clip=None)  # fmt: skip
    assert (out.loss.item(), out.td.item()) == (1.25, 1.5)
    assert out.q_grad.flatten().tolist() == [-0.5, 1.0]


def test_rows_weigh_the_same_and_padding_nothing():
    x = torch.tensor([[1.0, 2.0], [NAN, 4.0]], requires_grad=True)
    valid, weight = torch.tensor([[True, True], [False, True]]), torch.tensor([1.0, 0.5])
    got = weighted_row_mean(x, valid, weight)
    assert got.item() == (1 + 0.5 * 6) / 4
    (grad,) = torch.autograd.grad(got, x)
    assert grad.tolist() == [[0.25, 0.125], [0.0, 0.125]]


def test_actor_loss_by_hand_and_where_its_gradient_goes():
    q = torch.tensor([[[3.0, 1.0]], [[2.0, 5.0]]], requires_grad=True)
    log_prob = torch.tensor([[-1.0, 2.0]], requires_grad=True)
    valid, weight = torch.ones(1, 2, dtype=torch.bool), torch.ones(2)
    loss = actor_loss(q, log_prob, torch.tensor(0.5), valid, weight)
    assert loss.item() == ((-0.5 - 2) + (1 - 1)) / 2
    of_q, of_log_prob = torch.autograd.grad(loss, [q, log_prob])
    assert of_q.tolist() == [[[0.0, -0.5]], [[-0.5, 0.0]]], "the smaller critic alone"
    assert of_log_prob.tolist() == [[0.25, 0.25]]


def test_the_temperature_falls_while_the_entropy_is_above_its_target():
    log_temperature = torch.tensor(math.log(0.5), requires_grad=True)
    log_prob = torch.tensor([[-1.0, -3.0]], requires_grad=True)
    valid, weight = torch.ones(1, 2, dtype=torch.bool), torch.ones(2)
    for wanted, grad in ((-1.0, 1.5), (3.0, -0.5)):  # entropy 2: surplus 3 and -1, times 0.5
        loss = temperature_loss(log_temperature, log_prob, wanted, valid, weight)
        assert loss.item() == pytest.approx(grad)
        (got,) = torch.autograd.grad(loss, log_temperature)
        assert got.item() == pytest.approx(grad)
    assert log_prob.grad is None
    assert not temperature_loss(
        log_temperature.detach(), log_prob, 0.0, valid, weight
    ).requires_grad
