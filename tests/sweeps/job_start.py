"""Seconds until a run writes its record: a process of its own, and a job of the pool.

``python -m tests.sweeps.job_start`` prints the median of 5 each.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rlrun.cli.run import write_texts
from rlrun.cli.sweep_jobs import validate_job
from rlrun.config import Composer
from rlrun.config.jobs import place
from rlrun.sweeps.pool import Pool

LINE = ["policy=dqn", "env=bandit", "debug=smoke", "logger.tensorboard=false"]
REPEATS = 5


def seconds_until(path: Path) -> float:
    start = time.monotonic()
    while not path.exists():
        time.sleep(0.002)
    return time.monotonic() - start


def of_a_process(directory: Path) -> float:
    command = [sys.executable, "-m", "rlrun", *LINE, f"run.dir={directory}"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    seconds = seconds_until(directory / "run.json")
    process.wait()
    return seconds


def of_a_job(pool: Pool, directory: Path) -> float:
    composer = Composer()
    job = validate_job(composer, composer.compose(LINE, sweep=True), LINE, 0)
    run_dir = directory / job.name
    run_dir.mkdir(parents=True)
    write_texts(run_dir, job.packed["config"], LINE)
    text = place(job.packed, directory, None)
    pool.submit_call(
        "rlrun.cli.sweep:run_packed_job", [text], ["rlrun"], directory, run_dir / "out"
    )
    seconds = seconds_until(run_dir / "run.json")
    pool.wait_any()
    return seconds


def main() -> None:
    with tempfile.TemporaryDirectory() as name, Pool(1, None) as pool:
        root = Path(name)
        of_a_job(pool, root / "first")  # the server imports torch meanwhile
        ways: dict[str, Callable[[Path], float]] = {
            "process": of_a_process,
            "job": lambda path: of_a_job(pool, path),
        }
        for way, measure in ways.items():
            found = [measure(root / f"{way}{i}") for i in range(REPEATS)]
            print(f"{way}: {statistics.median(found):.2f} s ({min(found):.2f} to {max(found):.2f})")


if __name__ == "__main__":
    main()
