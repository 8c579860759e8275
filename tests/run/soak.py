"""A long run needs no more memory, files, threads or disk at its end than after warming up.

``python -m tests.run.soak [--steps 5000000]`` prints a row every tenth; exit code 1 for growth.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from tests.forks import Forks

LINE = (
    "policy=dqn", "env=cartpole", "run.stop_return=null", "buffer.capacity=2000",
    "learner.replay_ratio=0.25", "collector.num_envs=64", "collector.n_sample=512",
    "run.eval_episodes=5", "logger.progress=off", "run.dir=run",
)  # fmt: skip
GROWTH = 1.02  # of resident memory, at most


class Use(NamedTuple):
    """What a process uses."""

    env_steps: int
    mib: float  # resident
    files: int  # open
    threads: int
    disk: int  # bytes of checkpoints


def use_of(pid: int, run_dir: Path) -> Use:
    """Read it. Raises: OSError when the process has ended."""
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    text = (run_dir / "metrics.jsonl").read_text()
    lines = text[: text.rfind("\n") + 1].splitlines()  # the last one may be under way
    steps = json.loads(lines[-1])["env_steps"] if lines else 0
    files = len(os.listdir(f"/proc/{pid}/fd"))
    sizes = []
    for path in (run_dir / "checkpoints").rglob("*"):
        try:
            sizes.append(path.stat().st_size)
        except FileNotFoundError:  # replaced since
            continue
    mib = int(status["VmRSS"].split()[0]) / 1024
    return Use(steps, mib, files, int(status["Threads"]), sum(sizes))


def soak(forks: Forks, path: Path, steps: int) -> list[Use]:
    """Run ``steps`` env steps; what was used at about every fortieth of them."""
    tenth = max(steps // 10, 512)
    every = (f"run.total_steps={steps}", f"run.eval_every={tenth}",
             f"run.checkpoint_every={max(steps // 100, 512)}",
             f"logger.every={max(steps // 100, 512)}")  # fmt: skip
    pid, used = forks.start([*LINE, *every], path, path / "log", path / "log"), []
    while not (path / "run" / "run.json").is_file():
        time.sleep(0.05)
    while True:
        record = json.loads((path / "run" / "run.json").read_text())
        if record["status"] != "running":
            break
        try:
            now = use_of(pid, path / "run")
        except OSError:
            continue
        if now.env_steps >= (used[-1].env_steps if used else 0) + steps // 40:
            used.append(now)
        time.sleep(0.05)
    assert forks.wait(pid) == 0, (path / "log").read_text()
    return used


def growth(used: list[Use]) -> list[str]:
    """What is more in the second half than in the second quarter."""
    early, late = used[len(used) // 4 : len(used) // 2], used[len(used) // 2 :]
    found = []
    for name, most in (("mib", GROWTH), ("files", 1), ("threads", 1), ("disk", 1.5)):
        value = min if name == "files" else max  # some are open just then, to be written
        before, after = (value([getattr(u, name) for u in part]) for part in (early, late))
        if after > most * before:
            found.append(f"{name}: {before:.1f}, later {after:.1f}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=5_000_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as path:
        forks = Forks(Path(path))
        used = soak(forks, Path(path), given.steps)
        forks.close()
    print(*used[:: max(len(used) // 10, 1)], *(found := growth(used)), sep="\n")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
