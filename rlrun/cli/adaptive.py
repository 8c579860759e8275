"""Sweeps of Hydra's sweepers that choose settings by the scores of earlier ones."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rlrun.cli.error_report import SweepStopped
from rlrun.cli.run import run_sweep_job
from rlrun.cli.sweep_jobs import Sweep, print_resume_line, require_different, validate_job
from rlrun.errors import RlrunError
from rlrun.sweeps.launcher import run_tasks
from rlrun.sweeps.record import is_sweep
from rlrun.sweeps.search import quote

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from rlrun.config import Composer


def run_scored_job(cfg: "DictConfig") -> float:
    """Run a job and return its score, so that the sweeper can compare."""
    from hydra.core.hydra_config import HydraConfig

    code = run_sweep_job(cfg)
    return score_of(Path(HydraConfig.get().runtime.output_dir), code)


class AdaptiveJob:
    """``run_scored_job`` for our own launchers, which ask what sweep it is of."""

    def __init__(self, composer: "Composer", sweep: Sweep) -> None:
        self.composer, self.sweep = composer, sweep

    def __call__(self, cfg: "DictConfig") -> float:
        return run_scored_job(cfg)


def score_of(run_dir: Path, code: int | None) -> float:
    """The final score of a run. Raises: RlrunError when it has none."""
    from rlrun.run.files import read_record

    score = (read_record(run_dir).get("eval") or {}).get("return_mean") if code == 0 else None
    if score is None:
        raise RlrunError(f"{run_dir}: the run has no score (exit code {code}); see its output")
    return float(score)


def launch_batch(
    task: AdaptiveJob, cfg: "DictConfig", jobs: Sequence[Sequence[str]]
) -> list[tuple[list[str], float | RlrunError]]:
    """Run some jobs of an adaptive sweep in our pool; return overrides and score, or the error."""
    sweep = task.sweep
    first = len(sweep.record.jobs)
    sweep.jobs = [validate_job(task.composer, cfg, job, first + i) for i, job in enumerate(jobs)]
    names = [*(job.name for job in sweep.record.jobs), *(job.name for job in sweep.jobs)]
    require_different(names)
    sweep.divide_cores(cfg, len(jobs), same_threads=True)
    quiet = all(job.config.logger.progress == "off" for job in sweep.jobs)
    tasks = sweep.add()
    stopped = run_tasks(tasks, sweep.record, sweep.path, quiet=quiet)
    if stopped is not None:
        raise SweepStopped(stopped)
    found: list[tuple[list[str], float | RlrunError]] = []
    for task_ in tasks:
        try:
            job = task_.job
            found.append((job.overrides, score_of(sweep.path / job.name, job.exit_code)))
        except RlrunError as e:
            found.append((task_.job.overrides, e))
    return found


def run_adaptive(
    composer: "Composer", overrides: Sequence[str], sweep: Sweep, *, ours: bool
) -> None:
    """Let a sweeper of Hydra choose the jobs; it reports the best by itself.

    ``ours``: a launcher of ours runs them. Others may send what they call to another process.
    """
    sweep.record.commands.append(list(sys.argv))
    args = [*overrides, f"hydra.sweep.dir={quote(sweep.path)}"]
    try:
        composer.sweep(AdaptiveJob(composer, sweep) if ours else run_scored_job, args)
    except (SweepStopped, KeyboardInterrupt):
        if is_sweep(sweep.path):
            print_resume_line(sweep.path, sweep.ray)
        raise
