"""Denormal numbers are zero wherever a run computes, and what they were before in other code."""

import gymnasium as gym
import numpy as np
import pytest

import rlrun
from rlrun.policy.compute import Compute, flushed, flushes
from tests.env.base import Env

ENV = "tests.pipeline.test_denormals:tests/Flush-v0"
LINE = ("policy=dqn", "env=gym", f"env.id={ENV}", "debug=smoke", "torso.hidden=[8]",
        "run.total_steps=300", "logger.tensorboard=false")  # fmt: skip


class Flush(Env):
    """Pays 1 a step where denormal numbers are zero."""

    observation_space, action_space = gym.spaces.Box(0, 1, (1,)), gym.spaces.Discrete(2)

    def _obs(self):
        return np.zeros(1, np.float32)

    def step(self, action):
        self.t += 1
        return self._obs(), float(flushes()), self.t == 5, False, {}


gym.register("tests/Flush-v0", Flush)


def test_within_the_block_and_in_its_threads_only():
    assert not flushes()
    with flushed():
        assert flushes()
        assert Compute(target_thread=True).run_in_thread(flushes)()
    assert not flushes()


@pytest.mark.parametrize("pipeline", ["serial", "overlapped"])
def test_a_run_flushes_where_it_collects_learns_and_evaluates(pipeline, tmp_path, monkeypatch):
    seen = []
    from rlrun.pipeline.learner import Learner

    step = Learner.step
    monkeypatch.setattr(Learner, "step", lambda *x: (seen.append(flushes()), step(*x))[1])
    run = rlrun.train(
        *LINE, f"pipeline={pipeline}", f"run.dir={tmp_path}/run", quiet=True, trust=["tests"]
    )
    assert seen
    assert all(seen)
    assert not flushes(), "as before"
    assert run.metric("collect/return_min")[1].min() == 5
    assert run.score == 5
    agent = rlrun.load(run, trust=["tests"])
    env = agent.env()
    env.reset(seed=0)
    agent.act(env.step(0)[0])
    assert not flushes()
