"""Hindsight goals against a naive reading of the rows, and where they come from."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from rlrun.errors import CheckpointError
from rlrun.types import Chunk, Segment, Window
from tests.buffer.make import make_replay
from tests.buffer.pair import copied
from tests.reference.streams import make_stream

ENVS = 3


class Goals:
    """Reward 0 at the goal and -1 elsewhere; the goal ends the episode."""

    def terminated(self, achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
        return (achieved == desired).all(-1)

    def reward(self, achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
        return np.where(self.terminated(achieved, desired), 0, -1).astype(np.float32)


def rows(steps: int, seed: int = 0) -> Segment:
    """Random episodes; achieved goals are (row, column) so that a goal tells where it is from."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 9, (ENVS, 99)).tolist()
    segment = make_stream(lengths, (rng.random((ENVS, 99)) < 0.5).tolist(), steps).segment
    where = np.stack(np.meshgrid(np.arange(steps + 1), np.arange(ENVS), indexing="ij"), -1)
    own = torch.from_numpy(where.astype(np.float32))
    obs = {"observation": own, "achieved_goal": own.clone(), "desired_goal": -torch.ones_like(own)}
    reward = torch.full_like(segment.reward, -1.0)
    return replace(segment, obs=obs, reward=reward, states=(), state=())


def episode_of(whole: Segment, row: int, column: int, seen: int) -> tuple[int, int]:
    """(first row, last row whose observation is there) of the episode, as far as ``seen`` rows."""
    first, valid = whole.first.numpy()[:, column], whole.valid.numpy()[:, column]
    start = row
    while not first[start]:
        start -= 1
    end = row
    while end < seen and valid[end]:
        end += 1
    return start, end


def relabelling(whole, *, rows, nstep=1, strategy="future", ratio=1.0, seed=0, goals=None, count=1):
    return make_replay(
        whole, rows=rows, window=Window(0, 1, nstep), capacity=None, goals=goals or Goals(),
        relabel=strategy, relabel_ratio=ratio, seed=seed, count=count,
    )  # fmt: skip


@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
@pytest.mark.parametrize(("ring", "nstep"), [(200, 1), (40, 3)])
def test_goals_rewards_and_flags_are_those_of_a_reached_goal(strategy, ring, nstep):
    whole = rows(160)
    replay = relabelling(whole, rows=ring, nstep=nstep, strategy=strategy, ratio=0.7)
    relabelled, offsets = 0, set()
    for start in range(0, 160, 8):
        replay.add(Chunk.of(whole).rows(start, start + 8))
        replay.check()
        s = replay.sample(32, 0).segment
        for b in range(32):
            row, column = (int(x) for x in s.obs["observation"][0, b])
            goal = s.obs["desired_goal"][:, b].numpy()
            assert (goal == goal[0]).all(), "one goal for the whole window"
            first, end = episode_of(whole, row, column, start + 8)
            valid = s.valid[:, b].numpy()
            assert valid[0]
            if goal[0, 0] == -1:
                k = min(nstep, end - row)
                assert (s.reward[:, b].numpy()[:k] == -1).all()
                for name in ("terminated", "truncated"):
                    want = getattr(whole, name).numpy()[row : row + k, column]
                    assert (getattr(s, name)[:k, b].numpy() == want).all()
                continue
            relabelled += 1
            t, c = (int(x) for x in goal[0])
            assert c == column
            low = {"future": row + 1, "final": end, "episode": max(first, start + 9 - ring)}
            assert low[strategy] <= t <= end
            offsets.add(t - row)
            for p in range(nstep):
                if not valid[p]:
                    null = (s.reward[p, b], s.terminated[p, b], s.truncated[p, b])
                    assert null == (0, False, True)
                    continue
                there = row + p + 1 == t  # achieved behind the step
                assert s.reward[p, b] == (0 if there else -1)
                assert s.terminated[p, b] == there
                ended = bool((whole.terminated | whole.truncated)[row + p, column])
                assert s.truncated[p, b] == (ended and not there)
            before = s.extras["prev_reward"][b]
            assert before == (0 if whole.first[row, column] else (0 if row == t else -1))
    assert 0.6 < relabelled / (20 * 32) < 0.8
    assert len(offsets) > 4
    assert (min(offsets) <= 0) == (strategy == "episode")


def test_future_goals_are_uniform_over_the_rows_behind():
    """Of an episode of 6 steps the first row gets each of the 6 later observations alike."""
    whole = rows(8)
    flags = {name: torch.zeros_like(getattr(whole, name)) for name in ("terminated", "truncated")}
    first, valid = torch.zeros_like(whole.first), torch.ones_like(whole.valid)
    first[0] = first[7] = True
    valid[6], flags["truncated"][5] = False, True
    replay = relabelling(replace(whole, first=first, valid=valid, **flags), rows=40)
    replay.add(replace(whole, first=first, valid=valid, **flags))
    s = replay.sample(30_000, 0).segment
    opens = s.obs["observation"][0, :, 0] == 0
    counts = np.bincount(s.obs["desired_goal"][0, opens, 0].int().numpy(), minlength=7)
    assert counts[0] == 0
    expected = counts.sum() / 6
    assert ((counts[1:] - expected) ** 2 / expected).sum() < 5 + 5 * np.sqrt(2 * 5)


def test_state_comes_back():
    whole = rows(60)
    one, two = (relabelling(whole, rows=80, ratio=0.5, seed=seed) for seed in (1, 2))
    one.add(whole)
    one.sample(16, 0)
    two.load_state_dict(copied(one.state_dict()))
    drawn = [r.sample(16, 0).segment.obs["desired_goal"].clone() for r in (one, two)]
    assert torch.equal(*drawn)
    plain = make_replay(whole, rows=80, window=Window(0, 1, 1), capacity=None)
    with pytest.raises(CheckpointError, match="hindsight"):
        plain.load_state_dict(copied(one.state_dict()))


def test_nothing_is_asked_of_the_environment_where_nothing_is_relabelled():
    class Never:
        def reward(self, achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
            raise AssertionError("goals of no window")

        terminated = reward

    whole = rows(60)
    replay = relabelling(whole, rows=80, strategy="final", ratio=0.0, goals=Never())
    replay.add(whole)
    assert (replay.sample(16, 0).segment.obs["desired_goal"] == -1).all()
