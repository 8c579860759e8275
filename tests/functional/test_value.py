"""Rescaling, targets, loss and priority: golden numbers, and relations."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rlrun.functional.rows import masked_mean, masked_sum, weighted_row_mean
from rlrun.functional.value import (
    ScalarCriterion,
    dueling,
    gather_bootstrap,
    greedy,
    mixed_priority,
    rescale,
    take_action,
    td_target,
    unrescale,
)


def one(value):
    return torch.tensor([[value]])


def test_rescale_golden():
    assert rescale(torch.tensor(10.0), 1e-2).item() == pytest.approx(2.416625, abs=1e-6)
    assert rescale(torch.tensor(10.0), 1e-3).item() == pytest.approx(2.326625, abs=1e-6)


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


def test_target_golden():
    h10 = rescale(one(10.0), 1e-2)
    y = td_target(one(1.99), one(0.99**2), h10, rescale_eps=1e-2)
    assert y.item() == pytest.approx(2.694361, abs=2e-6)
    dead = td_target(one(1.99), one(0.0), one(math.nan), rescale_eps=1e-2)
    assert dead.item() == pytest.approx(0.749062, abs=1e-6)
    plain = td_target(one(1.99), one(0.9), one(2.0), rescale_eps=None)
    assert plain.item() == pytest.approx(3.79)


def test_priority_golden():
    td = torch.tensor([[1.0], [2.0], [3.0], [99.0]])
    valid = torch.tensor([[True], [True], [True], [False]])
    assert mixed_priority(td, valid, 0.9).item() == pytest.approx(2.9)
    assert mixed_priority(-td, valid, 0.9).item() == pytest.approx(2.9)
    td[3] = math.nan
    assert mixed_priority(td, valid, 0.9).item() == pytest.approx(2.9)
    assert mixed_priority(td, torch.zeros_like(valid), 0.9).item() == 0


def test_double_q_selects_with_one_and_evaluates_with_the_other():
    select = torch.tensor([[[0.0, 1.0]], [[2.0, 1.0]], [[0.0, 5.0]]])
    evaluate = torch.tensor([[[10.0, 11.0]], [[20.0, 21.0]], [[30.0, 31.0]]])
    steps = torch.tensor([[1], [1]])
    value = take_action(evaluate, greedy(select, None))
    assert gather_bootstrap(value, steps).flatten().tolist() == [20.0, 31.0]
    assert gather_bootstrap(value, steps * 0).flatten().tolist() == [11.0, 20.0]


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
    assert masked_sum(x, mask).item() == 4
    assert masked_mean(x, mask).item() == 2
    assert masked_mean(x, torch.zeros(3, dtype=torch.bool)).item() == 0
