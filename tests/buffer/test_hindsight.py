"""Hindsight goals against a naive reading of the rows, and where they come from."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from rlrun.buffer.hindsight import Hindsight
from rlrun.types import Segment, Window
from tests.buffer.factory import make_replay

ENVS, BITS = 3, 4


class Goals:
    """Reward 0 at the goal and -1 elsewhere; the goal ends the episode."""

    def terminated(self, achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
        return (achieved == desired).all(-1)

    def reward(self, achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
        return np.where(self.terminated(achieved, desired), 0, -1).astype(np.float32)


def rows(steps: int, seed: int = 0) -> Segment:
    """Random episodes; achieved goals are (column, row) so that a goal tells where it is from."""
    rng = np.random.default_rng(seed)
    shape = (steps + 1, ENVS)
    first, valid = np.zeros(shape, bool), np.ones(shape, bool)
    terminated, truncated = np.zeros(shape, bool), np.zeros(shape, bool)
    for c in range(ENVS):
        row = 0
        while row <= steps:
            length = int(rng.integers(1, 9))
            first[row, c] = True
            end = row + length
            if end <= steps:
                valid[end, c] = False
                which = terminated if rng.random() < 0.5 else truncated
                which[end - 1, c] = True
            row = end + 1
    where = np.stack(np.meshgrid(np.arange(steps + 1), np.arange(ENVS), indexing="ij"), -1)
    own = torch.from_numpy(where.astype(np.float32))
    obs = {"observation": own, "achieved_goal": own.clone(), "desired_goal": -torch.ones_like(own)}
    flags = {
        name: torch.from_numpy(x[:steps].copy())
        for name, x in (("terminated", terminated), ("truncated", truncated), ("valid", valid))
    }
    reward = torch.full((steps, ENVS), -1.0)
    return Segment(
        obs=obs, first=torch.from_numpy(first), action=torch.zeros(steps, ENVS, dtype=torch.int64),
        reward=reward, **flags,
    )  # fmt: skip


def chunk(whole: Segment, start: int, stop: int) -> Segment:
    names = ("action", "reward", "terminated", "truncated", "valid")
    return replace(
        whole,
        obs={k: x[start : stop + 1] for k, x in whole.obs.items()},
        first=whole.first[start : stop + 1],
        **{n: getattr(whole, n)[start:stop] for n in names},
    )


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


@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
@pytest.mark.parametrize("ring", [200, 40])
@pytest.mark.parametrize("nstep", [1, 3])
def test_goals_rewards_and_flags_are_those_of_a_reached_goal(strategy, ring, nstep):
    whole = rows(160)
    replay = make_replay(whole, rows=ring, window=Window(0, 1, nstep), capacity=None, goals=True)
    replay.hindsight = Hindsight(
        replay.ring, Goals(), strategy=strategy, ratio=0.7, generator=np.random.default_rng(0)
    )
    relabelled, offsets = 0, set()
    for start in range(0, 160, 8):
        replay.add(chunk(whole, start, start + 8))
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
            low = {"future": row + 1, "final": end, "episode": max(first, replay.ring.oldest)}
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
    steps = 8
    whole = rows(steps)
    first = torch.zeros(steps + 1, ENVS, dtype=torch.bool)
    first[0] = first[7] = True
    valid = torch.ones(steps, ENVS, dtype=torch.bool)
    valid[6] = False
    truncated = torch.zeros(steps, ENVS, dtype=torch.bool)
    truncated[5] = True
    whole = replace(
        whole, first=first, valid=valid, truncated=truncated,
        terminated=torch.zeros_like(truncated),
    )  # fmt: skip
    replay = make_replay(whole, rows=40, window=Window(0, 1, 1), capacity=None, goals=True)
    replay.add(whole)
    replay.hindsight = Hindsight(
        replay.ring, Goals(), strategy="future", ratio=1.0, generator=np.random.default_rng(1)
    )
    s = replay.sample(60_000, 0).segment
    opens = s.obs["observation"][0, :, 0] == 0
    counts = np.bincount(s.obs["desired_goal"][0, opens, 0].int().numpy(), minlength=7)
    assert counts[0] == 0
    expected = counts.sum() / 6
    assert ((counts[1:] - expected) ** 2 / expected).sum() < 5 + 5 * np.sqrt(2 * 5)


def test_state_comes_back():
    whole = rows(60)
    drawn = []
    state = None
    for _ in range(2):
        replay = make_replay(whole, rows=80, window=Window(0, 1, 1), capacity=None, goals=True)
        replay.hindsight = Hindsight(
            replay.ring, Goals(), strategy="future", ratio=0.5, generator=np.random.default_rng(5)
        )
        if state is None:
            replay.add(whole)
            replay.sample(16, 0)
            state = replay.state_dict()
            state["hindsight"] = dict(state["hindsight"])
            state["sampler"] = dict(state["sampler"])
        else:
            replay.load_state_dict(state)
        drawn.append(replay.sample(16, 0).segment.obs["desired_goal"].clone())
    assert torch.equal(*drawn)


def test_nothing_is_asked_of_the_environment_where_nothing_is_relabelled():
    class Never:
        def reward(self, achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
            raise AssertionError("goals of no window")

        terminated = reward

    whole = rows(60)
    replay = make_replay(whole, rows=80, window=Window(0, 1, 1), capacity=None, goals=True)
    replay.hindsight = Hindsight(
        replay.ring, Never(), strategy="final", ratio=0.0, generator=np.random.default_rng(0)
    )
    replay.add(whole)
    assert (replay.sample(16, 0).segment.obs["desired_goal"] == -1).all()
