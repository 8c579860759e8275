"""Offline losses: hand numbers, naive loops, torch's own densities, slopes."""

import math

import pytest
import torch

from rlrun.functional.offline import (
    advantage_weight,
    categorical_log_prob,
    conservative_gap,
    conservative_slope,
    expectile_loss,
    normal_log_prob,
    to_unit,
)


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_expectile_by_hand():
    """tau 0.7: 0.7 * 2^2 = 2.8 above, 0.3 * 2^2 = 1.2 below, 0 at the point."""
    loss = expectile_loss(torch.tensor([2.0, -2.0, 0.0]), 0.7)
    torch.testing.assert_close(loss, torch.tensor([2.8, 1.2, 0.0]))


@pytest.mark.parametrize("tau", [0.5, 0.7, 0.9])
def test_the_minimum_of_the_expectile_loss_is_the_expectile(tau):
    """Where tau E[(x - m)+] = (1 - tau) E[(m - x)+]; at 1/2 that is the mean."""
    x = random(500).double()
    grid = torch.linspace(-2, 2, 4001, dtype=torch.float64)
    total = torch.stack([expectile_loss(x - m, tau).sum() for m in grid])
    m = grid[total.argmin()]
    above, below = (x - m).clamp(min=0).sum(), (m - x).clamp(min=0).sum()
    assert (tau * above).item() == pytest.approx(((1 - tau) * below).item(), rel=2e-2)
    if tau == 0.5:
        assert m.item() == pytest.approx(x.mean().item(), abs=1e-3)


def test_weights_by_hand():
    """exp(2 * 0.5) = e, exp(-2), clipped at 10 also where exp itself is infinite; beta 0: 1."""
    advantage = torch.tensor([0.5, -1.0, 3.0, 1e30], requires_grad=True)
    weight = advantage_weight(advantage, 2.0, 10.0)
    torch.testing.assert_close(weight, torch.tensor([math.e, math.exp(-2), 10.0, 10.0]))
    assert not weight.requires_grad
    assert torch.equal(advantage_weight(advantage, 0.0, 10.0), torch.ones(4))


def test_log_probs_are_torchs():
    logits, action = random(6, 4, 3), torch.randint(3, (6, 4), generator=torch.Generator())
    want = torch.distributions.Categorical(logits=logits).log_prob(action)
    torch.testing.assert_close(categorical_log_prob(logits, action), want)
    mean, log_std, x = random(6, 4, 3), random(3, seed=1), random(6, 4, 3, seed=2)
    want = torch.distributions.Normal(mean, log_std.exp()).log_prob(x).sum(-1)
    torch.testing.assert_close(normal_log_prob(mean, log_std, x), want)


def test_normal_by_hand():
    """Two units off with spread 2, in two dimensions: 2 (-1/2 - log 2 - log(2 pi) / 2)."""
    got = normal_log_prob(torch.zeros(2), torch.full((2,), math.log(2)), torch.tensor([2.0, -2.0]))
    assert got.item() == pytest.approx(2 * (-0.5 - math.log(2) - 0.5 * math.log(2 * math.pi)))


def test_conservative_gap_by_hand():
    """Q = (log 1, log 3): log 4 - log 3 for the second action; equal values: log A."""
    q = torch.tensor([[0.0, math.log(3)], [7.0, 7.0]])
    gap = conservative_gap(q, torch.tensor([1, 0]))
    torch.testing.assert_close(gap, torch.tensor([math.log(4 / 3), math.log(2)]))
    huge = conservative_gap(torch.tensor([[1e4, 0.0]]), torch.tensor([1]))
    assert huge.item() == pytest.approx(1e4)


def test_conservative_slope_is_what_autograd_finds():
    q = random(6, 4).requires_grad_()
    action, share = torch.tensor([0, 1, 2, 3, 0, 1]), torch.rand(6)
    (want,) = torch.autograd.grad((share * conservative_gap(q, action)).sum(), q)
    torch.testing.assert_close(conservative_slope(q.detach(), action, share), want)


def test_boxes_become_the_unit_box():
    low, high = torch.tensor([-2.0, 0.0]), torch.tensor([2.0, 10.0])
    got = to_unit(torch.tensor([[-2.0, 0.0], [2.0, 10.0], [1.0, 2.5]]), low, high)
    assert got.tolist() == [[-1.0, -1.0], [1.0, 1.0], [0.5, -0.5]]
