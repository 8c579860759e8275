"""R2D2's update in numpy is R2D2's update, and its LSTM is torch's."""

import warnings
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from rlrun.errors import NumericError
from rlrun.functional.rows import RAW_REWARD, readable
from rlrun.jit import COMPILED
from rlrun.kernels.lstm import NumpyLSTM, _tanh
from rlrun.kernels.r2d2 import R2D2Kernel
from rlrun.optim.compute import Compute
from rlrun.types import Sample, Spec, tree_leaves, tree_map
from tests.acting.test_step import SPACES
from tests.buffer.factory import constant
from tests.kernels.test_dqn import FIVE, drawn
from tests.policy.factory import batch_of, r2d2

pytestmark = pytest.mark.skipif(not COMPILED, reason="its loops are compiled by numba")

WINDOWS = [
    {"burnin_step": 3, "learn_unroll_len": 7, "nstep": 3},
    {"burnin_step": 0, "learn_unroll_len": 4, "nstep": 3, "state_init": "zero"},
    {"burnin_step": 7, "learn_unroll_len": 5, "nstep": 2},  # burn-ins of several lengths
    {"burnin_step": 2, "learn_unroll_len": 2, "nstep": 1},
]
OTHERS = [
    {"double": False},
    {"dueling": False, "head_hidden": (6, 5)},
    {"prev_inputs": False},
    {"torso": (), "hidden": 5},
    {"torso": (), "prev_inputs": False, "head_hidden": (7,)},
    {"torso": (6, 9), "hidden": 3},
    {"value_rescale_eps": None},
    {"td_clip": 0.01},
    {"grad_clip": 1e-3},
    {"grad_clip": None, "target_update_every": 2},
    {"reward_clip": 0.02, "reward_scale": 1.0},
    {"target_update_every": None, "target_tau": 0.1},
    {"memory_lr": constant(1e-4)},
]


def with_kernel(policy):
    """The policy, its updates computed by the kernel."""
    policy.kernel = R2D2Kernel(policy)
    return policy


def test_a_window_after_filler_reads_the_action_before_it():
    """The row before a window is in ``extras``; filler before its first own row holds another."""
    policy = r2d2(burnin_step=3, learn_unroll_len=7, nstep=3)
    sample = batch_of(policy)
    s, g = sample.segment, torch.Generator().manual_seed(0)
    filler = torch.arange(len(s.valid))[:, None] < 2  # two rows, then own rows of an open episode
    s = replace(
        s,
        valid=s.valid & ~filler,
        first=torch.zeros_like(s.first),
        action=torch.randint(5, s.action.shape, generator=g),
        extras=s.extras | {"prev_action": torch.randint(5, s.action.shape[1:], generator=g)},
    )
    obs, previous = R2D2Kernel(policy).inputs(s)
    want_obs, want = policy.inputs(s)
    np.testing.assert_array_equal(obs, want_obs)
    np.testing.assert_allclose(previous, want, rtol=1e-6)
    assert (want[2, :, :-1].argmax(-1) == s.extras["prev_action"])[s.valid[2]].all()


def samples(policy, space: gym.Space | None = None) -> list[Sample]:
    """Windows with NaN in everything that must not be read; some have another acted-on reward.

    ``space``: what observations are drawn from; None: those of the counter stream.
    """
    found, g = [], torch.Generator().manual_seed(0)
    for i in range(4):
        sample = batch_of(policy)
        s = sample.segment
        coin = torch.rand(s.valid.shape, generator=g)
        s = replace(s, terminated=s.terminated | (s.valid & (coin < 0.1)))
        obs = s.obs if space is None else drawn(space, *s.first.shape, seed=i)
        unread = ~readable(s.valid, s.terminated)
        obs = tree_map(torch.clone, obs)
        for x in tree_leaves(obs):
            x[unread] = torch.nan if x.is_floating_point() else 99
        reward = torch.where(s.valid, s.reward, torch.nan)
        extras = dict(s.extras)
        if i == 3:
            extras[RAW_REWARD] = reward + 1
        weight = torch.rand(len(sample.weight), generator=g)
        segment = replace(s, obs=obs, reward=reward, extras=extras)
        found.append(Sample(segment, weight, sample.key, 150 * i))
    return found


@pytest.mark.parametrize("changes", [*WINDOWS, *OTHERS], ids=str)
def test_updates_are_the_same(changes):
    same(changes)


@pytest.mark.parametrize("space", SPACES)
def test_every_observation_is_read_the_same(space):
    same({"spec": Spec(SPACES[space], FIVE)}, SPACES[space])


def test_the_target_network_may_have_a_thread():
    same({"compute": Compute(target_thread=True)})


def same(changes, space=None):
    ours, theirs = with_kernel(r2d2(**changes)), r2d2(**changes)
    with torch.no_grad():  # a target of its own, else swapping the two networks would go unseen
        for p in [*ours.target.parameters(), *theirs.target.parameters()]:
            p.mul_(0.9)
    for sample in samples(ours, space):
        one, two = ours.update(sample), theirs.update(sample)
        torch.testing.assert_close(one.priority, two.priority, rtol=1e-5, atol=1e-6)
        assert list(one.metrics) == list(two.metrics)
        for name, value in two.metrics.items():
            torch.testing.assert_close(one.metrics[name], value, rtol=1e-5, atol=1e-6, msg=name)
    for x, y in zip(
        [*ours.net.parameters(), *ours.target.parameters(), *ours.adam.mean],
        [*theirs.net.parameters(), *theirs.target.parameters(), *theirs.adam.mean],
        strict=True,
    ):
        assert torch.isfinite(x).all()
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("x", [0.0, 1e-3, 0.5, 3.0, 8.0, 8.2, 8.6, 20.0, 1e30, np.inf])
def test_tanh_stays_within_its_bounds(x):
    """Beyond 1 the derivative 1 - y^2 of a saturated unit would have the wrong sign."""
    for value in (np.float32(x), np.float32(-x)):
        assert abs(_tanh(value)) <= 1
        assert _tanh(value) == pytest.approx(np.tanh(value), rel=1e-6)


@pytest.mark.parametrize("units", [1, 32, 65])
def test_the_lstm_is_torchs(units):
    """Outputs, state and gradients, where only the first rows are part of the loss."""
    rows, batch, features, learned = 9, 5, 4, 6
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        lstm, x = nn.LSTM(features, units), 3 * torch.randn(rows, batch, features)
        state, up = torch.randn(2, batch, units), torch.randn(learned, batch, units)
    grads = {p.data_ptr(): np.full(p.shape, np.nan, np.float32) for p in lstm.parameters()}
    ours = NumpyLSTM(lstm, grads)
    trace = ours.unroll(x.numpy(), (state[0].numpy(), state[1].numpy()))
    x.requires_grad_()
    out, (h, c) = lstm(x, (state[:1], state[1:]))
    for one, two in ((trace.hidden[1:], out), (trace.hidden[-1:], h), (trace.cell[-1:], c)):
        torch.testing.assert_close(torch.from_numpy(one), two.detach(), rtol=1e-5, atol=2e-6)
    given = torch.autograd.grad(out[:learned], [x, *lstm.parameters()], up)
    of_inputs = ours.backward(trace, up.numpy(), inputs=features - 1)
    expected = given[0][:learned, ..., : features - 1].reshape(-1, features - 1)
    torch.testing.assert_close(torch.from_numpy(of_inputs), expected, rtol=1e-4, atol=1e-5)
    for p, grad in zip(lstm.parameters(), given[1:], strict=True):
        found = torch.from_numpy(grads[p.data_ptr()])
        torch.testing.assert_close(found, grad, rtol=1e-4, atol=1e-5)


def test_gates_that_saturate_stay_within_their_bounds():
    """The fitted tanh ends at +-1 to rounding, and NaN is not hidden."""
    lstm = nn.LSTM(1, 1)
    for p in lstm.parameters():
        p.data.fill_(1.0)
    x = np.array([-1e30, -50.0, 50.0, 1e30, np.nan], np.float32)[None, :, None]
    zero = np.zeros((5, 1), np.float32)
    h = NumpyLSTM(lstm).unroll(x, (zero, zero)).hidden[1, :, 0]
    np.testing.assert_allclose(h, [0, 0, np.tanh(1), np.tanh(1), np.nan], atol=1e-6)


def test_results_belong_to_the_caller():
    policy = with_kernel(r2d2())
    first, second, *_ = samples(policy)
    kept = policy.update(first)
    before = kept.priority.clone(), {k: v.clone() for k, v in kept.metrics.items()}
    policy.update(second)
    assert torch.equal(kept.priority, before[0])
    assert all(torch.equal(kept.metrics[k], v) for k, v in before[1].items())


@pytest.mark.parametrize("thread", [False, True])
def test_divergence_is_the_learners_to_tell(thread):
    policy = with_kernel(r2d2(compute=Compute(target_thread=thread)))
    sample = samples(policy)[0]
    for p in [*policy.net.parameters(), *policy.target.parameters()]:
        p.data.mul_(1e30)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(NumericError, match=r"train/grad_norm = (nan|inf) in update 1: "):
            policy.update(sample)
