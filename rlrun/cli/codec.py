"""``rlrun codec bench``: what the codec makes of a user's own data."""

from collections.abc import Sequence
from pathlib import Path

from rlrun.cli.report import report_job_error


def bench(paths: Sequence[Path], *, plot: Path | None) -> int:
    """The exit code; prints a table for every series of weights or rows found."""
    try:
        from rlrun.cli.codec_bench import bench as measured

        for line in measured(paths, plot):
            print(line, flush=True)
    except Exception as e:
        return report_job_error(e, None)
    return 0
