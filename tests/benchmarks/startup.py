"""What a user waits for: ``--help``, a config error, and the first environment step of a run."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.benchmarks.timing import Row, make_row

HELP, ERROR, FIRST = 0.5, 2.0, 3.0  # seconds: the limits
_FIRST = """
import sys, time
from rlrun.collector import Collector
step = Collector._step
def first(self, t, epsilon):
    units = step(self, t, epsilon)
    print("first step", flush=True)
    import os
    os._exit(0)
Collector._step = first
from rlrun.cli import main
main(sys.argv[1:])
"""


def measure(*, repeats: int) -> list[Row]:
    """Seconds of whole processes, disk warm, caches of compiled kernels there."""
    with tempfile.TemporaryDirectory() as directory:
        given = ["policy=r2d2", "env=cartpole", f"run.dir={directory}/run", "logger.progress=off"]
        cases = {
            "rlrun --help": (["-m", "rlrun", "--help"], HELP),
            "a config error": (["-m", "rlrun", "policy=r2d2", "policy.gama=1"], ERROR),
            "first env step": (["-c", _FIRST, *given], FIRST),
        }
        return [_row(name, command, limit, repeats, Path(directory))
                for name, (command, limit) in cases.items()]  # fmt: skip


def _row(name: str, command: list[str], limit: float, repeats: int, directory: Path) -> Row:
    times = []
    for _ in range(repeats + 1):
        for left in directory.glob("run/*"):
            if left.is_file():
                left.unlink()
        start = time.perf_counter()
        subprocess.run(
            [sys.executable, *command], capture_output=True, cwd=Path(__file__).parents[2],
            env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False,
        )  # fmt: skip
        times.append(time.perf_counter() - start)
    del times[0]  # warms the disk
    return make_row(
        f"start-up, {name}", {}, "the limit", "s", times, [limit] * repeats, kind="cost",
        target=1.0,
    )  # fmt: skip
