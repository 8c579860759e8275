"""Seconds until a run writes its record: a process of its own, and a job of the pool.

``python -m tests.sweeps.job_start`` prints the median of 5 each.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rlrun.cli.run import write_texts
from rlrun.cli.sweep import validate_job
from rlrun.config import Composer
from rlrun.config.compose import place
from rlrun.sweeps.pool import Pool

LINE = ["policy=dqn", "env=bandit", "debug=smoke", "logger.tensorboard=false"]


def seconds_until(path):
    start = time.monotonic()
    while not path.exists():
        time.sleep(0.002)
    return time.monotonic() - start


def of_a_process(pool, directory):
    command = [sys.executable, "-m", "rlrun", *LINE, f"run.dir={directory}"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    seconds = seconds_until(directory / "run.json")
    process.wait()
    return seconds


def of_a_job(pool, directory):
    composer = Composer()
    job = validate_job(composer, composer.compose(LINE, sweep=True), LINE, 0)
    run_dir = directory / job.name
    run_dir.mkdir(parents=True)
    write_texts(run_dir, job.packed["config"], LINE)
    call = "rlrun.cli.sweep:run_packed_job", [place(job.packed, directory, None)]
    pool.submit_call(*call, ["rlrun"], directory, run_dir / "out")
    seconds = seconds_until(run_dir / "run.json")
    pool.wait_any()
    return seconds


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name, Pool(1, None) as pool:
        of_a_job(pool, Path(name, "first"))  # the server imports torch meanwhile
        for measure in (of_a_process, of_a_job):
            found = [measure(pool, Path(name, f"{measure.__name__}{i}")) for i in range(5)]
            middle, low, high = statistics.median(found), min(found), max(found)
            print(f"{measure.__name__}: {middle:.2f} s ({low:.2f} to {high:.2f})")
