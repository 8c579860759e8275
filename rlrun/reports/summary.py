"""What the runs show, as sections: learning curves, sample efficiency, sensitivity."""

import math
from collections.abc import Sequence

from rlrun.reports import figures
from rlrun.reports.curves import Axis, Curve, arrivals, curve, is_whole, median_steps
from rlrun.reports.document import Section
from rlrun.reports.figures import MAX_GROUPS, Picture
from rlrun.reports.findings import Findings, interval_of, threshold_of
from rlrun.reports.groups import best_groups
from rlrun.reports.intervals import success_interval
from rlrun.reports.sensitivity import BINS, MAX_KEYS, MAX_LEVELS, Effect, effects
from rlrun.reports.tables import Cell, Interval, Table

_NAN = math.nan


def curve_section(found: Findings) -> tuple[Section, Table]:
    """Learning curves, and the table of means and bands behind them."""
    pictures: list[Picture] = []
    rows: list[tuple[Cell, ...]] = []
    left_out: list[str] = []
    hidden = 0
    for environment in found.environments:
        groups = best_groups(found.of(environment), MAX_GROUPS)
        hidden += len(found.of(environment)) - len(groups)
        for axis in found.axes:
            curves = {id(group): curve(group, axis) for group in found.of(environment)}
            rows += [row for one in curves.values() for row in _curve_rows(one, axis)]
            left_out += [line for one in curves.values() for line in _left_out(one, axis, found)]
            if not found.draw:
                continue
            what = "environment steps" if axis == "env_steps" else "wall time"
            name = "curves_steps" if axis == "env_steps" else "curves_wall"
            pictures += figures.curve_figure(
                [curves[id(group)] for group in groups], axis,
                name=found.stem(name, environment), threshold=threshold_of(found, groups),
                title=f"{found.place(environment)}return against {what}; every seed is a thin line",
            )  # fmt: skip
    text = [
        "Thin lines: every seed, dashed where the run is not done or its metrics are damaged. "
        "Band: 95 % interval of the mean over the seeds that are done, pointwise (at each point, "
        "not for the whole curve at once), from 5 seeds on. Dotted: the threshold.",
        "Seeds, mean and band are drawn as steps: the value of an evaluation holds until the next "
        "one, which was not known before. A run that ended early because it was solved keeps its "
        "last value.",
        *left_out,
    ]
    if "wall" in found.axes:
        text.append("Wall times compare only runs that had the same machine to themselves.")
    if hidden:
        text.append(f"The {MAX_GROUPS} best groups are drawn; the other {hidden} are in the CSV.")
    columns = ("environment", "setting", "axis", "x", "mean")
    return Section("Learning curves", text, [], pictures), Table("curves", columns, rows)


def _left_out(one: Curve, axis: Axis, found: Findings) -> list[str]:
    """A sentence on the seeds that are done but not in the mean of a curve; none without any."""
    steps = axis == "env_steps"
    runs = [run for run in one.left_out if steps or is_whole(run)]  # else said of env steps
    if not runs:
        return []
    seeds = ", ".join(str(run.seed) for run in runs)
    are = "seeds {} are" if len(runs) > 1 else "seed {} is"
    return [
        f"{found.place(one.group.environment)}{one.group.setting}: {are.format(seeds)} done but "
        f"not in the mean against {'env steps' if steps else 'wall time'}, because "
        f"{'evaluations' if steps else 'wall times'} are missing or damaged (see run health)."
    ]


def _curve_rows(one: Curve, axis: Axis) -> list[tuple[Cell, ...]]:
    cells = zip(one.x, one.mean, one.low, one.high, strict=True)
    group = one.group
    return [
        (group.environment, group.setting, axis, float(x), Interval(mean, low, high))
        for x, mean, low, high in cells
    ]


def efficiency_section(found: Findings) -> Section:
    """Env steps until the threshold, and how many seeds got there."""
    rows: list[tuple[Cell, ...]] = []
    for environment in found.environments:
        threshold = threshold_of(found, found.of(environment))
        for group in found.of(environment) if math.isfinite(threshold) else []:
            steps, left_out = arrivals(group, threshold)
            arrived = sum(map(math.isfinite, steps))
            if steps:
                share = interval_of(success_interval(arrived, len(steps)))
                known = [step for step in steps if math.isfinite(step)]
                bounds = (min(known), max(known)) if known else (_NAN, _NAN)
                rows.append(
                    (environment, group.setting, threshold, arrived, len(steps), share,
                     median_steps(steps), *bounds, left_out or None)
                )  # fmt: skip
    columns = ("environment", "setting", "threshold", "arrived", "seeds", "share", "median steps",
               "fastest", "slowest that arrived", "left out")  # fmt: skip
    source = "given" if math.isfinite(found.threshold) else "run.stop_value"
    text = [
        f"Env steps of the first evaluation at or above the threshold ({source}). Seeds that never "
        "reached it, including failed ones, count as slower than all others in the median. Share: "
        "seeds that arrived, with the exact binomial interval. Left out: seeds that have not ended "
        "or whose evaluations are damaged.",
    ]
    if not rows:
        text = ["No threshold: the environment has no run.stop_value; give --threshold."]
    return Section("Sample efficiency", text, [Table("efficiency", columns, rows)] if rows else [])


def sensitivity_section(found: Findings) -> Section | None:
    """Score against every key that varies; None where fewer than two settings have scores."""
    rows: list[tuple[Cell, ...]] = []
    pictures: list[Picture] = []
    for environment in found.environments:
        groups = found.of(environment)
        every: list[Effect] = effects(groups)
        rows += [
            (environment, _joined(effect.keys), level.name, len(level.scores),
             float(level.scores.mean()), effect.share)
            for effect in every for level in effect.levels
        ]  # fmt: skip
        if found.draw and every:
            place, label = found.place(environment), f"score ({found.kind})"
            pictures += figures.effect_figure(
                every[:MAX_KEYS], name=found.stem("effects", environment), label=label,
                title=f"{place}score against each key: a point is a run, the line the mean",
            )  # fmt: skip
            pictures += figures.parallel_figure(
                groups, every, name=found.stem("parallel", environment), label=f"mean {label}",
                title=f"{place}every setting as a line, coloured by its mean score",
            )  # fmt: skip
    if not rows:
        return None
    columns = ("environment", "key", "value", "runs", "mean score", "share of variance")
    text = [
        "Share of variance: how much of the variance of all runs' scores lies between the means at "
        "the values of a key (eta squared, its main effect); the rest is interactions and seeds. "
        "With few runs for a value it is biased upwards. Keys that always vary together are one; a "
        f"number with more than {MAX_LEVELS} values is cut into {BINS} ranges.",
    ]
    return Section("Sensitivity", text, [Table("sensitivity", columns, rows)], pictures)


def _joined(keys: Sequence[str]) -> str:
    return ", ".join(keys[:4]) + (f" and {len(keys) - 4} more" if len(keys) > 4 else "")
