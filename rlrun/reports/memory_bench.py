"""The table of ``rlrun bench memory``: settings on memory tasks, next to published scores.

MMER, the maximum mean episodic reward, is the measure of POPGym (Morad et al., ICLR 2023): for each
seed the maximum over epochs of the mean return of an epoch's episodes, then the mean over seeds.
Here an epoch is an evaluation with greedy episodes; POPGym's are the training episodes of a log
record, whose MMER has a column too. A maximum is biased upwards, so the score of the final weights
is shown with its interval.

`MemoryGap` is the finding of ``rlrun probe``: does a task need memory?
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlrun.reports.bounds import return_bounds
from rlrun.reports.comparison import Difference, difference, holm
from rlrun.reports.document import Cell, Interval, Table, show_cell
from rlrun.reports.findings import interval_of
from rlrun.reports.groups import cost_of
from rlrun.reports.intervals import LEVEL, UNBOUNDED, Bounds, mean_interval
from rlrun.reports.runs import RunData, score
from rlrun.reports.versus import PAIRS

SHARE = 0.9  # of the way from random actions to the best MMER of a task
_NAN = math.nan
ABOUT = (
    "MMER: mean over seeds of the largest mean return of an evaluation (POPGym's measure, biased "
    "upwards), in training: of the training episodes of a log record, as published. Score: mean "
    "return of the final weights, with the 95 % interval of the mean over seeds (from 5 on). Steps "
    "and seconds to 90 %: median over seeds of the first evaluation that is 90 % of the way from "
    "random actions to the best MMER of the task. Seeds that never get there or fail count as "
    "slower than all others. Rows whose algorithm is in brackets were published elsewhere, with "
    "15M env steps, and were not run here."
)


@dataclass(frozen=True)
class BenchSetting:
    """An algorithm with a cell on a task, and its runs. ``random``: return of random actions."""

    task: str
    algorithm: str
    cell: str
    random: float
    runs: Sequence[RunData]

    @property
    def scored(self) -> list[RunData]:
        """Return the finished runs with all their evaluations."""
        return [run for run in self.runs if score(run, "auc") is not None]

    @property
    def mmer(self) -> float:
        """Return the maximum mean episodic reward, NaN without a finished run."""
        return _mean_top([run.evaluations.return_mean for run in self.scored])

    @property
    def training_mmer(self) -> float:
        """Return the MMER over the training episodes of log records, NaN without any."""
        return _mean_top([run.records.columns["collect/return_mean"][1] for run in self.scored])

    @property
    def final(self) -> Interval:
        """Return the mean return of the final weights with its interval."""
        scores = [x for run in self.scored if (x := score(run, "final")) is not None]
        bounds = return_bounds(self.runs)
        return interval_of(mean_interval(scores, bounds=bounds) if scores else None)

    def reached(self, threshold: float) -> tuple[float, float]:
        """Return median env steps and wall-clock seconds until ``threshold``; inf: never."""
        scored = self.scored
        costs = [cost_of(run, threshold if run in scored else math.inf) for run in self.runs]
        steps, seconds = np.median(costs, axis=0)
        return float(steps), float(seconds)

    @property
    def outcome(self) -> str:
        """Return the number of runs, and how those ended that are not done."""
        lost = [run for run in self.runs if run not in self.scored]
        whys = dict.fromkeys(run.failure or run.problem or run.damage or run.status for run in lost)
        text = f"{len(self.scored)} of {len(self.runs)}"
        return f"{text}; {'; '.join(whys)}" if lost else text


def _mean_top(returns: Sequence[np.ndarray]) -> float:
    """Return the mean over runs of the largest of their returns."""
    tops = [float(run_returns.max()) for run_returns in returns if len(run_returns)]
    return float(np.mean(tops)) if tops else _NAN


def bench_table(
    settings: Sequence[BenchSetting], published: Mapping[str, Mapping[str, float]]
) -> Table:
    """Return the table, best MMER of a task first. ``published``: task -> setting -> MMER."""
    rows: list[tuple[Cell, ...]] = []
    for task in dict.fromkeys(setting.task for setting in settings):
        of_task = [setting for setting in settings if setting.task == task]
        best = max((s.mmer for s in of_task if not math.isnan(s.mmer)), default=_NAN)
        threshold = of_task[0].random + SHARE * (best - of_task[0].random)
        of_task.sort(key=lambda s: -math.inf if math.isnan(s.mmer) else s.mmer, reverse=True)
        for s in of_task:
            steps, seconds = (_NAN, _NAN) if math.isnan(best) else s.reached(threshold)
            mmers = s.mmer, s.training_mmer
            rows.append((task, s.algorithm, s.cell, *mmers, s.final, steps, seconds, s.outcome))
        for name, value in published.get(task, {}).items():
            both = (float(value),) * 2
            rows.append((task, f"({name})", "", *both, interval_of(None), _NAN, _NAN, "elsewhere"))
    columns = ("task", "algorithm", "cell", "MMER", "in training", "score", "steps to 90 %",
               "seconds to 90 %", "runs")  # fmt: skip
    return Table("bench", columns, rows)


def raw_lines(settings: Sequence[BenchSetting]) -> str:
    """Return one JSON object per run: setting, outcome, and all evaluations."""
    lines = []
    for setting in settings:
        for run in setting.runs:
            e = run.evaluations
            row: dict[str, Any] = {
                "task": setting.task, "algorithm": setting.algorithm, "cell": setting.cell,
                "seed": run.seed, "status": run.status, "failure": run.failure,
                "score": score(run, "final"), "git": run.record.get("git"),
                "env_steps": e.env_steps.tolist(), "return_mean": e.return_mean.tolist(),
                "seconds": [None if math.isnan(x) else round(x, 3) for x in e.wall_seconds],
            }  # fmt: skip
            lines.append(json.dumps(row))
    return "".join(f"{line}\n" for line in lines)


MEMORYLESS, STACKED, RECURRENT, FULL = "memoryless", "frame-stacked", "recurrent", "full state"
_WITH_PAST = (RECURRENT, STACKED)  # agents that see past observations


@dataclass(frozen=True)
class MemoryGap:
    """Scores [R] of each agent, and the gap of every other agent to the memoryless one."""

    environment: str
    budget: int
    scores: Mapping[str, Sequence[float]]
    bounds: Bounds = UNBOUNDED  # returns that the environment allows

    @property
    def gaps(self) -> dict[str, Difference]:
        """Return the score of each agent minus that of the memoryless one."""
        base = self.scores[MEMORYLESS]
        return {
            name: difference(scores, base, paired=len(scores) == len(base) >= PAIRS)
            for name, scores in self.scores.items()
            if name != MEMORYLESS
        }

    def _better(self, names: Sequence[str]) -> list[str]:
        """Return which of ``names`` are better than the memoryless agent, corrected for all."""
        gaps = self.gaps
        tested = {n: p for n in names if n in gaps and (p := gaps[n].p) is not None}
        adjusted = zip(tested, holm([*tested.values()]), strict=True)
        significant = [name for name, p in adjusted if p <= 1 - LEVEL + 1e-12]
        return [name for name in significant if gaps[name].decided and gaps[name].value > 0]

    @property
    def sentence(self) -> str:
        """Return the finding in a sentence that does not need the table."""
        gaps, better = self.gaps, self._better(_WITH_PAST)
        at = f"at {self.budget} env steps"
        if not better and self._better([FULL]):
            hidden = show_cell(interval_of(gaps[FULL]))
            return (
                f"{self.environment} hides what an agent could use (full state minus memoryless "
                f"{hidden}), but no agent learned to remember it {at}: a larger budget may."
            )
        if not better:
            gap = show_cell(interval_of(gaps[RECURRENT]))
            text = f"{self.environment} shows no need for memory {at}"
            return f"{text}: recurrent minus memoryless is {gap}."
        name = max(better, key=lambda agent: gaps[agent].value)
        short = f", and {name} is the better one" if len(better) > 1 else f", {name} alone"
        value = show_cell(interval_of(gaps[name]))
        return f"{self.environment} needs memory: it is worth {value} {at}{short}."


def gap_table(gap: MemoryGap) -> Table:
    """Return a row per agent: its score with the interval, its gap, p before correction."""
    rows: list[tuple[Cell, ...]] = []
    for name, scores in gap.scores.items():
        mean, diff = interval_of(mean_interval(scores, bounds=gap.bounds)), gap.gaps.get(name)
        beside: tuple[Cell, ...] = (None, None) if diff is None else (interval_of(diff), diff.p)
        rows.append((name, mean, *beside, len(scores)))
    return Table("probe", ("agent", "score", "minus memoryless", "p", "seeds"), rows)
