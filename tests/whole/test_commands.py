"""The commands that a user types first, each in a process of its own as from a shell."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlrun.run.diff import differences

EXAMPLES = Path(__file__).parents[1] / "examples"
TINY = ("env=cartpole", "learner.threads=1", "logger.tensorboard=false", "-q")


def command(*words):
    return [sys.executable, "-m", "rlrun", *words]


def rlrun(cwd, *words):
    return subprocess.run(command(*words), cwd=cwd, capture_output=True, text=True, check=False)


def done(cwd, *words):
    """What ``rlrun *words`` prints; it must succeed."""
    result = rlrun(cwd, *words)
    assert (result.returncode, result.stderr) == (0, ""), words
    return result.stdout


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The directory of a finished run of R2D2, with the words that made it."""
    work = tmp_path_factory.mktemp("whole")
    words = ["policy=r2d2", "memory.hidden=16", "torso.hidden=[16]", "run.total_steps=700",
             "run.eval_every=350", "run.eval_episodes=2", "run.checkpoint_every=100",
             "learner.learning_starts=200", "run.stop_return=null", *TINY]  # fmt: skip
    (work / "words").write_text(json.dumps(words))
    done(work, *words, "run.dir=run")
    return work / "run"


def test_a_killed_run_ends_as_the_run_that_nothing_killed(whole, tmp_path):
    from rlrun.run.checkpoint import load_newest

    words = json.loads((whole.parent / "words").read_text())
    process = subprocess.Popen(command(*words, "run.dir=cut"), cwd=tmp_path)
    cut = tmp_path / "cut"
    while not [*cut.glob("checkpoints/step_*")] and process.poll() is None:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "it was killed while it ran"
    done(tmp_path, "resume", "cut", "-q")
    assert (cut / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    records = [json.loads((path / "run.json").read_text()) for path in (cut, whole)]
    assert records[0]["digest"] == records[1]["digest"]
    assert [*differences(*(load_newest(d / "checkpoints")[0] for d in (cut, whole)))] == []


def test_its_agent_is_exported(whole, tmp_path):
    pytest.importorskip("onnxruntime")
    done(tmp_path, "export", "policy", str(whole), "--onnx", "agent.onnx")
    assert (tmp_path / "agent.onnx").stat().st_size > 1000


def test_a_wrong_key_is_one_line_and_nothing_is_written(tmp_path):
    result = rlrun(tmp_path, "policy=r2d2", "env=cartpole", "policy.burnin_steps=4")
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert "policy.burnin_steps" in result.stderr
    assert "policy.burnin_step?" in result.stderr
    assert [*tmp_path.iterdir()] == []


def test_a_sweep_and_its_report(tmp_path):
    words = ["policy=dqn", "env=cartpole", "debug=smoke", "sweep.dir=pair"]
    sweep = rlrun(tmp_path, "-m", *words, "seed=0,1", "eval.max_episode_steps=5")
    assert sweep.returncode == 0
    ends = [x for x in (sweep.stdout + sweep.stderr).splitlines() if "is done" in x]
    assert len(ends) == 2
    assert all("1 warning" in x and "eval.max_episode_steps" in x for x in ends), ends
    assert len([*tmp_path.glob("pair/*/run.json")]) == 2
    assert "dqn" in done(tmp_path, "report", "pair")
    assert (tmp_path / "pair/report/index.html").exists()


def test_a_policy_and_an_environment_of_the_users_own(tmp_path):
    """They lie in the working directory; the run learns by the policy's own loss."""
    shutil.copytree(EXAMPLES, tmp_path, dirs_exist_ok=True)
    words = ["--config-dir", "conf", "policy=scaled_dqn", "env=gym", "env.id=lane:Lane-v0",
             "debug=smoke", "-q", "run.dir=run"]  # fmt: skip
    done(tmp_path, *words, "--trust", "mypkg")
    rows = [json.loads(x) for x in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert any("train/scaled" in row for row in rows)
