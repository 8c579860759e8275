"""A whole sweep as a process: jobs that raise, are killed, are interrupted; resumed to the end."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from tests.sweeps.fragile import CRASHES, KILLED, SLOW
from tests.sweeps.jobs import statuses
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
JOBS = 8
TINY = (
    "policy=dqn", "env=gym", "env.id=tests.sweeps.fragile:test/Fragile-v0", "torso.hidden=[4]",
    "run.total_steps=160", "run.eval_episodes=1", "run.eval_every=80", "run.checkpoint_every=40",
    "learner.learning_starts=20", "buffer.capacity=200", "learner.batch_size=4",
    "collector.num_envs=1", "collector.n_sample=10", "logger.every=20", "logger.tensorboard=false",
    "env.backend=sync", "learner.update_per_collect=1",
)  # fmt: skip


class Command:
    """A command line as a process of its own."""

    def __init__(self, cwd, *argv):
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rlrun", *argv], cwd=cwd, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": path, "RLRUN_TRUST": "tests", "RLRUN_NUMBA": "0"},
        )  # fmt: skip

    def end(self):
        out, err = self.process.communicate(timeout=120)
        return self.process.returncode, out, err


def read(path):
    return json.loads(path.read_text())


def processes(sweep):
    """Number of a job -> how many processes of it wrote their record."""
    records = {int(path.parent.name): read(path) for path in sweep.glob("*/run.json")}
    return {num: 1 + len(record["resumes"]) for num, record in sorted(records.items())}


def rows(out):
    """Number of a job -> the other columns of the table at the end."""
    table = out[out.index("job  overrides") :]
    split = [re.split(r"  +", line.strip()) for line in table.splitlines()[1:]]
    return {int(row[0]): row[1:] for row in split if row[0].isdigit()}


def test_a_sweep_with_faults_is_resumed_to_the_end(tmp_path):
    (tmp_path / "faulty").touch()
    sweep = tmp_path / "s"
    command = Command(
        tmp_path, "-m", *TINY, f"env.kwargs.num=range({JOBS})", "sweep.dir=s",
        "hydra.launcher.workers=2", "hydra.sweep.subdir=${hydra.job.num}",
    )  # fmt: skip
    wait_until(lambda: all([*sweep.glob(f"{num}/run.json")] for num in SLOW))
    command.process.send_signal(signal.SIGINT)
    code, out, err = command.end()
    assert code == 130
    expected = ["done"] * JOBS
    expected[CRASHES] = expected[KILLED] = "failed"
    for num in SLOW:
        expected[num] = "interrupted"
    expected[6:] = ["waiting"] * 2
    assert statuses(sweep) == expected
    assert "ZeroDivisionError: a fault of the environment" in err
    assert "SIGKILL" in err
    assert f"rlrun resume {sweep}" in err
    table = rows(out)
    assert table[0][:3] == ["++env.kwargs.num=0", "done", "160/160"]
    assert table[CRASHES][1] == "failed (exit 3)"
    assert table[KILLED][1] == "failed (SIGKILL)"
    assert table[SLOW[0]][1] == "interrupted (exit 75)"
    assert table[6] == ["++env.kwargs.num=6", "waiting", "0/160"]
    before = {path: path.read_bytes() for path in sweep.glob("0/*.js*")}
    assert processes(sweep) == dict.fromkeys(range(6), 1)
    (tmp_path / "faulty").unlink()
    code, out, err = Command(tmp_path, "resume", "s").end()
    assert (code, err) == (0, "")
    assert statuses(sweep) == ["done"] * JOBS
    again = {CRASHES, KILLED, *SLOW}
    assert processes(sweep) == {num: 1 + (num in again) for num in range(JOBS)}
    assert {path: path.read_bytes() for path in before} == before
    assert [row[1:3] for row in rows(out).values()] == [["done", "160/160"]] * JOBS
