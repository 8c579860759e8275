"""Runs killed at random and resumed are the runs that nothing killed.

``python -m tests.run.kill [--kills 1000] [--terms 200] [--seed 0] [LINE ...]`` prints a line for
each line: signals, distinct resume points, differences. Exit code 1 for a difference.
"""

import argparse
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from rlrun.run.manifest import list_checkpoints
from tests.exact import run_differences
from tests.forks import Forks
from tests.waiting import is_running

TINY = (
    "logger.progress=off", "logger.tensorboard=false", "learner.threads=1", "torso.hidden=[16]",
    "run.eval_episodes=2", "run.stop_return=null", "device=cpu",
)  # fmt: skip
OFF_POLICY = ("learner.learning_starts=200", "buffer.capacity=600", "learner.batch_size=16")
R2D2 = ("policy=r2d2", "memory.hidden=16", *OFF_POLICY, "learner.batch_size=4",
        "learner.replay_ratio=1")  # fmt: skip
DQN = ("policy=dqn", *OFF_POLICY, "learner.replay_ratio=8")
PPO = ("policy=ppo", "collector.n_sample=64", "learner.batch_size=32")
SAC = ("policy=sac", *OFF_POLICY, "learner.replay_ratio=1")
LINES = {  # a command line for every pair of policy, environment, backend and pipeline that differs
    "r2d2 cartpole vector": (*R2D2, "env=cartpole", "env.backend=vector"),
    "r2d2 frozenlake sync overlapped": (*R2D2, "env=gym", "env.id=FrozenLake-v1",
                                        "env.backend=sync", "pipeline=overlapped"),
    "dqn cartpole sync": (*DQN, "env=cartpole", "env.backend=sync"),
    "dqn frozenlake async": (*DQN, "env=gym", "env.id=FrozenLake-v1", "env.backend=async",
                             "collector.num_envs=2"),
    "ppo cartpole vector overlapped": (*PPO, "env=cartpole", "env.backend=vector",
                                       "pipeline=overlapped"),
    "ppo pendulum sync": (*PPO, "env=pendulum", "env.backend=sync"),
    "sac pendulum vector": (*SAC, "env=pendulum"),
    "sac pendulum sync overlapped": (*SAC, "env=pendulum", "env.backend=sync",
                                     "pipeline=overlapped"),
}  # fmt: skip
ATARI = ("env=atari", "env.backend=sync", "torso=nature_cnn", "torso.hidden=[8]",
         "learner.batch_size=4", "learner.replay_ratio=0.2", "eval.max_episode_steps=30",
         "collector.num_envs=2", "run.total_steps=800", "run.checkpoint_every=30")  # fmt: skip
if find_spec("ale_py") is not None:
    LINES["dqn pong sync"] = (*DQN, *ATARI)
STEPS = 1000  # of a run; a checkpoint every CHECKPOINT, which is no multiple of a chunk
CHECKPOINT = 65


@dataclass
class Outcome:
    """What happened to one line."""

    signals: int = 0
    points: set[int] = field(default_factory=set)  # env steps that were resumed from
    before_saving: int = 0  # ends before anything was saved
    slowest: float = 0.0  # seconds from a SIGTERM to the end
    faults: list[str] = field(default_factory=list)


def moved(run_dir: Path) -> int:
    """Grows with every record and with every checkpoint that is begun, written or deleted."""
    try:
        records = (run_dir / "metrics.jsonl").read_bytes().count(b"\n")
        names = "".join(sorted(os.listdir(run_dir / "checkpoints")))
    except OSError:
        return 0
    steps = [int(x) for x in re.findall(r"step_(\d+)", names)]
    return records + 3 * max(steps, default=0) // CHECKPOINT + names.count(".tmp")


class Killer:
    """Runs one line whole, then killed and resumed until ``kills`` signals were sent."""

    def __init__(
        self, forks: Forks, line: tuple[str, ...], path: Path, seed: int, steps: int = STEPS
    ) -> None:
        self.forks, self.path, self.out = forks, path, Outcome()
        self.rng = np.random.default_rng(seed)
        self.line = [*TINY, f"run.total_steps={steps}", f"run.eval_every={2 * steps // 5}",
                     f"run.checkpoint_every={CHECKPOINT}", "logger.every=90", *line]  # fmt: skip
        self.log = path / "log"
        assert self._run([*self.line, "run.dir=whole"]) == 0, self.log.read_text()

    def _start(self, argv: list[str]) -> int:
        return self.forks.start(argv, self.path, self.log, self.log)

    def _run(self, argv: list[str]) -> int:
        return self.forks.wait(self._start(argv))

    def send(self, count: int, number: int = signal.SIGKILL) -> None:
        """Send ``count`` signals, in as many runs as that takes."""
        goal = self.out.signals + count
        while self.out.signals < goal and not self.out.faults:
            run_dir = self.path / "cut"
            shutil.rmtree(run_dir, ignore_errors=True)
            while self.out.signals < goal and self._interrupted(run_dir, number):
                pass
            self._finish(run_dir)

    def _command(self, run_dir: Path) -> list[str]:
        if (run_dir / "run.json").is_file():
            saved = list_checkpoints(run_dir / "checkpoints")
            steps = int(saved[-1].name.split("_")[1]) if saved else 0
            self.out.points.add(steps)
            return ["resume", "cut", "-q"]
        shutil.rmtree(run_dir, ignore_errors=True)  # not even the record of a run
        self.out.before_saving += 1
        return [*self.line, "run.dir=cut"]

    def _interrupted(self, run_dir: Path, number: int) -> bool:
        """Start or resume the run, and send a signal once it has moved by a random part of what is
        left; False when it was done."""
        command = self._command(run_dir)
        before = moved(run_dir) if command[0] == "resume" else 0
        due = before + int(self.rng.integers(1, max(2, moved(self.path / "whole") - before)))
        pid = self._start(command)
        while moved(run_dir) < due and is_running(pid):
            time.sleep(0.002)
        sent = time.perf_counter()
        os.kill(pid, number)  # of a process that has ended: nothing
        code = self.forks.wait(pid)
        if number != signal.SIGKILL and code != 0:
            self.out.slowest = max(self.out.slowest, time.perf_counter() - sent)
        return self._ended(code, number)

    def _ended(self, code: int, number: int) -> bool:
        if code == 0:
            return False
        self.out.signals += 1
        allowed = (-number,) if number == signal.SIGKILL else (75, 128 + number, -number)
        if code not in allowed:
            self.out.faults.append(f"exit {code}: {self.log.read_text()[-500:]}")
        return code in allowed

    def _finish(self, run_dir: Path) -> None:
        """Let the run end and compare it with the whole one."""
        if self.out.faults:
            return
        code = self._run(self._command(run_dir))
        if code != 0:
            self.out.faults.append(f"exit {code}: {self.log.read_text()[-500:]}")
            return
        self.out.faults += run_differences(self.path / "whole", run_dir)
        text = self.log.read_text()
        if re.search(r"Traceback|internal error", text):
            self.out.faults.append(text[-500:])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("lines", nargs="*", choices=[*LINES, []], metavar="LINE")
    parser.add_argument("--kills", type=int, default=40, help="SIGKILLs, of all lines")
    parser.add_argument("--terms", type=int, default=16, help="SIGTERMs, of all lines")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    forks, bad, names = Forks(Path.cwd()), 0, given.lines or list(LINES)
    for k, name in enumerate(names):
        with tempfile.TemporaryDirectory() as path:
            killer = Killer(forks, LINES[name], Path(path), given.seed + k)
            for count, number in ((given.kills, signal.SIGKILL), (given.terms, signal.SIGTERM)):
                if count:
                    killer.send(-(-count // len(names)), number)
        o = killer.out
        bad += bool(o.faults)
        print(f"{name}: {o.signals} signals, {len(o.points)} resume points, slowest exit "
              f"{o.slowest:.2f} s, {len(o.faults)} differences", *o.faults, flush=True)  # fmt: skip
    forks.close()
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
