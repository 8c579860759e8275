"""Collected rows equal the counter environment's steps for every chunking."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.buffer.cutter import Cutter
from rlrun.env.diagnostic.tasks import counter_reward
from rlrun.env.framestack import FrameStack
from rlrun.errors import EnvError
from rlrun.run.checkpoint import load_newest
from rlrun.types import Window
from tests.pipeline.make import (
    DIES,
    GO,
    OPENS,
    WAITS,
    Acting,
    Scripted,
    copied,
    counter,
    joined,
    make,
)
from tests.run.forge import save


@settings(max_examples=25)
@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=4),
    st.sampled_from(["terminated", "truncated", "alternate"]),
    st.integers(1, 40),
    st.integers(1, 5),
)
def test_rows_equal_the_environments_steps(lengths, end, n_sample, num_envs):
    collector = make(env_config=counter(lengths, end), n_sample=n_sample, num_envs=num_envs)
    steps, chunks = 0, []
    for _ in range(4):
        chunk = copied(collector.collect())
        valid = int(chunk.valid.sum())
        assert n_sample <= valid < n_sample + num_envs, "at least n_sample, stopped at once"
        steps += valid
        chunks.append(chunk)
    assert collector.counters.env_steps == steps
    s = joined(chunks)
    episode = np.zeros(num_envs, int)
    t = np.zeros(num_envs, int)
    for row in range(len(s.reward)):
        for i in range(num_envs):
            length = lengths[(i + episode[i]) % len(lengths)]
            assert s.obs[row, i].tolist() == [i, episode[i], t[i]]
            assert s.first[row, i] == (t[i] == 0)
            is_end = t[i] == length
            assert s.valid[row, i] != is_end
            dies = {"terminated": True, "truncated": False}.get(end, (i + episode[i]) % 2 == 0)
            last = t[i] == length - 1
            assert s.terminated[row, i] == (last and dies)
            assert s.truncated[row, i] == (last and not dies)
            if is_end:
                episode[i], t[i] = episode[i] + 1, 0
            else:
                arrays = (np.array(x) for x in (i, episode[i], t[i]))
                assert s.reward[row, i] == float(counter_reward(*arrays))
                t[i] += 1


def test_units():
    """A chunk ends with the first row after which it has enough units."""
    window = Window(2, 3, 1)
    cutters = [Cutter(window, columns=3, stride=3, residual=None, plain=False) for _ in range(2)]
    collector = make(unit="window", n_sample=7, cutter=cutters[0])
    for _ in range(5):
        chunk = collector.collect()
        first, valid = chunk.first[:-1], chunk.valid
        found = [
            len(cutters[1].cut(*x)) for x in ((first[:-1], valid[:-1]), (first[-1:], valid[-1:]))
        ]
        assert found[0] < 7 <= sum(found)
    episodes = make(unit="episode", n_sample=4)
    before = 0
    for _ in range(5):
        episodes.collect()
        assert 4 <= episodes.counters.episodes - before < 4 + 3
        before = episodes.counters.episodes


def test_growing_chunks_keep_their_rows():
    """With unit=episode the length is not known beforehand: arrays grow, rows stay."""
    long = make(env_config=counter([70]), unit="episode", n_sample=5, num_envs=2)
    chunk = long.collect()
    assert len(chunk.reward) > 100
    t = chunk.obs[:, 0, 2].astype(int).tolist()
    assert t == [i % 71 for i in range(len(t))]


def test_the_actor_receives_the_previous_row_across_chunks():
    policy = Acting()
    collector = make(policy, env=Scripted([GO]), num_envs=1, n_sample=3)
    chunks = [copied(collector.collect()) for _ in range(3)]
    assert policy.refreshed == 3, "with the weights of the moment, once a chunk"
    rows = joined(chunks)
    for t, (obs, first, action, reward, state) in enumerate(policy.shown):
        assert (obs, first) == (t, t == 0)
        assert state == rows.states[t] == t
        assert t == 0 or (action, reward) == (rows.action[t - 1], rows.reward[t - 1])
    collector.collect_rows()
    assert policy.refreshed == 3, "the overlapped pipeline chooses the weights itself"


def test_exploration_follows_its_schedule():
    clocks = []

    def explore(env_steps):
        clocks.append(env_steps)
        return np.array([0.1, 0.3], np.float32) + np.float32(env_steps)

    policy = Acting()
    collector = make(policy, env=Scripted([GO], [GO]), explore=explore, num_envs=2, n_sample=4)
    for _ in range(3):
        collector.collect()
    assert clocks == [0, 4, 8]
    assert [x[1].round(1) for x in policy.explored] == pytest.approx(
        [0.3] * 2 + [4.3] * 2 + [8.3] * 2
    )
    assert collector.metrics()["collect/epsilon_mean"] == pytest.approx(12.2)


def test_counters_and_statistics_add_up_over_chunks():
    """Episodes of 2 steps with rewards 1, 2 and of 1 step with reward 4; one step a chunk."""
    env = Scripted([GO, DIES, OPENS, DIES, OPENS, GO])
    collector = make(Acting(), env=env, num_envs=1, n_sample=1)
    while collector.counters.env_steps < 4:
        collector.collect()
    found = collector.metrics()
    assert (collector.counters.chunks, collector.counters.episodes) == (4, 2)
    assert [found[f"collect/return_{x}"] for x in ("mean", "min", "max")] == [3.5, 3.0, 4.0]
    assert found["collect/length_mean"] == 1.5
    assert found["collect/episodes"] == 2
    assert "collect/return_mean" not in collector.metrics(), "episodes are reported once"


def test_a_waiting_agent_finishes_no_episode():
    """Its rows until the team's next episode are truncated and not valid."""
    env = Scripted([DIES, WAITS, WAITS, OPENS], [GO, GO, DIES, OPENS])
    collector = make(Acting(), env=env, num_envs=2, n_sample=8)
    collector.collect()
    counters = collector.counters
    assert (counters.env_steps, counters.episodes) == (8, 4)
    assert collector.metrics()["collect/length_mean"] == 2.0


def test_kept_info_is_stored_with_its_row():
    env = Scripted([GO, GO, DIES, OPENS], info=True)
    chunk = make(Acting(), env=env, num_envs=1, n_sample=6, keep_info=("seen",)).collect()
    seen = chunk.extras["seen"]
    assert seen.dtype == np.float32
    assert seen[:, 0].tolist() == [10.0 * (t + 1) for t in range(7)]


def test_the_actor_receives_stacks_that_start_with_the_episode():
    policy, env = Acting(), Scripted([GO, DIES, OPENS, GO])
    stack = FrameStack(2, np.zeros((1, 1), np.float32))
    make(policy, env=env, stack=stack, num_envs=1, n_sample=4).collect()
    assert [x[0].ravel().tolist() for x in policy.shown] == [[0, 0], [0, 1], [1, 2], [3, 3], [3, 4]]


@pytest.mark.parametrize("last", [GO, DIES])
def test_the_row_of_the_cut_has_no_reward_and_no_end(last):
    """Whatever the chunk's arrays contained, also after the end of an episode.

    Its observation is the saved last one; the new episode begins in the next row.
    """
    collector = make(Acting(), env=Scripted([DIES, OPENS, GO, last]), num_envs=1, n_sample=3)
    collector.collect()
    collector.load_state_dict(collector.state_dict() | {"env": None})
    chunk = collector.collect()
    row = (chunk.reward[0], chunk.terminated[0], chunk.truncated[0], chunk.valid[0])
    assert [x.item() for x in row] == [0, False, False, False]
    assert chunk.obs[:2, 0, 0].tolist() == [4, 1]
    assert (chunk.first[1], chunk.valid[1]) == (True, True)


class Failing(Scripted):
    """Its environments fail in the step after row 2."""

    def step(self, action):
        if self.t == 2:
            raise EnvError("broken")
        return super().step(action)


@pytest.mark.parametrize("unit", ["step", "window"])
def test_rows_before_an_error_of_the_environment_are_kept(unit, tmp_path):
    """A resumed collector goes on with them; the open episodes end before the error."""

    def collector(env):
        cutter = Cutter(Window(0, 1, 1), columns=2, stride=1, residual=None, plain=False)
        stack = FrameStack(2, np.zeros((2, 1), np.float32))
        given = {"cutter": cutter, "stack": stack, "unit": unit, "n_sample": 8, "num_envs": 2}
        return make(Acting(), env=env([GO], [GO]), **given)

    one, two = collector(Failing), collector(Scripted)
    with pytest.raises(EnvError, match="broken"):
        one.collect()
    save(tmp_path, one.state_dict(), env_steps=0, keep=1)
    two.load_state_dict(load_newest(tmp_path)[0])
    assert two.inexact == "reset"
    chunk = two.collect()
    assert chunk.valid[:4].tolist() == [[True] * 2, [True] * 2, [False] * 2, [True] * 2]
    assert chunk.first[:4, 0].tolist() == [True, False, False, True]
    assert chunk.obs[:3, 0, 0].tolist() == [0, 1, 2], "the last one is the end of the episode"
    assert chunk.reward[:3, 0].tolist() == [1, 2, 0]
    assert two.counters.env_steps == chunk.valid.sum()
    assert two.policy.shown[0][0][0].ravel().tolist() == [1, 2], "its stack was pushed once"


def test_a_worker_that_ended_before_a_checkpoint_costs_its_episode():
    class Gone(Scripted):
        def state_dict(self):
            raise EnvError("its worker process ended")

    collector = make(Acting(), env=Gone([GO], [GO]), num_envs=2, n_sample=4)
    collector.collect()
    state = collector.state_dict()
    assert state["env"] is None
    assert state["obs"].ravel().tolist() == [2, 2]


class Restarting(Scripted):
    """Environment 0 is restarted in its third step: no action was taken, an episode opens."""

    def step(self, action):
        step = super().step(action)
        if self.t != 3:
            return step
        lost = np.array([True] + [False] * (self.num_envs - 1))
        reward = np.where(lost, np.float32(0), step.reward)
        return replace(step, reward=reward, first=step.first | lost, restarted=lost)


def test_the_row_of_a_restarted_environment_is_an_end_row():
    """Its transition never happened; its episode counts in no statistic and ends no sooner."""
    rows = [GO, GO, GO, DIES, OPENS, GO]
    collector = make(Acting(), env=Restarting(rows, [GO] * 6), num_envs=2, n_sample=10)
    chunk = collector.collect()
    assert chunk.valid[:6].tolist() == [[t not in (2, 4), True] for t in range(6)]
    assert chunk.first[:6, 0].tolist() == [t in (0, 3, 5) for t in range(6)]
    assert not (chunk.terminated | chunk.truncated)[2].any()
    assert chunk.reward[:4, 0].tolist() == [1, 2, 0, 4]
    assert collector.counters.env_steps == chunk.valid.sum()
    metrics = collector.metrics()
    assert (metrics["collect/restarts"], metrics["collect/episodes"]) == (1, 1)
    assert (metrics["collect/return_mean"], metrics["collect/length_mean"]) == (4, 1)
