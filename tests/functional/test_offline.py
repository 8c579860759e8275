"""Offline losses: hand numbers, naive loops, torch's own densities, gradients."""

import math

import pytest
import torch

from rlrun.functional.offline import advantage_weight, conservative_gap, sampled_gap
from rlrun.functional.policy import uniform_log_density


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_weights_by_hand():
    """exp(2 * 0.5) = e, exp(-2), clipped at 10 also where exp itself is infinite; beta 0: 1."""
    advantage = torch.tensor([0.5, -1.0, 3.0, 1e30], requires_grad=True)
    weight = advantage_weight(advantage, 2.0, 10.0)
    torch.testing.assert_close(weight, torch.tensor([math.e, math.exp(-2), 10.0, 10.0]))
    assert not weight.requires_grad
    assert torch.equal(advantage_weight(advantage, 0.0, 10.0), torch.ones(4))


def test_conservative_gap_by_hand():
    """Q = (log 1, log 3): log 4 - log 3 for the second action; equal values: log A."""
    q = torch.tensor([[0.0, math.log(3)], [7.0, 7.0]])
    gap = conservative_gap(q, torch.tensor([1, 0]), None)
    torch.testing.assert_close(gap, torch.tensor([math.log(4 / 3), math.log(2)]))
    huge = conservative_gap(torch.tensor([[1e4, 0.0]]), torch.tensor([1]), None)
    assert huge.item() == pytest.approx(1e4)


# -- conservatism over actions drawn ---------------------------------------------------------------


def test_sampled_gap_by_hand():
    """Q = log 1, log 3 of actions with densities 1/2, 1/4: log((2 + 12) / 2) - Q(taken)."""
    q, log_density = torch.tensor([1.0, 3.0]).log(), torch.tensor([0.5, 0.25]).log()
    gap = sampled_gap(q.reshape(1, 2, 1, 1), log_density.reshape(2, 1, 1), torch.zeros(1, 1, 1))
    assert gap.item() == pytest.approx(math.log(7))
    even = uniform_log_density(torch.zeros(5, 1, 1, 3))
    torch.testing.assert_close(even, torch.full((5, 1, 1), math.log(1 / 8)))
    flat = sampled_gap(torch.full((1, 5, 1, 1), 2.0), even, torch.full((1, 1, 1), 2.0))
    assert flat.item() == pytest.approx(3 * math.log(2))  # a constant Q: the volume of [-1, 1]^3
    huge = sampled_gap(torch.full((1, 5, 1, 1), 1e4), even, torch.zeros(1, 1, 1))
    assert huge.item() == pytest.approx(1e4, rel=1e-3)
