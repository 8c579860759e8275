"""Every switch of the value-based core, alone and together: a naive loop, padding, noise, masks."""

import copy
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlrun.types import Spec
from tests.policy.factory import batch_of, dqn, gradient, r2d2
from tests.policy.test_r2d2 import poisoned, window
from tests.reference.value import one_window

KINDS = ["none", "categorical", "quantile", "implicit"]
SPREAD = KINDS[1:]
PLAIN = {"value_rescale_eps": None}
RAINBOW = {"distribution": "categorical", "noisy": 0.5, **PLAIN}
MUNCHAUSEN = {"munchausen": 0.9, "double": False, **PLAIN}
SWITCHES = [
    *({"distribution": kind} for kind in SPREAD),
    *({"distribution": kind, **PLAIN, "double": False, "dueling": False} for kind in SPREAD),
    *({"distribution": kind, "noisy": 0.5, "head_hidden": (6,)} for kind in KINDS),
    *({"distribution": kind, **MUNCHAUSEN} for kind in KINDS if kind != "categorical"),
    {"distribution": "implicit", **MUNCHAUSEN, "noisy": 0.5, "nstep": 1},
    {**RAINBOW, "nstep": 1},
    {"distribution": "quantile", "kappa": 0.0},
]


def moved(policy, seed=0):
    """The target network somewhere else than the online one."""
    with torch.no_grad():
        for p in policy.target.parameters():
            p += 0.2 * torch.randn(p.shape, generator=torch.Generator().manual_seed(seed))
    return policy


def draws_of(policy, count):
    lead = (count,) if policy.config.name == "dqn" else (policy.window.rows - 3, count)
    return policy.noise(*lead)


@pytest.mark.parametrize("switches", SWITCHES, ids=str)
@pytest.mark.parametrize("make", [dqn, r2d2])
def test_loss_is_the_naive_loop(make, switches):
    """Loss, gradient and priorities of windows with mixed ends, burn-ins and paddings."""
    policy = moved(make(**switches))
    segment = batch_of(policy).segment
    count = segment.reward.shape[1]
    weight = torch.linspace(0.2, 1, count)
    out = policy.loss(segment, weight)
    naive = [one_window(policy, segment, b, draws_of(policy, count)) for b in range(count)]
    loss = sum(w * x for w, (x, _) in zip(weight, naive, strict=True)) / count
    torch.testing.assert_close(out.loss, loss.detach(), rtol=1e-4, atol=1e-6)
    eta = getattr(policy.config, "eta", 1.0)
    for got, (_, found) in zip(out.priority, naive, strict=True):
        want = eta * max(found) + (1 - eta) * np.mean(found) if found else 0.0
        assert got.item() == pytest.approx(want, rel=2e-3, abs=2e-5)
    expected = torch.autograd.grad(loss, list(policy.net.parameters()))
    for got, want in zip(gradient(policy, out), expected, strict=True):
        torch.testing.assert_close(got, want, rtol=2e-3, atol=2e-6)


@pytest.mark.parametrize("switches", SWITCHES, ids=str)
@pytest.mark.parametrize("value", [1e9, float("nan")])
@pytest.mark.parametrize("make", [dqn, r2d2])
def test_padding_changes_no_bit(make, switches, value):
    policy = make(**switches)
    segment = batch_of(policy).segment
    weight = torch.ones(segment.reward.shape[1])
    results = []
    for s in (segment, poisoned(segment, value)):
        out = policy.loss(s, weight)
        results.append((out.loss, out.priority, *gradient(policy, out)))
    for clean, dirty in zip(*results, strict=True):
        assert torch.equal(clean, dirty)


@pytest.mark.parametrize("kind", ["categorical", "quantile"])
@pytest.mark.parametrize("noisy", [None, 0.5])
def test_a_batch_is_its_windows(kind, noisy):
    """Invariant 7 (implicit levels are drawn per batch; the naive loop covers those)."""
    policy = moved(r2d2(distribution=kind, noisy=noisy))
    segment = batch_of(policy).segment
    count = segment.reward.shape[1]
    whole = policy.loss(segment, torch.ones(count))
    want = gradient(policy, whole)
    total = [torch.zeros_like(g) for g in want]
    for b in range(count):
        alone = policy.loss(window(segment, b), torch.ones(1))
        torch.testing.assert_close(alone.priority[0], whole.priority[b], rtol=1e-4, atol=1e-6)
        total = [t + p / count for t, p in zip(total, gradient(policy, alone), strict=True)]
    for t, g in zip(total, want, strict=True):
        torch.testing.assert_close(t, g, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("make", [dqn, r2d2])
def test_duplicates_in_a_batch_count_twice(make):
    policy = moved(make(distribution="categorical", noisy=0.5))
    segment = batch_of(policy).segment
    one = policy.loss(window(segment, 0), torch.ones(1))
    names = ("obs", "first", "action", "reward", "terminated", "truncated", "valid")
    first = window(segment, 0)
    twice = replace(
        first,
        **{n: getattr(first, n).repeat_interleave(2, 1) for n in names},
        extras={n: x.repeat_interleave(2, 0) for n, x in first.extras.items()},
        state=tuple(x.repeat_interleave(2, 0) for x in first.state),
    )
    two = policy.loss(twice, torch.ones(2))
    torch.testing.assert_close(two.loss, one.loss)
    torch.testing.assert_close(two.priority, one.priority.repeat(2))


@pytest.mark.parametrize("switches", [{"distribution": k} for k in KINDS] + [RAINBOW, MUNCHAUSEN])
@pytest.mark.parametrize("make", [dqn, r2d2])
def test_overfits_one_sample(make, switches):
    """With a target that stays, the predicted means reach the target's."""
    fixed = {"target_update_every": 10_000, "double": False, "reward_scale": 3e-3}
    wide = {"v_min": -2.0, "v_max": 8.0, "adam_eps": 1e-8, "value_rescale_eps": None}
    policy = make(**(switches | fixed | wide))
    rows = [3, 2] if make is r2d2 else [2]
    sample = batch_of(policy, lengths=(rows,), ends=((True, False)[: len(rows)],))
    errors = [policy.update(sample).metrics["train/td_abs"].item() for _ in range(160)]
    assert np.mean(errors[-20:]) < (0.35 if "noisy" in switches else 0.15) * errors[0]


@pytest.mark.parametrize("switches", [RAINBOW, {"distribution": "implicit", "noisy": 0.5}])
@pytest.mark.parametrize("make", [dqn, r2d2])
def test_noise_depends_on_the_update_and_is_restored_from_a_checkpoint(make, switches):
    policy, other = make(**switches), make(seed=7, **switches)
    sample = batch_of(policy)
    weight = torch.ones(len(sample.key))

    def loss(p):
        return p.loss(sample.segment, weight).loss

    assert torch.equal(loss(policy), loss(policy)), "asking changes nothing"
    before = loss(policy)
    policy.updates += 1
    assert not torch.equal(before, loss(policy)), "the next update draws anew"
    other.load_state_dict(copy.deepcopy(policy.state_dict()))
    assert torch.equal(loss(policy), loss(other))
    for _ in range(3):
        policy.update(sample)
        other.update(sample)
    for a, b in zip(policy.net.parameters(), other.net.parameters(), strict=True):
        assert torch.equal(a, b)


def test_online_selecting_and_target_noise_are_independent():
    policy = dqn(noisy=0.5)
    noise = policy.noise_generator(3, 4)
    eps = [torch.cat([x for layer in d.layers for x in layer])
           for d in (noise.online, noise.choice, noise.target)]  # fmt: skip
    assert len({tuple(x.tolist()) for x in eps}) == 3
    many = torch.stack([
        torch.cat([d.online.layers[0][0], d.target.layers[0][0]])
        for d in (policy.noise_generator(i, 4) for i in range(2000))
    ])  # fmt: skip
    sizes = many.shape[1]
    correlation = torch.corrcoef(many.T) - torch.eye(sizes)
    assert correlation.abs().max() < 0.12
    torch.testing.assert_close(many.mean(0), torch.zeros(sizes), atol=0.08, rtol=0)
    # f(eps) = sign sqrt |eps|: its square has the mean of |eps|, sqrt(2 / pi)
    want = torch.full((sizes,), (2 / np.pi) ** 0.5)
    torch.testing.assert_close((many**2).mean(0), want, atol=0.08, rtol=0)


def test_noise_is_a_switch_of_exploring():
    """Greedy: mean weights; exploring: every environment and step noise of its own."""
    policy = dqn(noisy=3.0, prev_inputs=False)
    actor = policy.actor(64)
    obs = np.ones((64, 3), np.float32)
    given = (obs, np.ones(64, bool), np.zeros(64, int), np.zeros(64, np.float32), ())
    none = np.zeros(64, np.float32)
    greedy = [actor.act(*given, explore=None).action for _ in range(2)]
    assert len({*greedy[0], *greedy[1]}) == 1
    first, second = (actor.act(*given, explore=none).action for _ in range(2))
    assert len({*first}) > 1
    assert (first != second).any()
    np.testing.assert_array_equal(actor.act(*given, explore=None).action, greedy[0])


def test_noise_is_held_until_the_weights_are_fetched():
    policy = dqn(noisy=3.0, noisy_resample="chunk", prev_inputs=False)
    actor = policy.actor(64)
    obs = np.ones((64, 3), np.float32)
    given = (obs, np.ones(64, bool), np.zeros(64, int), np.zeros(64, np.float32), ())
    none = np.zeros(64, np.float32)
    first, second = (actor.act(*given, explore=none).action for _ in range(2))
    assert len({*first}) > 1, "every environment has its own"
    np.testing.assert_array_equal(first, second)
    actor.refresh()
    third = actor.act(*given, explore=none).action
    assert (first != third).any()
    assert len({*actor.act(*given, explore=None).action}) == 1
    after = actor.act(*given, explore=none).action
    assert (after != third).any(), "greedy steps end it"
    assert len({*after}) > 1, "fresh noise behind them, not mean weights"


SPACE = gym.spaces.Dict(
    {
        "action_mask": gym.spaces.MultiBinary(5),
        "observation": gym.spaces.Box(-np.inf, np.inf, (3,), np.float32),
    }
)


def masked_batch(policy, seed=0):
    """A batch whose observations carry random masks that allow what was done."""
    spec_free = dqn() if policy.config.name == "dqn" else r2d2()
    segment = batch_of(spec_free).segment
    g = torch.Generator().manual_seed(seed)
    mask = torch.rand(*segment.obs.shape[:2], 5, generator=g) < 0.4
    mask[..., 0] |= ~mask.any(-1)
    action = torch.where(segment.valid, segment.action, 0)
    mask[:-1].scatter_(-1, action.unsqueeze(-1), True)
    obs = {"action_mask": mask.to(torch.int8), "observation": segment.obs}
    return replace(segment, obs=obs)


@pytest.mark.parametrize(
    "switches", [{}, {"double": False}, MUNCHAUSEN, RAINBOW, {"distribution": "quantile"}], ids=str
)
@pytest.mark.parametrize("make", [dqn, r2d2])
def test_masks_are_those_of_the_naive_loop(make, switches):
    policy = moved(make(spec=Spec(SPACE, gym.spaces.Discrete(5)), **switches))
    segment = masked_batch(policy)
    count = segment.reward.shape[1]
    out = policy.loss(segment, torch.ones(count))
    naive = [one_window(policy, segment, b, draws_of(policy, count)) for b in range(count)]
    loss = sum(x for x, _ in naive) / count
    torch.testing.assert_close(out.loss, loss.detach(), rtol=1e-4, atol=1e-6)
    free = replace(segment, obs={**segment.obs, "action_mask": torch.ones_like(
        segment.obs["action_mask"])})  # fmt: skip
    assert not torch.equal(policy.loss(free, torch.ones(count)).loss, out.loss), "no mask mattered"
    assert policy.net.torso.layers[0].in_features == 3, "networks do not read the mask"
