"""learner.target_thread changes no bit; bf16 changes little, and only learning."""

import resource
from dataclasses import replace

import numpy as np
import pytest
import torch

from rlrun.build.pipeline import make_collector
from rlrun.build.plan import make_plan
from rlrun.optim.compute import Compute, cpu_has_bf16_lstm, keep_freed_memory
from rlrun.types import Counters, tree_leaves
from tests.compose import config
from tests.policy.factory import batch_of, dqn, gradient, r2d2

MAKERS = {"r2d2": r2d2, "gru": lambda: r2d2(memory="gru"), "none": lambda: r2d2(memory="none")}


def learned(make, compute, updates=4):
    """Everything a few updates leave behind."""
    policy = make()
    policy.compute = compute
    sample = batch_of(policy)
    out = [policy.update(sample) for _ in range(updates)]
    kept = [(u.priority, u.metrics["train/loss"], u.metrics["train/grad_norm"]) for u in out]
    return policy, [
        *tree_leaves(tuple(kept)),
        *tree_leaves(policy.adam.state_dict()),
        *policy.target_params,
    ]


@pytest.mark.parametrize("name", MAKERS)
def test_a_thread_for_the_target_network_changes_no_bit(name):
    single, threaded = Compute(), Compute(target_thread=True)
    _, want = learned(MAKERS[name], single)
    _, got = learned(MAKERS[name], threaded)
    assert threaded.pool is not None, "nothing ran in a second thread"
    for a, b in zip(want, got, strict=True):
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


def test_an_exception_in_the_second_thread_is_raised_at_the_wait():
    def fail():
        raise ZeroDivisionError("in a thread")

    waited = Compute(target_thread=True).run_in_thread(fail)
    with pytest.raises(ZeroDivisionError, match="in a thread"):
        waited()


@pytest.mark.parametrize("name", [*MAKERS, "dqn"])
def test_bf16_is_close_and_keeps_float32_outside_the_products(name):
    make = (MAKERS | {"dqn": dqn})[name]
    policy, sample = make(), batch_of(make())
    rough = make()
    rough.compute = Compute("bf16")
    if name == "r2d2" and not cpu_has_bf16_lstm():  # refused before a run, see tests/config
        with pytest.raises(RuntimeError, match="LSTM"):
            rough.loss(sample.segment, sample.weight)
        return
    losses, grads = [], []
    for p in (policy, rough):
        out = p.loss(sample.segment, sample.weight)
        assert out[0].dtype == out[1].dtype == torch.float32
        losses.append(out[0].item())
        grad = gradient(p, out)
        assert all(g.dtype == torch.float32 for g in grad)
        grads.append(torch.cat([g.flatten() for g in grad]))
    assert losses[0] != losses[1], "nothing was rounded"
    assert losses[1] == pytest.approx(losses[0], rel=0.02)
    assert torch.cosine_similarity(*grads, dim=0) > 0.999
    rough.update(sample)
    assert all(w.dtype == torch.float32 for w in rough.weights().values())


LARGE = ("policy=r2d2", "env=cartpole", "learner.batch_size=64", "memory.hidden=128")


@pytest.mark.parametrize(
    ("overrides", "cores", "threads", "second_thread"),
    [
        (LARGE, 2, 2, True),
        (LARGE, 1, 1, False),
        ((*LARGE, "pipeline=overlapped"), 2, 1, False),
        ((*LARGE, "pipeline=overlapped"), 4, 3, True),
        ((*LARGE[:3], "memory.hidden=64"), 2, 2, True),  # of a kernel
        (LARGE[:2], 2, 1, False),
        ((*LARGE[:2], "learner.target_thread=true"), 2, 1, True),
        ((*LARGE, "learner.target_thread=false"), 2, 2, False),
        ((*LARGE, "learner.threads=1"), 2, 1, False),
        (("policy=sac", "env=pendulum"), 2, 1, True),
        (("policy=td3", "env=pendulum"), 4, 1, True),
        (("policy=ddpg", "env=pendulum", "torso.hidden=[256,256]"), 2, 1, True),
        (("policy=ddpg", "env=pendulum", "torso.hidden=[64,256]"), 2, 1, False),
        (("policy=sac", "env=pendulum", "torso.hidden=[256]"), 2, 1, False),
        (
            ("policy=sac", "env=pendulum", "torso.hidden=[256]", "policy.head_hidden=[256]"),
            2,
            1,
            True,
        ),
        (("policy=sac", "env=pendulum"), 1, 1, False),
        (("policy=sac", "env=pendulum", "torso.hidden=[128,128]"), 2, 1, False),
        (("policy=sac", "env=pendulum", "torso.hidden=[]"), 2, 1, False),
        (("policy=sac", "env=pendulum", "learner.batch_size=128"), 2, 1, False),
        (("policy=sac", "env=pendulum", "learner.threads=1"), 2, 1, False),
        (("policy=sac", "env=pendulum", "learner.target_thread=false"), 2, 1, False),
        (("policy=sac", "env=pendulum", "pipeline=overlapped"), 2, 1, False),
        (("policy=rsac", "env=pendulum"), 2, 1, False),
        (("policy=dqn", "env=cartpole"), 2, 1, False),
        (("policy=dqn", "env=cartpole", "torso.hidden=[1024]"), 2, 2, False),
        (("policy=dqn", "env=cartpole", "torso=nature_cnn"), 2, 2, False),
    ],
)
def test_the_rule(monkeypatch, overrides, cores, threads, second_thread):
    """A function of config and cores single: nothing is measured when a run begins."""
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    c = config(*overrides)
    plan = make_plan(c)
    assert (plan.threads, plan.target_thread) == (threads, second_thread)


def test_agents_with_parts_of_a_batch_share_no_update(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    c = config("policy=sac", "env=pendulum")
    separate = replace(c, agents=replace(c.agents, name="separate"))
    assert (make_plan(c).target_thread, make_plan(separate).target_thread) == (True, False)


@pytest.mark.parametrize("wanted", [True, False])
@pytest.mark.parametrize("policy", ["sac", "td3", "ddpg"])
def test_the_halves_of_an_update_heed_the_key(policy, wanted):
    c = config(f"policy={policy}", "env=pendulum", f"learner.target_thread={wanted}")
    collector = make_collector(make_plan(c), Counters())
    assert collector.policy.kernel.kernel.compute.target_thread == wanted
    collector.env.close()


@pytest.mark.parametrize("policy", ["r2d2", "dqn"])
def test_a_run_computes_as_configured(policy):
    """The keys reach the learner, not only the rule."""
    c = config(f"policy={policy}", "env=cartpole", "learner.precision=bf16",
               "learner.target_thread=true")  # fmt: skip
    collector = make_collector(make_plan(c), Counters())
    compute = collector.policy.compute
    collector.env.close()
    assert (compute.precision, compute.target_thread) == ("bf16", True)


def test_freed_memory_is_kept():
    """Arrays of 8 MiB: no page faults once their memory was touched."""
    if not keep_freed_memory():
        pytest.skip("the C library has no mallopt")

    def faults():
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        arrays = [np.ones(1 << 20) for _ in range(6)]
        del arrays
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    faults()
    assert faults() < 6 * (8 << 20) / resource.getpagesize() / 10
