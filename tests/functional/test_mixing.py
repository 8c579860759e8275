"""Mixers against loops, hand numbers, and the monotonicity they are for."""

import math

import numpy as np
import pytest
import torch

from rlrun.functional.explore import team_epsilon_greedy
from rlrun.functional.value import mask_left_agents, qmix_total, team_greedy, vdn_total


def weights(lead, n, h, seed=0):
    g = torch.Generator().manual_seed(seed)
    shapes = ((*lead, n, h), (*lead, h), (*lead, h), lead)
    return [torch.randn(shape, generator=g, dtype=torch.float64) for shape in shapes]


def test_monotonic_total_is_the_loop():
    lead, n, h = (3, 2), 4, 5
    w1, b1, w2, b2 = weights(lead, n, h)
    q = torch.randn(*lead, n, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    total = qmix_total(q, w1, b1, w2, b2)
    for t in range(lead[0]):
        for b in range(lead[1]):
            value = b2[t, b].item()
            for k in range(h):
                x = b1[t, b, k].item()
                for i in range(n):
                    x += q[t, b, i].item() * abs(w1[t, b, i, k].item())
                x = x if x > 0 else math.exp(x) - 1
                value += x * abs(w2[t, b, k].item())
            assert total[t, b].item() == pytest.approx(value)


@pytest.mark.parametrize("seed", range(4))
def test_a_better_agent_never_makes_a_worse_team(seed):
    """dQ_tot / dQ_i >= 0 everywhere, for weights and values of either sign and any size."""
    lead, n, h = (50,), 3, 8
    parts = [(10 ** (seed % 4 - 1)) * x for x in weights(lead, n, h, seed)]
    q = 5 * torch.randn(
        *lead, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    q.requires_grad_()
    (grad,) = torch.autograd.grad(qmix_total(q, *parts).sum(), q)
    assert (grad >= 0).all()
    assert (grad > 0).any()


def test_every_agent_takes_its_best_allowed_action():
    q = torch.tensor([[1.0, 3.0, 2.0], [5.0, 4.0, 0.0]])
    allowed = torch.tensor([[True, False, True], [True, True, True]])
    assert team_greedy(q, allowed).tolist() == [2, 0]
    assert vdn_total(q).tolist() == [6.0, 9.0]


def test_agents_that_left_contribute_zero():
    q = torch.tensor([[1.0, torch.nan], [2.0, 3.0]])
    alive = torch.tensor([[True, False], [True, True]])
    assert mask_left_agents(q, alive).tolist() == [[1, 0], [2, 3]]


def test_team_epsilon_greedy():
    q = np.array([[[0.0, 3.0, 9.0], [5.0, 1.0, 2.0]]]).repeat(4000, 0)
    allowed = np.array([[[True, True, False], [True, True, True]]]).repeat(4000, 0)
    rng = np.random.default_rng(0)
    before = rng.bit_generator.state
    greedy = team_epsilon_greedy(q, allowed, None, rng)
    assert rng.bit_generator.state == before, "greedy draws nothing"
    assert (greedy == [1, 0]).all()
    drawn = team_epsilon_greedy(q, allowed, np.full(4000, 0.6), rng)
    share = [np.bincount(drawn[:, i], minlength=3) / 4000 for i in (0, 1)]
    np.testing.assert_allclose(share[0], [0.3, 0.7, 0.0], atol=0.04)
    np.testing.assert_allclose(share[1], [0.6, 0.2, 0.2], atol=0.04)
    both = ((drawn == [1, 0]).all(1)).mean()
    assert abs(both - 0.7 * 0.6) < 0.04, "a coin for every agent"
