"""Losses of PPO, A2C and IMPALA: hand numbers, naive loops, gradients, padding, edited losses."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rlrun.build.plan import make_plan
from rlrun.build.policy import policy_class, with_kernel
from rlrun.functional.policy import LogProbEntropy
from rlrun.policy.a2c import A2C
from rlrun.policy.base.rollout import Minibatch, RolloutRows
from rlrun.policy.impala import IMPALA
from rlrun.policy.ppo import PPO
from tests.compose import config
from tests.policy.test_onpolicy import SMALL, collector_of, rollout_of
from tests.reference.traces import gae_rows, ppo_row, vtrace_rows

D = torch.float64
COEF = {"value_coef": 0.5, "entropy_coef": 0.1, "gamma": 0.9, "normalize_advantage": False}


def t(*values):
    return torch.tensor(values, dtype=D)


def numbers(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def policy_of(entropy, **keys):
    """What a loss reads of a policy; the network's parameters of a distribution are log pi(a)."""

    def evaluate_actions(params, action):
        return LogProbEntropy(params, entropy)

    net = SimpleNamespace(evaluate_actions=evaluate_actions)
    return SimpleNamespace(config=SimpleNamespace(**(COEF | keys)), net=net)


def loss_and_grads(loss, *leaves):
    """The loss, its gradients over ``leaves``, and its metrics."""
    leaves = [x.clone().requires_grad_() for x in leaves]
    value, metrics = loss(*leaves)
    return value.detach(), torch.autograd.grad(value, leaves, materialize_grads=True), metrics


def padded(valid, *tensors):
    return [torch.where(valid, x, torch.nan) for x in tensors]


# -- PPO -------------------------------------------------------------------------------------------


def minibatch(behaviour, advantage, target, old, valid):
    given = (behaviour, advantage, target, old, valid)
    return Minibatch((), torch.empty(0), torch.empty(0), (), torch.empty(0), *given)


def ppo_of(log_prob, value, entropy, batch, *, clip=0.2, **keys):
    def loss(log_prob, value, entropy):
        policy = policy_of(entropy, **({"value_clip": None} | keys))
        return PPO.loss(policy, batch, log_prob, value, clip, with_metrics=True)

    return loss_and_grads(loss, log_prob, value, entropy)


def test_surrogate_by_hand():
    """Ratios 1.5 and 0.5 at clip 0.2, with both signs of the advantage."""
    log_prob, zero = t(1.5, 1.5, 0.5, 0.5, 1.0).log(), torch.zeros(5, dtype=D)
    batch = minibatch(zero, t(1, -1, 1, -1, 2), zero, zero, torch.ones(5, dtype=torch.bool))
    loss, grads, metrics = ppo_of(log_prob, zero, zero, batch)
    want = -(1.2 - 1.5 + 0.5 - 0.8 + 2) / 5
    assert loss.item() == pytest.approx(want)
    assert metrics["train/policy_loss"].item() == pytest.approx(want)
    np.testing.assert_allclose(grads[0] * 5, [0, 1.5, -0.5, 0, -2])
    np.testing.assert_allclose(grads[2] * 5, [-0.1] * 5)
    assert metrics["train/clip_fraction"].item() == pytest.approx(4 / 5)
    kl = 2 * (0.5 - math.log(1.5)) + 2 * (-0.5 - math.log(0.5))
    assert metrics["train/approx_kl"].item() == pytest.approx(kl / 5)


def test_value_clip_by_hand():
    """V moved from 0 to 1, clipped at 0.2: the larger error counts, a clipped one has no grad."""
    value, zero = t(1, 1), t(0, 0)
    batch = minibatch(zero, zero, t(2, -2), zero, torch.ones(2, dtype=torch.bool))
    _, grads, metrics = ppo_of(zero, value, zero, batch, value_clip=0.2, value_coef=1.0)
    assert metrics["train/value_loss"].item() == pytest.approx(0.5 * (1.8**2 + 3**2) / 2)
    np.testing.assert_allclose(grads[1], [0, 1.5])


@pytest.mark.parametrize("value_clip", [None, 0.3])
@pytest.mark.parametrize("seed", range(3))
def test_ppo_loss_is_the_naive_one(seed, value_clip):
    """NaN in padding reaches neither loss, gradients nor metrics."""
    log_prob, behaviour, advantage = (0.4 * numbers(6, 4, seed=seed * 9 + i) for i in range(3))
    value, target, old, entropy = (numbers(6, 4, seed=seed * 9 + i) for i in range(3, 7))
    valid = torch.from_numpy(np.random.default_rng(seed).random((6, 4)) < 0.7)
    count = valid.sum()

    def naive(log_prob, value, entropy):
        ratio = (log_prob - behaviour).exp()
        policy = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        error = (value - target).square()
        if value_clip is not None:
            kept = old + (value - old).clamp(-value_clip, value_clip)
            error = torch.maximum(error, (kept - target).square())
        return (policy + 0.25 * error - 0.1 * entropy)[valid].sum() / count, {}

    want, want_grads, _ = loss_and_grads(naive, log_prob, value, entropy)
    wild = padded(valid, log_prob, value, entropy)
    batch = minibatch(*padded(valid, behaviour, advantage, target, old), valid)
    loss, grads, metrics = ppo_of(*wild, batch, value_clip=value_clip)
    torch.testing.assert_close(loss, want)
    for got, expected in zip(grads, want_grads, strict=True):
        torch.testing.assert_close(got, expected)
    rows = zip(log_prob[valid], behaviour[valid], advantage[valid], strict=True)
    surrogate = -sum(ppo_row(*(x.item() for x in row), 0.2) for row in rows) / count.item()
    assert metrics["train/policy_loss"].item() == pytest.approx(surrogate)
    torch.testing.assert_close(metrics["train/entropy"], entropy[valid].mean())
    assert all(torch.isfinite(x) for x in metrics.values())


# -- A2C and IMPALA --------------------------------------------------------------------------------


def rollout(seed, steps=8, columns=3):
    """Rows with NaN in padding, log pi and V of every row, and the entropy."""
    rng = np.random.default_rng(seed)
    valid, terminated, truncated = (
        torch.from_numpy(rng.random((steps, columns)) < share) for share in (0.8, 0.2, 0.2)
    )
    terminated, truncated = terminated & valid, truncated & valid
    shape = (steps, columns)
    behaviour, reward, entropy = (numbers(*shape, seed=seed + i) for i in (1, 2, 3))
    log_prob, value = (numbers(steps + 1, columns, seed=seed + i) for i in (4, 5))
    behaviour, reward, entropy = padded(valid, behaviour, reward, entropy)
    read = torch.cat([valid, valid[:1] & False]) | torch.cat([valid[:1] & False, valid])
    log_prob, value = padded(read, log_prob, value)
    none = torch.empty(0)
    index = valid.flatten().nonzero().squeeze(-1)
    rows = RolloutRows(
        (), none, none, (), none, behaviour, reward, terminated, truncated, valid, index
    )
    return rows, log_prob, value, entropy


def naive_columns(rows, function, *tensors):
    """Results of ``function`` of lists, column by column, as tensors [T, B]."""
    ends = (rows.terminated, rows.truncated, rows.valid)
    columns = [
        function(*([y.item() for y in x[:, b]] for x in (*tensors, *ends)))
        for b in range(rows.valid.shape[1])
    ]
    return torch.tensor(columns, dtype=D)


@pytest.mark.parametrize("seed", range(0, 30, 10))
@pytest.mark.parametrize("kind", ["a2c", "impala"])
def test_loss_is_the_naive_one(kind, seed):
    rows, log_prob, value, entropy = rollout(seed)
    valid, count = rows.valid, rows.valid.sum()
    keys = {"gae_lambda": 0.8, "vtrace_lambda": 0.8, "rho_clip": 1.1, "c_clip": 0.9}

    def loss(log_prob, value, entropy):
        cls = A2C if kind == "a2c" else IMPALA
        return cls.loss(policy_of(entropy, **keys), rows, log_prob, value)

    got, grads, metrics = loss_and_grads(loss, log_prob, value, entropy)
    if kind == "a2c":

        def a2c(*lists):
            return gae_rows(*lists, 0.9, 0.8)

        advantage = naive_columns(rows, a2c, rows.reward, value).T
        target = advantage + value[:-1]
    else:
        ratio = (log_prob[:-1] - rows.behaviour_log_prob).exp()

        def impala(*lists):
            return vtrace_rows(*lists, 0.9, 0.8, 1.1, 0.9)

        both = naive_columns(rows, impala, ratio, rows.reward, value)
        target, advantage = both[:, 0].T, both[:, 1].T
        clipped = (ratio[valid] > 1.1).to(D).mean()
        torch.testing.assert_close(metrics["train/rho_clipped"].to(D), clipped)
    error = value[:-1] - target
    per_row = -advantage * log_prob[:-1] + 0.25 * error.square() - 0.1 * entropy
    torch.testing.assert_close(got, per_row[valid].sum() / count)
    assert all(torch.isfinite(x) for x in metrics.values())
    zero = torch.zeros(1, valid.shape[1], dtype=D)
    want = (-advantage / count, 0.5 * error / count, torch.full_like(entropy, -0.1 / count))
    want = [torch.where(valid, x, 0.0) for x in want]
    torch.testing.assert_close(grads[0], torch.cat([want[0], zero]))
    torch.testing.assert_close(grads[1], torch.cat([want[1], zero]))
    torch.testing.assert_close(grads[2], want[2])


# -- edited losses ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ppo", "a2c", "impala"])
def test_a_subclass_trains_with_its_own_loss(name):
    """A loss of the values alone changes the value's parameters alone; no kernel stands in."""

    class ValueOnly(policy_class(name)):
        def loss(self, batch, params, value, *args, **kwargs):
            _, metrics = super().loss(batch, params, value, *args, **kwargs)
            return (value - 3).square().mean(), metrics

    plan = make_plan(config(f"policy={name}", "env=cartpole", *SMALL))
    c = plan.config
    policy = with_kernel(
        ValueOnly(
            c.policy, c.torso, c.memory, spec=plan.policy_spec, seed=0, total_steps=1000,
            device=torch.device("cpu"),
        ), plan,
    )  # fmt: skip
    assert policy.kernel is None
    before = {k: v.clone() for k, v in policy.weights().items()}
    policy.update(rollout_of(collector_of(policy=name)))
    changed = {
        k.split(".")[0] for k, v in policy.weights().items() if not torch.equal(v, before[k])
    }
    assert changed == {"value", "value_trunk"}
