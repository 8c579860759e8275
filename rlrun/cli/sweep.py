"""Sweeps: their jobs are validated, then run; jobs are added; interrupted sweeps are resumed."""

import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from rlrun.cli.adaptive import run_adaptive
from rlrun.cli.error_report import SweepStopped, report
from rlrun.cli.launchers import check_devices, is_ours, read_ray, split_launcher
from rlrun.cli.run import run_job, run_sweep_job
from rlrun.cli.sweep_jobs import (
    LONGEST_NAME,
    Sweep,
    print_resume_line,
    require_different,
    validate_jobs,
)
from rlrun.errors import ConfigError, Interrupted, RlrunError
from rlrun.run.files import lock_run_dir
from rlrun.sweeps.launcher import (
    Task,
    default_workers,
    divide_cores,
    run_tasks,
    workers_on_ray,
)
from rlrun.sweeps.record import (
    SweepRecord,
    exit_text,
    has_lost_record,
    is_sweep,
    resume_line,
    set_aside,
    update,
)
from rlrun.sweeps.search import quote

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from rlrun.config import Composer

_MAIN = "rlrun.cli.main:main"
_SHOWN = ("logger.progress",)  # keys of -q, which change nothing of a run


def run_sweep(
    composer: "Composer",
    overrides: Sequence[str],
    directory: str | None,
    *,
    quiet: bool,
    jobs: Sequence[Sequence[str]] | None = None,
    begin: Callable[[Path], None] = lambda directory: None,
) -> int:
    """``start_sweep`` that names the jobs which failed; 0 when every job ended well, else 1."""
    path, record = start_sweep(composer, overrides, directory, quiet=quiet, jobs=jobs, begin=begin)
    if jobs is None and not quiet:
        print_report_line(path, record)
    return _report_failures(record, path)


def print_report_line(path: Path, record: SweepRecord) -> None:
    """Name the command that shows the jobs which are done."""
    if any(job.status == "done" for job in record.jobs):
        print(f"rlrun: see it with: rlrun report {shlex.quote(str(path))}", flush=True)


def start_sweep(
    composer: "Composer",
    overrides: Sequence[str],
    directory: str | None,
    *,
    quiet: bool,
    jobs: Sequence[Sequence[str]] | None = None,
    begin: Callable[[Path], None] = lambda directory: None,
    own_process: bool = True,
) -> tuple[Path, SweepRecord]:
    """Run a sweep to its end; return its directory and record, with jobs that failed too.

    ``directory``: of ``sweep.dir``, new or that of a sweep, to which the jobs are added.
    ``jobs``: the overrides of each job; None: every combination of those of the command line.
    ``begin``: is called with the directory of the sweep, which is locked, before the first job.
    ``own_process``: False in the process of a user's script.

    Raises: ConfigError before any job runs, Interrupted, SweepStopped.
    """
    from rlrun.config.directories import absolute, claim, require_new

    cfg = composer.compose(overrides, sweep=True)
    ray = read_ray(cfg)
    key = "hydra.sweep.dir" if directory is None else "sweep.dir"
    path = absolute(key, Path(directory) if directory else composer.directory(cfg, key))
    record, same_threads = SweepRecord([]), jobs is not None
    is_new = directory is None or not is_sweep(path)
    with ExitStack() as held:
        if not is_new:
            _require_ours(cfg, path)
            held.enter_context(lock_run_dir(path))  # another process may be adding jobs
            record = SweepRecord.read(path)
        elif directory is not None:
            require_new(path, "sweep.dir")
        jobs = composer.jobs(cfg) if jobs is None else jobs
        valid = validate_jobs(composer, cfg, jobs, record, path)
        if not own_process:
            from rlrun.env.catalog import require_in_every_process

            for env_id in {job.config.env.id for job in valid}:
                require_in_every_process(env_id)
        names = [*(job.name for job in record.jobs), *(job.name for job in valid)]
        require_different(names)
        parts = (part for name in names for part in name.split("/"))
        short = any(len(part.encode()) > LONGEST_NAME for part in parts)
        short = short or (not is_ours(cfg) and any("/" in o for job in jobs for o in job))
        sweep = Sweep(path, record, valid, short, ray=ray)
        if is_ours(cfg) and jobs:
            sweep.divide_cores(cfg, len(jobs), same_threads=same_threads)
        if is_new:
            exact = directory is not None
            sweep.path = path = claim(path, exact=exact, key="sweep.dir")
            held.enter_context(lock_run_dir(path))
        begin(path)
        if not jobs:
            run_adaptive(composer, overrides, sweep, ours=is_ours(cfg))
        elif is_ours(cfg):
            _run_ours(composer, cfg, sweep, quiet=quiet, own_process=own_process)
        else:
            _run_by_hydra(composer, overrides, sweep)
        return path, sweep.record


def _require_ours(cfg: "DictConfig", path: Path) -> None:
    if not is_ours(cfg):
        wrong = (
            "this launcher numbers jobs from 0; hydra/launcher=local or ray adds jobs to a sweep"
        )
        fix = "leave hydra/launcher out, or choose a new directory"
        raise ConfigError(f"sweep.dir = {path}: {wrong}; {fix}", key="sweep.dir")


def _run_ours(
    composer: "Composer", cfg: "DictConfig", sweep: Sweep, *, quiet: bool, own_process: bool
) -> None:
    """Run the jobs in a pool of ours."""
    from rlrun.config.compose import Multirun

    sweep.record.commands.append(list(sys.argv))
    tasks = sweep.add()
    multirun = Multirun(composer, cfg, sweep.path)
    try:
        _run(tasks, sweep.record, sweep.path, quiet=quiet, own_process=own_process)
    finally:
        multirun.end()


def _run(
    tasks: Sequence[Task],
    record: SweepRecord,
    path: Path,
    *,
    quiet: bool,
    own_process: bool = True,
) -> None:
    """Run the jobs. Raises: Interrupted."""
    if not quiet:
        skipped = len(record.jobs) - len(tasks)
        there = f" ({skipped} more are there already)" if skipped else ""
        many = f"{max(1, min(record.workers or 1, len(tasks)))} at a time"
        if record.ray is not None and record.workers is None:
            many = "as many at a time as the cluster holds"
        print(f"rlrun: {len(tasks)} jobs{there}, {many}; {path}", flush=True)
    if not tasks:
        return
    stopped = run_tasks(tasks, record, path, quiet=quiet, own_process=own_process)
    if stopped is not None:
        done = sum(job.status == "done" for job in record.jobs)
        text = f"interrupted: {done} of {len(record.jobs)} jobs are done"
        error = Interrupted(f"{text}; go on: {resume_line(path, record.ray)}")
        error.exit_code = stopped
        raise error


def _report_failures(record: SweepRecord, path: Path) -> int:
    """Name the jobs that did not end well; return the exit code of the sweep."""
    jobs = record.jobs
    failed = [job for job in jobs if job.status != "done"]
    if not failed:
        return 0
    names = (f"#{j.num} ({j.status if j.exit_code is None else exit_text(j.exit_code)})"
             for j in failed)  # fmt: skip
    what = f"{len(failed)} of {len(jobs)} jobs failed: {', '.join(names)}"
    print(f"rlrun: {what}; to try again: {resume_line(path, record.ray)}", file=sys.stderr)
    return 1


def run_packed_job(text: str) -> int:
    """Run the job that ``rlrun.config.compose`` packed; the main function of its process."""
    from rlrun.config.compose import run_packed

    try:
        return int(run_packed(run_job, text))
    except RlrunError as e:
        return report(e)


def _run_by_hydra(composer: "Composer", overrides: Sequence[str], sweep: Sweep) -> None:
    """Run the jobs by another launcher (basic, joblib, submitit), which composes them anew."""
    sweep.record.commands.append(list(sys.argv))
    sweep.add()
    extra = ["hydra.sweep.subdir=${hydra.job.num}"] if sweep.short_names else []
    jobs = sweep.record.jobs
    try:
        args = [*overrides, f"hydra.sweep.dir={quote(sweep.path)}", *extra]
        codes = composer.sweep(run_sweep_job, args)
        for job, code in zip(jobs, codes, strict=True):
            job.end(int(code))
    except (SweepStopped, KeyboardInterrupt):
        for job in jobs:
            update(job, sweep.path)
        print_resume_line(sweep.path)
        raise
    finally:
        sweep.record.write(sweep.path)


def resume_sweep(path: Path, overrides: Sequence[str], *, quiet: bool) -> int:
    """Go on with all jobs of a sweep that are not done; 0 when all are done then, else 1.

    ``overrides``: as for a run; all jobs then get them, those that are done too. They are kept in
    sweep.json for the jobs that have not ended with them. ``hydra.launcher.workers=N`` among them:
    jobs at a time; other keys of our launchers, and ``hydra/launcher``, run them elsewhere.
    """
    from rlrun.config import load
    from rlrun.config.config_errors import override_key
    from rlrun.config.directories import check_length, check_written
    from rlrun.config.hydra_keys import check_stored

    check_length("SWEEP_DIR", path)
    path = path.absolute()
    with lock_run_dir(path):
        record = SweepRecord.read(path)
        workers, ray, own = split_launcher(overrides, record, path)
        shown = [o for o in own if override_key(o) in _SHOWN]
        changes = [o for o in own if o not in shown]
        found = []
        wanted = [job for job in record.jobs if changes or job.status != "done"]
        lost = {job.num for job in wanted if has_lost_record(path / job.name)}
        for job in sorted(wanted, key=lambda job: job.num in lost):  # what can be refused first
            if job.num in lost:
                where = set_aside(path / job.name)
                print(f"rlrun: job {job.num} has no usable run.json and begins anew; what it left "
                      f"is in {where}", file=sys.stderr)  # fmt: skip
            check_stored(job.pending, changes)
            pending = {override_key(o): o for o in [*job.pending, *changes]}
            words = [*pending.values()]
            config, _ = load(path / job.name, [*words, *shown])
            check_written(config, {override_key(o) for o in own})  # pending ones are the file's
            found.append((job, words, config))
        tasks = []
        for job, words, config in sorted(found, key=lambda entry: entry[0].num):
            job.total_steps, job.status, job.pending = config.run.total_steps, "waiting", words
            tasks.append(Task(job, _MAIN, [["resume", str(path / job.name), *words, *shown]]))
        if not tasks:
            if not quiet:
                print(f"rlrun: {path}: all {len(record.jobs)} jobs are done; nothing was changed")
            return 0
        configs = [config for *_, config in found]
        if ray is None:
            workers = workers or record.workers or default_workers(configs)
            record.workers, threads = divide_cores(workers, len(record.jobs))
        else:
            check_devices(ray, configs)
            typed = workers or (record.workers if ray == record.ray else None)
            record.workers, threads = workers_on_ray(ray, typed, len(record.jobs)), ray.threads
        record.ray = ray
        for job in record.jobs:
            job.threads = job.threads or threads
        record.write(path)
        _run(tasks, record, path, quiet=quiet)
        return _report_failures(record, path)
