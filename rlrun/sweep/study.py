"""The trials of a search: what is tried next, what came of it. Optuna's ask and tell.

Sources: Akiba et al. 2019 (Optuna); Bergstra et al. 2011 (the tree-structured Parzen estimator).
"""

import sqlite3
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from rlrun.config.space import Dimension
from rlrun.errors import ConfigError, ResourceError, StorageError, extra

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

NAME = "study.db"
_STUDY = "search"
_SCORES = "scores"  # user attribute: the score of each seed
State = Literal["running", "complete", "pruned", "failed"]


@dataclass(frozen=True)
class Trial:
    """A setting that is tried. ``rungs``: rung -> score, ``scores``: one of each seed."""

    number: int
    overrides: tuple[str, ...]
    state: State = "running"
    rungs: Mapping[int, float] = field(default_factory=dict)
    scores: tuple[float, ...] = ()

    @property
    def score(self) -> float:
        """Mean over seeds."""
        return float(np.mean(self.scores))


class Study:
    """Settings are suggested by number: equal trials before number n make an equal trial n.

    ``path``: the SQLite file, which is made or gone on with; None keeps all in memory.
    """

    def __init__(
        self, path: Path | None, space: Sequence[Dimension], *, sampler: str, seed: int
    ) -> None:
        """Raises: ResourceError without Optuna, StorageError when the file cannot be used."""
        optuna = import_optuna()
        self._optuna, self._space, self._name, self._seed = optuna, space, sampler, seed
        self._distributions = {d.name: self._distribution(d) for d in space}
        storage = None if path is None else f"sqlite:///{path}"
        try:
            self._study = optuna.create_study(
                study_name=_STUDY, storage=storage, direction="maximize", load_if_exists=True
            )
        except (optuna.exceptions.StorageInternalError, sqlite3.Error, ValueError) as e:
            text = " ".join(str(e).split())[:200]
            raise StorageError(
                f"{path}: cannot be used as a study ({text}); one of rlrun search is needed; "
                "restore it, or search again with another search.dir"
            ) from e

    def trials(self) -> list[Trial]:
        """All trials by number."""
        return [self._read(t) for t in self._study.get_trials(deepcopy=False)]

    def ask(self) -> Trial:
        """Return the next trial."""
        number = len(self._study.get_trials(deepcopy=False))
        seed = int(np.random.SeedSequence([self._seed, number]).generate_state(1)[0])
        samplers = self._optuna.samplers
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # experimental, says 4.x of constant_liar
            if self._name == "random":
                self._study.sampler = samplers.RandomSampler(seed=seed)
            else:
                self._study.sampler = samplers.TPESampler(seed=seed, constant_liar=True)
            trial = self._study.ask(self._distributions)
        return Trial(trial.number, self._overrides(trial.params))

    def tell(self, trial: Trial) -> None:
        """Record the end of a trial."""
        states = self._optuna.trial.TrialState
        asked = self._optuna.trial.Trial(self._study, self._id(trial.number))
        for rung, score in sorted(trial.rungs.items()):
            asked.report(score, rung)
        asked.set_user_attr(_SCORES, list(trial.scores))
        if trial.state == "complete":
            self._study.tell(trial.number, trial.score)
        else:
            state = {"pruned": states.PRUNED, "failed": states.FAIL}[trial.state]
            self._study.tell(trial.number, state=state)

    def _id(self, number: int) -> int:
        return int(self._study.get_trials(deepcopy=False)[number]._trial_id)

    def _read(self, found: "FrozenTrial") -> Trial:
        state: State = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed"}.get(
            found.state.name, "running"
        )  # type: ignore[assignment]
        scores = tuple(float(x) for x in found.user_attrs.get(_SCORES, ()))
        overrides = self._overrides(found.params)
        return Trial(found.number, overrides, state, dict(found.intermediate_values), scores)

    def _overrides(self, params: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple(d.text(params[d.name]) for d in self._space)

    def _distribution(self, d: Dimension) -> "BaseDistribution":
        kinds = self._optuna.distributions
        if d.choices:
            return kinds.CategoricalDistribution(d.choices)
        if d.integer:
            return kinds.IntDistribution(int(d.low), int(d.high), log=d.log, step=int(d.step or 1))
        return kinds.FloatDistribution(d.low, d.high, log=d.log, step=d.step)


def best(trials: Sequence[Trial]) -> Trial:
    """Return the complete trial of the highest mean score, the first of equal ones.

    Raises: ConfigError when none is complete.
    """
    complete = [trial for trial in trials if trial.state == "complete"]
    if not complete:
        raise ConfigError(
            f"rlrun search: none of {len(trials)} trials ended well; their console.txt say why; "
            "correct the command and search again"
        )
    return max(complete, key=lambda trial: (trial.score, -trial.number))


def import_optuna() -> Any:
    """Return Optuna, silent. Raises: ResourceError when it is not installed."""
    try:
        import optuna
    except ModuleNotFoundError as e:
        raise ResourceError(
            f"rlrun search: optuna is not installed; it suggests the settings; install it: "
            f"pip install {extra('search')}"
        ) from e
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna
