"""``rlrun doctor RUN_DIR``: what looks wrong with a run, and which key to try. Torch-free."""

from collections.abc import Sequence


def run_health(dirs: Sequence[str]) -> int:
    """Print the findings on each run that the arguments name; return the exit code.

    That is 0 whether or not there are findings: they are advice, not a verdict.
    """
    from rlrun.reports.doctor.diagnose import report_lines
    from rlrun.reports.runs import read_runs

    for run in read_runs(dirs):
        for line in report_lines(run):
            print(line, flush=True)
    return 0
