"""PQN: targets, an update by hand, a naive reference with every flag, recurrent equals steps."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rlrun.buffer.rollout import Rollout
from rlrun.functional.returns import lambda_return
from rlrun.policy.pqn import PQN
from rlrun.types import Sample, tree_map
from tests.policy.test_onpolicy import collector_of, rollout_of
from tests.reference.traces import lambda_rows

ONE_STEP = ("policy.epochs=1", "learner.batch_size=100000", "learner.backend=torch")


def policy_and_rollout(*overrides, chunks=3):
    """A policy and a rollout that begins within episodes, some of which end in it."""
    collector = collector_of("explore=linear", *ONE_STEP, *overrides, policy="pqn")
    collector.explore = lambda env_steps: np.full(4, 0.5, np.float32)
    sample = rollout_of(collector, chunks=chunks)
    collector.env.close()
    return collector.policy, sample


def with_every_flag(sample):
    """Some steps truncated instead of terminated, one of them where an end row follows."""
    segment = sample.segment.map(lambda x: x.clone())
    ends = segment.terminated.nonzero()
    assert len(ends) >= 2
    truncated = segment.truncated.clone()
    for t, b in ends[::2].tolist():
        segment.terminated[t, b], truncated[t, b] = False, True
    segment = replace(segment, truncated=truncated)
    assert segment.terminated.any()
    assert not segment.valid.all()
    return replace(sample, segment=segment)


def stepped_q(policy, segment):
    """Q [T+1, B, A] by one step of net and memory after the other, from the stored state."""
    net, state, out = policy.net, tree_map(lambda x: x[0], segment.states), []
    extras = segment.extras
    action, reward = extras["prev_action"], extras["prev_reward"]
    for t in range(len(segment.first)):
        first = segment.first[t]
        state = tree_map(lambda s, f=first: torch.where(f[:, None], torch.zeros_like(s), s), state)
        previous = net.encode_previous(action, reward)
        previous = torch.where(first[:, None], torch.zeros_like(previous), previous)
        h, state = net.memory.step(net.inputs(segment.obs[t], previous), state)
        out.append(net.q(h))
        if t < len(segment.action):
            action, reward = segment.action[t], segment.reward[t]
    return torch.stack(out)


def naive_loss(policy, segment, q):
    """The mean over valid rows of half the squared error, every target by its own loop."""
    c, total, count = policy.config, 0.0, 0
    value = q.detach().amax(-1).numpy()
    flags = (segment.terminated, segment.truncated, segment.valid)
    for b in range(q.shape[1]):
        column = [x[:, b].tolist() for x in (segment.reward, torch.from_numpy(value), *flags)]
        target = lambda_rows(*column, c.gamma, c.q_lambda)
        for t in range(len(target)):
            if segment.valid[t, b]:
                total = total + 0.5 * (target[t] - q[t, b, segment.action[t, b]]) ** 2
                count += 1
    return total / count


SHAPES = [
    ("memory=none",),
    ("memory=none", "policy.prev_inputs=true", "policy.dueling=true"),
    ("memory=gru", "policy.prev_inputs=true", "policy.segment_len=1000"),
    ("memory=mingru", "policy.segment_len=1000"),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_an_update_is_the_naive_one(shape):
    """Loss and gradients of one step on a whole rollout with all three flags."""
    policy, sample = policy_and_rollout(*shape)
    sample = with_every_flag(sample)
    loss = naive_loss(policy, sample.segment, stepped_q(policy, sample.segment))
    wanted = torch.autograd.grad(loss, policy.adam.parameters)
    update = policy.update(sample)
    assert update.steps == 1
    assert update.metrics["train/loss"].item() == pytest.approx(loss.item(), rel=1e-4)
    norm = torch.stack([g.norm() for g in wanted]).norm()
    assert update.metrics["train/grad_norm"].item() == pytest.approx(norm.item(), rel=1e-3)
    scale = min(1.0, policy.config.grad_clip / norm.item())
    for mean, grad in zip(policy.adam.mean, wanted, strict=True):
        torch.testing.assert_close(mean, 0.1 * scale * grad, rtol=1e-3, atol=1e-5)


def test_segments_start_from_their_stored_states():
    """Cut into short segments, Q of every row is that of the whole rollout."""
    policy, sample = policy_and_rollout("memory=lstm", "policy.segment_len=5")
    rows = policy.prepare(sample.segment)
    q = policy.q_values(rows).detach()
    cut = policy.with_targets(rows, q)
    assert cut.valid.shape[0] <= 6
    torch.testing.assert_close(
        policy.q_values(cut).amax(-1)[cut.valid], cut.value[cut.valid], rtol=1e-4, atol=1e-5
    )
    assert int(cut.valid.sum()) == int(rows.valid.sum())


def test_targets_and_loss_by_hand():
    """gamma = lambda = 1/2, two actions of one column; the second row terminates."""
    q = torch.tensor([[[1.0, 3]], [[4.0, 2]], [[7.0, 9]]])
    ends = torch.tensor([[0], [1]]).bool(), torch.zeros(2, 1).bool(), torch.ones(2, 1).bool()
    target = lambda_return(torch.tensor([[1.0], [2.0]]), q.amax(-1), *ends, gamma=0.5, trace=0.5)
    assert target.flatten().tolist() == [1 + 0.5 * (0.5 * 4 + 0.5 * 2), 2]
    batch = SimpleNamespace(valid=ends[2], action=torch.tensor([[0], [1]]), target=target)
    loss, metrics = PQN.loss(SimpleNamespace(), batch, q[:-1])
    assert loss.item() == pytest.approx(0.5 * ((2.5 - 1) ** 2 + (2 - 2) ** 2) / 2)
    assert metrics["train/q_taken"].item() == pytest.approx(1.5)
    assert metrics["train/td_abs"].item() == pytest.approx(0.75)


def test_targets_take_allowed_actions_only():
    """The largest value is of an action that the mask of the next row forbids."""
    q = torch.tensor([[[0.0, 0]], [[4.0, 9]], [[7.0, 5]]])
    obs = {"action_mask": torch.tensor([[[1, 1]], [[1, 0]], [[0, 1]]])}
    no, yes = torch.zeros(2, 1).bool(), torch.ones(2, 1).bool()
    policy, sample = policy_and_rollout(chunks=1)
    rows = replace(policy.prepare(sample.segment), obs=obs, reward=torch.zeros(2, 1))
    rows = replace(rows, terminated=no, truncated=no, valid=yes, index=torch.arange(2))
    rows = replace(rows, first=torch.zeros(3, 1).bool(), previous=torch.zeros(3, 1, 0))
    rows = replace(rows, action=torch.zeros(2, 1).long(), behaviour_log_prob=torch.zeros(2, 1))
    policy.config = replace(policy.config, gamma=0.5, q_lambda=0.0)
    policy.masked = True
    assert policy.with_targets(rows, q).target.flatten().tolist() == [2.0, 2.5]


def test_padding_and_unread_values_have_no_effect():
    """NaN in rewards of end rows reaches neither loss nor weights."""
    policy, sample = policy_and_rollout()
    segment = sample.segment
    wild = replace(segment, reward=torch.where(segment.valid, segment.reward, torch.nan))
    update = policy.update(Sample(wild, sample.weight, sample.key, 0))
    assert all(x.isfinite() for x in update.metrics.values())
    assert all(x.isfinite().all() for x in policy.weights().values())


@pytest.mark.parametrize("memory", ["none", "gru"])
def test_overfits_one_rollout(memory):
    """Without a trace to other actions the error of a fixed rollout vanishes."""
    policy, sample = policy_and_rollout(
        f"memory={memory}",
        "policy.lr=1e-2",
        "policy.gamma=0.9",
        "policy.q_lambda=1.0",
        "policy.epochs=10",
        "torso.hidden=[32]",
    )
    count = 60 if memory == "none" else 15
    losses = [policy.update(sample).metrics["train/loss"].item() for _ in range(count)]
    assert losses[-1] < 0.3 * losses[0]


def test_resumed_is_uninterrupted():
    """Bit for bit, the shuffling of minibatches included."""
    words = ("learner.batch_size=32", "policy.epochs=2")
    whole, begun, other = (collector_of(*words, f"seed={s}", policy="pqn") for s in (0, 0, 5))
    samples = []
    store = Rollout(whole.example(), rows=400)
    for _ in range(4):
        store.add(whole.collect())
        taken = store.take(0)
        samples.append(replace(taken, segment=taken.segment.map(lambda x: x.clone())))
    for sample in samples[:2]:
        whole.policy.update(sample)
        begun.policy.update(sample)
    begun.policy.generator.bit_generator.state = whole.policy.generator.bit_generator.state
    other.policy.load_state_dict(begun.policy.state_dict())
    for sample in samples[2:]:
        whole.policy.update(sample)
        other.policy.update(sample)
    for name, w in whole.policy.weights().items():
        assert torch.equal(w, other.policy.weights()[name]), name
    for collector in (whole, begun, other):
        collector.env.close()
