"""Command lines of ``rlrun`` as processes of their own, forked from one that has imported torch.

A fork takes 20 ms, a start 3 s. Runs with worker processes share a fork server of multiprocessing.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SERVER = """
import importlib, json, multiprocessing, os, sys, traceback
from multiprocessing import forkserver, resource_tracker

still_running = lambda: None
if shared := sys.argv[1:]:
    multiprocessing.set_forkserver_preload(["tests.run.patient_forkserver", "rlrun.run.build"])
    resource_tracker.ensure_running()
    forkserver.ensure_running()
    # A child of this process cannot wait for the fork server, which is its sibling.
    still_running = forkserver.ensure_running
    forkserver.ensure_running = forkserver._forkserver.ensure_running = lambda: None
import torch
torch.set_num_threads(1)
for name in (*shared, "rlrun.run.build", "rlrun.run.start"):
    importlib.import_module(name)
from rlrun.cli.main import main
for name in ("r2d2", "dqn", "ppo", "sac"):
    importlib.import_module(f"rlrun.policy.{name}")


def child(argv, script, cwd, out, err):
    os.setsid()
    os.chdir(cwd)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)
    if isinstance(argv, str):
        return exec(argv, {}) or 0
    sys.argv[:] = [script, *argv]
    sys.path[0] = os.path.dirname(script)
    return main(argv)


for line in sys.stdin:
    asked = json.loads(line)
    if "wait" in asked:
        reply = os.waitstatus_to_exitcode(os.waitpid(asked["wait"], 0)[1])
    else:
        still_running()
        reply = os.fork()
        if reply == 0:
            code = 1
            try:
                code = child(**asked)
            except BaseException:
                traceback.print_exc()
            sys.stdout.flush(), sys.stderr.flush()
            os._exit(code)
    print(json.dumps(reply), flush=True)
"""


class Forks:
    """The process that forks; in ``cwd``, with this checkout or an installed rlrun."""

    def __init__(self, cwd: Path, env: dict[str, str] | None = None) -> None:
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        shared = [] if env else ["tests.read_once"]
        self.server = subprocess.Popen(
            [sys.executable, "-c", SERVER, *shared],
            cwd=cwd,
            env={**(env or os.environ | {"PYTHONPATH": path}), "OPENBLAS_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def _ask(self, **what: Any) -> int:
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        self.server.stdin.write(json.dumps(what) + "\n")
        self.server.stdin.flush()
        return int(json.loads(self.server.stdout.readline()))

    def start(
        self, argv: list[str] | str, cwd: Path, out: Path, err: Path, script: str = "rlrun"
    ) -> int:
        """Return the process id. stdout and stderr are appended to files.

        ``argv``: words of a command line, or a block of Python. ``script``: its file.
        """
        return self._ask(argv=argv, script=script, cwd=str(cwd), out=str(out), err=str(err))

    def wait(self, pid: int) -> int:
        """Return the exit code, that of a signal negative."""
        return self._ask(wait=pid)

    def run(self, argv: list[str] | str, cwd: Path, script: str = "rlrun") -> tuple[int, str, str]:
        """Return exit code, stdout and stderr."""
        with tempfile.TemporaryDirectory() as path:
            texts = Path(path, "out"), Path(path, "err")
            code = self.wait(self.start(argv, cwd, *texts, script))
            out, err = (text.read_text() for text in texts)
        return code, out, err

    def close(self) -> None:
        self.server.communicate(timeout=60)
