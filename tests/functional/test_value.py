"""Rescaling, targets, loss, priority, values of teams: golden numbers, relations, loops."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rlrun.functional.explore import team_epsilon_greedy
from rlrun.functional.rows import masked_mean, weighted_row_mean
from rlrun.functional.value import (
    ScalarCriterion,
    dueling,
    mixed_priority,
    qmix_total,
    rescale,
    unrescale,
)


@pytest.mark.parametrize("eps", [1e-2, 1e-3])
def test_unrescale_inverts_to_float32_precision(eps):
    """The textbook inverse is off by 1e3 relative below 1e-4; ours by 5.6e-7."""
    size = np.logspace(-8, 4, 20_001)
    worst = 18_678_678.0  # of 28 million numbers within [1e-12, 1e12]: 5.57e-7 at eps 1e-3
    x = np.concatenate([-size[::-1], [0.0], size, [worst]])
    y = torch.from_numpy(x).float()
    exact = torch.from_numpy(np.sign(x) * (np.sqrt(np.abs(x) + 1) - 1) + eps * x)
    h = rescale(y, eps).double()
    np.testing.assert_allclose(h, rescale(y.double(), eps), rtol=5e-7)
    np.testing.assert_allclose(rescale(torch.from_numpy(x), eps), exact, atol=1e-9)
    back = unrescale(y, eps).double()
    np.testing.assert_allclose(back, unrescale(y.double(), eps), rtol=5.6e-7)
    np.testing.assert_allclose(unrescale(rescale(y.double(), eps), eps), y.double(), rtol=1e-12)


def test_priority_golden():
    td = torch.tensor([[1.0], [2.0], [3.0], [99.0]])
    valid = torch.tensor([[True], [True], [True], [False]])
    assert mixed_priority(td, valid, 0.9).item() == pytest.approx(2.9)
    assert mixed_priority(-td, valid, 0.9).item() == pytest.approx(2.9)
    td[3] = math.nan
    assert mixed_priority(td, valid, 0.9).item() == pytest.approx(2.9)
    assert mixed_priority(td, torch.zeros_like(valid), 0.9).item() == 0


def loss_of(taken, target, valid, weight, td_clip):
    """Loss of a batch of windows, |delta|, and the gradient over ``taken``."""
    row = ScalarCriterion(SimpleNamespace(td_clip=td_clip)).loss(taken, target, valid, None)
    loss = weighted_row_mean(row.loss, valid, weight)
    assert not row.td.requires_grad
    return loss, row.td, *torch.autograd.grad(loss, taken)


@pytest.mark.parametrize("td_clip", [None, 0.7])
def test_the_loss_is_the_sum_written_out(td_clip):
    g = torch.Generator().manual_seed(0)
    taken = torch.randn(5, 4, generator=g, requires_grad=True)
    target, weight = torch.randn(5, 4, generator=g), torch.rand(4, generator=g)
    valid = torch.rand(5, 4, generator=g) < 0.7
    taken.data[~valid] = math.nan
    loss, _, grad = loss_of(taken, target, valid, weight, td_clip)
    want, want_grad = 0.0, torch.zeros(5, 4)
    for t, b in valid.nonzero().tolist():
        delta = (target - taken)[t, b].item()
        inside = td_clip is None or abs(delta) <= td_clip
        error = 0.5 * delta**2 if inside else td_clip * (abs(delta) - 0.5 * td_clip)
        want += weight[b].item() * error / 5 / 4
        slope = delta if inside else math.copysign(td_clip, delta)
        want_grad[t, b] = -weight[b] * slope / 5 / 4
    assert loss.item() == pytest.approx(want, rel=1e-5)
    torch.testing.assert_close(grad, want_grad)


def test_dueling_is_identified():
    q = dueling(torch.tensor([3.0]), torch.tensor([1.0, 2.0, 6.0]))
    torch.testing.assert_close(q, torch.tensor([1.0, 2.0, 6.0]))
    assert dueling(torch.tensor([0.0]), torch.tensor([5.0, 5.0])).tolist() == [0.0, 0.0]


def test_masked_means_ignore_nan_and_survive_an_empty_mask():
    x = torch.tensor([1.0, math.nan, 3.0])
    mask = torch.tensor([True, False, True])
    assert masked_mean(x, mask).item() == 2
    assert masked_mean(x, torch.zeros(3, dtype=torch.bool)).item() == 0


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
