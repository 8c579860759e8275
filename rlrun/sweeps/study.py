"""The trials of a search: suggested settings and their results, with Optuna's ask and tell.

Sources: Akiba et al. 2019 (Optuna); Bergstra et al. 2011 (the tree-structured Parzen estimator).

Also the score that a search maximises, and the rungs at which asynchronous successive halving
compares trials. Source: Li et al. 2020, "A System for Massively Parallel Hyperparameter Tuning"
(ASHA). Trials are stopped at a rung, as in its stopping variant, rather than paused.
"""

import math
import os
import sqlite3
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from rlrun.config.space import Dimension
from rlrun.errors import CheckpointError, ResourceError, StorageError
from rlrun.reports.runs import RunData, mean_over_steps, parse_score

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
        with warnings.catch_warnings(), _storage_errors(self._path):
            warnings.simplefilter("ignore")  # about a rung recorded before a kill
            self._record(trial)

    def _record(self, trial: Trial) -> None:
        asked, states = self._asked(trial.number), self._optuna.trial.TrialState
        for rung, score in sorted(trial.rungs.items()):
            asked.report(score, rung)
        asked.set_user_attr(_SCORES, list(trial.scores))
        if trial.state == "complete":
            self._study.tell(trial.number, trial.score)
        else:
            state = {"pruned": states.PRUNED, "failed": states.FAIL}[trial.state]
            self._study.tell(trial.number, state=state)

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
    last = parse_score(kind)
    steps, returns = run.evaluations.env_steps, run.evaluations.return_mean
    end = int(np.searchsorted(steps, env_steps))
    if end == len(steps):
        if run.status != "done" or not end:
            return None
        end -= 1
    at = max(steps[end], env_steps)
    steps, returns = steps[: end + 1], returns[: end + 1]
    if last is not None:
        return float(returns[-last:].max())
    return float(returns[-1]) if kind == "final" else mean_over_steps(steps, returns, at)


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
