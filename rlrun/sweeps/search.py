"""Search: trials of several seeds each, then the best setting again on fresh seeds.

The settings depend on ``search.seed`` and on earlier trials by number, never on which run ends
first. Trial n is suggested when exactly trials 0 … n - lag have been recorded, in order, and is
compared at its rungs with those alone. So an interrupted search tries the same settings as an
uninterrupted one.

`Study` suggests settings with Optuna's ask and tell, `Search` runs them. Rungs are those of
asynchronous successive halving, which stops a trial there instead of pausing it.

Sources: Akiba et al. 2019 (Optuna); Bergstra et al. 2011 (the tree-structured Parzen estimator);
Li et al. 2020, "A System for Massively Parallel Hyperparameter Tuning" (ASHA).
"""

import math
import os
import re
import shutil
import signal
import sqlite3
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from rlrun.config.space import Dimension
from rlrun.errors import CheckpointError, Interrupted, LockedError, ResourceError, StorageError
from rlrun.reports.bounds import return_bounds
from rlrun.reports.intervals import LEVEL, Estimate, mean_interval
from rlrun.reports.runs import RunData, curve_score, read_run, score
from rlrun.run.files import RECORD
from rlrun.schema.studies import SearchConfig
from rlrun.sweeps.launcher import cores_of_each
from rlrun.sweeps.pool import MAIN, Job, Pool
from rlrun.sweeps.record import exit_text
from rlrun.trust import resume_line

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

NAME = "study.db"
_STUDY = "search"
_MISFITS = (  # errors of Optuna on rows that it has not written
    ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError,
    ValueError,
)  # fmt: skip
_SCORES = "scores"  # user attribute: the score of each seed
State = Literal["running", "complete", "pruned", "failed"]
_STATES: dict[str, State] = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed"}


@dataclass(frozen=True)
class Trial:
    """A setting that is tried. ``rungs``: rung -> score. ``scores``: one per seed."""

    number: int
    overrides: tuple[str, ...]
    state: State = "running"
    rungs: Mapping[int, float] = field(default_factory=dict)
    scores: tuple[float, ...] = ()

    @property
    def score(self) -> float:
        """The mean over seeds."""
        return float(np.mean(self.scores))


class Study:
    """Suggests settings by number: equal trials before number n give an equal trial n.

    ``path``: the SQLite file, which is created or continued; None keeps all in memory.
    """

    def __init__(
        self, path: Path | None, space: Sequence[Dimension], *, sampler: str, seed: int
    ) -> None:
        """Raises: ResourceError without Optuna, StorageError if the file cannot be used."""
        optuna = import_optuna()
        self._optuna, self._path, self._space = optuna, path, space
        self._name, self._seed = sampler, seed
        if path is not None:
            _require_tables(path)
        with _storage_errors(path):
            storage = None if path is None else _storage(path)
            self._study = optuna.create_study(
                study_name=_STUDY, storage=storage, direction="maximize", load_if_exists=True
            )

    def trials(self) -> list[Trial]:
        """Return the trials that have ended, by number.

        Raises: StorageError if the file belongs to another search.
        """
        return [self._read(t) for t in self._stored() if t.state.name != "RUNNING"]

    def ask(self) -> Trial:
        """Return the next trial. Raises: StorageError."""
        self._seed_sampler(len(self._stored()))
        with _storage_errors(self._path):
            return self._suggest(self._study.ask())

    def running(self) -> list[Trial]:
        """Return the trials that were asked for but not told, by number. Raises: StorageError."""
        trials = []
        for trial in self._stored():
            if trial.state.name == "RUNNING":
                self._seed_sampler(trial.number)
                with _storage_errors(self._path):
                    trials.append(self._suggest(self._asked(trial.number)))
        return trials

    def _stored(self) -> "list[FrozenTrial]":
        with _storage_errors(self._path):
            trials: list[FrozenTrial] = self._study.get_trials(deepcopy=False)
        return trials

    def _seed_sampler(self, number: int) -> None:
        """Seed the sampler for trial ``number``, independently of earlier suggestions."""
        seed = int(np.random.SeedSequence([self._seed, number]).generate_state(1)[0])
        samplers = self._optuna.samplers
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Optuna 4 calls constant_liar experimental
            if self._name == "random":
                self._study.sampler = samplers.RandomSampler(seed=seed)
            else:
                self._study.sampler = samplers.TPESampler(seed=seed, constant_liar=True)

    def _suggest(self, asked: Any) -> Trial:
        """Give a trial the values it lacks: all, or some if the process was killed."""
        values = {}
        for d in self._space:
            if d.choices:
                values[d.name] = asked.suggest_categorical(d.name, d.choices)
            elif d.integer:
                low, high, step = int(d.low), int(d.high), int(d.step or 1)
                values[d.name] = asked.suggest_int(d.name, low, high, log=d.log, step=step)
            else:
                values[d.name] = asked.suggest_float(d.name, d.low, d.high, log=d.log, step=d.step)
        return Trial(asked.number, self._overrides(values))

    def tell(self, trial: Trial) -> None:
        """Record the end of a trial."""
        name = next(name for name, state in _STATES.items() if state == trial.state)
        score = trial.score if trial.state == "complete" else None
        with warnings.catch_warnings(), _storage_errors(self._path):
            warnings.simplefilter("ignore")  # about a rung recorded before a kill
            asked = self._asked(trial.number)
            for rung, at_rung in sorted(trial.rungs.items()):
                asked.report(at_rung, rung)
            asked.set_user_attr(_SCORES, list(trial.scores))
            self._study.tell(trial.number, score, state=self._optuna.trial.TrialState[name])

    def _asked(self, number: int) -> Any:
        stored = self._stored()
        if number >= len(stored) or stored[number].number != number:
            raise ValueError(f"it lost trial {number}")
        return self._optuna.trial.Trial(self._study, stored[number]._trial_id)

    def _read(self, frozen: "FrozenTrial") -> Trial:
        try:
            state = _STATES[frozen.state.name]  # KeyError: WAITING, which only other programs add
            scores = tuple(float(x) for x in frozen.user_attrs.get(_SCORES, ()))
            overrides = self._overrides(frozen.params)
        except (KeyError, TypeError, ValueError) as e:
            raise StorageError(
                f"{self._path}: trial {frozen.number} is of another search ({e}); the study of "
                f"this one is needed; restore it, or search again with another search.dir"
            ) from e
        return Trial(frozen.number, overrides, state, dict(frozen.intermediate_values), scores)

    def _overrides(self, params: Mapping[str, Any]) -> tuple[str, ...]:
        for d in self._space:
            if d.choices and params[d.name] not in d.choices:
                raise ValueError(f"{d.name} = {params[d.name]!r:.40}")
        return tuple(d.text(params[d.name]) for d in self._space)


@contextmanager
def _storage_errors(path: Path | None) -> Iterator[None]:
    """Raise StorageError for errors of SQLite, SQLAlchemy and Optuna on the file."""
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (StorageInternalError, SQLAlchemyError, *_MISFITS) as e:  # rows that are not a study's
        text = " ".join(str(e).split())[:200]
        raise StorageError(
            f"{path}: cannot be used as a study ({text}); one of rlrun search, on a disk with "
            "room, is needed; restore it, or search again with another search.dir"
        ) from e


def _require_tables(path: Path) -> None:
    """Raise CheckpointError for a file with anything but tables and their indexes.

    Triggers, views and virtual tables would run untrusted SQL when rlrun writes to it.
    """
    if not os.path.lexists(path):
        return
    fix = "restore it, or search again with another search.dir"
    need = "an unchanged study of rlrun search is needed"
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as file:
            file.execute("PRAGMA trusted_schema = OFF")
            entries = file.execute("SELECT type, name, sql FROM sqlite_master").fetchall()
    except (sqlite3.Error, ValueError) as e:
        raise StorageError(f"{path}: cannot be used as a study ({e}); {need}; {fix}") from e
    for kind, name, sql in entries:
        plain = kind == "table" and str(sql).upper().startswith("CREATE TABLE")
        if not plain and kind != "index":
            what = "virtual table" if kind == "table" else kind
            raise CheckpointError(
                f"{path}: holds the {what} {str(name)[:40]!r}, which would run SQL; {need}; {fix}"
            )


def _storage(path: Path) -> Any:
    """Return the file as Optuna's storage. Connections are closed after each use."""
    from optuna.storages import RDBStorage
    from sqlalchemy.engine import URL
    from sqlalchemy.pool import NullPool

    url = URL.create("sqlite", database=str(path)).render_as_string(hide_password=False)
    return RDBStorage(url, engine_kwargs={"poolclass": NullPool})


def best(trials: Sequence[Trial]) -> Trial | None:
    """Return the complete trial with the highest mean score, the first of equal ones."""
    complete = [trial for trial in trials if trial.state == "complete"]
    return max(complete, key=lambda trial: (trial.score, -trial.number), default=None)


def import_optuna() -> Any:
    """Return Optuna with its messages off. Raises: ResourceError if it is not installed."""
    try:
        import optuna
    except ModuleNotFoundError as e:
        raise ResourceError(
            "rlrun search: optuna is not installed; it suggests the settings; install it: "
            "pip install 'rlrun[search]'"
        ) from e
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


@dataclass(frozen=True)
class Rung:
    """A point of a trial whose seeds count one after another.

    ``seed``: index of the seed at that point. ``env_steps``: its env steps. ``total``: env steps of
    all seeds up to that point, which orders the rungs.
    """

    seed: int
    env_steps: float
    total: int


def make_rungs(
    total_steps: int, eval_every: int, *, seeds: int, reduction: int, count: int
) -> list[Rung]:
    """Return the rungs of a trial, lowest first.

    They lie at ``seeds * total_steps / reduction ** j``, j = 1 … ``count``. Those before a first
    evaluation are left out, and all of a run without steps.
    """
    rungs: list[Rung] = []
    if total_steps == 0:
        return rungs
    for power in range(count, 0, -1):
        total = seeds * total_steps / reduction**power
        seed = math.ceil(total / total_steps) - 1  # a rung at the end of a seed belongs to it
        steps = total - seed * total_steps
        if total >= eval_every:
            rungs.append(Rung(seed, steps, round(total)))
    return rungs


def partial_score(run: RunData, kind: str, env_steps: float) -> float | None:
    """Return the score of ``kind`` at the first evaluation at or after ``env_steps``.

    ``final`` is the mean return of that evaluation. A run that ended earlier because it was solved
    keeps its last evaluation up to ``env_steps``. None: the run has not come that far.
    """
    steps, returns = run.evaluations.env_steps, run.evaluations.return_mean
    end = int(np.searchsorted(steps, env_steps))
    if end == len(steps):
        if run.status != "done" or not end:
            return None
        end -= 1
    at = max(steps[end], env_steps)
    return curve_score(kind, steps[: end + 1], returns[: end + 1], at)


def falls_behind(score: float, others: Sequence[float], reduction: int) -> bool:
    """Return whether a trial with ``score`` at a rung is stopped there.

    It continues if it is among the best 1/``reduction`` of all trials that reached the rung, ties
    included, or if there are fewer than ``reduction`` of them.
    """
    scores = sorted([score, *others], reverse=True)
    kept = len(scores) // reduction
    return kept > 0 and score < scores[kept - 1]


def first_lost(
    scores: Mapping[int, float], earlier: Sequence[Mapping[int, float]], reduction: int
) -> int | None:
    """Return the lowest rung (its ``total``) at which a trial is stopped, or None.

    ``scores``: rung -> score of the trial. ``earlier``: those of the trials to compare with.
    """
    for rung in sorted(scores):
        others = [trial[rung] for trial in earlier if rung in trial]
        if falls_behind(scores[rung], others, reduction):
            return rung
    return None


POLL_SECONDS = 0.5  # between looks at the metrics of running jobs


@dataclass(eq=False)
class SeedRun:
    """A run of one seed. ``log``: the file of its terminal output, next to the run directory."""

    path: Path
    log: Path
    overrides: tuple[str, ...]
    state: Literal["waiting", "running", "done", "failed", "stopped"] = "waiting"
    score: float | None = None  # of a finished run
    failure: str = ""  # how a failed run ended

    @property
    def has_ended(self) -> bool:
        """Return whether the run is over."""
        return self.state in ("done", "failed", "stopped")


class SeedRuns:
    """Starts runs in ``pool`` and scores those that end. ``flags``: words before the overrides."""

    def __init__(self, pool: Pool, objective: str, flags: Sequence[str]) -> None:
        self._pool, self._objective, self._flags = pool, objective, list(flags)
        self._threads = cores_of_each(pool.workers)
        self._running: dict[Job, SeedRun] = {}

    def start(self, runs: Sequence[SeedRun]) -> None:
        """Start or resume the waiting ones of ``runs``, in order, while workers are free.

        Finished ones are scored.
        """
        for run in runs:
            if run.state == "waiting" and len(self._running) < self._pool.workers:
                self._start(run)

    def _start(self, run: SeedRun) -> None:
        if read_run(run.path).status == "done":
            self._finish(run, 0)
            return
        run.log.parent.mkdir(exist_ok=True)
        quiet = "logger.progress=off"
        if (run.path / RECORD).is_file():
            argv = ["resume", str(run.path), quiet]
        else:
            shutil.rmtree(run.path, ignore_errors=True)  # killed before it had a record
            argv = [*self._flags, *run.overrides, f"run.dir={quote(run.path)}", quiet]
        run.state = "running"
        words, cwd = ["rlrun", *argv], Path.cwd()
        job = self._pool.submit(MAIN, [argv], words, cwd, run.log, self._threads)
        self._running[job] = run

    def wait(self) -> None:
        """Score the runs that end within ``POLL_SECONDS``, up to the first one."""
        for job in self._pool.wait_any(POLL_SECONDS) if self._running else ():
            run = self._running.pop(job)
            if run.state == "stopped":
                continue
            assert job.code is not None
            if job.code == LockedError.exit_code:
                run.state = "waiting"  # its process from a killed search is still saving
            else:
                self._finish(run, job.code)

    def stop(self, run: SeedRun) -> None:
        """Ask a run to save and end. Its worker is free once it has ended."""
        if run.has_ended:
            return
        run.state = "stopped"
        for job in [job for job, running in self._running.items() if running is run]:
            self._pool.stop(job, signal.SIGTERM)

    def _finish(self, run: SeedRun, code: int) -> None:
        run.score = score(read_run(run.path), self._objective) if code == 0 else None
        run.state = "done" if run.score is not None else "failed"
        if run.score is None:
            without = f"without a score {self._objective}: it has no evaluation"
            run.failure = f"ended with {exit_text(code)}" if code else f"ended {without}"


def quote(value: object) -> str:
    """Return the value as Hydra's quoted string, without interpolation."""
    text = re.sub(r"(\\*)('|$)", lambda m: m[1] * 2 + ("\\'" if m[2] else ""), str(value))
    return "'" + text.replace("${", "\\${") + "'"


@dataclass(frozen=True)
class SearchResult:
    """The score of the chosen setting. ``seeds`` [F]: fresh ones, ``scores`` [F]: their scores.

    ``estimate``: mean of ``scores`` with its interval. ``selection``: the chosen trial, whose own
    score is the largest of many and therefore too high. ``failed``: fresh seeds without a score. If
    there are any, nothing is claimed (``estimate`` is None), because the mean of the others would
    favour a setting that sometimes fails.
    """

    selection: Trial
    seeds: tuple[int, ...]
    scores: tuple[float, ...]
    failed: tuple[int, ...]
    estimate: Estimate | None

    @property
    def bias(self) -> float | None:
        """Selection bias: the score by which it was chosen minus the score on fresh seeds.

        The maximum of noisy scores is biased upwards; the score on fresh seeds is not. Source:
        Patterson et al. 2024; Cawley & Talbot 2010.
        """
        return None if self.estimate is None else self.selection.score - self.estimate.value

    def to_dict(self) -> dict[str, Any]:
        """Return the contents of result.json."""
        interval = {} if self.estimate is None else asdict(self.estimate)
        if interval:
            interval = {"score": interval.pop("value"), "level": LEVEL, **interval}
        return {
            "trial": self.selection.number,
            "overrides": list(self.selection.overrides),
            **interval,
            "seeds": list(self.seeds),
            "scores": list(self.scores),
            "failed_seeds": list(self.failed),
            "selection_score": self.selection.score,
            "selection_scores": list(self.selection.scores),
            "selection_bias": self.bias,
        }

    def lines(self, trials: Sequence[Trial]) -> list[str]:
        """Return the result in words. ``trials``: all trials."""
        counts = {s: sum(t.state == s for t in trials) for s in ("complete", "pruned", "failed")}
        tried = ", ".join(f"{n} {state}" for state, n in counts.items() if n)
        lines = [f"{len(trials)} trials ({tried}); trial {self.selection.number} was chosen"]
        if (e := self.estimate) is not None:
            how = f"{len(self.seeds)} fresh seeds"
            how += f", {LEVEL:.0%} {e.method}" if e.claimed else f"; {e.why.rstrip('.')}"
            lines.append(f"score {e} ({how})")
            lines.append(
                f"selection score {self.selection.score:.6g} (mean of "
                f"{len(self.selection.scores)} seeds, best of {counts['complete']}): selection "
                f"bias {self.bias:+.3g}"
            )
        if self.failed:
            count = len(self.failed) + len(self.seeds)
            lines.append(
                f"no score: {len(self.failed)} of {count} fresh seeds failed "
                f"({', '.join(map(str, self.failed))}); the mean of the others would favour a "
                "setting that sometimes fails"
            )
        return lines


@dataclass
class _Attempt:
    """A running trial.

    Its seeds run in parallel but count one after another. With rungs, a trial has failed once a
    seed has failed and all seeds before it are done, because one of those may still fall behind.
    """

    trial: Trial
    runs: list[SeedRun]
    has_rungs: bool
    rungs: dict[int, float] = field(default_factory=dict)
    lost_at: int | None = None  # rung at which it was pruned

    @property
    def failed(self) -> SeedRun | None:
        """Return the seed that made the trial fail, or None."""
        open_runs = [run for run in self.runs if run.state != "done"]
        if self.has_rungs:
            open_runs = open_runs[:1]
        return next((run for run in open_runs if run.state == "failed"), None)

    @property
    def has_ended(self) -> bool:
        """Return whether no further seed is needed."""
        lost = self.lost_at is not None or self.failed is not None
        return lost or all(run.state == "done" for run in self.runs)

    @property
    def needed(self) -> list[SeedRun]:
        """Return the seeds that can still change the result: none after a failed one."""
        if self.has_ended:
            return []
        states = [run.state for run in self.runs]
        return self.runs[: states.index("failed")] if "failed" in states else self.runs

    def result(self) -> Trial:
        if self.lost_at is not None or self.failed is not None:
            state: Any = "failed" if self.lost_at is None else "pruned"
            return replace(self.trial, state=state, rungs=self.rungs)
        scores = tuple(run.score for run in self.runs if run.score is not None)
        return replace(self.trial, state="complete", rungs=self.rungs, scores=scores)


class Search:
    """A search in ``directory``. ``fixed``: overrides of every run. ``say``: prints a line.

    Trials use seeds from ``first_seed`` on, the final score the seeds after those.
    """

    def __init__(
        self,
        directory: Path,
        study: Study,
        config: SearchConfig,
        *,
        fixed: Sequence[str],
        first_seed: int,
        rungs: Sequence[Rung] = (),
        flags: Sequence[str] = (),
        say: Callable[[str], None] = print,
        stop_code: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._directory, self._study, self._config = directory, study, config
        self._fixed, self._first_seed, self._rungs = list(fixed), first_seed, rungs
        self._flags, self._say, self._stop_code = flags, say, stop_code
        self._open: list[_Attempt] = []
        self._told: list[Trial] = []

    def run(self, pool: Pool) -> SearchResult | None:
        """Try all settings, then score the best one. Return None if no trial was completed.

        Raises: Interrupted if a signal came.
        """
        runs = SeedRuns(pool, self._config.objective, self._flags)
        self._told = self._study.trials()
        self._open = [self._attempt(trial) for trial in self._study.running()]
        while self._ask() or self._open:
            self._check_signals()
            for attempt in self._open:  # seeds of earlier trials first
                runs.start(attempt.needed)
            runs.wait()
            self._prune(runs)
            self._tell()
        chosen = best(self._told)
        return None if chosen is None else self._run_fresh_seeds(chosen, runs)

    def _ask(self) -> bool:
        """Suggest trials as far as the earlier ones allow. Return whether there was one."""
        before = len(self._open)
        left = self._config.trials - len(self._told) - before
        for _ in range(min(left, self._lag - before)):
            self._open.append(self._attempt(self._study.ask()))
        return len(self._open) > before

    @property
    def _lag(self) -> int:
        """Return the most trials at a time: enough to keep the workers busy."""
        workers, seeds = self._config.workers, self._config.seeds
        return 1 if workers == 1 else -(-workers // seeds) + 1

    def _attempt(self, trial: Trial) -> _Attempt:
        seeds = range(self._first_seed, self._first_seed + self._config.seeds)
        runs = [self._run(f"t{trial.number:04}", trial, seed) for seed in seeds]
        return _Attempt(trial, runs, bool(self._rungs))

    def _run(self, name: str, trial: Trial, seed: int) -> SeedRun:
        name = f"{name}_s{seed}"
        overrides = (*self._fixed, *trial.overrides, f"seed={seed}")
        log = self._directory / "console" / f"{name}.txt"
        return SeedRun(self._directory / "runs" / name, log, overrides)

    def _prune(self, runs: SeedRuns) -> None:
        """Stop the seeds of trials that failed or fell behind at a rung."""
        for attempt in self._open:
            self._measure(attempt)
            compared = attempt.trial.number - self._lag
            earlier = [t.rungs for t in self._told if t.number <= compared]
            lost = first_lost(attempt.rungs, earlier, self._config.reduction)
            if lost is not None:  # even if a seed has failed since
                attempt.lost_at = lost
                attempt.rungs = {r: s for r, s in attempt.rungs.items() if r <= lost}
            needed = attempt.needed
            for run in attempt.runs:
                if run not in needed:
                    runs.stop(run)

    def _measure(self, attempt: _Attempt) -> None:
        """Score the rungs that a trial has reached since: the mean over the seeds begun there."""
        for rung in self._rungs if attempt.lost_at is None else ():
            before = [run.score for run in attempt.runs[: rung.seed]]
            if rung.total in attempt.rungs or None in before:
                continue
            run = attempt.runs[rung.seed]
            so_far = RunData(run.path, run.path.name, run.state, {}, {})  # cheaper than read_run
            last = partial_score(so_far, self._config.objective, rung.env_steps)
            if last is not None:
                scores = [*(s for s in before if s is not None), last]
                attempt.rungs[rung.total] = sum(scores) / len(scores)

    def _tell(self) -> None:
        """Record the ended trials in order, and ask for a new one after each."""
        while self._open and self._open[0].has_ended:
            attempt = self._open.pop(0)
            trial = attempt.result()
            self._study.tell(trial)
            self._told.append(trial)
            self._say(self._line(attempt, trial))
            self._ask()

    def _line(self, attempt: _Attempt, trial: Trial) -> str:
        width = len(str(self._config.trials))
        what = f"{trial.score:.6g}" if trial.state == "complete" else trial.state
        if trial.state == "pruned":
            what = f"pruned at {attempt.lost_at} env steps"
        elif attempt.failed is not None:
            log = attempt.failed.log
            what = f"failed: seed run {attempt.failed.failure}, see {log}"
        leader = best(self._told)
        beside = f"  (best {leader.score:.6g}, trial {leader.number})" if leader else ""
        number = f"{trial.number:>{width}}"
        return f"trial {number}  {what}{beside}  {' '.join(trial.overrides)}"

    def _run_fresh_seeds(self, chosen: Trial, runs: SeedRuns) -> SearchResult:
        """Run the chosen setting on seeds that no trial has used."""
        start = self._first_seed + self._config.seeds
        seeds = range(start, start + self._config.final_seeds)
        self._say(
            f"trial {chosen.number} is best; now on {len(seeds)} fresh seeds: "
            f"{' '.join(chosen.overrides)}"
        )
        final = [self._run(f"final_t{chosen.number:04}", chosen, seed) for seed in seeds]
        while not all(run.has_ended for run in final):
            self._check_signals()
            runs.start(final)
            runs.wait()
        done = [(s, r.score) for s, r in zip(seeds, final, strict=True) if r.score is not None]
        failed = tuple(s for s, r in zip(seeds, final, strict=True) if r.score is None)
        scores = tuple(score for _, score in done)
        bounds = return_bounds([read_run(run.path) for run in final])
        estimate = None if failed else mean_interval(scores, bounds=bounds)
        return SearchResult(chosen, tuple(seed for seed, _ in done), scores, failed, estimate)

    def _check_signals(self) -> None:
        code = self._stop_code()
        if code is None:
            return
        done, all_trials = len(self._told), self._config.trials
        error = Interrupted(
            f"interrupted after {done} of {all_trials} trials; saved; go on: "
            f"{resume_line(self._directory)}"
        )
        error.exit_code = code
        raise error
