"""Learning curves of a group on a common axis, and env steps to a threshold.

Alignment is by the last observation carried forward: at every point of the axis a seed has the
value of its newest evaluation. Interpolation would use evaluations that were not made yet, so that
a curve would rise before anything was measured and sample efficiency would be flattered. A run
that is done keeps its last value to the end of the axis, since its final weights are what it gives.
Mean and band are those of the runs that are done, where all of them have a value, so that no point
is a mean over other seeds than the next. Runs that failed or still run are drawn beside them, and
runs that are done but whose evaluations are damaged or missing, which the report names. Seeds, mean
and band have the same axis and the same rule: a step at each of its points.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rlrun.reports.groups import Group
from rlrun.reports.intervals import mean_band
from rlrun.reports.records import Floats
from rlrun.reports.runs import RunData

MAX_POINTS = 200
Axis = Literal["env_steps", "wall"]


@dataclass(frozen=True)
class Curve:
    """Scores of one group on an axis ``x`` [P], which all its runs share.

    ``seeds``: (run, x [K], return [K]) of every run that was evaluated, at the points of ``x`` from
    its first evaluation to its last one, of a run that is done to the end. ``mean``, ``low``,
    ``high`` [P]: NaN where not every run that is done has a value, low and high also with fewer
    than 5, or where all are equal. ``left_out``: runs that are done but not in the mean, for
    evaluations or times are missing.
    """

    group: Group
    seeds: list[tuple[RunData, Floats, Floats]]
    x: Floats
    mean: Floats
    low: Floats
    high: Floats
    left_out: list[RunData]


def is_whole(run: RunData) -> bool:
    """Return True for a run that is done and whose evaluations are all known."""
    return run.status == "done" and len(run.evaluations.env_steps) > 0 and not run.damage


def curve(group: Group, axis: Axis = "env_steps") -> Curve:
    """Return the curve of a group.

    The band is that of the score (`mean_interval`) at every point: it holds at each point, not for
    the whole curve at once.
    """
    runs = [run for run in [*group.runs, *group.unscored] if len(_x(run, axis))]
    x = common_axis([_x(run, axis) for run in runs])
    every = align([(_x(run, axis), run.evaluations.return_mean) for run in runs], x)
    whole = np.array([is_whole(run) for run in runs], bool)
    seeds = []
    for run, values, ended in zip(runs, every, whole, strict=True):
        shown = ~np.isnan(values) & (ended | (x <= _x(run, axis)[-1]))
        seeds.append((run, x[shown], values[shown]))
    done = [run for run in [*group.runs, *group.unscored] if run.status == "done"]
    left_out = [run for run in done if not (is_whole(run) and len(_x(run, axis)))]
    mean, low, high = (np.full(len(x), math.nan) for _ in range(3))
    complete = ~np.isnan(every[whole]).any(axis=0) & whole.any()
    if complete.any():
        mean[complete], low[complete], high[complete] = mean_band(
            every[whole][:, complete], bounds=group.bounds
        )
    return Curve(group, seeds, x, mean, low, high, left_out)


def _x(run: RunData, axis: Axis) -> Floats:
    """Return the places of a run's evaluations; empty when an axis is not known for all."""
    x = run.evaluations.env_steps if axis == "env_steps" else run.evaluations.wall_seconds
    return x if not np.isnan(x).any() else x[:0]


def common_axis(axes: Sequence[Floats]) -> Floats:
    """Return every point at which a seed was evaluated; evenly spaced points if there are many."""
    if not axes:
        return np.zeros(0)
    points: Floats = np.unique(np.concatenate(list(axes)))
    if len(points) <= MAX_POINTS:
        return points
    return np.linspace(points[0], points[-1], MAX_POINTS)


def align(seeds: Sequence[tuple[Floats, Floats]], x: Floats) -> Floats:
    """Return the last value at or before every point of ``x``, NaN before the first, [seeds, P]."""
    out = np.full((len(seeds), len(x)), math.nan)
    for row, (own, values) in zip(out, seeds, strict=True):
        index = np.searchsorted(own, x, side="right") - 1
        row[index >= 0] = values[index[index >= 0]]
    return out


def steps_to(run: RunData, threshold: float) -> float:
    """Return the env steps of the first evaluation of at least ``threshold``; inf without one."""
    steps = run.evaluations.env_steps[run.evaluations.return_mean >= threshold]
    return float(steps[0]) if len(steps) else math.inf


def arrivals(group: Group, threshold: float) -> tuple[list[float], int]:
    """Return `steps_to` of every seed whose end is known, and how many seeds are left out.

    A seed that failed (a crash, divergence) counts as any other: inf where it had not arrived, for
    leaving it out would favour settings that fail. Left out are seeds that have not ended or whose
    evaluations are not all known, also those that have arrived: of the others nobody knows.
    """
    counted = {run.seed for run in group.runs}
    newest = {run.seed: run for run in sorted(group.unscored, key=lambda run: run.text("started"))}
    runs = [*group.runs, *(run for seed, run in newest.items() if seed not in counted)]
    known = [run for run in runs if is_whole(run) or (run.status == "failed" and not run.damage)]
    return [steps_to(run, threshold) for run in known], len(runs) - len(known)


def median_steps(steps: Sequence[float]) -> float:
    """Return the median env steps over seeds, inf where it is a seed that did not arrive."""
    ordered = sorted(steps)
    middle = len(ordered) // 2
    if not ordered:
        return math.nan
    return ordered[middle] if len(ordered) % 2 else sum(ordered[middle - 1 : middle + 1]) / 2
