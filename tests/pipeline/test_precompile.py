"""The update's kernel is compiled beside a first run, in a process that changes nothing in it.

Private: what is compiled beforehand shows in seconds alone.
"""

import multiprocessing
import os

import pytest

from rlrun.run import precompile
from tests.compose import config

LEARNED = 77  # exit code of the process once it has made an update


@pytest.mark.parametrize("policy", ["r2d2", "dqn", "ppo", "pqn"])
def test_a_process_learns_from_zeros_where_no_kernel_is_kept(pipeline_of, monkeypatch, policy):
    overrides = (f"policy={policy}", "env=cartpole", "torso.hidden=[8]")
    parts = pipeline_of(*overrides).parts
    learn = parts.policy.learn

    def learned(sample):
        learn(sample)
        os._exit(LEARNED)

    monkeypatch.setattr(parts.policy, "learn", learned)
    before = {name: w.clone() for name, w in parts.policy.weights().items()}
    for kept in (True, False):
        monkeypatch.setattr(precompile, "is_kept", lambda function, kept=kept: kept)
        precompile.compile_update(config(*overrides), parts)
        processes = multiprocessing.active_children()
        assert bool(processes) != kept
    (process,) = processes
    process.join()
    assert process.exitcode == LEARNED
    assert len(parts.buffer) == 0
    assert all((before[name] == w).all() for name, w in parts.policy.weights().items())


def test_no_process_writes_to_a_mapped_replay_or_runs_without_a_kernel(
    pipeline_of, monkeypatch, tmp_path
):
    monkeypatch.setattr(precompile, "is_kept", lambda function: False)
    for overrides in (
        ("policy=dqn", f"buffer.mmap={tmp_path}"),
        ("policy=dqn", "learner.backend=torch"),
        ("policy=crossq", "env=pendulum"),
    ):
        precompile.compile_update(config(*overrides), pipeline_of(*overrides).parts)
        assert not multiprocessing.active_children()
