"""On-policy rollouts: rows go in, the same rows come out, once."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from rlrun.buffer.rollout import Rollout, Rollouts
from rlrun.env.framestack import FrameStack
from rlrun.errors import CheckpointError
from rlrun.functional.returns import trace_continues
from rlrun.types import Segment, tree_leaves
from tests.buffer.make import same_segments
from tests.reference.streams import make_stream, part


def stream(rows: int = 40) -> Segment:
    made = make_stream([[5, 3, 9], [1, 12]], [[True, False], [True]], rows).segment
    return replace(made, extras={"log_prob": torch.arange(rows * 2.0).reshape(rows, 2)})


def same(a: Segment, b: Segment) -> bool:
    names = ("obs", "first", "action", "reward", "terminated", "truncated", "valid", "states")
    log_probs = [x.extras["log_prob"] for x in (a, b)]
    pairs = [(getattr(a, n), getattr(b, n)) for n in names] + [log_probs]
    leaves = [z for x, y in pairs for z in zip(tree_leaves(x), tree_leaves(y), strict=True)]
    return all(torch.equal(x, y) for x, y in leaves)


def test_rows_come_out_whole_then_the_rollout_is_empty():
    whole = stream()
    rollout = Rollout(whole, rows=24)
    for start, stop in ((0, 7), (7, 8), (8, 24)):
        assert len(rollout) == start
        rollout.add(part(whole, start, stop))
    sample = rollout.take(99)
    assert sample.env_steps == 99
    assert same(sample.segment, part(whole, 0, 24))
    assert torch.equal(sample.segment.state[0], whole.states[0][0])
    assert (sample.weight == 1).all()
    assert len(rollout) == 0
    rollout.add(part(whole, 24, 30))
    assert same(rollout.take(0).segment, part(whole, 24, 30))


def test_too_many_rows_are_refused_and_nothing_is_lost():
    whole = stream()
    rollout = Rollout(whole, rows=10)
    rollout.add(part(whole, 0, 6))
    with pytest.raises(ValueError, match=r"4 .*10"):
        rollout.add(part(whole, 6, 11))
    assert same(rollout.take(0).segment, part(whole, 0, 6))


def test_previous_action_and_reward_are_those_of_the_row_before():
    whole, rollout = stream(), Rollout(stream(), rows=24)
    rollout.add(part(whole, 0, 7))
    rollout.take(0)
    rollout.add(part(whole, 7, 9))
    extras = rollout.take(0).segment.extras
    assert torch.equal(extras["prev_action"], whole.action[6])
    assert torch.equal(extras["prev_reward"], whole.reward[6])


@pytest.mark.parametrize("k", [2, 5])
def test_stacks_are_those_the_policy_saw(k):
    """Over several rollouts, one of them saved and loaded, shorter than a stack and longer."""
    whole = stream(60)
    stack, rollout = FrameStack(k, whole.obs[0].numpy()), Rollout(whole, rows=24, stack=k)
    start = 0
    for rows in (7, 1, 2, 24, 9):
        rollout.add(part(whole, start, start + rows))
        other = Rollout(whole, rows=24, stack=k)
        other.load_state_dict(rollout.state_dict())
        rollout = other
        got = rollout.take(0).segment.obs
        for t in range(rows):
            row = whole.obs[start + t].numpy(), whole.first[start + t].numpy()
            np.testing.assert_array_equal(got[t], stack.push(*row))
        start += rows
        ahead = FrameStack(k, whole.obs[0].numpy())
        ahead.load_state_dict(stack.state_dict())
        row = whole.obs[start].numpy(), whole.first[start].numpy()
        np.testing.assert_array_equal(got[rows], ahead.push(*row))


def test_rollouts_of_unlike_length_are_padded_with_rows_that_count_nothing():
    """The padding's first observation is the one after the last row; the trace stops there."""
    first, second = (make_stream([x], [[False]], 12).segment for x in ([9, 14], [5, 8]))
    several = Rollouts([Rollout(first, rows=12), Rollout(second, rows=12)])
    several.add([(0, part(first, 0, 12)), (1, part(second, 0, 7))])
    sample = several.take(0)
    segment = sample.segment
    assert sample.key.tolist() == [0, 1]
    assert segment.reward.shape == (12, 2)
    assert torch.equal(segment.obs[:8, 1], second.obs[:8, 0])
    assert torch.equal(segment.obs[8, 1], second.obs[7, 0])
    assert not segment.valid[7:, 1].any()
    assert not segment.reward[7:, 1].any()
    assert torch.equal(segment.valid[:7, 1], second.valid[:7, 0])
    carries = trace_continues(segment.terminated, segment.truncated, segment.valid)
    assert not carries[6:, 1].any(), "nothing is carried over the end of the rows"
    alone = Rollouts([Rollout(first, rows=12)])
    alone.add([(0, part(first, 0, 12))])
    one, two = alone.take(0), Rollout(first, rows=12)
    two.add(part(first, 0, 12))
    same_segments(one.segment, two.take(0).segment)
    with pytest.raises(CheckpointError, match=r"num_actors = 1: .*2"):
        alone.load_state_dict(several.state_dict())
