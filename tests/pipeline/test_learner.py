"""Learned rows per env step, updates per collect, learning_starts; priorities are written back."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from rlrun.buffer.rollout import Rollout
from rlrun.errors import NumericError
from rlrun.pipeline.learner import Learner, Means, RolloutLearner
from rlrun.schema import LearnerConfig
from rlrun.types import Counters, Sample, Update, Window
from tests.buffer.factory import make_replay
from tests.policy.factory import box_batch, control, r2d2, states_like
from tests.reference.streams import make_stream, part

RULED = {"threads": None, "target_thread": None, "backend": "auto", "precision": "float32",
         "cuda_graph": False, "compile": False}  # fmt: skip


class RecordingPolicy:
    """A policy that records its samples and does not learn."""

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
    fields = {
        "batch_size": 8,
        "update_per_collect": None,
        "replay_ratio": 16.0,
        "learning_starts": 0,
    }
    counters = Counters()
    learner = Learner(
        LearnerConfig(**(fields | RULED | changes)),
        policy=policy or RecordingPolicy(window), buffer=replay, counters=counters, td_priority=td,
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


def test_the_logged_replay_ratio_is_that_since_the_last_record_also_across_a_resume():
    learner, stream, counters = make(update_per_collect=3, replay_ratio=None)
    feed(learner, stream, counters, [40])
    assert learner.metrics()["train/replay_ratio"] == 3 * 8 * 4 / counters.env_steps
    before = counters.env_steps
    learner.step(10, np.empty(0, np.int64))
    other = make(update_per_collect=3, replay_ratio=None)
    other[2].updates = counters.updates
    other[0].buffer.load_state_dict(learner.buffer.state_dict())
    other[0].load_state_dict(learner.state_dict())
    for one in (learner, other[0]):
        one.config = replace(one.config, learning_starts=10**6)
        one.step(20, np.empty(0, np.int64))
        assert one.metrics()["train/replay_ratio"] == 3 * 8 * 4 / 30
    one.step(20, np.empty(0, np.int64))
    assert one.metrics() == {"train/replay_ratio": 0.0}, "no update, though learning has begun"
    assert before == counters.env_steps
    old = {name: x for name, x in learner.state_dict().items() if name != "rows"}
    learner.load_state_dict(old)
    assert learner.rows == 0, "of an earlier version"


def test_no_update_before_learning_starts_and_no_burst_after():
    learner, stream, counters = make(replay_ratio=32.0, learning_starts=50)
    done = feed(learner, stream, counters, [20] * 10)
    steps = np.cumsum([int(part(stream.segment, r, r + 20).valid.sum()) for r in range(0, 200, 20)])
    assert [d > 0 for d in done] == [s >= 50 for s in steps]
    assert max(done) <= 20


def test_no_update_without_a_window():
    learner, stream, counters = make()
    assert feed(learner, stream, counters, [2]) == [0]


def test_priorities_are_written_back_and_new_windows_get_initial_ones():
    learner, stream, counters = make(td=True, replay_ratio=1e-9)
    feed(learner, stream, counters, [60])
    raw = learner.buffer.sampler.raw
    assert np.nanmin(raw) == np.nanmax(raw) == pytest.approx(9.0, abs=1e-5)
    learner.config = learner.pacer.config = LearnerConfig(8, 1, None, 0, **RULED)
    learner.step(1, np.empty(0, np.int64))
    assert (np.isclose(raw, 3.0, atol=1e-5)).sum() > 0


def test_metrics_are_means_and_refuse_nan():
    learner, stream, counters = make()
    feed(learner, stream, counters, [60])
    ratio = counters.updates * 8 * 4 / counters.env_steps
    expected = {"train/loss": 1.0, "train/updates": counters.updates}
    assert learner.metrics() == expected | {"train/replay_ratio": ratio}
    assert learner.metrics() == {}
    learner, stream, counters = make(policy=RecordingPolicy(Window(1, 4, 2), float("nan")))
    feed(learner, stream, counters, [60])
    with pytest.raises(NumericError, match="train/loss = nan"):
        learner.metrics()


def test_metrics_are_summed_by_name():
    """A policy with a delayed actor returns its metrics in varying order."""
    policy, means = control("td3", actor_every=2), Means(Counters())
    logged = [policy.update(box_batch(policy)).metrics for _ in range(5)]
    for metrics in logged:
        means.add(metrics)
    found = means.report()
    assert found.pop("train/updates") == 0
    assert len({tuple(m) for m in logged}) == 2
    assert found["train/lr"] == pytest.approx(1e-2)
    for name, value in found.items():
        assert value == pytest.approx(np.mean([m[name].item() for m in logged]), rel=1e-5), name


def test_a_real_policy_changes_its_priorities():
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
    """A policy that records the number of rows and reports three gradient steps."""

    def __init__(self):
        self.given = []

    def update(self, sample):
        self.given.append((len(sample.segment.reward), sample.env_steps))
        return Update(None, {"train/loss": torch.tensor(float(len(self.given)))}, steps=3)


def test_a_rollout_is_learned_from_once_and_dropped():
    stream = make_stream([[9]], [[True]], 100)
    policy, counters = OnPolicy(), Counters()
    config = LearnerConfig(8, 1, None, 40, **RULED)
    rollout = Rollout(stream.segment, rows=40)
    learner = RolloutLearner(config, policy=policy, buffer=rollout, counters=counters)
    done = []
    for start in (0, 20, 40):
        keys = rollout.add(part(stream.segment, start, start + 20))
        counters.env_steps += 20
        done.append(learner.step(20, keys))
        assert len(rollout) == 0
    assert done == [0, 3, 3], "rollouts before learning_starts are dropped"
    assert policy.given == [(20, 40), (20, 60)]
    assert counters.updates == 6
    assert learner.metrics() == {"train/loss": 1.5, "train/updates": 6.0}
    assert learner.metrics() == {}


class Replayed:
    """A buffer of constant size that records the calls in order."""

    def __init__(self, rows=100):
        self.rows, self.asked, self.drawn = rows, [], 0

    def __len__(self):
        return self.rows

    def sample(self, batch, env_steps):
        self.drawn += 1
        self.asked.append(("sample", env_steps))
        return Sample(None, torch.ones(batch), 10 * self.drawn + np.arange(batch), env_steps)

    def get(self, keys, env_steps):
        self.asked.append(("get", env_steps))
        return Sample(None, torch.ones(len(keys)), keys, env_steps)

    def prioritize(self, key, priority):
        self.asked.append(("prioritize", dict(zip(key.tolist(), priority.tolist(), strict=True))))

    def histories(self, count, generator):
        empty = make_stream([[9]], [[True]], 4).segment
        self.asked.append(("histories", generator.random()))
        return empty, empty


class Keyed:
    """Priorities are half of the keys; every update takes two gradient steps."""

    window, device = Window(0, 1, 1), torch.device("cpu")

    def __init__(self, losses=()):
        self.losses, self.given = iter(losses), []

    def update(self, sample):
        self.given.append(sample)
        metrics = {"train/loss": torch.tensor(next(self.losses, 0.0))}
        return Update(self.priority(sample), metrics, steps=2)

    def priority(self, sample):
        self.given.append(sample)
        return torch.from_numpy(sample.key / 2)

    def delta_q(self, windows, history):
        return {"train/delta_q": torch.tensor(1.0)}


def replayed(policy=None, td=False, bonus=None, **changes):
    """A learner of a ``Replayed``."""
    fields = {"batch_size": 2, "update_per_collect": 3, "replay_ratio": None, "learning_starts": 0}
    return Learner(
        LearnerConfig(**(fields | RULED | changes)), policy=policy or Keyed(), buffer=Replayed(),
        counters=Counters(), td_priority=td, bonus=bonus,
    )  # fmt: skip


def test_priorities_are_written_back_before_the_next_sample():
    learner = replayed()
    learner.counters.env_steps = 70
    assert learner.step(20, np.arange(4)) == 3
    want = []
    for k in (10, 20, 30):
        want += [("sample", 70), ("prioritize", {k: k / 2, k + 1: (k + 1) / 2})]
    assert learner.buffer.asked == want
    assert learner.counters.updates == 6, "gradient steps, of which an update may take several"


def test_new_windows_get_their_td_error_before_the_first_sample():
    learner = replayed(td=True, update_per_collect=1)
    learner.counters.env_steps = 70
    learner.step(20, np.array([4, 6, 9]))
    new = [("get", 70), ("prioritize", {4: 2.0, 6: 3.0, 9: 4.5})]
    assert learner.buffer.asked[:3] == [*new, ("sample", 70)]


def test_learning_starts_at_the_configured_row():
    assert [replayed(learning_starts=n).step(20, np.arange(4)) for n in (99, 100, 101)] == [3, 3, 0]
    stream = make_stream([[9]], [[True]], 40)
    done = []
    for learning_starts in (20, 21):
        rollout = Rollout(stream.segment, rows=40)
        config = LearnerConfig(8, 1, None, learning_starts, **RULED)
        counters = Counters(env_steps=20)
        learner = RolloutLearner(config, policy=OnPolicy(), buffer=rollout, counters=counters)
        done.append(learner.step(20, rollout.add(part(stream.segment, 0, 20))))
    assert done == [3, 0]


def test_reported_metrics_are_those_since_the_last_report():
    learner = replayed(Keyed([1.0, 2.0, 3.0, 7.0]), update_per_collect=1)
    found = []
    for count in (3, 1):
        for _ in range(count):
            learner.step(20, np.arange(4))
        found.append(learner.metrics())
    assert [m["train/loss"] for m in found] == [2.0, 7.0]
    assert [m["train/updates"] for m in found] == [6.0, 8.0]


@pytest.mark.parametrize("value", [float("inf"), -float("inf"), float("nan")])
def test_a_loss_that_is_not_finite_is_refused(value):
    learner = replayed(Keyed([1.0, value]))
    learner.step(20, np.arange(4))
    with pytest.raises(NumericError, match="train/loss = "):
        learner.metrics()


def test_a_restored_learner_keeps_its_fraction_of_an_update():
    """5 rows at 0.75 are 3.75 learned rows, an update takes 2: the fraction is carried over."""
    changes = {"update_per_collect": None, "replay_ratio": 0.75}
    whole, first, second = (replayed(**changes) for _ in range(3))
    done = [whole.step(5, np.arange(1)) for _ in range(4)]
    again = [first.step(5, np.arange(1))]
    second.load_state_dict(first.state_dict())
    again += [second.step(5, np.arange(1)) for _ in range(3)]
    assert again == done == [1, 2, 2, 2]


class Doubled:
    """A bonus that doubles the weights of its samples."""

    def add_to(self, sample):
        return replace(sample, weight=2 * sample.weight)


def test_every_sample_contains_the_bonus():
    policy = Keyed()
    replayed(policy, td=True, bonus=Doubled()).step(20, np.arange(4))
    assert len(policy.given) == 7
    assert all((sample.weight == 2).all() for sample in policy.given)
    stream, given = make_stream([[9]], [[True]], 40), []
    rollout = Rollout(stream.segment, rows=40)
    policy = OnPolicy()
    policy.update = lambda sample: given.append(sample) or Update(None, {"a": torch.tensor(0.0)})
    learner = RolloutLearner(
        LearnerConfig(8, 1, None, 0, **RULED), policy=policy, buffer=rollout,
        counters=Counters(), bonus=Doubled(),
    )  # fmt: skip
    learner.step(20, rollout.add(part(stream.segment, 0, 20)))
    assert (given[0].weight == 2).all()


def test_diagnosed_windows_depend_on_env_steps_only():
    learner, drawn = replayed(), []
    for clock in (50, 60, 50):
        learner.counters.env_steps = clock
        assert learner.diagnose() == {"train/delta_q": 1.0}
        drawn.append(learner.buffer.asked[-1])
    assert drawn[0] == drawn[2] != drawn[1]
