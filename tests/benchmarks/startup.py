"""Startup times: ``--help``, a config error, and the first rows of a run."""

import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.own_run import RLRUN
from tests.benchmarks.process import CHECKOUT, environment
from tests.benchmarks.timing import Row, make_row

HELP, ERROR, FIRST = 0.5, 2.0, 3.0  # seconds: the limits
RUN = ("policy=r2d2", "env=cartpole", "logger.progress=off", "logger.every=1")
POLL = 0.005  # seconds between looks at the run's files
PATIENCE = 120.0  # seconds until a run without rows is given up


def measure(*, repeats: int, warm: bool = True) -> list[Row]:
    """Seconds of whole processes; ``warm``: one more first, for the disk and compiled kernels."""
    cases = {
        "rlrun --help": (lambda: ended("--help", code=0), HELP),
        "a config error": (lambda: ended("policy=r2d2", "policy.gama=1", code=2), ERROR),
        "first rows": (first_rows, FIRST),
    }
    rows = []
    for name, (seconds, limit) in cases.items():
        times = [seconds() for _ in range(repeats + warm)][warm:]
        rows.append(make_row(
            f"start-up, {name}", {}, "the limit", "s", times, [limit] * repeats, kind="cost",
            target=1.0, note=_NOTE if name == "first rows" else "",
        ))  # fmt: skip
    return rows


_NOTE = "from the command to the first line of timings.jsonl, one collect later than the first step"


def ended(*words: str, code: int) -> float:
    """Seconds until ``rlrun *words`` has ended, with the exit code that is due."""
    start = time.perf_counter()
    found = _start(words).wait()
    seconds = time.perf_counter() - start
    assert found == code, f"rlrun {' '.join(words)}: exit {found}, not {code}"
    return seconds


def first_rows() -> float:
    """Seconds until a run has collected: its first line of timings.jsonl is there. It is killed."""
    with tempfile.TemporaryDirectory() as directory:
        timings, start = Path(directory) / "run" / "timings.jsonl", time.perf_counter()
        process = _start((*RUN, f"run.dir={directory}/run"))
        try:
            while not (timings.exists() and timings.stat().st_size):
                seconds = time.perf_counter() - start
                assert process.poll() is None, f"the run ended with exit code {process.returncode}"
                assert seconds < PATIENCE, "the run collects nothing"
                time.sleep(POLL)
            return time.perf_counter() - start
        finally:
            process.kill()
            process.wait()


def _start(words: Sequence[str]) -> subprocess.Popen[bytes]:
    silent = subprocess.DEVNULL
    return subprocess.Popen(
        [*RLRUN, *words], cwd=CHECKOUT, env=environment(1), stdout=silent, stderr=silent
    )
