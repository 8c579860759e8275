"""Action distributions and statistics over valid rows: hand numbers and naive loops."""

import math

import numpy as np
import pytest
import torch

from rlrun.functional.explore import draw_categorical, draw_gaussian
from rlrun.functional.policy import (
    categorical,
    explained_variance,
    gaussian,
    standardise,
)
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
