"""How much is learned of how many rows, from what, and what becomes of the priorities.

Private: how much is learned of how many rows shows in curves of learning alone.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from rlrun.buffer.rollout import Rollout
from rlrun.errors import NumericError
from rlrun.pipeline.learner import Learner, Means, RolloutLearner
from rlrun.schema import LearnerConfig
from rlrun.types import Counters, Sample, Update, Window
from tests.buffer.make import make_replay
from tests.policy.make import build, states_like
from tests.reference.streams import make_stream, part

STREAM = make_stream([[9]], [[True]], 100)
RULED = {"threads": None, "target_thread": None, "backend": "auto", "precision": "float32",
         "cuda_graph": False, "compile": False}  # fmt: skip


def learner_config(**changes):
    fields = {"batch_size": 2, "update_per_collect": 3, "replay_ratio": None, "learning_starts": 0}
    return LearnerConfig(**(fields | RULED | changes))


class Replayed:
    """A buffer of constant size that records the calls in order."""

    steps = 100

    def __init__(self, windows=100):
        self.windows, self.asked, self.drawn = windows, [], 0

    def __len__(self):
        return self.windows

    def sample(self, batch, env_steps):
        self.drawn += 1
        self.asked.append(("sample", env_steps))
        return Sample(None, torch.ones(batch), 10 * self.drawn + np.arange(batch), env_steps)

    def get(self, keys, env_steps):
        self.asked.append(("get", env_steps))
        return Sample(None, torch.ones(len(keys)), keys, env_steps)

    def prioritize(self, key, priority):
        self.asked.append(("prioritize", dict(zip(key.tolist(), priority.tolist(), strict=True))))

    def metrics(self, env_steps):
        return {}


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


def replayed(policy=None, td=False, bonus=None, windows=100, **changes):
    """A learner of a ``Replayed``."""
    return Learner(
        learner_config(**changes), policy=policy or Keyed(), buffer=Replayed(windows),
        counters=Counters(), td_priority=td, bonus=bonus,
    )  # fmt: skip


class OnPolicy:
    """A policy that records its samples and reports three gradient steps."""

    def __init__(self):
        self.given = []

    def update(self, sample):
        self.given.append(sample)
        return Update(None, {"train/loss": torch.tensor(float(len(self.given)))}, steps=3)


def of_rollouts(policy, counters, bonus=None, **changes):
    rollout = Rollout(STREAM.segment, rows=40)
    c = learner_config(**changes)
    return RolloutLearner(c, policy=policy, buffer=rollout, counters=counters, bonus=bonus)


@pytest.mark.parametrize("value", [0.75, 7.0])
def test_replay_ratio_is_learned_rows_per_env_step(value):
    """5 rows at 0.75 are 3.75 learned rows, an update takes 2; a resume keeps the fraction."""
    changes = {"update_per_collect": None, "replay_ratio": value}
    whole, first, second = (replayed(**changes) for _ in range(3))
    done = [whole.step(5, np.arange(1)) for _ in range(40)]
    assert 2 * sum(done) == pytest.approx(value * 200, abs=2)
    assert max(done) - min(done) <= 1
    again = [first.step(5, np.arange(1))]
    second.load_state_dict(first.state_dict())
    again += [second.step(5, np.arange(1)) for _ in range(39)]
    assert again == done


def test_learning_starts_at_the_configured_row_without_a_burst():
    assert [replayed(learning_starts=n).step(20, np.arange(4)) for n in (99, 100, 101)] == [3, 3, 0]
    assert replayed(windows=0).step(20, np.arange(0)) == 0, "no window"
    late = replayed(learning_starts=101, update_per_collect=None, replay_ratio=1.0)
    assert late.step(50, np.arange(4)) == 0
    late.buffer.steps = 101
    assert late.step(2, np.arange(4)) == 1, "rows before the start pay for nothing"


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
    learner.step(20, np.arange(0))
    assert learner.buffer.asked[4:] == [("sample", 70), ("prioritize", {20: 10.0, 21: 10.5})]


def test_a_rollout_is_learned_from_once_and_dropped():
    policy, counters = OnPolicy(), Counters()
    learner = of_rollouts(policy, counters, learning_starts=40)
    done = []
    for start in (0, 20, 40):
        keys = learner.buffer.add(part(STREAM.segment, start, start + 20))
        counters.env_steps += 20
        done.append(learner.step(20, keys))
        assert len(learner.buffer) == 0
    assert done == [0, 3, 3], "rollouts before learning_starts are dropped"
    assert [(len(s.segment.reward), s.env_steps) for s in policy.given] == [(20, 40), (20, 60)]
    assert counters.updates == 6
    assert learner.metrics() == {"train/loss": 1.5, "train/updates": 6.0}
    assert learner.metrics() == {}


# -- metrics ---------------------------------------------------------------------------------------


def test_reported_metrics_are_those_since_the_last_report_also_across_a_resume():
    losses = [1.0, 2.0, 3.0, 7.0, 9.0]
    learner, other = (replayed(Keyed(x), update_per_collect=1) for x in (losses, losses[4:]))
    found = []
    for count in (3, 1):
        for _ in range(count):
            learner.step(20, np.arange(4))
        found.append(learner.metrics())
    assert [m["train/loss"] for m in found] == [2.0, 7.0]
    assert [m["train/updates"] for m in found] == [6.0, 8.0]
    learner.step(20, np.arange(4))
    other.counters.updates = learner.counters.updates
    other.load_state_dict(learner.state_dict())
    other.step(20, np.arange(4))
    assert other.metrics()["train/loss"] == 9.0
    assert other.metrics() == {}


@pytest.mark.parametrize("number", [float, torch.tensor])
def test_metrics_of_kernels_are_numbers_with_the_sums_of_tensors(number):
    """Before and after a resume, which continues either with either."""
    values = [0.1, 0.7, 1e-3, 2.5]
    tensors, given = Means(Counters()), Means(Counters())
    for means, kind in ((tensors, torch.tensor), (given, number)):
        for value in values[:2]:
            means.add({"train/loss": kind(value), "train/lr": kind(2 * value)})
    resumed = Means(Counters())
    resumed.load_state_dict(given.state_dict())
    for value in values[2:]:
        tensors.add({"train/loss": torch.tensor(value), "train/lr": torch.tensor(2 * value)})
        resumed.add({"train/loss": float(value), "train/lr": float(2 * value)})
    assert resumed.report() == tensors.report()


def test_metrics_are_summed_by_name():
    """A policy with a delayed actor returns its metrics in varying order."""
    means = Means(Counters())
    means.add({"train/loss": 1.0, "train/actor_loss": 20.0, "train/lr": 0.1})
    means.add({"train/lr": 0.3, "train/loss": 3.0, "train/actor_loss": 40.0})
    found = means.report()
    assert (found["train/loss"], found["train/actor_loss"]) == (2.0, 30.0)
    assert found["train/lr"] == pytest.approx(0.2)


def test_the_logged_replay_ratio_is_that_since_the_last_record_also_across_a_resume():
    learner, other = replayed(), replayed()
    learner.step(40, np.arange(4))
    assert learner.metrics()["train/replay_ratio"] == 3 * 2 / 40
    learner.step(10, np.arange(4))
    other.counters.updates = learner.counters.updates
    other.load_state_dict(learner.state_dict())
    for one in (learner, other):
        one.config = replace(one.config, learning_starts=10**6)
        one.step(20, np.arange(0))
        assert one.metrics()["train/replay_ratio"] == 3 * 2 / 30
    other.step(20, np.arange(0))
    assert other.metrics() == {"train/replay_ratio": 0.0}, "no update, though learning has begun"


@pytest.mark.parametrize("value", [float("inf"), -float("inf"), float("nan")])
def test_a_loss_that_is_not_finite_is_refused(value):
    learner = replayed(Keyed([1.0, value]))
    learner.step(20, np.arange(4))
    with pytest.raises(NumericError, match="train/loss = "):
        learner.metrics()


class Doubled:
    """A bonus that doubles the weights of its samples."""

    def add_to(self, sample):
        return replace(sample, weight=2 * sample.weight)


def test_every_sample_contains_the_bonus():
    policy, on_policy = Keyed(), OnPolicy()
    replayed(policy, td=True, bonus=Doubled()).step(20, np.arange(4))
    learner = of_rollouts(on_policy, Counters(), Doubled())
    learner.step(20, learner.buffer.add(part(STREAM.segment, 0, 20)))
    assert (len(policy.given), len(on_policy.given)) == (7, 1)
    assert all((sample.weight == 2).all() for sample in policy.given + on_policy.given)


def test_diagnosed_windows_depend_on_env_steps_only():
    """No random stream of the run changes."""
    policy = build("r2d2")
    segment = states_like(policy, make_stream([[9, 14]], [[True]], 200))
    replay = make_replay(segment, rows=220, window=policy.window)
    c = learner_config()
    learner = Learner(c, policy=policy, buffer=replay, counters=Counters(), td_priority=False)
    assert learner.diagnose() == {}, "the buffer is empty"
    replay.add(segment)
    before, found = replay.state_dict()["sampler"], []
    for clock in (50, 60, 50):
        learner.counters.env_steps = clock
        found.append(learner.diagnose())
    assert found[0] == found[2] != found[1]
    assert any(name.startswith("train/delta_q") for name in found[0])
    assert str(replay.state_dict()["sampler"]) == str(before)
