"""Real processes of ``rlrun`` to be killed, forked from one that has imported torch already."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SERVER = """
import json, multiprocessing, os, sys

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
PRELOAD = ["tests.run.patient_forkserver", "rlrun.run.build"]
multiprocessing.set_forkserver_preload(PRELOAD)
from multiprocessing import forkserver, resource_tracker
resource_tracker.ensure_running()
forkserver.ensure_running()
import torch
torch.set_num_threads(1)
import tests.read_once
from rlrun.cli.main import main
import rlrun.run.start
for name in ("r2d2", "dqn", "ppo", "sac"):
    __import__(f"rlrun.policy.{name}")
# A child of this process cannot wait for the fork server, which is its sibling.
still_running = forkserver.ensure_running
forkserver.ensure_running = forkserver._forkserver.ensure_running = lambda: None


def child(argv, cwd, log):
    os.setsid()
    os.chdir(cwd)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(out, 1), os.dup2(out, 2)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)
    sys.argv[:] = ["rlrun", *argv]
    code = main(argv)
    sys.stdout.flush(), sys.stderr.flush()
    return code


for line in sys.stdin:
    asked = json.loads(line)
    if "wait" in asked:
        reply = os.waitstatus_to_exitcode(os.waitpid(asked["wait"], 0)[1])
    else:
        still_running()
        reply = os.fork()
        if reply == 0:
            try:
                code = child(**asked)
            except BaseException:
                import traceback
                traceback.print_exc()
                sys.stderr.flush()
                code = 1
            os._exit(code)
    print(json.dumps(reply), flush=True)
"""


def ended(pid: int) -> bool:
    """True when nothing is left but its exit code, which nobody has asked for."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


class Forks:
    """Starts command lines of ``rlrun`` as processes of their own, in 20 ms instead of 3 s.

    Threads may share it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.server = subprocess.Popen(
            [sys.executable, "-c", SERVER],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def _ask(self, **what: Any) -> int:
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        with self._lock:
            self.server.stdin.write(json.dumps(what) + "\n")
            self.server.stdin.flush()
            return int(json.loads(self.server.stdout.readline()))

    def start(self, argv: list[str], cwd: Path, log: Path) -> int:
        """Return the process id; stdout and stderr are appended to ``log``."""
        return self._ask(argv=argv, cwd=str(cwd), log=str(log))

    def wait(self, pid: int) -> int:
        """Return the exit code, that of a signal negative."""
        return self._ask(wait=pid)

    def run(self, argv: list[str], cwd: Path, log: Path) -> int:
        pid = self.start(argv, cwd, log)
        while not ended(pid):  # the server answers nobody else while it waits
            time.sleep(0.01)
        return self.wait(pid)

    def close(self) -> None:
        self.server.communicate(timeout=60)
