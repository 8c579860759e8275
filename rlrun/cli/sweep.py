"""Sweeps: jobs are validated, then run; jobs and seeds are added; what was interrupted goes on."""

import json
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rlrun.cli.error_report import SweepStopped, going_on, report
from rlrun.cli.run import Line, open_resources, run_job, write_texts
from rlrun.config import Composer, directories, load, read_checked
from rlrun.config.checks import check_typed_keys
from rlrun.config.compose import pack, place, run_packed
from rlrun.config.config_errors import config_error, require_packages
from rlrun.config.hydra_keys import check_logging, typed_overrides
from rlrun.config.ray import PACKAGES
from rlrun.config.reader import read_dataclass
from rlrun.config.rules import ADDRESS
from rlrun.config.space import read_settings
from rlrun.errors import ConfigError, Interrupted, RlrunError, printable, storage_errors
from rlrun.reports.bounds import known_bounds
from rlrun.reports.groups import identity
from rlrun.reports.runs import (
    SEEDS,
    RunData,
    flatten,
    parse_config,
    read_config,
    read_run,
    score,
)
from rlrun.run.files import CONFIG, lock_run_dir, read_file, replace_file
from rlrun.schema import Config
from rlrun.schema.override import Override, keys_of, read_overrides
from rlrun.schema.studies import MOST_WORKERS, RayLauncherConfig, SeedsConfig
from rlrun.sweeps import seeds
from rlrun.sweeps.launcher import Task, default_workers, divide_cores, run_tasks, workers_on_ray
from rlrun.sweeps.pool import end_server
from rlrun.sweeps.record import (
    JobRecord,
    SweepRecord,
    common_overrides,
    exit_text,
    has_lost_record,
    is_sweep,
    resume_line,
    set_aside,
    update,
)
from rlrun.sweeps.search import quote

_MAIN, _PACKED = "rlrun.cli.main:main", "rlrun.cli.sweep:run_packed_job"
_LONGEST_NAME = 255  # bytes in one part of a path
SHOWN = ("logger.progress",)  # keys of -q, which do not change a run
_WORKERS = "hydra.launcher.workers"
_LOCAL, _RAY = "rlrun.sweeps.pool.Pool", "rlrun.sweeps.ray_pool.RayPool"
_CHOICE = "hydra/launcher"


def _target(cfg: DictConfig) -> str:
    return str(cfg.hydra.launcher.get("_target_", ""))


def is_ours(cfg: DictConfig) -> bool:
    """Return whether the sweep runs in a pool of rlrun, on this machine or on Ray."""
    return _target(cfg) in (_LOCAL, _RAY)


def _read_workers(cfg: DictConfig) -> int | None:
    """Return the value of hydra.launcher.workers. Raises: ConfigError."""
    value = cfg.hydra.launcher.get("workers")
    if value is None or (type(value) is int and 1 <= value <= MOST_WORKERS):
        return value
    most = f"an integer within [1, {MOST_WORKERS}]"
    allowed = f"{most}, or null (as many as the cores hold), is allowed"
    raise config_error(_WORKERS, value, "is not a number of jobs", allowed, f"set {_WORKERS}=2")


def _read_ray(cfg: DictConfig) -> RayLauncherConfig | None:
    """Return the keys of ``hydra/launcher=ray``, or None for another launcher.

    Raises: ConfigError, ResourceError if Ray is not installed.
    """
    if _target(cfg) != _RAY:
        return None
    values = OmegaConf.to_container(cfg.hydra.launcher, resolve=True)
    assert isinstance(values, dict)
    return _read(values)


def _read(values: Mapping[Any, Any]) -> RayLauncherConfig:
    require_packages("hydra/launcher = ray", "ray", *PACKAGES)
    keys = {str(k): v for k, v in values.items() if k not in ("_target_", "workers")}
    ray: RayLauncherConfig = read_dataclass(RayLauncherConfig, keys, "hydra.launcher")
    facts = SimpleNamespace(address=ray.address)
    if rule := next((rule for rule in ADDRESS if rule.when(facts)), None):
        key = "hydra.launcher.address"
        raise config_error(key, ray.address, rule.wrong, rule.allowed, rule.fix)
    return ray


def _divide_cores(
    ray: RayLauncherConfig | None, workers: int | None, configs: Sequence[Config], jobs: int
) -> tuple[int | None, int | None]:
    """Return the jobs at a time, at most ``workers`` if it is given, and the threads of each.

    Raises: ConfigError for jobs on a GPU that reserve none: Ray would hide it from them.
    """
    if ray is None:
        return divide_cores(workers or default_workers(configs), jobs)
    device = next((c.device for c in configs if c.device != "cpu"), None)
    if device is not None and not ray.num_gpus:
        wrong = f"the networks are on device = {device}, a job would see no GPU"
        key = "hydra.launcher.num_gpus"
        raise config_error(key, 0, wrong, "1 is allowed", f"set {key}=1")
    return workers_on_ray(ray, workers, jobs), ray.threads


def _split_launcher(
    overrides: Sequence[Override], record: SweepRecord, sweep_dir: Path
) -> tuple[int | None, RayLauncherConfig | None, list[Override]]:
    """Return the launcher's settings for a resume, and the other overrides.

    These are the jobs at a time (None: not typed) and the keys of Ray (None: jobs on this machine).
    The launcher and its keys are those of the sweep unless others are typed. The address of a
    cluster must be typed: sweep.json may be untrusted, and the head of a cluster can run code in
    the processes that connect to it.

    Raises: ConfigError, ResourceError if Ray is not installed.
    """
    typed = [o for o in overrides if o.key.startswith(("hydra.launcher.", _CHOICE))]
    rest = [o for o in overrides if o not in typed]
    before, keys = record.ray, {o.key.removeprefix("hydra.launcher.") for o in typed}
    if not typed and before is None:
        return None, None, rest
    cfg = _compose(typed, before)
    workers = _read_workers(cfg)
    ray = _read_ray(cfg)
    if ray is None or before is None:
        return workers, ray, rest
    kept = {name: value for name, value in asdict(before).items() if name not in keys}
    if kept.get("address") is not None:
        wrong = "the sweep ran on this cluster, which a file may not choose"
        allowed, fix = "an address that you type is allowed", resume_line(sweep_dir, before)
        raise config_error("hydra.launcher.address", before.address, wrong, allowed, f"type {fix}")
    return workers, _read(asdict(replace(ray, **kept))), rest


def _compose(typed: Sequence[Override], before: RayLauncherConfig | None) -> DictConfig:
    """Return the config of a sweep with one of rlrun's launchers.

    Raises: ConfigError for another launcher.
    """
    chosen = before is None or any(o.key == _CHOICE for o in typed)
    words = [*([] if chosen else [f"{_CHOICE}=ray"]), *open_resources(typed)]
    cfg = Composer().compose(words, sweep=True)
    if not is_ours(cfg):
        wrong = "it cannot go on with a sweep; local and ray are allowed"
        raise ConfigError(f"{_CHOICE}: {wrong}; leave it out", key=_CHOICE)
    return cfg


@dataclass(frozen=True)
class ValidJob:
    """A composed and valid job."""

    overrides: list[Override]
    name: str  # of its directory
    config: Config
    packed: dict[str, Any]  # see rlrun.config.compose


def _constant_keys(*jobs: Sequence[str]) -> set[str]:
    """Return the keys that are equal in all jobs, except the seed."""
    return keys_of(read_overrides(common_overrides(jobs))) - {"seed"}


def validate_job(
    composer: Composer, cfg: DictConfig, job: Sequence[str], num: int, unnamed: Collection[str] = ()
) -> ValidJob:
    """Return the composed job. ``unnamed``: as for ``compose_job``.

    Raises: ConfigError if it is not valid.
    """
    params, job_overrides = cfg.hydra.sweeper.get("params") or {}, read_overrides(job)
    of_files = keys_of(read_overrides(f"{name}=" for name in params))  # without +, ++
    typed = [*typed_overrides(cfg), *(o for o in job_overrides if o.key not in of_files)]
    try:
        composed = composer.compose_job(cfg, job_overrides, num, unnamed)
        config = read_checked(composer, composed, job_overrides, typed=typed)
        if config.run.dir is not None:
            wrong = "names the directory of a single run; null is allowed in a sweep"
            raise ConfigError(f"run.dir = {config.run.dir}: {wrong}; use sweep.dir=PATH")
        name = str(composer.directory(composed, "hydra.sweep.subdir"))
        directories.check_inside("hydra.sweep.subdir", name)
        check_logging(composed, Path(name), [*typed_overrides(cfg, "hydra"), *job_overrides])
    except RlrunError as e:
        e.args = (f"{e} (sweep job {num}: {' '.join(job)}; no job was started)",)
        raise
    return ValidJob(job_overrides, name, config, pack(composed))


def _validate_jobs(
    composer: Composer,
    cfg: DictConfig,
    jobs: Sequence[Sequence[str]],
    record: SweepRecord,
    path: Path,
) -> list[ValidJob]:
    """Return the jobs that the sweep does not have yet, each once, numbered after its own.

    Equal jobs differ at most in where they run and how they are recorded.
    """
    typed = {frozenset(job.overrides) for job in record.jobs}
    known = set()
    for job_record in record.jobs:
        with suppress(OSError, ValueError):
            known.add(identity(read_config(path / job_record.name / CONFIG)))
    unnamed = _constant_keys(*(job.overrides for job in record.jobs), *jobs)
    valid: list[ValidJob] = []
    for job in jobs:
        if frozenset(job) in typed:
            continue
        valid_job = validate_job(composer, cfg, job, len(record.jobs) + len(valid), unnamed)
        job_identity = identity(parse_config(valid_job.packed["config"].encode()))
        if job_identity not in known:
            valid.append(valid_job)
            known.add(job_identity)
    check_typed_keys([job.config for job in valid], typed_overrides(cfg))
    return valid


@dataclass
class Sweep:
    """A sweep that is about to start: its directory, its record and its jobs."""

    line: Line
    cfg: DictConfig
    path: Path
    record: SweepRecord
    jobs: list[ValidJob]
    short_names: bool = False  # the names of overrides are too long for a directory
    threads: int | None = None  # of each job

    def divide_cores(self, count: int, *, same_threads: bool) -> None:
        """Set jobs at a time and the threads of each, for a command of ``count`` jobs.

        ``same_threads``: use the threads of the sweep's existing jobs, with which the new ones are
        compared.

        Raises: ConfigError.
        """
        typed, ray = _read_workers(self.cfg), self.record.ray
        configs = [job.config for job in self.jobs]
        earlier = self.record.jobs[0].threads if self.record.jobs else None
        if ray is None and same_threads and earlier is not None:
            self.record.workers, self.threads = typed or self.record.workers, earlier
        else:
            self.record.workers, self.threads = _divide_cores(ray, typed, configs, count)

    def add(self) -> list[Task]:
        """Write the directories of the jobs and their record. Return the tasks to run."""
        tasks = []
        subdir = "${hydra.job.num}" if self.short_names else None
        for num, job in enumerate(self.jobs, len(self.record.jobs)):
            name, total = str(num) if self.short_names else job.name, job.config.run.total_steps
            typed = [*map(str, job.overrides)]
            record = JobRecord(num, name, typed, total_steps=total, threads=self.threads)
            self.record.jobs.append(record)
            (self.path / name).mkdir(parents=True, exist_ok=True)
            write_texts(self.path / name, job.packed["config"], job.overrides)
            tasks.append(Task(record, _PACKED, [place(job.packed, self.path, subdir)]))
        self.record.write(self.path)
        return tasks


def _silent(line: Line) -> list[str]:
    """Return the overrides. A quiet sweep also silences Hydra's launcher, unless asked not to."""
    asked = any("hydra_logging" in o for o in line.overrides)
    return [*line.overrides, *["hydra/hydra_logging=none"] * (line.quiet and not asked)]


def run_sweep(line: Line) -> int:
    """Run ``start_sweep`` and name failed jobs. Return 0 if every job was completed, else 1."""
    path, record = start_sweep(line)
    if not line.quiet:
        print_report_line(path, record)
    return _report_failures(record, path)


def run_jobs(
    line: Line,
    jobs: Sequence[Sequence[str]],
    command: Sequence[str],
    *,
    begin: Callable[[Path], None] = lambda directory: None,
) -> list[RunData]:
    """Run the jobs that the sweep of ``line`` lacks or has not finished. Return all runs.

    Jobs of an earlier call are finished first. ``command``: words that continue after an
    interruption. ``begin``: as for ``start_sweep``.

    Raises: ConfigError before any job runs; Interrupted, which names ``command``.
    """
    path = Path(str(line.sweep_dir))
    try:
        if is_sweep(path):
            begin(path)
            if any(job.status != "done" for job in SweepRecord.read(path).jobs):
                resume_sweep(path, [], quiet=line.quiet)
        _, record = start_sweep(line, jobs=jobs, begin=begin)
        _report_failures(record, path)
    except Interrupted as e:
        raise going_on(e, command) from e
    names = {frozenset(job.overrides): job.name for job in record.jobs}
    for job in jobs:
        if frozenset(job) not in names:
            wrong = f"has a run that equals {' '.join(job)} but was typed in other words"
            raise ConfigError(f"{path}: {wrong}; a new directory is allowed; choose one")
    return [read_run(path / names[frozenset(job)]) for job in jobs]


def scores_of(runs: Sequence[RunData], kind: str = "final") -> list[float]:
    """Return the scores of runs.

    Raises: RlrunError, with the code of a sweep with a failed job, if a run has none.
    """
    scores = []
    for run in runs:
        if (value := score(run, kind)) is None:
            raise RlrunError(
                f"{run.path}: has no score {kind} ({run.failure or run.status}); all runs are "
                "needed, for the others alone would favour an agent that fails; the same command "
                "with this directory tries it again"
            ).with_code(1)
        scores.append(value)
    return scores


def print_report_line(path: Path, record: SweepRecord) -> None:
    """Print the command that shows the finished jobs."""
    if any(job.status == "done" for job in record.jobs):
        print(f"rlrun: see it with: rlrun report {shlex.quote(str(path))}", flush=True)


def start_sweep(
    line: Line,
    *,
    jobs: Sequence[Sequence[str]] | None = None,
    begin: Callable[[Path], None] = lambda directory: None,
) -> tuple[Path, SweepRecord]:
    """Run a sweep to its end. Return its directory and record, which includes failed jobs.

    ``jobs``: the overrides of each job; None: every combination of those of the line. They are
    added to those that ``sweep.dir`` has. ``begin`` is called with the directory of the sweep,
    which is locked, before the first job.

    Raises: ConfigError before any job runs, Interrupted, SweepStopped.
    """
    composer, exact = line.composer, line.sweep_dir is not None
    cfg = composer.compose(_silent(line), sweep=True)
    if _target(cfg) != _LOCAL:
        end_server()
    path = sweep_directory(line, cfg)
    sweep = Sweep(line, cfg, path, SweepRecord([], ray=_read_ray(cfg)), [])
    is_new, same_threads = not (exact and is_sweep(path)), jobs is not None
    with ExitStack() as held:
        if not is_new:
            if not is_ours(cfg):
                wrong = "this launcher numbers jobs from 0; local and ray add jobs to a sweep"
                fix = "leave hydra/launcher out, or choose a new directory"
                raise ConfigError(f"sweep.dir = {path}: {wrong}; {fix}", key="sweep.dir")
            held.enter_context(lock_run_dir(path))  # another process may be adding jobs
            sweep.record = replace(SweepRecord.read(path), ray=sweep.record.ray)
        elif exact:
            directories.require_new(path, "sweep.dir")
        jobs = composer.jobs(cfg) if jobs is None else jobs
        sweep.jobs = _validate_jobs(composer, cfg, jobs, sweep.record, path)
        if not line.own_process:
            from rlrun.env.catalog import require_in_every_process

            for env_id in {job.config.env.id for job in sweep.jobs}:
                require_in_every_process(env_id)
        sweep.short_names = _needs_short_names(sweep, jobs)
        if is_ours(cfg):
            sweep.divide_cores(len(jobs), same_threads=same_threads)
        if is_new:
            sweep.path = directories.claim(path, exact=exact, key="sweep.dir")
            held.enter_context(lock_run_dir(sweep.path))
        begin(sweep.path)
        sweep.record.commands.append(list(sys.argv))
        tasks = sweep.add()
        if not is_ours(cfg):
            _run_by_hydra(sweep)
            return sweep.path, sweep.record
        with composer.multirun(cfg, sweep.path):
            own = line.own_process
            _run(tasks, sweep.record, sweep.path, quiet=line.quiet, own_process=own)
        return sweep.path, sweep.record


def sweep_directory(line: Line, cfg: DictConfig) -> Path:
    """Return the directory of a sweep, absolute: that of ``sweep.dir``, or of Hydra."""
    key = "hydra.sweep.dir" if line.sweep_dir is None else "sweep.dir"
    return directories.absolute(key, Path(line.sweep_dir or line.composer.directory(cfg, key)))


def _needs_short_names(sweep: Sweep, jobs: Sequence[Sequence[str]]) -> bool:
    """Return whether directories of jobs are named by numbers.

    Raises: ConfigError if two would share one.
    """
    names = [*(job.name for job in sweep.record.jobs), *(job.name for job in sweep.jobs)]
    if twice := next((name for name, count in Counter(names).items() if count > 1), None):
        wrong = "is the directory of more than one job; a name of its own for each is allowed"
        fix = "put ${hydra.job.num} into it"
        raise ConfigError(f"hydra.sweep.subdir = {twice}: {wrong}; {fix}")
    parts = (part for name in names for part in name.split("/"))
    if any(len(part.encode()) > _LONGEST_NAME for part in parts):
        return True
    return not is_ours(sweep.cfg) and any("/" in o for job in jobs for o in job)


def _run(
    tasks: Sequence[Task], record: SweepRecord, path: Path, *, quiet: bool, own_process: bool = True
) -> None:
    """Run the jobs. Raises: Interrupted."""
    if not quiet:
        skipped = len(record.jobs) - len(tasks)
        there = f" ({skipped} more are there already)" if skipped else ""
        many = f"{max(1, min(record.workers or 1, len(tasks)))} at a time"
        if record.ray is not None and record.workers is None:
            many = "as many at a time as the cluster holds"
        jobs = f"{len(tasks)} job{'s' * (len(tasks) != 1)}"
        print(f"rlrun: {jobs}{there}, {many}; {path}", flush=True)
    if not tasks:
        return
    stopped = run_tasks(tasks, record, path, quiet=quiet, own_process=own_process)
    if stopped is not None:
        done = sum(job.status == "done" for job in record.jobs)
        text = f"interrupted: {done} of {len(record.jobs)} jobs are done"
        raise Interrupted(f"{text}; go on: {resume_line(path, record.ray)}").with_code(stopped)


def _report_failures(record: SweepRecord, path: Path) -> int:
    """Name the jobs that failed. Return the exit code of the sweep."""
    names = [f"#{job.num} ({job.status if job.exit_code is None else exit_text(job.exit_code)})"
             for job in record.jobs if job.status != "done"]  # fmt: skip
    if names:
        what = f"{len(names)} of {len(record.jobs)} jobs failed: {', '.join(names)}"
        print(f"rlrun: {what}; to try again: {resume_line(path, record.ray)}", file=sys.stderr)
    return int(bool(names))


def run_packed_job(text: str) -> int:
    """Run a job packed by ``rlrun.config.compose``: the main function of its process."""
    try:
        return int(run_packed(run_job, text))
    except RlrunError as e:
        return report(e)


def _run_by_hydra(sweep: Sweep) -> None:
    """Run the jobs with another launcher (basic, joblib, submitit), which composes them again."""
    jobs = sweep.record.jobs
    key = "hydra.job.config.override_dirname.exclude_keys"
    unnamed = [*OmegaConf.select(sweep.cfg, key), *_constant_keys(*(j.overrides for j in jobs))]
    words = [*_silent(sweep.line), f"hydra.sweep.dir={quote(sweep.path)}"]
    words += ["hydra.sweep.subdir=${hydra.job.num}"] if sweep.short_names else []
    words.append(f"{key}=[{','.join(unnamed)}]")
    try:
        codes = sweep.line.composer.sweep(partial(run_job, in_turn=True), words)
        for job, code in zip(jobs, codes, strict=True):
            job.end(int(code))
    except (SweepStopped, KeyboardInterrupt):
        for job in jobs:  # which have reported the signal
            update(job, sweep.path)
        line = resume_line(sweep.path, sweep.record.ray)
        print(f"rlrun: the sweep goes on with: {line}", file=sys.stderr)
        raise
    finally:
        sweep.record.write(sweep.path)


def resume_sweep(path: Path, overrides: Sequence[Override], *, quiet: bool) -> int:
    """Continue all unfinished jobs of a sweep. Return 0 if all are finished then, else 1.

    ``overrides``: as for a run. All jobs get them, including finished ones. sweep.json keeps them
    for jobs that have not ended with them. They may include ``hydra.launcher.workers=N`` (jobs at a
    time), other keys of rlrun's launchers, and ``hydra/launcher``, which run the jobs elsewhere.
    """
    directories.check_length("SWEEP_DIR", path)
    path = path.absolute()
    with lock_run_dir(path):
        record = SweepRecord.read(path)
        workers, ray, rest = _split_launcher(overrides, record, path)
        shown = [o for o in rest if o.key in SHOWN]
        changes = [o for o in rest if o not in shown]
        loaded = []
        wanted = [job for job in record.jobs if changes or job.status != "done"]
        lost = {job.num for job in wanted if has_lost_record(path / job.name)}
        for job in sorted(wanted, key=lambda job: job.num in lost):  # what can be refused first
            if job.num in lost:
                where = set_aside(path / job.name)
                print(f"rlrun: job {job.num} has no usable run.json and begins anew; what it left "
                      f"is in {where}", file=sys.stderr)  # fmt: skip
            words = [*{o.key: o for o in [*read_overrides(job.pending), *changes]}.values()]
            config, _ = load(path / job.name, [*words, *shown], named=keys_of(rest))
            loaded.append((job, words, config))
        tasks = []
        for job, words, config in sorted(loaded, key=lambda entry: entry[0].num):
            job.total_steps, job.status = config.run.total_steps, "waiting"
            job.pending = [*map(str, words)]
            tasks.append(Task(job, _MAIN, [["resume", str(path / job.name), *words, *shown]]))
        if not tasks:
            if not quiet:
                print(f"rlrun: {path}: all {len(record.jobs)} jobs are done; nothing was changed")
            return 0
        configs = [config for *_, config in loaded]
        kept = record.workers if ray is None or ray == record.ray else None
        workers, threads = _divide_cores(ray, workers or kept, configs, len(record.jobs))
        record.workers, record.ray = workers, ray
        for job in record.jobs:
            job.threads = job.threads or threads
        record.write(path)
        _run(tasks, record, path, quiet=quiet)
        return _report_failures(record, path)


def _read_seeds(composer: Composer, typed: Sequence[Override]) -> SeedsConfig:
    """Return the settings of seeds=auto. Raises: ConfigError, also if it was not typed."""
    chosen = [o.value for o in typed if o.key == "seeds"]
    if not chosen:
        allowed, fix = "it is read with seeds=auto", "add seeds=auto or leave it out"
        raise config_error(typed[0].name, typed[0].value, "it would change nothing", allowed, fix)
    if chosen != ["auto"]:
        fix = "type seed=range(10) for ten seeds"
        raise config_error("seeds", chosen[-1], "unknown option", "auto is allowed", fix)
    keys = [o for o in typed if o.key != "seeds"]
    settings: SeedsConfig = read_settings(composer, "seeds", keys)
    return settings


def run_auto(line: Line) -> int:
    """Run the sweep until it is decided. Return 0.

    Raises: SweepStopped if a job failed.
    """
    composer, quiet = line.composer, line.quiet
    settings = _read_seeds(composer, line.seeds)
    cfg = composer.compose(line.overrides, sweep=True)
    if _target(cfg) != _LOCAL:
        key, fix = "hydra/launcher", "leave hydra/launcher out"
        wrong = "seeds=auto adds jobs to its sweep, which hydra/launcher=local alone does"
        raise ConfigError(f"{key}: {wrong}; {fix}", key=key)
    for override in composer.parse(line.overrides):
        if override.key == "seed" and override.parsed.is_sweep_override():
            wrong, allowed = "seeds=auto chooses the seeds", "seed=FIRST is allowed with seeds=auto"
            raise config_error("seed", override.value, wrong, allowed, "give one")
    arms, configs = list[list[Override]](), list[Config]()
    for i, job in enumerate(composer.jobs(cfg)):
        arm = [o for o in job if o.key != "seed"]
        config = validate_job(composer, cfg, [*arm, f"seed={cfg.seed}"], i).config
        if config not in configs:  # 1e-3 and 0.001 are one setting
            arms.append(arm)
            configs.append(config)
    planned = seeds.plan_seeds(_settings_of(arms, configs), settings, int(cfg.seed))
    path = sweep_directory(line, cfg)
    if line.sweep_dir is None:
        path = directories.claim(path, exact=False, key="sweep.dir")
    else:
        _check_before(path, planned)
    line = replace(line, sweep_dir=str(path))
    typed = [f"seeds.{key}={value}" for key, value in asdict(settings).items()]
    command = ["-m", *line.overrides, "seeds=auto", *typed, f"sweep.dir={path}"]

    def run(places: Sequence[seeds.Place]) -> list[float]:
        wanted = [[*arms[index], f"seed={seed}"] for index, seed in places]
        runs = run_jobs(line, wanted, command, begin=begin)
        if any(run.status != "done" for run in runs):
            raise SweepStopped(1)
        return scores_of(runs, settings.objective)

    def begin(sweep: Path) -> None:
        if not (sweep / SEEDS).exists():
            _write_seeds(sweep, planned)

    def look(result: seeds.SeedsResult) -> None:
        _write_seeds(path, result)
        if not quiet:
            print(result.decision.why, flush=True)

    result = seeds.run_until_decided(planned, run, look)
    if not quiet:
        print("\n".join(result.lines()), flush=True)
    return 0


def _check_before(path: Path, planned: seeds.SeedsResult) -> None:
    """Raise ConfigError if seeds=auto was begun in a directory with another plan."""
    file = path / SEEDS
    if not file.exists():
        return
    try:
        stored = json.loads(read_file(file))
    except (OSError, ValueError, RecursionError) as e:
        wrong, allowed = "cannot be read", "the plan that seeds=auto wrote is needed"
        text = f"{wrong} ({type(e).__name__}); {allowed}; choose a new directory"
        raise ConfigError(f"{printable(str(file))}: {text}", key="sweep.dir") from e
    seeds.check_plan(stored, planned, str(path))


def _write_seeds(path: Path, result: seeds.SeedsResult) -> None:
    """Replace seeds.json. Raises: StorageError."""
    fix = "free space or fix the permissions, then repeat the command"
    with storage_errors(f"{path / SEEDS}:", f"the directory of a sweep must be writable; {fix}"):
        replace_file(path / SEEDS, json.dumps(result.to_dict(), indent=1).encode() + b"\n")


def _settings_of(arms: Sequence[Sequence[str]], configs: Sequence[Config]) -> list[seeds.Setting]:
    """Return the settings, named by the overrides in which they differ."""
    common = set(arms[0]).intersection(*arms) if arms else set()
    settings = []
    for arm, env in zip(arms, (config.env for config in configs), strict=True):
        # A text that is equal for equal environments, however policies see them.
        parts = (env.id, env.kwargs, env.eval_kwargs, list(env.wrappers), env.max_episode_steps)
        task = " ".join(str(part) for part in parts if part)
        bounds = known_bounds(dict(flatten({"env": asdict(env)})))
        name = " ".join(o for o in arm if o not in common)
        settings.append(seeds.Setting(name or "the setting", task, bounds))
    return settings
