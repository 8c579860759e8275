"""A killed run that is resumed equals the run that was not killed: environments, collector."""

import json

import pytest

from rlrun.run import train
from rlrun.rundir import checkpoint
from rlrun.rundir.record import RunRecord
from rlrun.rundir.saver import Saver
from tests.compose import config
from tests.exact import QUIET, Killed, assert_exact_resume

SMALL = ("run.total_steps=240", "run.eval_every=120", "run.eval_episodes=1", "logger.every=40",
         "collector.n_sample=16", "collector.unit=step", "run.stop_value=null")  # fmt: skip
LEARN = (*SMALL, "learner.learning_starts=32", "learner.batch_size=8", "buffer.capacity=400",
         "torso.hidden=[8]", "learner.replay_ratio=8")  # fmt: skip
STOPS = (70, 130)

CASES = {
    "dqn": ("policy=dqn", "env=cartpole", *LEARN),
    "dqn_one_env": ("policy=dqn", "env=cartpole", "collector.num_envs=1", *LEARN),
    "async": ("policy=dqn", "env=acrobot", "env.backend=async", "collector.num_envs=2", *LEARN),
    "ppo_lstm": ("policy=ppo", "memory=lstm", "env=pendulum", *SMALL, "torso.hidden=[8]"),
    "r2d2": (
        "policy=r2d2",
        "env=cartpole_novel",
        "pipeline=overlapped",
        *LEARN,
        "learner.replay_ratio=40",
    ),
    "sac": ("policy=sac", "env=mountaincar_continuous", "collector.num_envs=2", *LEARN),
    "agents": ("policy=dqn", "env=relay", "bonus=rnd", *LEARN),
    "her": ("policy=dqn", "env=bitflip", "env.kwargs.bits=4", "buffer.relabel=future", *LEARN),
    "coded": ("policy=dqn", "env=cartpole", "transport=coded", "env.frame_stack=2", *LEARN),
}


@pytest.mark.parametrize("case", CASES)
def test_a_killed_run_equals_the_run_that_was_not(case, tmp_path):
    assert_exact_resume(CASES[case], STOPS, tmp_path)


@pytest.mark.parametrize(
    "last_call",
    [
        (RunRecord, "write"),
        (Saver, "_write_generation"),
        (checkpoint, "save_weights"),
    ],
)
def test_killed_before_its_first_checkpoint_is_complete(last_call, tmp_path, monkeypatch):
    """The first leaves no run.json, the second no checkpoint, the last no weights beside it."""
    c = config(*QUIET, *CASES["dqn"], "run.checkpoint_every=100", "run.eval_every=400")
    cut, whole = tmp_path / "cut", tmp_path / "whole"
    for run_dir in (cut, whole):
        run_dir.mkdir()
        (run_dir / "config.yaml").write_text("{}")

    def die(*_, **__):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(*last_call, die)
        with pytest.raises(Killed):
            train.run(c, cut, raw_yaml="seed: 0", overrides=[])
    assert not (cut / "checkpoints/last.json").exists()
    assert train.resume(cut, c, raw_yaml="seed: 0", overrides=[]) == 0
    assert train.run(c, whole, raw_yaml="seed: 0", overrides=[]) == 0
    one, two = (json.loads((d / "run.json").read_text())["digest"] for d in (cut, whole))
    assert one == two


def test_a_run_that_cannot_be_exact_says_so_and_resumes(tmp_path, caplog):
    """Its environment draws from a global generator."""
    words = ("policy=random", "env=gym", "env.id=tests.env.walks:test/Walk-v0", *SMALL, *QUIET,
             "+env.kwargs.hidden=global", "collector.num_envs=2")  # fmt: skip
    (tmp_path / "config.yaml").write_text("{}")
    c = config(*words, "run.checkpoint_every=60")
    assert train.run(c, tmp_path, raw_yaml="seed: 0\n", overrides=[]) == 0
    warnings = [r.getMessage() for r in caplog.records if "will differ" in r.getMessage()]
    assert len(warnings) == 1, "once, though there are four checkpoints"
    record = json.loads((tmp_path / "run.json").read_text())
    assert (record["exact"], "gives other rows" in record["exact_reason"]) == (False, True)
    longer = config(*words, "run.total_steps=400")
    assert train.resume(tmp_path, longer, raw_yaml="seed: 0\n", overrides=[]) == 0
    record = json.loads((tmp_path / "run.json").read_text())
    assert (record["exact"], record["env_steps"]) == (False, 400)


def test_environments_in_worker_processes_give_the_same_metrics(tmp_path):
    """Without a restart, also where one would be allowed."""
    found = set()
    for i, more in enumerate((["sync"], ["async", "env.on_worker_failure=restart"])):
        (tmp_path / str(i)).mkdir()
        words = ("debug=smoke", "policy=dqn", "env=gym", "env.id=CartPole-v1", *QUIET)
        c = config(*words, f"env.backend={more[0]}", *more[1:], "run.total_steps=300")
        assert train.run(c, tmp_path / str(i), raw_yaml="", overrides=[]) == 0
        found.add(json.loads((tmp_path / str(i) / "run.json").read_text())["digest"])
    assert len(found) == 1
