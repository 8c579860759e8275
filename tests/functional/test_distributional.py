"""C51's projection, quantile Huber, Munchausen: hand numbers, naive loops, gradients, relations."""

import math

import pytest
import torch

from rlrun.functional import criterion
from rlrun.functional.criterion import (
    cosines,
    cross_entropy,
    kl_divergence,
    log_policy,
    midpoints,
    munchausen_reward,
    munchausen_value,
    project,
    quantile_huber,
    support,
)
from rlrun.jit import COMPILED
from tests.reference import distributional as naive

G = torch.Generator().manual_seed(0)
ATOMS = support(0.0, 2.0, 3)


@pytest.mark.parametrize(
    ("values", "probabilities", "wanted"),
    [
        ([1.0], [1.0], [0, 1, 0]),  # on an atom
        ([0.0], [1.0], [1, 0, 0]),  # on the lowest
        ([2.0], [1.0], [0, 0, 1]),  # on the highest
        ([0.25], [1.0], [0.75, 0.25, 0]),  # between atoms
        ([5.0], [1.0], [0, 0, 1]),  # clipped above
        ([-5.0], [1.0], [1, 0, 0]),  # clipped below
        ([0.5, 1.5, 9.0], [0.2, 0.4, 0.4], [0.1, 0.3, 0.6]),
        ([1.5, 1.5, 1.5], [0.2, 0.3, 0.5], [0, 0.5, 0.5]),  # terminal: all atoms at the reward
    ],
)
def test_projection_by_hand(values, probabilities, wanted):
    got = project(torch.tensor([values]), torch.tensor([probabilities]), ATOMS)
    torch.testing.assert_close(got, torch.tensor([wanted], dtype=torch.float32))


def test_cross_entropy_by_hand_and_its_grad():
    logits = torch.tensor([[0.0, math.log(3.0)]], requires_grad=True)  # p = 1/4, 3/4
    target = torch.tensor([[0.5, 0.5]])
    loss = cross_entropy(logits, target)
    assert loss.item() == pytest.approx(-0.5 * math.log(0.25) - 0.5 * math.log(0.75))
    torch.testing.assert_close(*torch.autograd.grad(loss, logits), torch.tensor([[-0.25, 0.25]]))
    kl = 0.5 * math.log(2) + 0.5 * math.log(2 / 3)
    assert kl_divergence(logits, target).item() == pytest.approx(kl)
    assert kl_divergence(logits, logits.softmax(-1)).item() == pytest.approx(0, abs=1e-7)
    sure = torch.tensor([[1.0, 0.0]])  # 0 log 0 = 0
    assert kl_divergence(logits, sure).item() == pytest.approx(math.log(4))


@pytest.mark.skipif(not COMPILED, reason="without numba there is one form")
def test_the_compiled_quantile_huber_is_the_readable_one(monkeypatch):
    """Private: the number of pairs chooses the form, and one form alone is as good."""
    given = {"theta": (5, 2, 7, 25), "target": (5, 2, 7, 30), "tau": (5, 2, 7, 25)}
    theta, target, tau = (torch.randn(s, generator=G) for s in given.values())
    theta.requires_grad_()
    out = []
    for most in (10**12, 0):
        monkeypatch.setattr(criterion, "_MANY_PAIRS", most)
        loss = quantile_huber(theta, target, tau.sigmoid(), kappa=0.7)
        out.append((loss.detach(), *torch.autograd.grad((loss**2).sum(), theta)))
    for readable, compiled in zip(*out, strict=True):
        torch.testing.assert_close(compiled, readable, rtol=1e-5, atol=1e-5)
        assert not torch.equal(compiled, readable), "two forms"


@pytest.mark.parametrize("kappa", [0.0, 0.3, 1.0])
def test_quantile_huber_is_the_naive_loop_with_its_gradient(kappa):
    theta = torch.randn(2, 3, 5, generator=G, requires_grad=True)
    target = torch.randn(2, 3, 4, generator=G)
    tau = torch.rand(2, 3, 5, generator=G)
    loss = quantile_huber(theta, target, tau, kappa=kappa)
    total = torch.zeros(())
    for t in range(2):
        for b in range(3):
            want = naive.quantile_loss(
                theta[t, b], target[t, b].tolist(), tau[t, b].tolist(), kappa
            )
            torch.testing.assert_close(loss[t, b], want)
            total = total + want
    grads = (torch.autograd.grad(x, theta)[0] for x in (loss.sum(), total))
    torch.testing.assert_close(*grads)


def test_midpoints_and_cosines():
    assert midpoints(4).tolist() == [0.125, 0.375, 0.625, 0.875]
    got = cosines(torch.tensor([[0.0, 0.5, 1.0]]), 3)
    want = torch.tensor([[[1.0, 1, 1], [1, 0, -1], [1, -1, 1]]])
    torch.testing.assert_close(got, want, atol=1e-6, rtol=0)


def test_munchausen_by_hand():
    even, half = torch.zeros(1, 2), torch.tensor([0])
    bonus = munchausen_reward(even, half, scale=0.9, temperature=0.5, clip=-1.0)
    assert bonus.item() == pytest.approx(0.9 * 0.5 * math.log(0.5))
    clipped = munchausen_reward(
        torch.tensor([[0.0, 10.0]]), half, scale=0.9, temperature=0.5, clip=-1.0
    )
    assert clipped.item() == pytest.approx(-0.9)
    assert munchausen_value(even, even, temperature=0.5).item() == pytest.approx(0.5 * math.log(2))
    for size in (1e-4, 1e4):  # no exponential overflows
        q = size * torch.tensor([[1.0, 2.0, 3.0]])
        assert log_policy(q, temperature=0.03).isfinite().all()
