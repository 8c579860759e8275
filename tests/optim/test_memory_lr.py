"""policy.memory_lr: groups of Adam, every recurrent policy, graphs, states that stay the same."""

import copy

import numpy as np
import pytest
import torch

from rlrun.nets.memory import memory_parameters
from rlrun.optim.adam import Adam
from rlrun.optim.graph import CudaGraph
from rlrun.types import Sample
from tests.buffer.factory import constant
from tests.policy.factory import RECURRENT, batch_of, box_batch, control, r2d2
from tests.policy.test_offline import bc_lstm
from tests.policy.test_qmix import batch, qmix
from tests.policy.updates import policy_of, samples_of

SIZES = [(3, 2), (4,), (2, 2), (5,), (1,)]
APART = (1, 2, 4)  # two runs of successive ones


def parameters():
    g = torch.Generator().manual_seed(0)
    return [torch.randn(size, generator=g) for size in SIZES]


def gradients(step):
    g = torch.Generator().manual_seed(100 + step)
    return [torch.randn(size, generator=g) for size in SIZES]


def adam_of(own, *, flat, apart=APART):
    made = Adam(own, eps=1e-3, grad_clip=2.0, apart=[own[i] for i in apart])
    if flat:
        made.flatten()
    return made


@pytest.mark.parametrize("flat", [False, True])
def test_groups_are_torchs(flat):
    """torch.optim.Adam with two groups, clipped by the norm over both."""
    own, twin = parameters(), [p.requires_grad_() for p in parameters()]
    adam = adam_of(own, flat=flat)
    kinds = [[p for i, p in enumerate(twin) if (i in APART) == apart] for apart in (False, True)]
    groups = [{"params": p, "lr": lr} for p, lr in zip(kinds, (1e-2, 1e-3), strict=True)]
    reference = torch.optim.Adam(groups, eps=1e-3)
    for step in range(4):
        adam.step(gradients(step), 1e-2, 1e-3)
        for p, grad in zip(twin, gradients(step), strict=True):
            p.grad = grad
        torch.nn.utils.clip_grad_norm_(twin, 2.0)
        reference.step()
        for p, q in zip(own, twin, strict=True):
            torch.testing.assert_close(p, q.detach(), rtol=1e-5, atol=1e-6)
    assert int(adam.state_dict()["steps"][0]) == 4


@pytest.mark.parametrize("flat", [False, True])
def test_equal_rates_and_moments_are_those_without_groups(flat):
    """States are interchangeable: saved by one, continued by the other, the same bits."""
    one, two = parameters(), parameters()
    grouped, whole = adam_of(one, flat=flat), adam_of(two, flat=not flat, apart=())
    for step in range(3):
        grouped.step(gradients(step), 1e-2, 1e-2)
    whole.load_state_dict(copy.deepcopy(grouped.state_dict()))
    with torch.no_grad():
        for p, q in zip(two, one, strict=True):
            p.copy_(q)
    for step in range(3, 6):
        grouped.step(gradients(step), 1e-2, 1e-2)
        whole.step(gradients(step), 1e-2)
    for p, q in zip(one, two, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-7)


def learners(tmp_path):
    """(name, a policy whose memory's rate is 0, samples for it)."""
    zero = {"memory_lr": constant(0.0)}
    policy = r2d2(**zero)
    yield "r2d2", policy, [batch_of(policy)]
    for name in ("sac", "td3"):
        policy = control(name, **RECURRENT, **zero)
        yield name, policy, [box_batch(policy)]
    policy = bc_lstm(**zero)
    yield "bc", policy, [batch_of(policy)]
    policy = qmix(**zero)
    yield "qmix", policy, [Sample(batch(policy), torch.ones(7), np.arange(7), 0)]
    for name in ("ppo", "impala"):
        words = (f"policy={name}", "memory=gru", "env=cartpole", "policy.memory_lr=0")
        (tmp_path / name).mkdir()
        yield name, policy_of(*words), samples_of(*words, directory=tmp_path / name, count=1)


def nets_of(policy):
    """The networks that learn."""
    if hasattr(policy, "q"):
        return [policy.pi, policy.q]
    return [policy.nets if hasattr(policy, "nets") else policy.net]


def test_a_memory_with_rate_0_stays_and_the_rest_learns(tmp_path):
    for name, policy, samples in learners(tmp_path):
        nets = nets_of(policy)
        memory = [p for net in nets for p in memory_parameters(net)]
        assert memory, name
        own = {id(p) for p in memory}
        rest = [p for net in nets for p in net.parameters() if id(p) not in own]
        before = [[p.detach().clone() for p in part] for part in (memory, rest)]
        metrics = [policy.update(sample).metrics for sample in samples for _ in range(2)]
        assert metrics[-1]["train/lr"] > 0, name
        assert all(map(torch.equal, memory, before[0])), name
        assert not any(map(torch.equal, rest, before[1])), name


def test_a_graph_replays_both_rates():
    """The rates of a captured step are tensors that every step fills anew."""
    one, two = r2d2(memory_lr=constant(1e-3)), r2d2(memory_lr=constant(1e-3))
    graph = CudaGraph(two.gradient_step, torch.device("cpu"), capture=lambda function: function)
    sample = batch_of(one)
    segment, weight = sample.to(one.device)
    assert not segment.partial
    for step in range(6):
        rates = (1e-2 / (step + 1), 1e-3 * (step + 1))
        one.gradient_step(segment, weight, *rates)
        graph.step(segment, weight, *rates)
    for p, q in zip(one.params, two.params, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)
