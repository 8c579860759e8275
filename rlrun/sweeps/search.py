"""Search: trials of several seeds each, then the best setting again on fresh seeds.

The settings depend on ``search.seed`` and on earlier trials by number, never on which run ends
first. Trial n is suggested when exactly trials 0 … n - lag have been recorded, in order, and is
compared at its rungs with those alone. So an interrupted search tries the same settings as an
uninterrupted one.

`SeedRuns`: runs of one seed each in a pool, started, resumed and scored.
"""

import re
import shutil
import signal
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from rlrun.errors import Interrupted, LockedError
from rlrun.reports.bounds import return_bounds
from rlrun.reports.intervals import LEVEL, Estimate, mean_interval
from rlrun.reports.runs import RunData, read_run, score
from rlrun.run.files import RECORD
from rlrun.schema.studies import SearchConfig
from rlrun.sweeps.launcher import cores_of_each
from rlrun.sweeps.pool import Job, Pool
from rlrun.sweeps.record import exit_text
from rlrun.sweeps.study import Rung, Study, Trial, best, first_lost, partial_score
from rlrun.trust import resume_line

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

    def read(self) -> RunData:
        """Return the run with its evaluations so far; cheaper than ``read_run``."""
        return RunData(self.path, self.path.name, self.state, {}, {})


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
        self._running[self._pool.submit(argv, Path.cwd(), run.log, self._threads)] = run

    def wait(self) -> list[SeedRun]:
        """Return the runs that ended, waiting at most ``POLL_SECONDS``."""
        ended = []
        for job in self._pool.wait_any(POLL_SECONDS) if self._running else ():
            run = self._running.pop(job)
            if run.state == "running" and job.code == LockedError.exit_code:
                run.state = "waiting"  # its process from a killed search is still saving
                continue
            if run.state == "running":  # not stopped
                assert job.code is not None
                self._finish(run, job.code)
            ended.append(run)
        return ended

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
            run = attempt.runs[rung.seed].read()
            last = partial_score(run, self._config.objective, rung.env_steps)
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
