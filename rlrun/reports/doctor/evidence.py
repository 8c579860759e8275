"""Evidence for the rules: metrics as series, config keys, the course of the score. Torch-free."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from rlrun.reports.runs import TIMINGS, Floats, RunData, finite, read_records, resolve
from rlrun.run.manifest import METRICS
from rlrun.schema.override import keys_of, read_overrides
from rlrun.schema.ranges import SCHEDULE_READERS

ON_POLICY = ("a2c", "ppo", "impala", "pqn")
VALUE_BASED = ("dqn", "r2d2", "cql", "qmix", "pqn")
WITHOUT_LEARNING = ("random", "scripted")
_WHOLE = (
    "capacity", "checkpoint_every", "epochs", "eval_episodes", "eval_every", "every",
    "learning_starts", "over", "total_steps", "update_per_collect",
)  # fmt: skip
_NAN = math.nan


def steps(count: float) -> str:
    """Return a number of env steps as text."""
    return f"{count:.0f} env steps"


@dataclass(frozen=True)
class Metric:
    """A metric in the order of its records: env steps [K] and values [K]."""

    env_steps: Floats
    values: Floats

    def __len__(self) -> int:
        return len(self.values)

    @property
    def first(self) -> float:
        return _median(self.values[:1])

    @property
    def last(self) -> float:
        return _median(self.values[-1:])

    @property
    def median(self) -> float:
        return _median(self.values)

    @property
    def early(self) -> float:
        """Median of the first third of the records, NaN for fewer than three records."""
        return _median(self.values[: len(self) // 3])

    @property
    def late(self) -> float:
        """Median of the last third of the records, NaN for fewer than three records."""
        return _median(self.values[len(self) - len(self) // 3 :])

    @property
    def since(self) -> str:
        """Return in words when the last third of the records begins."""
        return f"from {steps(self.env_steps[-max(1, len(self) // 3)])} on" if len(self) else ""


def _median(values: Floats) -> float:
    return float(np.median(values)) if len(values) else _NAN


_NONE = np.empty(0), np.empty(0)


class Evidence:
    """One run in the form that rules read. ``env_steps``: of the last record."""

    def __init__(self, run: RunData) -> None:
        self.run = run
        policy = run.keys.get("policy.name")
        self.policy = policy if isinstance(policy, str) else ""
        self.learns = bool(self.policy) and self.policy not in WITHOUT_LEARNING
        self.on_policy = self.policy in ON_POLICY
        self.value_based = self.policy in VALUE_BASED
        self.offline = self.value("pipeline.name") == "offline"
        self.collects = not self.offline
        self.replay = self.learns and not self.on_policy

        ended = run.status == "done"
        self.records = read_records(run.path / METRICS, None, ended=ended)
        self.times = read_records(run.path / TIMINGS, None, ended=ended)
        self.env_steps, self.total_steps = self.records.env_steps, run.total_steps
        self.learning_starts = self.number("learner.learning_starts")
        self.score = self.metric("eval/return_mean")  # the mean returns of the evaluations

    def metric(self, name: str) -> Metric:
        """Return a metric of metrics.jsonl, empty if it was not recorded."""
        return Metric(*self.records.columns.get(name, _NONE))

    def records_metric(self, name: str) -> bool:
        """Return whether the run has a metric. True for a file name."""
        return "/" not in name or name.startswith("time/") or name in self.records.columns

    def spent(self, part: str) -> float:
        """Return the seconds spent in a part of the loop, e.g. ``eval``."""
        return float(self.times.columns.get(f"time/{part}_seconds", _NONE)[1].max(initial=0.0))

    def value(self, key: str) -> Any:
        """Return the value of a key, or None if there is no such key."""
        return resolve(self.run.keys.get(key), self.run.keys)

    def number(self, key: str) -> float:
        """Return a number, the start of a schedule, or NaN."""
        value = finite(self.value(key))
        return finite(self.value(f"{key}.start")) if math.isnan(value) else value

    def matters(self, key: str) -> bool:
        """Return whether the key, or a schedule of that name, affects this policy.

        Rollouts are learned from once and dropped, datasets are not collected, explore.epsilon is
        read by the schedule, or by a ladder with one environment, and several learned rows have a
        largest error.
        """
        if key not in self.run.keys and f"{key}.start" not in self.run.keys:
            return False
        schedule, _, part = key.rpartition(".")
        kind = self.value(f"{schedule}.kind")
        if kind is not None and kind not in SCHEDULE_READERS.get(part, (kind,)):
            return False
        if key.startswith(("buffer.", "learner.replay_ratio", "learner.learning_starts")):
            return self.replay and self.collects
        if key == "policy.priority_eta":
            return self.number("policy.learn_unroll_len") > self.number("policy.nstep") + 1
        if key.startswith(("explore.epsilon", "explore.base_epsilon")):
            kind = self.value("explore.name")
            alone = kind == "ladder" and self.number("collector.num_envs") == 1
            scheduled = kind == "schedule" or alone
            return self.value_based and scheduled == key.startswith("explore.epsilon")
        return True

    def preset(self, key: str) -> bool:
        """Return whether an experiment or the environment's yaml may have set ``key``."""
        typed = keys_of(read_overrides(self.run.overrides))
        raw = str(self.run.keys.get(key))
        if raw.startswith("${env."):
            return raw[2:-1] not in typed
        is_typed = any(name == key or name.startswith((f"{key}.", "env")) for name in typed)
        return "experiment" in typed and not is_typed

    def tries(self, words: str) -> list[str]:
        """Return overrides of words ``key=value`` and ``key*factor`` (of the present value).

        Overrides that change nothing are left out: of keys that do not matter, that already have
        the value, or that hold no number to multiply.
        """
        overrides = []
        for word in words.split():
            key, equals, text = word.partition("=")
            if not equals:
                key, _, factor = word.partition("*")
                value = self.number(key) * float(factor)
                if not math.isfinite(value) or not value:
                    continue
                whole = key.rpartition(".")[2] in _WHOLE
                text = str(max(1, round(value))) if whole else f"{value:.3g}"
            elif str(self.value(key)).lower() == text.lower():
                continue
            overrides += [f"{key}={text}"] if self.matters(key) else []
        return overrides

    @property
    def reward_scale(self) -> float:
        """The factor of rewards, 1 if the policy does not set it."""
        scale = self.number("policy.reward_scale")
        return scale if scale > 0 else 1.0

    @property
    def ended_at(self) -> float:
        """Env steps of the last record or of run.json, whichever are more."""
        return float(np.fmax(self.env_steps, self.run.number("env_steps")))

    @property
    def progress(self) -> float:
        """Share of run.total_steps that is done, NaN if it is not known."""
        return self.env_steps / self.total_steps if self.total_steps > 0 else _NAN

    @cached_property
    def unsolved(self) -> bool:
        """Whether the task is not solved.

        It is solved if the last evaluation reached run.stop_return. If that is null, it is solved
        if late evaluations have the largest return ever seen and others do not. Tolerance: 1 % of
        the distance between the largest and the smallest return of an episode.
        """
        if not math.isnan(stop := self.run.stop_return):
            return not self.score.last >= stop
        least, most = self.returns
        late = min(self.score.last, self.score.late if len(self.score) >= 3 else math.inf)
        return not (most > least and late >= most - 0.01 * (most - least))

    def _noise(self, std: Floats) -> Floats:
        """Return twice the standard errors of evaluations with the standard deviations ``std``."""
        return 2 * np.abs(std) / math.sqrt(max(1.0, self.number("run.eval_episodes") or 1.0))

    @cached_property
    def noise(self) -> float:
        """Twice the standard error of an evaluation's mean, median over the evaluations."""
        std = self.metric("eval/return_std").values
        return float(np.median(self._noise(std))) if len(std) else 0.0

    @cached_property
    def best_noise(self) -> float:
        """Twice the standard error of the best evaluation, or ``noise`` if that is larger."""
        std = self.metric("eval/return_std")
        best = std.values[std.env_steps == self.score.env_steps[np.argmax(self.score.values)]]
        return max(self.noise, float(self._noise(best).max(initial=0.0)))

    @cached_property
    def span(self) -> float:
        """Difference between the largest and the smallest mean return ever seen."""
        names = ("eval/return_mean", "collect/return_mean")
        seen = np.concatenate([self.metric(name).values for name in names])
        return float(np.ptp(seen)) if len(seen) else 0.0

    @cached_property
    def improved(self) -> bool:
        """Whether the last third of the evaluations is above the first by more than noise."""
        return self.score.late - self.score.early > self.noise

    @cached_property
    def thrives(self) -> bool:
        """Whether the score rose and stays within a fifth of its best.

        It rose above its first third, its first value or the first episodes of an on-policy
        learner, which acts in training as in evaluations.
        """
        if not len(self.score):
            return False
        late = self.score.late if len(self.score) >= 3 else self.score.last
        first = np.fmin(self.score.first, self.score.early)
        if self.on_policy:
            first = np.fmin(first, self.metric("collect/return_mean").first)
        best, least = self.score.values.max(), min(self.score.values.min(), first)
        return bool(late - first > self.noise and best - late <= 0.2 * (best - least))

    @cached_property
    def after_best(self) -> Metric:
        """The evaluations of the last third that came after the best one."""
        start = len(self.score) - max(1, len(self.score) // 3)
        start = max(start, int(np.argmax(self.score.values)) + 1) if len(self.score) else 0
        return Metric(self.score.env_steps[start:], self.score.values[start:])

    @cached_property
    def lost(self) -> float:
        """Share of the largest gain of the score that was lost again, 0 if none was.

        At least two evaluations after the best one, and the last third as a whole, must be lower.
        """
        if len(self.score) < 5 or len(self.after_best) < 2:
            return 0.0
        best, base = float(self.score.values.max()), float(self.score.values.min())
        fall = best - max(self.score.late, self.after_best.last, self.after_best.median)
        large = best - base > 2 * self.best_noise and fall > self.best_noise
        return fall / (best - base) if large else 0.0

    @property
    def fails(self) -> bool:
        """Whether the score did not rise, or fell again."""
        return self.lost > 0.5 or not self.improved

    @property
    def fails_late(self) -> bool:
        """Whether it ``fails`` after a quarter of the run, with three evaluations or more."""
        return len(self.score) >= 3 and self.progress >= 0.25 and self.fails

    @cached_property
    def returns(self) -> tuple[float, float]:
        """The smallest and the largest return of any episode, NaN if none ended."""
        names = [f"{where}/return_{end}" for where in ("collect", "eval") for end in ("min", "max")]
        seen = np.concatenate([self.metric(name).values for name in names])
        return (float(seen.min()), float(seen.max())) if len(seen) else (_NAN, _NAN)

    @property
    def largest_return(self) -> float:
        """The largest |return| of any episode, NaN if none ended."""
        return max(map(abs, self.returns))
