"""Any order of adding, sampling, prioritizing, saving and crashing leaves what the model says."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rlrun.errors import NumericError
from tests.buffer.pair import Pair, setups


def tensors(sample):
    return [*sample.segment.tensors(), sample.weight, torch.as_tensor(sample.key)]


@settings(
    max_examples=50, stateful_step_count=20,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
class Machine(RuleBasedStateMachine):
    """A pair, saves of it, and the keys of the last samples."""

    @initialize(setup=setups())
    def begin(self, setup):
        note(repr(setup))
        self.pair, self.saves, self.keys, self.clock = Pair(setup), [], [], 0

    @property
    def some(self):
        return len(self.pair.model.made) > 0

    def draw(self, batch):
        self.clock += 1
        return self.pair.replay.sample(batch, self.clock)

    @rule(steps=st.integers(1, 12) | st.integers(1, 80))
    def add(self, steps):
        self.pair.add(steps)

    @precondition(lambda self: self.some)
    @rule(batch=st.integers(1, 9))
    def sample(self, batch):
        """What is handed out stays as it is while the next sample is drawn."""
        sample = self.draw(batch)
        assert len(sample.key) == batch
        self.pair.agree_on(sample)
        copies = [x.clone() for x in tensors(sample)]
        self.keys = [*self.keys, np.array(sample.key)][-3:]
        self.draw(batch)
        for x, kept in zip(tensors(sample), copies, strict=True):
            assert torch.equal(torch.nan_to_num(x), torch.nan_to_num(kept)), "written to"

    @rule()
    def sample_all(self):
        self.pair.agree_on_all()

    @precondition(lambda self: self.keys)
    @rule(which=st.integers(0, 2), seed=st.integers(0, 99))
    def learn(self, which, seed):
        """Priorities of a sample, of which windows may be gone by now; duplicates as drawn."""
        keys = self.keys[which % len(self.keys)]
        self.pair.prioritize(keys, some_priorities(seed, len(keys)))

    @precondition(lambda self: self.pair.names)
    @rule(data=st.data(), seed=st.integers(0, 99))
    def learn_of_any(self, data, seed):
        """Keys of all times, some twice, and some that were never given."""
        known = sorted(self.pair.names)
        unknown = [-1, -2, known[-1] + 1000, 10**12]
        keys = data.draw(st.lists(st.sampled_from(known + unknown), max_size=8))
        self.pair.prioritize(np.array(keys, np.int64), some_priorities(seed, len(keys)))

    @precondition(lambda self: self.some and self.pair.setup.kind != "uniform")
    @precondition(lambda self: self.pair.setup.device is None)  # which raises later
    @rule(bad=st.sampled_from([np.nan, np.inf, -np.inf, -1e-3]), at=st.integers(0, 9))
    def refuse(self, bad, at):
        key, priority = self.draw(1 + at).key, np.ones(1 + at, np.float32)
        priority[at] = bad
        with pytest.raises(NumericError, match="priority = "):
            self.pair.replay.prioritize(key, priority)

    @rule()
    def save(self):
        self.saves.append(self.pair.save())

    @precondition(lambda self: self.saves)
    @rule(back=st.integers(0, 5), crash=st.booleans())
    def load(self, back, crash):
        """An older save, in a new process or here; what came after it never was."""
        self.pair.load(self.saves[-1 - back % len(self.saves)], crash=crash)
        self.keys.clear()

    @precondition(lambda self: self.some)
    @rule()
    def restart(self):
        """Loading what is here changes nothing: the next sample is that without interruption."""
        saved, self.clock = self.pair.save(), self.clock + 1
        copies = [x.clone() for x in tensors(self.pair.replay.sample(5, self.clock))]
        self.pair.load(saved, crash=False)
        again = tensors(self.pair.replay.sample(5, self.clock))
        for x, y in zip(copies, again, strict=True):
            assert x.numpy().tobytes() == y.numpy().tobytes()

    @invariant()
    def all_agrees(self):
        self.pair.agree()


def some_priorities(seed, count):
    return (10.0 ** np.random.default_rng(seed).uniform(-6, 6, count)).astype(np.float32)


TestMachine = Machine.TestCase
