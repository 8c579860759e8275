"""A run on Ray whose roles are killed at random, one after the other, until it is done.

    python -m tests.pipeline.ray.chaos --minutes 5 --every 20

The environment's observations are (environment, episode, t): after the run the rows of every
stream must follow each other, which a chunk that was stored twice or out of order would break.
"""

import argparse
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import psutil

from rlrun.run.checkpoint import load_newest

WORDS = (
    "policy=r2d2", "env=counter", "pipeline=ray", "pipeline.num_actors=2", "pipeline.num_shards=2",
    "transport=coded", "transport.key_seconds=0.1", "collector.num_envs=4", "memory.hidden=16",
    "learner.replay_ratio=20", "run.checkpoint_every=4000", "run.eval_every=5000",
    "logger.progress=off", "logger.tensorboard=false", "logger.every=500",
)  # fmt: skip


def words_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def roles_of(run: psutil.Process) -> dict[psutil.Process, str]:
    """Processes of the run's roles, with their class."""
    titles = {p: " ".join(words_of(p)) for p in run.children(recursive=True)}
    roles = {p: re.match(r"ray::(?:.*:)?(\w+Role)", title) for p, title in titles.items()}
    return {p: role[1] for p, role in roles.items() if role}


def follows(rows: np.ndarray) -> bool:
    """Whether the rows [T, 3] of a column are steps after each other, or open an episode."""
    episode, t = rows[:, 1], rows[:, 2]
    goes_on = (episode[1:] == episode[:-1]) & (t[1:] == t[:-1] + 1)
    return bool((goes_on | (t[1:] == 0)).all())


def stored_columns(run_dir: Path) -> list[np.ndarray]:
    """The observations [T, 3] of every column in the newest checkpoint."""
    found: list[np.ndarray] = []

    def look(node: object) -> None:
        if isinstance(node, dict):
            if "ring" in node:
                rows = (
                    node["ring"]["obs"] if "obs" in node["ring"] else node["ring"]["fields"]["obs"]
                )
                rows = rows["rows"] if isinstance(rows, dict) else rows
                if rows.first != rows.stop:  # else of a shard that was lost just before
                    found.extend(rows.read(rows.first, rows.stop))
            else:
                for child in node.values():
                    look(child)
        elif isinstance(node, list):
            for child in node:
                look(child)

    look(load_newest(run_dir / "checkpoints")[0]["buffer"])
    return found


def env_steps(run_dir: Path) -> int:
    """Env steps of the newest record."""
    path = run_dir / "timings.jsonl"
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []  # the last may be half
    return int(json.loads(lines[-1])["env_steps"]) if lines else 0


def chaos(minutes: float, every: float, steps: int, seed: int) -> dict[str, object]:
    """Run and kill; return what happened."""
    draws, killed = random.Random(seed), Counter[str]()
    with tempfile.TemporaryDirectory() as directory:
        run_dir, began = Path(directory, "run"), time.monotonic()
        words = [*WORDS, f"run.total_steps={steps}", f"run.dir={run_dir}"]
        run = subprocess.Popen([sys.executable, "-m", "rlrun", *words])
        process, due, children = psutil.Process(run.pid), began + every, set()
        while run.poll() is None:
            time.sleep(0.2)
            children |= set(process.children(recursive=True))
            over = time.monotonic() - began > 60 * minutes
            roles = roles_of(process) if time.monotonic() >= due and not over else {}
            if roles:
                victim = draws.choice(list(roles))
                killed[roles[victim]] += 1
                victim.kill()
                due = time.monotonic() + every
        record = json.loads((run_dir / "run.json").read_text())
        columns = stored_columns(run_dir)
        return {
            "exit": run.returncode, "status": record["status"], "env_steps": record["env_steps"],
            "updates": record["updates"], "seconds": round(time.monotonic() - began, 1),
            "killed": dict(killed), "rows": sum(map(len, columns)),
            "broken_columns": sum(not follows(column) for column in columns),
            "processes_left": sum(p.is_running() for p in children),
        }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--every", type=float, default=20.0, help="seconds between kills")
    parser.add_argument("--steps", type=int, default=300_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    print(json.dumps(chaos(given.minutes, given.every, given.steps, given.seed), indent=1))


if __name__ == "__main__":
    main()
