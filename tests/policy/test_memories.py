"""Every memory of conf/memory: room for its state in the replay, and whole runs of policies."""

from pathlib import Path

import gymnasium as gym
import pytest
import torch

from rlrun.buffer.storage.sizing import row_of
from rlrun.nets.memory import make_memory
from rlrun.run import train as training
from rlrun.run.export import export_run
from rlrun.rundir.record import RunRecord
from rlrun.schema import MEMORY_CONFIGS
from rlrun.tree import tree_leaves
from tests.compose import config

QUIET = ("logger.progress=off", "logger.tensorboard=false", "learner.threads=1")


@pytest.mark.parametrize("memory", sorted(MEMORY_CONFIGS))
def test_the_replay_has_room_for_the_state(memory):
    c = config("policy=r2d2", f"memory={memory}")
    box, actions = gym.spaces.Box(-1, 1, (3,)), gym.spaces.Discrete(2)
    state = make_memory(c.memory, 3).initial_state(1, torch.device("cpu"))
    assert [s.shape for s in tree_leaves(row_of(c, box, actions).state)] == [
        tuple(s.shape[1:]) for s in tree_leaves(state)
    ]


def run(run_dir: Path, *words: str) -> RunRecord:
    run_dir.mkdir()
    assert training.run(config(*words, *QUIET), run_dir, raw_yaml="", overrides=[]) == 0
    return RunRecord.read(run_dir)


@pytest.mark.parametrize(  # r2d2 and ppo: tests/learning
    ("policy", "env", "memory"),
    [
        ("drqn", "cartpole", "gtrxl"),
        ("rsac", "pendulum", "ffm"),
        ("rtd3", "pendulum", "lmu"),
        ("a2c", "cartpole", "lru"),
        ("impala", "cartpole", "rtu"),
    ],
)
def test_runs(tmp_path, policy, env, memory):
    """A few updates; every policy unrolls all memories the same way."""
    line = (f"policy={policy}", f"env={env}", f"memory={memory}", "debug=smoke")
    record = run(tmp_path / "run", *line)
    assert record.updates > 0
    assert record.env_steps >= 400


@pytest.mark.parametrize("memory", ["lru", "gtrxl"])
def test_cloning_runs(tmp_path, memory):
    behaviour = ("policy=dqn", "env=cartpole", "debug=smoke", "learner=transitions")
    run(tmp_path / "dqn", *behaviour)
    export_run(tmp_path / "dqn", tmp_path / "data", config(*behaviour), raw_yaml="",
               shard_rows=10_000)  # fmt: skip
    record = run(
        tmp_path / "bc", "policy=bc_recurrent", "env=cartpole", f"memory={memory}",
        f"buffer.load={tmp_path / 'data'}", "run.total_steps=20", "learner.batch_size=8",
        "run.eval_every=20", "run.eval_episodes=2",
    )  # fmt: skip
    assert record.updates == 20
