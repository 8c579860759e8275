"""Any order of adding, sampling, prioritizing, saving and crashing leaves what the model says."""

import gc
import os

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rlrun.errors import NumericError
from rlrun.types import tree_leaves
from tests.buffer.pair import Pair, random_setup, setups

CASES = 1000 if os.environ.get("RLRUN_FAULTS") == "long" else 300  # a shard
SHARDS = 10
HELD = 3  # samples kept, which nothing may write to


@pytest.fixture(autouse=True)
def _many_blocks(monkeypatch):
    """Windows are looked at a few together, as in a large table."""
    monkeypatch.setattr("rlrun.buffer.windows.table.SCAN", 3)


def tensors(sample):
    s = sample.segment
    flags = (s.first, s.terminated, s.truncated, s.valid)
    return [*tree_leaves((s.obs, s.extras, s.state)), *flags, s.action, s.reward, sample.weight]


@settings(
    max_examples=200,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
class Machine(RuleBasedStateMachine):
    """A pair, saves of it, and the last samples with copies of what was in them."""

    @initialize(setup=setups())
    def begin(self, setup):
        note(repr(setup))
        self.pair, self.saves, self.held = Pair(setup), [], []

    @property
    def some(self):
        return len(self.pair.model.made) > 0

    def hold(self, sample):
        copies = [x.clone() for x in tensors(sample)]
        self.held = [*self.held, (sample, copies)][-HELD:]

    @rule(steps=st.integers(1, 12) | st.integers(1, 80))
    def add(self, steps):
        self.pair.add(steps)

    @precondition(lambda self: self.some)
    @rule(batch=st.integers(1, 9))
    def sample(self, batch):
        sample = self.pair.replay.sample(batch, env_steps=self.pair.model.steps)
        assert len(sample.key) == batch
        self.pair.agree_on(sample)
        self.hold(sample)

    @rule()
    def sample_all(self):
        self.pair.agree_on_all()

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, HELD - 1), seed=st.integers(0, 99))
    def learn(self, which, seed):
        """Priorities of a sample, of which windows may be gone by now; duplicates as drawn."""
        sample = self.held[which % len(self.held)][0]
        rng = np.random.default_rng(seed)
        self.pair.prioritize(sample.key, priorities(rng, len(sample.key)))

    @precondition(lambda self: self.pair.names)
    @rule(data=st.data(), seed=st.integers(0, 99))
    def learn_of_any(self, data, seed):
        """Keys of all times, some twice, and some that were never given."""
        known = sorted(self.pair.names)
        unknown = [-1, -2, known[-1] + 1000, 10**12]
        keys = data.draw(st.lists(st.sampled_from(known + unknown), max_size=8))
        rng = np.random.default_rng(seed)
        self.pair.prioritize(np.array(keys, np.int64), priorities(rng, len(keys)))

    @precondition(lambda self: self.some and self.pair.setup.kind != "uniform")
    @rule(bad=st.sampled_from([np.nan, np.inf, -np.inf, -1e-3]), at=st.integers(0, 9))
    def refuse(self, bad, at):
        sample = self.pair.replay.sample(1 + at, 0)
        priority = np.ones(1 + at, np.float32)
        priority[at] = bad
        with pytest.raises(NumericError, match="priority = "):
            self.pair.replay.prioritize(sample.key, priority)

    @rule()
    def save(self):
        self.saves.append(self.pair.save())

    @precondition(lambda self: self.saves)
    @rule(back=st.integers(0, 5))
    def crash(self, back):
        """A new process takes up an older save; what came after it never was."""
        self.pair.load(self.saves[-1 - back % len(self.saves)], crash=True)
        self.held.clear()

    @precondition(lambda self: self.saves)
    @rule(back=st.integers(0, 5))
    def rewind(self, back):
        """The same, into the replay that is there: nothing of what it held is left."""
        self.pair.load(self.saves[-1 - back % len(self.saves)], crash=False)
        self.held.clear()

    @precondition(lambda self: self.some)
    @rule()
    def restart(self):
        """Loading what is here changes nothing: the next sample is that without interruption."""
        saved = self.pair.save()
        one = self.pair.replay.sample(5, 0)
        self.pair.load(saved, crash=False)
        other = self.pair.replay.sample(5, 0)
        assert (one.key == other.key).all()
        for x, y in zip(tensors(one), tensors(other), strict=True):
            assert x.numpy().tobytes() == y.numpy().tobytes()

    @invariant()
    def all_agrees(self):
        self.pair.agree()
        assert self.pair.replay.nbytes == self.pair.replay.layout.nbytes
        for sample, copies in self.held:
            for x, kept in zip(tensors(sample), copies, strict=True):
                assert torch.equal(torch.nan_to_num(x), torch.nan_to_num(kept)), "written to"


def priorities(rng, count):
    return (10.0 ** rng.uniform(-6, 6, count)).astype(np.float32)


TestMachine = Machine.TestCase


@pytest.fixture
def _frozen():
    """Nothing imported is garbage: collections would look at all of it for every few cases."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("_frozen")
@pytest.mark.parametrize("shard", range(SHARDS))
def test_generated_replays(shard):
    """Each is a setup of its own, written to through wrap, every window alive read back."""
    read = 0
    for case in range(CASES):
        rng = np.random.default_rng([shard, case])
        pair = Pair(random_setup(rng))
        try:
            for _ in range(rng.integers(1, 6)):
                pair.add(int(rng.integers(1, 30)))
                pair.agree()
            pair.agree_on_all()
            if len(pair.replay):
                pair.agree_on(pair.replay.sample(4, 0))
        except Exception as e:
            raise AssertionError(f"shard {shard}, case {case}: {pair.setup}") from e
        read += len(pair.replay)
    assert read > 5 * CASES, "the cases are too small to say anything"
