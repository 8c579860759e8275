"""Pacing: learned rows per env step, updates per collect, start_after; priorities go back."""

import numpy as np
import pytest
import torch

from rlrun.buffer.rollout import Rollout
from rlrun.errors import NumericError
from rlrun.pipeline.learner import Learner, Means, RolloutLearner
from rlrun.schema import LearnerConfig
from rlrun.types import Counters, Update, Window
from tests.buffer.factory import make_replay
from tests.policy.factory import box_batch, control, r2d2, states_like
from tests.reference.streams import make_stream, part

RULED = {"threads": None, "target_thread": None, "precision": "float32",
         "cuda_graph": False, "compile": False}  # fmt: skip


class Fake:
    """Learns nothing, says what it was given."""

    def __init__(self, window, value=1.0):
        self.window, self.value, self.batches = window, value, []

    def update(self, sample):
        self.batches.append(len(sample.key))
        metrics = {"train/loss": torch.tensor(self.value)}
        return Update(torch.full((len(sample.key),), 3.0), metrics)

    def priority(self, sample):
        return torch.full((len(sample.key),), 9.0)


def make(policy=None, td=False, **changes):
    stream = make_stream([[9]], [[True]], 400)
    window = Window(1, 4, 2)
    replay = make_replay(stream.segment, rows=420, window=window, kind="prioritized")
    fields = {"batch_size": 8, "update_per_collect": None, "replay_ratio": 16.0, "start_after": 0}
    counters = Counters()
    learner = Learner(
        LearnerConfig(**(fields | RULED | changes)),
        policy=policy or Fake(window), buffer=replay, counters=counters, td_priority=td,
    )  # fmt: skip
    return learner, stream, counters


def feed(learner, stream, counters, pieces):
    done, row = [], 0
    for n in pieces:
        chunk = part(stream.segment, row, row + n)
        keys = learner.buffer.add(chunk)
        rows = int(chunk.valid.sum())
        counters.env_steps += rows
        done.append(learner.step(rows, keys))
        row += n
    return done


def test_replay_ratio_is_learned_rows_per_env_step():
    learner, stream, counters = make(replay_ratio=7.0)
    feed(learner, stream, counters, [10] + [7] * 50)
    learned = counters.updates * 8 * 4
    assert learned == pytest.approx(7.0 * counters.env_steps, abs=8 * 4)


def test_updates_per_collect():
    learner, stream, counters = make(update_per_collect=3, replay_ratio=None)
    assert feed(learner, stream, counters, [20, 20, 20]) == [3, 3, 3]


def test_nothing_before_start_after_and_no_burst_behind_it():
    learner, stream, counters = make(replay_ratio=32.0, start_after=50)
    done = feed(learner, stream, counters, [20] * 10)
    steps = np.cumsum([int(part(stream.segment, r, r + 20).valid.sum()) for r in range(0, 200, 20)])
    assert [d > 0 for d in done] == [s >= 50 for s in steps]
    assert max(done) <= 20


def test_nothing_without_a_window():
    learner, stream, counters = make()
    assert feed(learner, stream, counters, [2]) == [0]


def test_priorities_return_and_new_windows_take_the_actors():
    learner, stream, counters = make(td=True, replay_ratio=1e-9)
    feed(learner, stream, counters, [60])
    raw = learner.buffer.sampler.raw
    assert np.nanmin(raw) == np.nanmax(raw) == pytest.approx(9.0, abs=1e-5)
    learner.config = LearnerConfig(8, 1, None, 0, **RULED)
    learner.step(1, np.empty(0, np.int64))
    assert (np.isclose(raw, 3.0, atol=1e-5)).sum() > 0


def test_metrics_are_means_and_refuse_nan():
    learner, stream, counters = make()
    feed(learner, stream, counters, [60])
    assert learner.metrics() == {"train/loss": 1.0, "train/updates": counters.updates}
    assert learner.metrics() == {}
    learner, stream, counters = make(policy=Fake(Window(1, 4, 2), float("nan")))
    feed(learner, stream, counters, [60])
    with pytest.raises(NumericError, match="train/loss = nan"):
        learner.metrics()


def test_metrics_are_added_up_by_name():
    """A delayed actor's update says the same names in another order."""
    policy, means = control("td3", actor_every=2), Means(Counters())
    told = [policy.update(box_batch(policy)).metrics for _ in range(5)]
    for metrics in told:
        means.gather(metrics)
    found = means.report()
    assert found.pop("train/updates") == 0
    assert len({tuple(m) for m in told}) == 2
    assert found["train/lr"] == pytest.approx(1e-2)
    for name, value in found.items():
        assert value == pytest.approx(np.mean([m[name].item() for m in told]), rel=1e-5), name


def test_a_real_policy_moves_its_priorities():
    policy = r2d2()
    stream = make_stream([[9, 14]], [[True]], 200)
    segment = states_like(policy, stream)
    replay = make_replay(segment, rows=220, window=policy.window, kind="prioritized")
    config = LearnerConfig(8, 5, None, 0, **RULED)
    learner = Learner(config, policy=policy, buffer=replay, counters=Counters(), td_priority=True)
    keys = replay.add(segment)
    learner.step(180, keys)
    raw = replay.sampler.raw[~np.isnan(replay.sampler.raw)]
    assert len(set(raw.round(6))) > 5
    assert learner.counters.updates == 5


class OnPolicy:
    """Learns nothing, says how many rows it was given and that it took three steps."""

    def __init__(self):
        self.given = []

    def update(self, sample):
        self.given.append((len(sample.segment.reward), sample.env_steps))
        return Update(None, {"train/loss": torch.tensor(float(len(self.given)))}, steps=3)


def test_a_rollout_is_learned_from_whole_once_and_dropped():
    stream = make_stream([[9]], [[True]], 100)
    policy, counters = OnPolicy(), Counters()
    config = LearnerConfig(8, 1, None, 30, **RULED)
    rollout = Rollout(stream.segment, rows=40)
    learner = RolloutLearner(config, policy=policy, buffer=rollout, counters=counters)
    done = []
    for start in (0, 20, 40):
        keys = rollout.add(part(stream.segment, start, start + 20))
        counters.env_steps += 20
        done.append(learner.step(20, keys))
        assert len(rollout) == 0
    assert done == [0, 3, 3], "rollouts before start_after are dropped"
    assert policy.given == [(20, 40), (20, 60)]
    assert counters.updates == 6
    assert learner.metrics() == {"train/loss": 1.5, "train/updates": 6.0}
    assert learner.metrics() == {}
