"""Evidence of the rules (metrics as series, keys of the config), and what they find. Torch-free."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from rlrun.reports.runs import TIMINGS, Floats, Records, RunData, finite, read_records, resolve
from rlrun.run.manifest import METRICS

ON_POLICY = ("a2c", "ppo", "impala", "pqn")
VALUE_BASED = ("dqn", "r2d2", "cql", "qmix", "pqn")
WITHOUT_LEARNING = ("random", "scripted")
PARTS = (
    "collect", "add", "bonus", "sample", "update", "prioritize", "eval", "log", "checkpoint",
)  # fmt: skip
METRICS_READ = (
    "buffer/beta", "buffer/early_evictions", "buffer/fill", "buffer/late_priorities",
    "buffer/learned_fraction", "buffer/priority_ess", "buffer/priority_max", "buffer/priority_mean",
    "buffer/sample_age", "buffer/weight_spread", "buffer/windows", "collect/action_entropy",
    "collect/episodes", "collect/epsilon_mean", "collect/length_mean", "collect/restarts",
    "collect/return_max", "collect/return_mean", "collect/return_min", "eval/best_return_mean",
    "eval/cut_episodes", "eval/length_mean", "eval/restarted_episodes",
    "eval/return_max", "eval/return_mean",
    "eval/return_min", "eval/return_std", "train/approx_kl", "train/clip_fraction",
    "train/dead_units", "train/delta_q_stored_last", "train/delta_q_zero_last", "train/entropy",
    "train/explained_variance", "train/grad_norm", "train/loss", "train/lr", "train/noise",
    "train/q_taken", "train/replay_ratio", "train/target", "train/target_lag", "train/td_abs",
    "train/temperature", "train/updates", "train/valid_fraction", "train/value_loss",
)  # fmt: skip
_WHOLE = (
    "capacity", "checkpoint_every", "epochs", "eval_episodes", "eval_every", "every",
    "learning_starts", "over", "total_steps", "update_per_collect",
)  # fmt: skip
_NAN = math.nan


@dataclass(frozen=True)
class Metric:
    """A metric in the order of its records: env steps [K] and values [K]."""

    env_steps: Floats
    values: Floats

    def __len__(self) -> int:
        return len(self.values)

    @property
    def first(self) -> float:
        return float(self.values[0]) if len(self) else _NAN

    @property
    def first_step(self) -> float:
        """Env steps of the first record."""
        return float(self.env_steps[0]) if len(self) else _NAN

    @property
    def last(self) -> float:
        return float(self.values[-1]) if len(self) else _NAN

    @property
    def median(self) -> float:
        return float(np.median(self.values)) if len(self) else _NAN

    @property
    def early(self) -> float:
        """Median of the first third of the records; NaN of fewer than three records."""
        return self._third(slice(None, max(1, len(self) // 3)))

    @property
    def late(self) -> float:
        """Median of the last third of the records; NaN of fewer than three records."""
        return self._third(slice(-max(1, len(self) // 3), None))

    @property
    def late_since(self) -> float:
        """Env steps at which the last third begins."""
        return float(self.env_steps[-max(1, len(self) // 3)]) if len(self) else _NAN

    def _third(self, part: slice) -> float:
        return float(np.median(self.values[part])) if len(self) >= 3 else _NAN


class Evidence:
    """One run, as the rules read it."""

    def __init__(self, run: RunData) -> None:
        self.run = run
        policy = run.keys.get("policy.name")
        self.policy = policy if isinstance(policy, str) else ""
        self.learns = bool(self.policy) and self.policy not in WITHOUT_LEARNING
        self.on_policy = self.policy in ON_POLICY
        self.value_based = self.policy in VALUE_BASED
        self.offline = self.value("pipeline.name") == "offline"
        self.replay = self.learns and not self.on_policy
        self.looked_at: set[str] = set()  # metrics that a rule has read

    @cached_property
    def records(self) -> Records:
        return self._read(METRICS, METRICS_READ)

    @cached_property
    def times(self) -> Records:
        return self._read(TIMINGS, [f"time/{part}_seconds" for part in PARTS])

    def _read(self, file: str, names: Iterable[str]) -> Records:
        return read_records(self.run.path / file, [*names], ended=self.run.status == "done")

    def metric(self, name: str) -> Metric:
        """A metric of metrics.jsonl; empty where it was not recorded."""
        self.looked_at.add(name)
        return Metric(*self.records.columns[name])

    # -- the config --------------------------------------------------------------------------------

    def value(self, key: str) -> Any:
        """The value of a key, None where there is no such key."""
        return resolve(self.run.keys.get(key), self.run.keys)

    def number(self, key: str) -> float:
        """A number; of a schedule its start; NaN where it is none."""
        own = finite(self.value(key))
        return finite(self.value(f"{key}.start")) if math.isnan(own) else own

    def has(self, key: str) -> bool:
        """Return whether the config has the key, or a schedule of that name."""
        return key in self.run.keys or f"{key}.start" in self.run.keys

    def matters(self, key: str) -> bool:
        """Return whether the key is there and changes what this policy does.

        Rollouts are learned from once and dropped, datasets are not collected, and explore.epsilon
        belongs to the schedule, of a ladder to one environment.
        """
        if key.startswith(("buffer.", "learner.replay_ratio", "learner.learning_starts")):
            return self.has(key) and self.replay and not self.offline
        if key.startswith("explore.epsilon"):
            kind = self.value("explore.name")
            alone = kind == "ladder" and self.number("collector.num_envs") == 1
            return self.has(key) and self.value_based and (kind == "schedule" or alone)
        return self.has(key)

    def preset(self, key: str) -> bool:
        """Return whether an experiment may have set ``key`` on purpose, for its own environment."""
        typed = [override.partition("=")[0].lstrip("+~") for override in self.run.overrides]
        other = any(name == key or name.startswith((f"{key}.", "env")) for name in typed)
        return "experiment" in typed and not other

    def scaled(self, key: str, factor: float) -> list[str]:
        """``key=value`` with the present value times ``factor``; nothing where it is no number."""
        value = self.number(key) * factor
        if not self.matters(key) or not math.isfinite(value) or not value:
            return []
        whole = key.rpartition(".")[2] in _WHOLE
        return [f"{key}={max(1, round(value))}" if whole else f"{key}={value:.3g}"]

    def set(self, key: str, value: object) -> list[str]:
        """``key=value`` where the key matters and has another value."""
        new = self.matters(key) and str(self.value(key)).lower() != str(value).lower()
        return [f"{key}={value}"] if new else []

    # -- the run -----------------------------------------------------------------------------------

    @property
    def env_steps(self) -> float:
        """Env steps of the last record."""
        return self.records.env_steps

    @property
    def total_steps(self) -> float:
        return self.run.total_steps

    @property
    def progress(self) -> float:
        """Share of run.total_steps that is done; NaN where it is not known."""
        return self.env_steps / self.total_steps if self.total_steps > 0 else _NAN

    @property
    def score(self) -> Metric:
        """The mean returns of the evaluations."""
        return self.metric("eval/return_mean")

    @cached_property
    def solved(self) -> bool:
        """True where the last evaluation reached run.stop_value; if that is null, ``perfect``."""
        stop = self.run.stop_value
        if math.isnan(stop):
            return self.perfect
        return bool(len(self.score)) and self.score.last >= stop

    @property
    def perfect(self) -> bool:
        """True where late evaluations have the largest return ever seen, and others have not.

        Within 1 % of the distance between the largest and the smallest return of an episode.
        """
        least, most = self.returns
        late = min(self.score.last, self.score.late if len(self.score) >= 3 else math.inf)
        return most > least and late >= most - 0.01 * (most - least)

    @cached_property
    def noise(self) -> float:
        """Twice the standard error of an evaluation's mean, median over the evaluations."""
        std, episodes = self.metric("eval/return_std"), self.number("run.eval_episodes")
        if not len(std):
            return 0.0
        return 2 * abs(float(np.median(std.values))) / math.sqrt(max(1.0, episodes or 1.0))

    @cached_property
    def span(self) -> float:
        """Difference between the largest and the smallest mean return ever seen."""
        means = [self.metric(name).values for name in ("eval/return_mean", "collect/return_mean")]
        seen = np.concatenate(means)
        return float(np.ptp(seen)) if len(seen) else 0.0

    @cached_property
    def improved(self) -> bool:
        """True where the last third of the evaluations is above the first by more than noise."""
        return self.score.late - self.score.early > self.noise

    @cached_property
    def thrives(self) -> bool:
        """True where the score rose and stays within a fifth of its best."""
        if not self.improved:
            return False
        best, least = float(self.score.values.max()), float(self.score.values.min())
        return best - self.score.late <= 0.2 * (best - least)

    @cached_property
    def best_noise(self) -> float:
        """Twice the standard error of the best evaluation, or ``noise`` where that is more."""
        std, episodes = self.metric("eval/return_std"), self.number("run.eval_episodes")
        own = std.values[std.env_steps == self.score.env_steps[np.argmax(self.score.values)]]
        errors = 2 * np.abs(own) / math.sqrt(max(1.0, episodes or 1.0))
        return max(self.noise, float(errors.max(initial=0.0)))

    @cached_property
    def after_best(self) -> Metric:
        """The evaluations of the last third that came after the best one."""
        start = len(self.score) - max(1, len(self.score) // 3)
        start = max(start, int(np.argmax(self.score.values)) + 1) if len(self.score) else 0
        return Metric(self.score.env_steps[start:], self.score.values[start:])

    @cached_property
    def lost(self) -> float:
        """Share of the largest gain of the score that was lost again, 0 where none was.

        Two evaluations and more after the best one, and the last third as a whole, must be lower.
        """
        if len(self.score) < 5 or len(self.after_best) < 2:
            return 0.0
        best, base = float(self.score.values.max()), float(self.score.values.min())
        fall = best - max(self.score.late, self.after_best.last, self.after_best.median)
        large = best - base > 2 * self.best_noise and fall > self.best_noise
        return fall / (best - base) if large else 0.0

    @property
    def fails(self) -> bool:
        """True where the score did not rise, or fell again."""
        return self.lost > 0.5 or not self.improved

    @cached_property
    def returns(self) -> tuple[float, float]:
        """The smallest and the largest return of any episode; NaN where none ended."""
        names = [f"{where}/return_{end}" for where in ("collect", "eval") for end in ("min", "max")]
        seen = np.concatenate([self.metric(name).values for name in names])
        return (float(seen.min()), float(seen.max())) if len(seen) else (_NAN, _NAN)

    @property
    def largest_return(self) -> float:
        """The largest |return| of any episode; NaN where none ended."""
        return max(map(abs, self.returns))


BROKEN, HARMFUL, NOTE = 3, 2, 1  # severities


@dataclass(frozen=True)
class Finding:
    """A symptom with its numbers, what it usually means, and what to try.

    ``tries``: overrides ``key=value``, or a word on what to do, the likeliest first. ``metrics``:
    where to look.
    """

    severity: int
    symptom: str
    meaning: str
    tries: Sequence[str]
    metrics: Sequence[str] = ()


@dataclass(frozen=True)
class Rule:
    """A symptom that doctor looks for. ``explains``: names of findings that follow from it."""

    name: str
    find: Callable[[Evidence], Finding | None]
    explains: tuple[str, ...] = ()


def rule(name: str, *explains: str) -> Callable[[Callable[[Evidence], Finding | None]], Rule]:
    """Make a rule of a function that looks at the evidence."""
    return lambda find: Rule(name, find, explains)


def steps(count: float) -> str:
    """A number of env steps as text."""
    return f"{count:.0f} env steps"
