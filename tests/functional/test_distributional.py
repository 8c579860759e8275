"""C51's projection, quantile Huber, Munchausen: hand numbers, naive loops, gradients, relations."""

import math

import pytest
import torch

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
from tests.reference import distributional as naive

G = torch.Generator().manual_seed(0)
ATOMS = support(0.0, 2.0, 3)


def test_support():
    assert support(-1, 2, 4).tolist() == [-1, 0, 1, 2]


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


@pytest.mark.parametrize("atoms", [2, 3, 51])
def test_projection_is_the_naive_loop_and_keeps_means_within(atoms):
    grid = support(-3.0, 5.0, atoms)
    values = 4 * torch.randn(7, 4, 9, generator=G)
    p = torch.randn(7, 4, 9, generator=G).softmax(-1)
    got = project(values, p, grid)
    assert got.shape == (7, 4, atoms)
    for t in range(7):
        for b in range(4):
            lists = (x[t, b].tolist() for x in (values, p))
            want = torch.tensor(naive.project(*lists, grid.tolist()))
            torch.testing.assert_close(got[t, b], want, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(got.sum(-1), torch.ones(7, 4))
    mean = (p * values.clamp(-3, 5)).sum(-1)
    torch.testing.assert_close(got @ grid, mean, rtol=1e-4, atol=1e-5)


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


@pytest.mark.parametrize("masked", [False, True])
def test_munchausen_is_the_naive_loop(masked):
    q, tau = torch.randn(4, 3, 5, generator=G), 0.3
    atoms = torch.randn(4, 3, 5, 6, generator=G)
    action = torch.randint(5, (4, 3), generator=G)
    mask = torch.rand(4, 3, 5, generator=G) < 0.5
    mask.scatter_(-1, action.unsqueeze(-1), True)
    allowed = mask if masked else None
    bonus = munchausen_reward(q, action, scale=0.7, temperature=tau, clip=-0.5, allowed=allowed)
    value = munchausen_value(q, q, temperature=tau, allowed=allowed)
    spread = munchausen_value(atoms, q, temperature=tau, allowed=allowed)
    for t in range(4):
        for b in range(3):
            pi = naive.softmax(q[t, b].tolist(), tau, mask[t, b].tolist() if masked else None)
            log = tau * math.log(pi[action[t, b]])
            assert bonus[t, b].item() == pytest.approx(0.7 * max(log, -0.5), rel=1e-4, abs=1e-6)
            terms = [(p, -tau * math.log(p)) for p in pi if p > 0]
            kept = [a for a, p in enumerate(pi) if p > 0]
            want = sum(p * (q[t, b, a] + h) for (p, h), a in zip(terms, kept, strict=True))
            torch.testing.assert_close(value[t, b], want, rtol=1e-4, atol=1e-5)
            want = sum(p * (atoms[t, b, a] + h) for (p, h), a in zip(terms, kept, strict=True))
            torch.testing.assert_close(spread[t, b], want, rtol=1e-4, atol=1e-5)
