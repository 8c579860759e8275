"""Running the jobs of a sweep in a pool, and recording how each ended."""

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlrun.errors import Interrupted, ResourceError, printable
from rlrun.log.progress import format_duration
from rlrun.pipeline.stop import StopRequest, stop_on_signals
from rlrun.reports.runs import logged
from rlrun.run.files import LOG, no_follow
from rlrun.schema import Config
from rlrun.schema.studies import RayLauncherConfig
from rlrun.sweeps.pool import Job, Pool, usable_cores
from rlrun.sweeps.ray_pool import RayPool
from rlrun.sweeps.record import (
    SECONDS,
    JobProgress,
    JobRecord,
    SweepRecord,
    differing,
    exit_text,
    make_display,
    resume_line,
    update,
)

CONSOLE = "console.txt"  # stdout and stderr of a job, in its run directory
SWEEP_LOG = "sweep.log"
_TAIL = 8192  # bytes at the end of a job's output that are searched for its error


@dataclass(frozen=True)
class Task:
    """The call of a job: the function ``package.module:function`` and its JSON arguments."""

    job: JobRecord
    function: str
    arguments: list[Any]


def default_workers(configs: Sequence[Config]) -> int:
    """Return the jobs at a time if ``hydra.launcher.workers`` is null; 1 if a job uses a GPU.

    As many as the cores allow, if a job takes ``learner.threads`` (null: one) and the overlapped
    pipeline one more.
    """
    if any(config.device != "cpu" for config in configs):
        return 1
    needs = ((c.learner.threads or 1) + (c.pipeline.name == "overlapped") for c in configs)
    return max(1, usable_cores() // max(needs, default=1))


def cores_of_each(workers: int) -> int:
    """Return the cores that each of ``workers`` jobs at a time may use."""
    return max(1, usable_cores() // workers)


def divide_cores(workers: int, jobs: int) -> tuple[int, int]:
    """Return the jobs at a time, at most ``workers``, and the cores of each."""
    workers = max(1, min(workers, jobs))
    return workers, cores_of_each(workers)


def workers_on_ray(ray: RayLauncherConfig, workers: int | None, jobs: int) -> int | None:
    """Return the jobs at a time, at most ``workers``; None: as many as the cluster holds."""
    if workers is None and ray.address is None:
        workers = max(1, int(usable_cores() / ray.num_cpus))
    return None if workers is None else max(1, min(workers, jobs))


def run_tasks(
    tasks: Sequence[Task],
    record: SweepRecord,
    sweep_dir: Path,
    *,
    quiet: bool,
    own_process: bool = True,
) -> int | None:
    """Run ``tasks``, jobs of the sweep. Return the exit code of the signal that stopped it, or
    None.

    ``record`` has the jobs at a time and the threads of each. sweep.json is written when jobs have
    started or ended. ``own_process``: False in a user's process.

    Raises: ResourceError if jobs cannot be started, or the head of their cluster is lost.
    """
    pool: Pool
    if record.ray is None:
        pool = Pool(record.workers or 1, own_process=own_process)
    else:
        pool = RayPool(record.ray, record.workers, own_process=own_process)
    try:
        with stop_on_signals(own_process=own_process) as stop, pool:
            return _Sweep(tasks, record, sweep_dir, quiet).run(pool, stop)
    except (ResourceError, Interrupted) as e:  # the latter before any job has started
        for job in (job for job in record.jobs if job.status == "running"):
            update(job, sweep_dir)
        record.write(sweep_dir)
        e.args = (f"{e}; go on: {resume_line(sweep_dir, record.ray)}",)
        raise


class _Sweep:
    """The state of ``run_tasks``."""

    def __init__(
        self, tasks: Sequence[Task], record: SweepRecord, sweep_dir: Path, quiet: bool
    ) -> None:
        self._tasks, self._record, self._sweep_dir = tasks, record, sweep_dir
        self._progress = {
            job.num: JobProgress(sweep_dir / job.name, job.total_steps) for job in record.jobs
        }
        for progress in self._progress.values():
            progress.finish()
        self._display = make_display(record.jobs, self._progress, quiet=quiet)
        self._texts = differing(record.jobs)
        self._records: dict[Job, JobRecord] = {}

    def run(self, pool: Pool, stop: StopRequest) -> int | None:
        stopping = False
        try:
            for task in self._tasks:
                log, threads = self._sweep_dir / task.job.name / CONSOLE, task.job.threads
                job = pool.submit(
                    task.function, task.arguments, list(sys.argv), Path.cwd(), log, threads
                )
                self._records[job] = task.job
            while pool.running or pool.queue:
                changed = self._note_started()
                if stop() and not stopping:
                    stopping = True
                    pool.stop_all()
                for job in pool.wait_any(SECONDS):
                    self._end(job)
                    changed = True
                if changed:
                    self._record.write(self._sweep_dir)
                for job in pool.running.values():
                    self._progress[self._records[job].num].read()
                self._display.show()
        finally:
            self._display.close()
        return stop.code

    def _note_started(self) -> bool:
        """Note the jobs that have started since; return whether there are any."""
        new = [
            record for job, record in self._records.items()
            if job.started is not None and job.code is None and record.status != "running"
        ]  # fmt: skip
        for record in new:
            record.status, record.exit_code = "running", None
            self._progress[record.num].start()
        return bool(new)

    def _end(self, job: Job) -> None:
        assert job.code is not None
        record, seconds = self._records[job], job.seconds
        record.end(job.code, None if seconds is None else round(seconds, 1))
        progress = self._progress[record.num]
        progress.finish()
        text = _end_text(record, self._texts[record.num], progress, self._sweep_dir, job.why)
        self._display.ended(record, text)
        with (
            suppress(OSError),
            open(self._sweep_dir / SWEEP_LOG, "a", encoding="utf-8", opener=no_follow) as file,
        ):
            file.write(f"{text}\n")


def _end_text(
    job: JobRecord, overrides: str, progress: JobProgress, sweep_dir: Path, lost: str | None
) -> str:
    """Return ``job 3 (seed=3) failed (exit 4): loss = nan; ...; its output: PATH``.

    ``lost``: the reason, for a job whose process was lost, which its output does not contain.
    """
    name = f"job {job.num} ({overrides})"
    after = "" if job.seconds is None else f" after {format_duration(job.seconds)}"
    if job.status == "done":
        score = "" if progress.score is None else f": return {progress.score:.4g}"
        return f"{name} is done{after}{score}{_warnings(sweep_dir / job.name)}"
    assert job.exit_code is not None
    log = sweep_dir / job.name / CONSOLE
    why = last_error(log)
    if job.exit_code < 0:
        why = "killed" if job.status == "failed" else "a signal ended it before it could save"
        why += "; lack of memory is the usual reason" if job.exit_code == -9 else ""
    why = lost or why
    text = f"{name} {job.status} ({exit_text(job.exit_code)}){after}: {why}; its output: {log}"
    return printable(text)


def _warnings(directory: Path) -> str:
    """Return ``; 2 warnings in PATH, the first: TEXT``, or "" for none."""
    warnings = logged(directory, "[WARNING] - ")
    count = f"{len(warnings)} warning{'s' * (len(warnings) > 1)}"
    return f"; {count} in {directory / LOG}, the first: {warnings[0]}" if warnings else ""


def last_error(log: Path) -> str:
    """Return the last error that a job printed, else its last line."""
    try:
        handle = os.open(log, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(handle, "rb") as file:
            file.seek(max(0, os.fstat(handle).st_size - _TAIL))
            lines = file.read(_TAIL).decode(errors="replace").splitlines()
    except OSError:
        return "it printed nothing"
    lines = [line for line in lines if line.strip()]
    errors = [line for line in lines if line.startswith("rlrun: ")]
    last: str = (errors or lines or ["it printed nothing"])[-1]
    return last.removeprefix("rlrun: ").removeprefix("error: ")
