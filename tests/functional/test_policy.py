"""Distributions and what policy gradients descend on: hand numbers, naive loops, gradients."""

import math

import numpy as np
import pytest
import torch

from rlrun.functional.explore import draw_categorical, draw_gaussian
from rlrun.functional.policy import (
    categorical,
    explained_variance,
    gaussian,
    ppo_grad,
    ppo_loss,
    reinforce_grad,
    standardise,
    valid_rows,
    value_loss,
)
from tests.reference.traces import gaussian_log_density, ppo_row

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


def test_several_choices_add_up():
    logits, action = numbers(4, 6, 5), torch.tensor([[1, 2]]).expand(4, 6, 2)
    both = categorical(logits, action, (2, 3))
    parts = [
        categorical(logits[..., :2], action[..., 0], (2,)),
        categorical(logits[..., 2:], action[..., 1], (3,)),
    ]
    torch.testing.assert_close(both.log_prob, parts[0].log_prob + parts[1].log_prob)
    torch.testing.assert_close(both.entropy, parts[0].entropy + parts[1].entropy)


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


@pytest.mark.parametrize("sizes", [(4,), (2, 3)])
def test_drawn_actions_have_their_frequencies_and_log_probs(sizes):
    logits = numbers(1, sum(sizes), seed=3).float().expand(20_000, -1).numpy()
    action, log_prob = draw_categorical(logits, sizes, np.random.default_rng(0))
    chosen = torch.from_numpy(action.reshape(len(action), -1))
    want = categorical(torch.from_numpy(logits), chosen.squeeze(-1), sizes).log_prob
    np.testing.assert_allclose(log_prob, want, rtol=1e-5, atol=1e-6)
    start = 0
    for i, n in enumerate(sizes):
        p = torch.from_numpy(logits[0, start : start + n]).softmax(-1).numpy()
        counts = np.bincount(chosen[:, i].numpy(), minlength=n)
        chi2 = ((counts - 20_000 * p) ** 2 / (20_000 * p)).sum()
        assert chi2 < 30, "about 1 in 1e5 for three degrees of freedom"
        start += n
    mode, of_mode = draw_categorical(logits[:2], sizes, None)
    assert (of_mode >= log_prob.max() - 1e-6).all()
    assert mode.shape == action[:2].shape


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


# -- what is descended on --------------------------------------------------------------------------


def recorded_grad(function, x):
    """The loss that the test writes down, and what autograd finds of it."""
    x = x.clone().requires_grad_()
    loss = function(x)
    (want,) = torch.autograd.grad(loss, x)
    return loss.detach(), want


def test_ppo_terms_by_hand():
    """Ratios 1.5 and 0.5 at clip 0.2, with both signs of the advantage."""
    log_prob = t(1.5, 1.5, 0.5, 0.5, 1.0).log()
    advantage, rows = t(1, -1, 1, -1, 2), valid_rows(torch.ones(5, dtype=torch.bool))
    given = (log_prob, torch.zeros(5, dtype=D), advantage, rows)
    out = ppo_loss(*given, clip=0.2)
    assert out.loss.item() == pytest.approx(-(1.2 - 1.5 + 0.5 - 0.8 + 2) / 5)
    np.testing.assert_allclose(ppo_grad(*given, clip=0.2) * 5, [0, 1.5, -0.5, 0, -2])
    assert out.clipped.item() == pytest.approx(4 / 5)
    kl = 2 * (0.5 - math.log(1.5)) + 2 * (-0.5 - math.log(0.5))
    assert out.kl.item() == pytest.approx(kl / 5)


@pytest.mark.parametrize("seed", range(5))
def test_ppo_loss_is_the_naive_one_and_their_grad(seed):
    rng = np.random.default_rng(seed)
    log_prob, behaviour, advantage = (0.4 * numbers(6, 4, seed=seed * 3 + i) for i in range(3))
    valid = torch.from_numpy(rng.random((6, 4)) < 0.7)
    wild = [torch.where(valid, x, torch.nan) for x in (log_prob, behaviour, advantage)]
    out = ppo_loss(*wild, valid_rows(valid, D), clip=0.2)
    count = valid.sum().item()
    rows = zip(log_prob[valid], behaviour[valid], advantage[valid], strict=True)
    want = -sum(ppo_row(*(x.item() for x in row), 0.2) for row in rows) / count
    assert out.loss.item() == pytest.approx(want)

    def recorded(x):
        ratio = (x - behaviour).exp()
        pair = ratio * advantage, ratio.clamp(0.8, 1.2) * advantage
        return -torch.minimum(*pair)[valid].sum() / count

    _, grad = recorded_grad(recorded, log_prob)
    torch.testing.assert_close(ppo_grad(*wild, valid_rows(valid, D), clip=0.2), grad)


@pytest.mark.parametrize("clip", [None, 0.3])
def test_value_loss_and_their_grad(clip):
    value, target, old = (numbers(6, 4, seed=i) for i in range(3))
    valid = numbers(6, 4, seed=9) > -0.5
    wild = [torch.where(valid, x, torch.nan) for x in (value, target, old)]
    out = value_loss(wild[0], wild[1], valid_rows(valid, D), old=wild[2], clip=clip)

    def recorded(x):
        error = (x - target).square()
        if clip is not None:
            held = old + (x - old).clamp(-clip, clip)
            error = torch.maximum(error, (held - target).square())
        return 0.5 * error[valid].sum() / valid.sum()

    loss, grad = recorded_grad(recorded, value)
    torch.testing.assert_close(out.loss, loss)
    torch.testing.assert_close(out.grad, grad)


def test_value_clip_by_hand():
    """V moved from 0 to 1, held at 0.2: the worse error counts, and where held has no grad."""
    value, old, yes = t(1, 1), t(0, 0), torch.ones(2, dtype=torch.bool)
    out = value_loss(value, t(2, -2), valid_rows(yes), old=old, clip=0.2)
    assert out.loss.item() == pytest.approx(0.5 * (1.8**2 + 3**2) / 2)
    np.testing.assert_allclose(out.grad, [0, 1.5])


def test_gradient_grad():
    advantage, valid = numbers(5, seed=1), torch.tensor([1, 1, 0, 1, 1]) > 0
    wild = torch.where(valid, advantage, torch.nan)
    want = torch.where(valid, -advantage / 4, 0.0)
    np.testing.assert_allclose(reinforce_grad(wild, valid_rows(valid, D)), want)


def test_standardised_over_valid_rows():
    valid = torch.tensor([1, 1, 0, 1]) > 0
    out = standardise(t(1, 2, math.nan, 3), valid_rows(valid, D))
    np.testing.assert_allclose(out, [-1, 0, 0, 1], atol=1e-7)
    one = standardise(t(5, 7), valid_rows(torch.tensor([True, False])))
    np.testing.assert_allclose(one, [5, 0])


def test_explained_variance():
    target, valid = t(1, 2, 3, math.nan), valid_rows(torch.tensor([1, 1, 1, 0]) > 0)
    assert explained_variance(target, target, valid) == 1
    assert explained_variance(t(2, 2, 2, 9), target, valid).item() == pytest.approx(0, abs=1e-6)
    assert explained_variance(t(3, 2, 1, 9), target, valid).item() == pytest.approx(-3)
    assert explained_variance(t(1, 2, 3, 9), t(2, 2, 2, 9), valid) == 0
