"""Updates of SAC, TD3 and DDPG in numpy are those by autograd."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from rlrun.errors import NumericError
from rlrun.kernels.sac_td3 import ActorUpdate, SACKernel, TD3Kernel
from rlrun.optim.compute import Compute
from rlrun.types import Sample, tree_leaves
from tests.buffer.factory import linear
from tests.policy.factory import box_batch, control
from tests.policy.test_control import gradients

NAMES = ("sac", "td3", "ddpg")
CHANGES = [
    {},
    {"activation": "relu"},
    {"activation": "elu", "torso": (7, 6), "head_hidden": ()},
    {"nstep": 1, "reward_scale": 1.0, "reward_clip": 0.02},
    {"td_clip": 0.01},
    {"grad_clip": 1e-3},
    {"actor_every": 2},
    {"target_update_every": 2, "target_tau": None},
    {"torso": (), "head_hidden": (9,)},
    {"lr": linear(1e-2, 1e-3), "actor_lr": linear(2e-3, 1e-2)},
]
SAC_ONLY = [{"temperature_auto": False}, {"target_entropy": 1.5}, {"temperature": 0.0,
             "temperature_auto": False}]  # fmt: skip


def samples(policy) -> list[Sample]:
    """Some with rows that are not valid, NaN in what must not be read, and weights."""
    found, g = [], torch.Generator().manual_seed(0)
    for i in range(6):
        sample = box_batch(policy)
        segment = sample.segment
        valid, over, obs = segment.valid.clone(), segment.terminated.clone(), segment.obs.clone()
        if i % 2:
            valid[0, :3] = False
        over[0, 5] = True
        obs[1:, over[0]] = torch.nan
        weight = torch.rand(len(sample.weight), generator=g)
        segment = replace(segment, valid=valid, terminated=over, obs=obs)
        found.append(Sample(segment, weight, sample.key, 150 * i))
    return found


def close(one, two, name=""):
    torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-6, msg=lambda m: f"{name}: {m}")


def with_kernel(name, **changes):
    """A policy whose updates the kernel computes."""
    policy = control(name, **changes)
    policy.kernel = (SACKernel if name == "sac" else TD3Kernel)(policy)
    return policy


def same(name, changes):
    ours, theirs = with_kernel(name, **changes), control(name, **changes)
    for sample in samples(ours):
        one, two = ours.update(sample), theirs.update(sample)
        close(one.priority, two.priority)
        assert list(one.metrics) == list(two.metrics)
        for key, value in two.metrics.items():
            close(one.metrics[key], value, key)
    for a, b in zip(parameters(ours), parameters(theirs), strict=True):
        assert torch.isfinite(a).all()
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)
    assert ours.updates == theirs.updates
    return ours, theirs


def parameters(policy):
    """Those of all networks, targets included."""
    targets = policy.pi_target_params, policy.q_target_params
    return [p for params in (policy.pi_params, policy.q_params, *targets) for p in params]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_updates_are_the_same(name, changes):
    same(name, changes)


@pytest.mark.parametrize("changes", SAC_ONLY, ids=str)
def test_temperatures_are_the_same(changes):
    ours, theirs = same("sac", changes)
    alpha = ours.log_alpha.exp().item()
    close(ours.log_alpha.exp(), theirs.log_alpha.exp())
    moved = abs(alpha - changes.get("temperature", 0.3)) > 1e-4
    assert moved == changes.get("temperature_auto", True)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_of_one_step_are_the_same(name):
    """Adam's first steps hide a gradient's size: here are the gradients themselves."""
    ours, theirs = with_kernel(name), control(name)
    sample = samples(ours)[1]
    expected = gradients(theirs, theirs.losses(*sample.to(torch.device("cpu"))))
    ours.update(sample)
    found = [*ours.kernel.q_grads, *ours.kernel.pi_grads]
    for a, b in zip(found, expected, strict=True):
        assert b.abs().max() > 0
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_results_belong_to_the_caller(name):
    policy = with_kernel(name)
    first, second, *_ = samples(policy)
    kept = policy.update(first)
    before = kept.priority.clone(), {k: v.clone() for k, v in kept.metrics.items()}
    policy.update(second)
    assert torch.equal(kept.priority, before[0])
    assert all(torch.equal(kept.metrics[k], v) for k, v in before[1].items())
    assert kept.priority.dtype == torch.float32


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"actor_every": 2, "activation": "relu"},
        {"torso": (256, 256), "grad_clip": 1e-3},
    ],
    ids=str,
)
def test_a_second_thread_changes_no_bit(name, changes):
    single, threaded = with_kernel(name, **changes), with_kernel(name, **changes)
    threaded.kernel.compute = Compute(target_thread=True)
    for sample in samples(single):
        one, two = single.update(sample), threaded.update(sample)
        assert torch.equal(one.priority, two.priority)
        assert list(one.metrics) == list(two.metrics)
        assert all(torch.equal(one.metrics[k], two.metrics[k]) for k in one.metrics)
    kept = [tree_leaves(p.state_dict()) for p in (single, threaded)]
    for a, b in zip(*kept, strict=True):
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
    assert threaded.kernel.compute.pool is not None, "nothing ran in a second thread"
    for policy in (single, threaded):
        assert policy.seconds["backward"] > 0


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("second_thread", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_a_diverging_learner_warns_in_neither_thread(name, second_thread):
    policy = with_kernel(name, activation="relu")
    policy.kernel.compute = Compute(target_thread=second_thread)
    with torch.no_grad():
        for p in policy.q_params:
            p.mul_(1e38)
    with pytest.raises(NumericError, match=r"train/grad_norm = (nan|inf) in update 1: "):
        policy.update(samples(policy)[0])


@pytest.mark.parametrize("second_thread", [True, False])
def test_only_the_wait_for_a_second_thread_is_counted(second_thread):
    kernel = with_kernel("sac").kernel
    kernel.compute = Compute(target_thread=second_thread)
    half = ActorUpdate(np.zeros(1, np.float32), 1000.0)
    assert kernel.wait(lambda: half) is half
    assert (kernel.policy.seconds["backward"] >= 1000) != second_thread


def test_loaded_weights_are_those_that_learn():
    """numpy's views must not go stale when a checkpoint is loaded."""
    first, second = with_kernel("sac"), with_kernel("sac", seed=1)
    batch = samples(first)
    first.update(batch[0])
    second.load_state_dict(first.state_dict())
    one, two = first.update(batch[1]), second.update(batch[1])
    assert all(torch.equal(one.metrics[k], two.metrics[k]) for k in one.metrics)
    for a, b in zip(parameters(first), parameters(second), strict=True):
        assert torch.equal(a, b)
