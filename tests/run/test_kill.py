"""Processes killed at random and resumed, or requeued by SLURM; a long run."""

import json
import os
import signal
import subprocess
import sys

import pytest

from tests.pages import ROOT, blocks
from tests.run import soak
from tests.run.kill import LINES, Killer

CHOSEN = ("r2d2 cartpole vector", "dqn frozenlake async", "ppo cartpole vector overlapped")


@pytest.mark.parametrize("name", CHOSEN)
def test_a_killed_run_is_the_whole_run(forks, tmp_path, name):
    killer = Killer(forks, LINES[name], tmp_path, seed=len(name), steps=400)
    killer.send(3)
    killer.send(1, signal.SIGTERM)
    assert killer.out.faults == []
    assert killer.out.points, "never resumed"


def test_nothing_grows_in_a_long_run(forks, tmp_path):
    """Neither memory nor files, threads or disk."""
    used = soak.soak(forks, tmp_path, 40_000)
    assert len(used) >= 8
    assert soak.growth(used) == []
    grown = [u._replace(mib=300 + 9 * i, files=11 + i) for i, u in enumerate(used)]
    assert [text.split(":")[0] for text in soak.growth(grown)] == ["mib", "files"]


# -- the SLURM script of the READMEs, with stand-ins for srun and scontrol -------------------------

SRUN = """#!/bin/bash
"$@" & child=$!
if [ ! -e requeued ]; then  # the time limit draws near
  until compgen -G "outputs/*/checkpoints/step_*" > /dev/null; do sleep 0.05; done
  kill -TERM $child
fi
wait $child
"""
WHOLE = "rlrun policy=r2d2 env=cartpole"
SHORT = (
    "rlrun policy=random env=bandit debug=smoke -q run.stop_return=null run.checkpoint_every=1000 "
    "run.eval_every=100000 run.total_steps=20000 logger.tensorboard=false"
)


def test_the_slurm_script_requeues_and_resumes(tmp_path):
    pages = (str(p.relative_to(ROOT)) for p in ROOT.glob("rlrun/*/README.md"))
    (script,) = (b for page in pages for b in blocks(page, "bash") if "scontrol" in b)
    assert WHOLE in script
    commands = {
        "srun": SRUN,
        "scontrol": "#!/bin/bash\necho $@ >> requeued\n",
        "rlrun": f'#!/bin/bash\nexec {sys.executable} -m rlrun "$@"\n',
    }
    for name, text in commands.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "job.sh").write_text(script.replace(WHOLE, SHORT))
    env = os.environ | {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "SLURM_JOB_ID": "7",
    }

    def job() -> int:
        line = ["bash", "job.sh"]
        return subprocess.run(line, cwd=tmp_path, env=env, timeout=400, check=False).returncode

    assert job() == 75
    assert (tmp_path / "requeued").read_text() == "requeue 7\n"
    assert job() == 0
    record = json.loads((tmp_path / "outputs/slurm_7/run.json").read_text())
    assert (record["status"], record["env_steps"], len(record["resumes"])) == ("done", 20000, 1)
