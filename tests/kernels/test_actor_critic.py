"""Kernels of on-policy networks against autograd: values, gradients and updates."""

import functools
import itertools
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlrun.functional.policy import standardise
from rlrun.kernels import policy_losses
from rlrun.kernels.actor_critic import NumpyActorCritic
from rlrun.kernels.ppo import PPOKernel
from rlrun.kernels.rollout import A2CKernel, IMPALAKernel
from rlrun.nets.actor_critic import ActorCritic
from rlrun.optim.adam import FlatParameters
from rlrun.policy.base.rollout import RolloutRows
from rlrun.schema import TorsoConfig
from rlrun.types import Spec, tree_map
from tests.compose import config
from tests.nets.cells import memory_config
from tests.policy.test_onpolicy import collector_of, rollout_of
from tests.policy.test_onpolicy_losses import minibatch, ppo_of

ACTIONS = {
    "one": gym.spaces.Discrete(3),
    "several": gym.spaces.MultiDiscrete([2, 4, 3]),
    "real": gym.spaces.Box(-1, 1, (2,), np.float32),
}
OBS = {
    "box": gym.spaces.Box(-5, 5, (3,), np.float32),
    "discrete": gym.spaces.Discrete(4, start=1),
}
SHAPES = list(itertools.product(
    ACTIONS, ("tanh", "relu", "elu"), ((), (8,), (8, 6)), (False, True), ((), (5,)), (False, True),
))  # fmt: skip


@functools.cache
def composed():
    return config("policy=ppo", "env=cartpole", "policy.orthogonal_init=false").policy


def network(action, torso=(8,), activation="tanh", *, obs="box", memory="none", **keys):
    spec, layers = Spec(OBS[obs], ACTIONS[action]), TorsoConfig("mlp", torso, activation, False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        memory = memory_config(memory, 4, 1)
        net = ActorCritic(replace(composed(), **keys), layers, memory, spec)
    with torch.no_grad():
        for i, p in enumerate(net.parameters()):
            p += 0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(i))
    return net


def rows_of(net, obs, rows=5, columns=3):
    """Rows of a rollout (their last row is the bootstrap), and gradients of all but the last."""
    make = torch.Generator().manual_seed(4)
    lead = (rows + 1, columns)
    seen = np.stack([np.asarray(OBS[obs].sample()) for _ in range(rows * columns + columns)])
    seen = torch.from_numpy(seen).reshape(*lead, *seen.shape[1:])
    actions = np.stack([net.space.sample() for _ in range(rows * columns)])
    action = torch.from_numpy(actions).reshape(rows, columns, *actions.shape[1:])
    rewards = torch.randn(lead, generator=make)
    previous = net.encode_previous(torch.cat([action, action[:1]]), rewards)
    grads = [torch.randn(rows, columns, generator=make) for _ in range(3)]
    first = torch.zeros(lead, dtype=torch.bool)
    none = torch.zeros(rows, columns)
    ends = [first[:-1]] * 3
    given = RolloutRows(seen, previous, first, (), action, none, none, *ends, none)
    return given, grads


@pytest.mark.parametrize("policy", ["ppo", "a2c", "impala", "pqn"])
@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_a_rollout_without_a_valid_row_changes_nothing(policy, backend):
    collector = collector_of(f"learner.backend={backend}", policy=policy)
    sample, learner = rollout_of(collector), collector.policy
    none = torch.zeros_like(sample.segment.valid)
    before = [w.clone() for w in learner.weights().values()]
    out = learner.update(replace(sample, segment=replace(sample.segment, valid=none)))
    assert (learner.kernel is None) == (backend == "torch")
    assert all(x.isfinite() for x in out.metrics.values())
    for was, now in zip(before, learner.weights().values(), strict=True):
        torch.testing.assert_close(now, was, rtol=0, atol=0)


def by_autograd(net, rows, grads):
    """Outputs, log pi, entropy and parameters' gradients; ``grads``: over log pi, V, entropy."""
    params, value = net(rows.obs, rows.previous, rows.first, ())
    choice = net.evaluate_actions(params[:-1], rows.action)
    outputs = [choice.log_prob, value[:-1], choice.entropy][: len(grads)]
    return params, value, *choice, *torch.autograd.grad(outputs, list(net.parameters()), grads)


def by_kernel(net, rows, grads):
    flat = FlatParameters(net.parameters())
    kernel = NumpyActorCritic(net, flat)
    params, value = kernel.outputs(rows)
    head, action = params[:-1].flatten(0, 1).numpy(), rows.action.flatten(0, 1).numpy()
    evaluated = kernel.evaluate(head, action, entropy=True)
    log_prob, value_grad, *entropy = (g.flatten().numpy() for g in grads)
    kernel.backward_from_log_prob(evaluated, log_prob, value_grad, *(entropy or [None]))
    lead = rows.action.shape[:2]
    choice = (torch.from_numpy(x).reshape(lead) for x in (evaluated.log_prob, evaluated.entropy))
    return params, value, *choice, *flat.grad_views


def compare(net, obs, *, entropy):
    for space in (net.space, OBS[obs]):
        space.seed(0)
    rows, grads = rows_of(net, obs)
    grads = grads if entropy else grads[:2]
    found = by_autograd(net, rows, grads), by_kernel(net, rows, grads)
    for a, b in zip(*found, strict=True):
        assert a.shape == b.shape
        torch.testing.assert_close(a.detach(), b, rtol=1e-5, atol=1e-5)
    assert len(found[0]) == 4 + len(list(net.parameters()))
    assert any(part.abs().max() > 0.01 for part in found[0][4:])


@pytest.mark.parametrize(
    ("action", "activation", "torso", "separate", "head", "prev_inputs"), SHAPES
)
def test_values_and_gradients_match_autograd(
    action, activation, torso, separate, head, prev_inputs
):
    keys = {"separate_value": separate, "head_hidden": head, "prev_inputs": prev_inputs}
    net = network(action, torso, activation, **keys)
    compare(net, "box", entropy=prev_inputs)


def test_of_numbers_and_of_standardised_observations():
    compare(network("several", obs="discrete"), "discrete", entropy=True)
    net = network("one", normalize_obs=True)
    net.moments.add(torch.randn(50, 3) * 3 + 1)
    compare(net, "box", entropy=True)


# -- loss gradients -------------------------------------------------------------------------------


@pytest.mark.parametrize("value_clip", [None, 0.3])
@pytest.mark.parametrize("rows", [1, 2, 300])
def test_loss_gradients_are_those_of_ppo_s_loss(rows, value_clip):
    rng = np.random.default_rng(rows)
    log_prob, behaviour, gain, value, target, old = rng.normal(0, 0.4, (6, rows)).astype("f4")
    given = (torch.from_numpy(x) for x in (behaviour, gain, target, old))
    batch = minibatch(*given, torch.ones(rows, dtype=torch.bool))
    leaves = (torch.from_numpy(x) for x in (log_prob, value, old))
    _, want, _ = ppo_of(*leaves, batch, value_clip=value_clip, value_coef=1.0)
    same = {"rtol": 1e-5, "atol": 1e-6}
    got = policy_losses.ppo_grad(log_prob, behaviour, gain, clip=0.2)
    np.testing.assert_allclose(got, want[0], **same)
    assert got.dtype == np.float32
    assert rows < 300 or 0 < (got == 0).mean() < 1, "clipped rows and others"
    got = policy_losses.value_grad(value, target, old, clip=value_clip)
    np.testing.assert_allclose(got, want[1], **same)
    assert value_clip is None or rows < 300 or 0 < (got == 0).mean() < 1
    np.testing.assert_allclose(policy_losses.entropy_grad(rows, 0.1), want[2], **same)
    assert policy_losses.entropy_grad(rows, 0) is None


@pytest.mark.parametrize("rows", [0, 1, 2, 300])
def test_standardised_as_in_torch(rows):
    gain = np.random.default_rng(rows).normal(0, 0.4, rows).astype("f4")
    want = standardise(torch.from_numpy(gain), torch.ones(rows, dtype=torch.bool))
    got = policy_losses.standardise(gain)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    assert got.dtype == np.float32
    for grad in (policy_losses.ppo_grad, policy_losses.value_grad):
        assert grad(gain[:0], gain[:0], gain[:0], clip=0.2).shape == (0,)


def test_far_logits_overflow_nowhere():
    logits = np.array([[300.0, -300.0], [0.0, 0.0]], np.float32)
    drawn = policy_losses.categorical(logits, np.array([1, 0]), (2,), entropy=True)
    np.testing.assert_allclose(drawn.log_prob, [-600, -np.log(2)], rtol=1e-6)
    grad = policy_losses.categorical_grad(drawn, np.ones(2, np.float32), np.ones(2, np.float32))
    np.testing.assert_allclose(grad, [[-1, 1], [0.5, -0.5]], atol=1e-6)


# -- updates ---------------------------------------------------------------------------------------

MORE = [
    ("policy.separate_value=true",),
    ("policy.separate_value=false", "policy.value_clip=0.1", "policy.grad_clip=null"),
    ("policy.entropy_coef=0", "policy.normalize_advantage=false", "policy.grad_clip=0.05"),
    ("policy.normalize_obs=true", "learner.batch_size=1000", "policy.prev_inputs=true"),
    ("policy.target_kl=0.001",),
]


@pytest.mark.parametrize("env", ["cartpole", "pendulum"])
@pytest.mark.parametrize("more", MORE, ids=str)
def test_an_update_is_the_same_either_way(more, env):
    """Values, parameters and metrics after some updates, of PPO in numpy and by autograd."""
    more = ("learner.batch_size=24", "policy.epochs=3", *more)
    a = collector_of(*more, env=env)
    b = collector_of(*more, "learner.backend=torch", env=env)
    a.policy.kernel = PPOKernel(a.policy)
    assert b.policy.kernel is None
    for _ in range(2):
        sample = rollout_of(a)
        one, two = a.policy.update(sample), b.policy.update(sample)
        assert one.steps == two.steps
        assert one.metrics.keys() == two.metrics.keys()
        for name, value in one.metrics.items():
            want = two.metrics[name]
            assert value.shape == want.shape == ()
            np.testing.assert_allclose(value, want, rtol=1e-3, atol=1e-5, err_msg=name)
    for p, q in zip(a.policy.net.parameters(), b.policy.net.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("policy", ["a2c", "impala"])
@pytest.mark.parametrize("env", ["cartpole", "pendulum"])
def test_single_steps_are_the_same_either_way(policy, env):
    """On rows of an ever older policy: where ratios are 1 rounding decides which exceed it."""
    more = ("policy.rho_clip=1.01",) if policy == "impala" else ()
    a = collector_of(*more, policy=policy, env=env)
    b = collector_of(*more, "learner.backend=torch", policy=policy, env=env)
    a.policy.kernel = (A2CKernel if policy == "a2c" else IMPALAKernel)(a.policy)
    assert b.policy.kernel is None
    sample = rollout_of(a)
    for _ in range(4):
        one, two = a.policy.update(sample), b.policy.update(sample)
        for name, value in one.metrics.items():
            np.testing.assert_allclose(value, two.metrics[name], 1e-4, 1e-5, err_msg=name)
    assert policy == "a2c" or 0 < one.metrics["train/rho_clipped"] < 1
    for p, q in zip(a.policy.net.parameters(), b.policy.net.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)


def test_telling_and_a_new_start_change_no_bit():
    """The same rollout twice from the same state; in between the network was used otherwise."""
    a = collector_of("learner.batch_size=24")
    a.policy.kernel = PPOKernel(a.policy)
    sample = rollout_of(a)
    begun = tree_map(
        lambda x: x.clone() if isinstance(x, torch.Tensor) else x, a.policy.state_dict()
    )
    ends = []
    for _ in range(2):
        a.policy.load_state_dict(begun)
        a.policy.update(sample)
        ends.append([p.detach().clone() for p in a.policy.net.parameters()])
        a.policy.update(rollout_of(a))
    for p, q in zip(*ends, strict=True):
        assert torch.equal(p, q)
