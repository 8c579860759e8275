"""A run on Ray whose roles are killed at random, one after the other, until it is done.

    python -m tests.faults.ray_chaos --minutes 5 --every 20

The environment's observations are (environment, episode, t): after the run the rows of every
stream must follow each other, which a chunk that was stored twice or out of order would break.
``seconds_back``: from each kill until env steps/s stay above 0.7 of those of the 8 s before it.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import psutil

from rlrun.rundir.checkpoint import load_newest

ROLES = ("CollectorRole", "ReplayRole", "LearnerRole", "EvaluatorRole", "PredictorRole")
WORDS = (
    "policy=r2d2", "env=counter", "pipeline=ray", "pipeline.num_actors=2", "pipeline.num_shards=2",
    "transport=coded", "transport.key_seconds=0.1", "collector.num_envs=4", "memory.hidden=16",
    "learner.replay_ratio=20", "run.checkpoint_every=4000", "run.eval_every=5000",
    "logger.progress=off", "logger.tensorboard=false", "logger.every=500",
)  # fmt: skip


def roles_of(run: psutil.Process) -> list[psutil.Process]:
    """Processes of the run's roles."""
    found = []
    for process in run.children(recursive=True):
        try:
            title = " ".join(process.cmdline())
        except psutil.Error:
            continue
        if title.startswith("ray::") and any(role in title for role in ROLES):
            found.append(process)
    return found


def follows(rows: np.ndarray) -> bool:
    """Whether the rows [T, 3] of a column are steps after each other, or open an episode."""
    episode, t = rows[:, 1], rows[:, 2]
    goes_on = (episode[1:] == episode[:-1]) & (t[1:] == t[:-1] + 1)
    return bool((goes_on | (t[1:] == 0)).all())


def broken_columns(run_dir: Path) -> tuple[int, int]:
    """(rows stored, columns whose rows do not follow each other)."""
    state, _ = load_newest(run_dir / "checkpoints")
    count = broken = 0
    for shard in state["buffer"]["shards"]:
        for stream in shard["streams"]:
            rows = stream["ring"]["obs"]
            rows = rows["rows"] if isinstance(rows, dict) else rows
            if rows.first == rows.stop:  # a shard that was lost just before
                continue
            columns = rows.read(rows.first, rows.stop)
            count += columns.shape[0] * columns.shape[1]
            broken += sum(not follows(column) for column in columns)
    return count, broken


def env_steps(run_dir: Path) -> int:
    """Env steps of the newest record."""
    path = run_dir / "timings.jsonl"
    if not path.exists():
        return 0
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 20_000))
        lines = file.read().split(b"\n")[:-1]  # the last one may be half
    return int(json.loads(lines[-1])["env_steps"]) if len(lines) > 1 else 0


def seconds_back(seen: list[tuple[float, int]], at: float, until: float) -> float:
    """Seconds from ``at`` to the last 3 s with a rate below 0.7 of the 8 s before ``at``."""
    times, steps = np.array(seen).T

    def rate(begin: float, end: float) -> float:
        a, b = np.interp([begin, end], times, steps)
        return float(b - a) / (end - begin)

    usual = rate(at - 8, at)
    low = [t for t in np.arange(at, until - 3, 0.25) if rate(t, t + 3) < 0.7 * usual]
    return round(low[-1] + 0.25 - at, 2) if low else 0.0


def chaos(minutes: float, every: float, steps: int, seed: int) -> dict[str, object]:
    """Run and kill; return what happened."""
    draws, killed = random.Random(seed), Counter[str]()
    with tempfile.TemporaryDirectory() as directory:
        run_dir = Path(directory, "run")
        words = [*WORDS, f"run.total_steps={steps}", f"run.dir={run_dir}"]
        run = subprocess.Popen([sys.executable, "-m", "rlrun", *words], stderr=subprocess.PIPE)
        process, began = psutil.Process(run.pid), time.monotonic()
        while run.poll() is None and not roles_of(process):
            time.sleep(0.2)
        words = (w for p in process.children(recursive=True) for w in _words(p))
        files = next(w.split("rlrun-ray-")[1].split("/")[0] for w in words if "rlrun-ray-" in w)
        due, seen, kills = time.monotonic() + every, list[tuple[float, int]](), []
        while run.poll() is None:
            time.sleep(0.2)
            seen.append((time.monotonic(), env_steps(run_dir)))
            over = time.monotonic() - began > 60 * minutes
            roles = roles_of(process) if time.monotonic() >= due and not over else []
            if roles:
                victim = draws.choice(roles)
                title = " ".join(victim.cmdline())
                killed[role := next(role for role in ROLES if role in title)] += 1
                victim.kill()
                kills.append((role, time.monotonic()))
                due = time.monotonic() + every
        assert run.stderr is not None
        text = run.stderr.read().decode()
        left = [p for p in psutil.process_iter() if f"rlrun-ray-{files}" in " ".join(_words(p))]
        record = json.loads((run_dir / "run.json").read_text())
        rows, broken = broken_columns(run_dir)
        timings = [json.loads(x) for x in (run_dir / "timings.jsonl").read_text().splitlines()]
        last = {k: v for line in timings for k, v in line.items() if k.startswith("ray/chunks_")}
        ends = [at for _, at in kills[1:]] + [kills[-1][1] + every] if kills else []
        back = [(role, seconds_back(seen, at, min(end, seen[-1][0])))
                for (role, at), end in zip(kills, ends, strict=True)]  # fmt: skip
        return {
            "exit": run.returncode, "status": record["status"], "env_steps": record["env_steps"],
            "updates": record["updates"], "seconds": round(time.monotonic() - began, 1),
            "killed": dict(killed), "rows": rows, "broken_columns": broken,
            "processes_left": len(left), "chunks": last, "seconds_back": back,
            "errors": [line for line in text.splitlines() if "rlrun: error" in line][:3],
        }  # fmt: skip


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


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
