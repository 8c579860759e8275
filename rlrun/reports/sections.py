"""The sections of a report: scores, curves, efficiency, sensitivity, config, health; the whole."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlrun.reports import figures
from rlrun.reports.document import (
    Cell,
    Document,
    Interval,
    MadeRows,
    Picture,
    Section,
    Table,
    show_cell,
    show_number,
)
from rlrun.reports.figures import MAX_GROUPS, MAX_ROWS
from rlrun.reports.findings import (
    Findings,
    across_section,
    interval_of,
    reasons,
    threshold_of,
    uncounted,
)
from rlrun.reports.groups import (
    BINS,
    MAX_KEYS,
    MAX_LEVELS,
    Axis,
    Curve,
    Effect,
    Group,
    arrivals,
    best_groups,
    curve,
    differences,
    effects,
    is_whole,
    median_steps,
)
from rlrun.reports.intervals import MIN_SEEDS, UNBOUNDED, few_seeds, mean_interval, success_interval
from rlrun.reports.runs import (
    SEARCH,
    SEEDS,
    UNDECIDED,
    RunData,
    finite,
    finite_number,
    printable,
    read_json,
    score,
)
from rlrun.reports.versus import comparison_section

_NAN = math.nan
_NAMED = 5  # damaged runs, or settings with uncounted runs, that are named
_AXES = {"env_steps": ("environment steps", "curves_steps"), "wall": ("wall time", "curves_wall")}
_SCORE_COLUMNS = (
    "environment", "setting", "seeds", "score", "next seed", "min", "max", "not counted",
)  # fmt: skip


def score_section(findings: Findings) -> Section:
    """Return the score of every group with its interval, the next seed's, and success rates."""
    shown = [group for place in findings.environments for group in _in_table(findings.of(place))]
    rows: list[tuple[Cell, ...]] = []
    for g in shown:
        following = interval_of(g.next_seed)._replace(value=_NAN)
        ends = (float(g.scores.min()), float(g.scores.max())) if g.runs else (_NAN, _NAN)
        rows.append((g.environment, g.setting, len(g.runs), interval_of(g.mean), following, *ends,
                     uncounted(g)))  # fmt: skip
    whys = reasons([(g.setting, g.mean.why) for g in shown if g.mean])
    claims = [(g.setting, e.why) for g in shown if (e := g.next_seed) and e.claimed]
    design = _design(findings)
    text = [
        f"Score: {findings.meaning}. A seed is one trial; episodes of a seed are not.",
        *filter(None, [design]),
        *(why for why in whys if why not in design),
        *(f"Next seed: {why}" for why in reasons(claims)),
        *_notes(findings, [g for g in shown if g.mean and g.mean.claimed]),
    ]
    tables = [Table("scores", _SCORE_COLUMNS, rows)]
    if (rates := _success_table(shown)) is not None:
        tables.append(rates)
        text.append(
            "Success: share of successful episodes of each seed's final weights, over seeds. The "
            "interval is binomial over seeds where every seed succeeds always or never, else that "
            "of a mean; episodes of a seed are not independent."
        )
    pictures: list[Picture] = []
    for environment in findings.environments if findings.draw else []:
        pictures += _score_figure(findings, environment)
    return Section("Scores", text, tables, pictures)


def _design(findings: Findings) -> str:
    """Return the statistic that the design of the experiment allows and why, "" without a score.

    Several environments have aggregates only if they share a scale: if a setting has scores in all
    of them. Seeds: the most that a setting has, because settings with fewer are marked themselves.

    Source: Agarwal et al. 2021, section 4; Patterson et al. 2024.
    """
    seeds = max((len(group.runs) for group in findings.groups), default=0)
    places = len({group.environment for group in findings.groups if group.runs})
    few = few_seeds(seeds) if 0 < seeds < MIN_SEEDS else ""
    if findings.complete:
        return (
            f"{places} environments: the interquartile mean, which no single environment or "
            f"outlier decides; failed seeds show in the optimality gap and in the profile. {few}"
        ).rstrip()
    if few or not seeds:
        return few
    if places > 1:
        return (
            f"{places} environments without a common scale or setting: each has its own mean, "
            "because an average would follow the environment with the largest scores."
        )
    return (
        f"One environment: the mean of all {seeds} seeds, never the IQM, which trims away the "
        "seeds that fail."
    )


def _in_table(groups: Sequence[Group]) -> list[Group]:
    """Return the groups in order, or if there are many the best first."""
    if len(groups) <= MAX_GROUPS:
        return list(groups)
    return sorted(groups, key=lambda g: -g.scores.mean() if g.runs else math.inf)


def _score_figure(findings: Findings, environment: str) -> list[Picture]:
    every = findings.of(environment)
    shown = _in_table(best_groups(every, MAX_ROWS))
    title = f"{findings.place(environment)}every seed's score"
    if any(group.mean and group.mean.claimed for group in shown):
        title += "; a bar is a 95 % interval"
    if len(shown) < len(every):
        title += f"; the best {len(shown)} of {len(every)} settings"
    name = findings.stem("scores", environment)
    return figures.score_figure(shown, name=name, title=title, label=f"score ({findings.kind})")


def _range(low: float, high: float) -> str:
    if math.isinf(low):
        return f"{show_number(high)} at most"
    return f"{show_number(low)} {f'to {show_number(high)}' if math.isfinite(high) else 'at least'}"


def _notes(findings: Findings, claimed: Sequence[Group]) -> list[str]:
    """Return sentences on the known bounds of returns, and on biases in favour of a setting."""
    known = {g.environment: g.bounds for g in claimed if g.bounds != UNBOUNDED}
    out = []
    if ranges := ", ".join(f"{env} {_range(*bounds)}" for env, bounds in known.items()):
        text = "Intervals end at the returns that are possible, by what is known or seen"
        out.append(f"{text}: {ranges}.")
    diverged = (g.setting for g in findings.groups if any(r.exit_code == 4 for r in g.unscored))
    if names := ", ".join(dict.fromkeys(diverged)):
        out.append(
            f"Runs of {names} diverged (exit code 4) and have no score: the mean of the others "
            "favours a setting that diverges."
        )
    again = (f"{g.setting} (seed {r.seed})" for g in findings.groups for r in g.failed_again)
    if names := ", ".join(dict.fromkeys(again)):
        out.append(
            f"Failed when run again: {names}. The last run of a seed that is done counts, which "
            "favours a setting that sometimes fails."
        )
    if any(run.trial for run in findings.runs):
        out.append(
            "The best trial of a search was chosen by these scores, which are therefore too high; "
            "its score is the one on fresh seeds."
        )
    return out


def _success_table(groups: Sequence[Group]) -> Table | None:
    """Return the success rate of every group that reports success, or None if none does."""
    rows: list[tuple[Cell, ...]] = []
    for group in groups:
        shares = [
            good / episodes for good, episodes in filter(None, (r.successes for r in group.runs))
        ]
        if shares:
            rate, method = success_rate(np.array(shares))
            rows.append((group.environment, group.setting, len(shares), rate, method))
    columns = ("environment", "setting", "seeds", "success", "interval")
    return Table("success", columns, rows) if rows else None


def success_rate(shares: np.ndarray) -> tuple[Interval, str]:
    """Return the mean success of seeds and the name of its interval.

    ``shares`` [n]: successful episodes of each seed, in [0, 1], like the interval.
    """
    estimate = mean_interval(shares, bounds=(0.0, 1.0))
    if len(shares) >= MIN_SEEDS and np.isin(shares, (0.0, 1.0)).all():
        estimate = success_interval(int(shares.sum()), len(shares))
    return interval_of(estimate), estimate.method


def curve_section(findings: Findings) -> tuple[Section, Table]:
    """Return the learning curves, and the table of means and bands behind them."""
    pictures: list[Picture] = []
    rows: list[tuple[Cell, ...]] = []
    left_out: list[str] = []
    hidden = 0
    for environment in findings.environments:
        groups = best_groups(findings.of(environment), MAX_GROUPS)
        hidden += len(findings.of(environment)) - len(groups)
        for axis in findings.axes:
            what, name = _AXES[axis]
            curves = {id(group): curve(group, axis) for group in findings.of(environment)}
            for c in curves.values():
                left_out += _left_out(c, axis, findings)
                for x, *ends in zip(c.x, c.mean, c.low, c.high, strict=True):
                    setting = c.group.setting
                    rows.append((environment, setting, axis, float(x), Interval(*ends)))
            if findings.draw:
                pictures += figures.curve_figure(
                    [curves[id(group)] for group in groups], axis,
                    name=findings.stem(name, environment), threshold=threshold_of(findings, groups),
                    title=f"{findings.place(environment)}return against {what}; every seed is a "
                    "thin line",
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
    if "wall" in findings.axes:
        text.append("Wall times compare only runs that had the same machine to themselves.")
    if hidden:
        text.append(f"The {MAX_GROUPS} best groups are drawn; the other {hidden} are in the CSV.")
    columns = ("environment", "setting", "axis", "x", "mean")
    return Section("Learning curves", text, [], pictures), Table("curves", columns, rows)


def _left_out(c: Curve, axis: Axis, findings: Findings) -> list[str]:
    """Return a sentence on finished seeds that are not in the mean of a curve, if there are any."""
    steps = axis == "env_steps"
    runs = [run for run in c.left_out if steps or is_whole(run)]  # else reported for env steps
    if not runs:
        return []
    seeds = ", ".join(str(run.seed) for run in runs)
    are = "seeds {} are" if len(runs) > 1 else "seed {} is"
    return [
        f"{findings.place(c.group.environment)}{c.group.setting}: {are.format(seeds)} done but "
        f"not in the mean against {'env steps' if steps else 'wall time'}, because "
        f"{'evaluations' if steps else 'wall times'} are missing or damaged (see run health)."
    ]


def efficiency_section(findings: Findings) -> Section:
    """Return the env steps until the threshold, and how many seeds reached it."""
    rows: list[tuple[Cell, ...]] = []
    for environment in findings.environments:
        threshold = threshold_of(findings, findings.of(environment))
        for group in findings.of(environment) if math.isfinite(threshold) else []:
            steps, left_out = arrivals(group, threshold)
            arrived = sum(map(math.isfinite, steps))
            if steps:
                share = interval_of(success_interval(arrived, len(steps)))
                if len(steps) < MIN_SEEDS:
                    share = Interval(share.value, _NAN, _NAN)
                known = [step for step in steps if math.isfinite(step)]
                bounds = (min(known), max(known)) if known else (_NAN, _NAN)
                rows.append(
                    (environment, group.setting, threshold, arrived, len(steps), share,
                     median_steps(steps), *bounds, left_out or None)
                )  # fmt: skip
    columns = ("environment", "setting", "threshold", "arrived", "seeds", "share", "median steps",
               "fastest", "slowest that arrived", "left out")  # fmt: skip
    source = "given" if math.isfinite(findings.threshold) else "run.stop_return"
    text = [
        f"Env steps of the first evaluation at or above the threshold ({source}). Seeds that never "
        "reached it, including failed ones, count as slower than all others in the median. Share: "
        f"seeds that arrived, from {MIN_SEEDS} on with the exact binomial interval. Left out: "
        "seeds that have not ended or whose evaluations are damaged."
    ]
    if not rows:
        text = ["No threshold: the environment has no run.stop_return; give --threshold."]
    return Section("Sample efficiency", text, [Table("efficiency", columns, rows)] if rows else [])


def sensitivity_section(findings: Findings) -> Section | None:
    """Return score against every varying key, or None if fewer than two settings have scores."""
    rows: list[tuple[Cell, ...]] = []
    pictures: list[Picture] = []
    for environment in findings.environments:
        every: list[Effect] = effects(findings.of(environment))
        for effect in every:
            more = f" and {len(effect.keys) - 4} more" if len(effect.keys) > 4 else ""
            keys = ", ".join(effect.keys[:4]) + more
            rows += [(environment, keys, level.name, len(level.scores),
                      float(level.scores.mean()), effect.share)
                     for level in effect.levels]  # fmt: skip
        if findings.draw and every:
            place, label = findings.place(environment), f"score ({findings.kind})"
            pictures += figures.effect_figure(
                every[:MAX_KEYS], name=findings.stem("effects", environment), label=label,
                title=f"{place}score against each key: a point is a run, the line the mean",
            )  # fmt: skip
    if not rows:
        return None
    columns = ("environment", "key", "value", "runs", "mean score", "share of variance")
    text = [
        "Share of variance: how much of the variance of all runs' scores lies between the means at "
        "the values of a key (eta squared, its main effect); the rest is interactions and seeds. "
        "With few runs for a value it is biased upwards. Keys that always vary together are one; a "
        f"number with more than {MAX_LEVELS} values is cut into {BINS} ranges."
    ]
    return Section("Sensitivity", text, [Table("sensitivity", columns, rows)], pictures)


def config_section(findings: Findings) -> Section | None:
    """Return the keys in which the settings differ, or None for a single setting."""
    settings = {group.setting: group.keys for group in findings.groups}
    found_keys = differences(list(settings.values()))
    if not found_keys:
        return None
    text = ["Keys that differ between settings, the seed and keys of recording left out."]
    if len(settings) <= len(found_keys):
        table = Table("config", ("key", *settings), [(key, *values) for key, values in found_keys])
    else:
        rows = zip(settings, *(values for _, values in found_keys), strict=True)
        table = Table("config", ("setting", *(key for key, _ in found_keys)), [*rows])
    return Section("Config differences", text, [table])


_RUN_COLUMNS: tuple[str, ...] = (
    "run", "setting", "seed", "status", "exit code", "env steps", "wall s", "steps/s",
    "NaN rollbacks", "worker restarts", "resumes", "exact", "backend", "success", "note",
)  # fmt: skip
_MACHINE = (  # differences between runs that the config does not show, and their keys in run.json
    ("devices", "device"), ("versions", "versions"), ("machines", "host"), ("commits", "git"),
)  # fmt: skip


def health_section(findings: Findings) -> Section:
    """Return how every run ended, whether it can be trusted, and its costs."""
    settings = {id(run): group for group in findings.groups for run in group.everything}
    rows = [_health(run, settings.get(id(run))) for run in findings.runs]
    states = Counter(run.status for run in findings.runs)
    counts = ", ".join(f"{n} {status}" for status, n in states.items())
    text = [f"{len(findings.runs)} runs: {counts}. Only runs that are done have a score."]
    columns = _RUN_COLUMNS
    if any(row[-2] is not None for row in rows):
        text.append(
            "Success: share of the last evaluation's episodes, with the exact binomial interval. "
            "It is that of one trained policy; episodes of several seeds are not independent."
        )
    else:
        rows, columns = [(*row[:-2], row[-1]) for row in rows], (*columns[:-2], columns[-1])
    damaged = [run.name for run in findings.runs if run.damage]
    if damaged:
        more = f" and {len(damaged) - _NAMED} more runs" if damaged[_NAMED:] else ""
        text.append(
            f"{', '.join(damaged[:_NAMED])}{more}: metrics.jsonl is damaged. Evaluations up to the "
            "damage are drawn; means of curves, sample efficiency and the scores auc and "
            "best_of_last leave them out."
        )
    for name, key in _MACHINE:
        values = {str(run.record.get(key)) for run in findings.runs if run.record}
        if len(values) > 1:
            text.append(
                f"Runs of {len(values)} different {name} are in this report (run.json, {key})."
            )
    return Section("Run health", text, [Table("runs", columns, rows)])


def _health(run: RunData, group: Group | None) -> tuple[Cell, ...]:
    steps, wall = run.progress
    exact, resumes = run.record.get("exact"), run.record.get("resumes")
    note = run.problem or ("" if run.status == "done" else run.failure) or run.text("exact_reason")
    if group is not None and any(run is other for other in group.repeats):
        note = "not counted: this seed was run again later"
    if group is not None and any(run is other for other in group.failed_again):
        note = f"an earlier run of this seed counts; {note}".rstrip("; ")
    note = "; ".join(filter(None, [note, run.damage, run.damaged_times]))
    success = interval_of(success_interval(*run.successes)) if run.successes else None
    return (
        run.name, group.setting if group else "", run.seed, run.status, run.exit_code, steps,
        wall, steps / wall if wall > 0 else _NAN, run.number("rollbacks"), run.restarts,
        len(resumes) if isinstance(resumes, list) else None,
        exact if isinstance(exact, bool) else None, run.text("backend"), success, note,
    )  # fmt: skip


# The best of many trials is partly the luckiest, so only its score on fresh seeds is unbiased
# (Cawley & Talbot 2010). Tests that ignore the stopping rule of seeds=auto are invalid. A sweep
# that runs, failed or was interrupted may have decided some comparisons, which hold.

RESULT = "result.json"  # of a search
_SEARCH_COLUMNS = (
    "search", "trial", "setting", "objective", "selection score", "on seeds", "score",
    "fresh seeds", "failed seeds", "selection bias",
)  # fmt: skip


def selection_section(runs: Sequence[RunData]) -> Section | None:
    """Return the choices of the searches to which the runs belong, with a sentence on each.

    None if no run belongs to a search.
    """
    searches = list(dict.fromkeys(run.search for run in runs if run.search is not None))
    if not searches:
        return None
    by_search = {search: _read_search(search) for search in searches}
    results = [result for result in by_search.values() if result is not None]
    rows = [row for row, _ in results]
    open_ = [
        f"{printable(search.name)}: the search has no {RESULT} that can be read: it runs, failed "
        "or was interrupted; the score of its best trial is too high."
        for search, result in by_search.items()
        if result is None
    ]
    text = [
        "A search chooses the trial with the highest score, which is partly luck. The score of the "
        "setting is the one on fresh seeds, which no trial has used. Selection bias is the score "
        "it was chosen by minus that one. Both are of the search's objective, not of --score.",
        *reasons([(str(row[0]), why) for row, why in results if why]),
        *open_,
    ]
    tables = [Table("selection", _SEARCH_COLUMNS, rows)] if rows else []
    return Section("Search", text, tables, lead=[*map(_sentence, rows), *open_])


def _sentence(row: tuple[Cell, ...]) -> str:
    name, trial, setting, _, chosen_by, _, score, seeds, _, bias = row
    if not isinstance(bias, float) or math.isnan(bias):
        return f"{name}: trial {trial} was chosen ({setting}); no fresh seed has a score."
    return (
        f"{name}: trial {trial} was chosen ({setting}); {show_cell(score)} on {seeds} fresh seeds. "
        f"It was chosen by {show_cell(chosen_by)}: selection bias {show_number(bias)}."
    )


def _read_search(search: Path) -> tuple[tuple[Cell, ...], str] | None:
    """Return the row of a search and the reason for its interval, or None if it is damaged."""

    def row(fields: Any) -> tuple[tuple[Cell, ...], str] | None:
        keys = ("seeds", "failed_seeds", "selection_scores", "overrides")
        seeds, failed, chosen, words = (fields[key] for key in keys)
        trial, selection = fields["trial"], finite_number(fields["selection_score"])
        if type(trial) is not int or selection is None:
            return None
        setting = printable(" ".join(map(printable, words)))
        score = Interval(*(finite(fields.get(key)) for key in ("score", "low", "high")))
        why = fields.get("why")
        kind = read_json(search / SEARCH, lambda x: printable(x["settings"]["objective"]), "")
        return (
            printable(search.name), trial, setting, kind, selection, len(chosen),
            score, len(seeds), len(failed) or None, selection - score.value,
        ), printable(why) if isinstance(why, str) else ""  # fmt: skip

    return read_json(search / RESULT, row, None)


_MOST = 1000  # comparisons that are read


def seeds_auto_section(runs: Sequence[RunData]) -> Section | None:
    """Return the decisions of the sweeps to which the runs belong, with a sentence on each.

    None if no sweep had ``seeds=auto``.
    """
    sweeps = dict.fromkeys(run.auto for run in runs if run.auto is not None)
    if not sweeps:
        return None
    by_sweep = {sweep: _comparisons(sweep) for sweep in sweeps}
    rows = [row for comparisons in by_sweep.values() for row in comparisons]
    open_ = [
        f"{printable(sweep.name)}: seeds=auto has recorded no decision ({SEEDS}): it runs, failed "
        "or was interrupted; nothing is tested."
        for sweep, comparisons in by_sweep.items() if not comparisons
    ]  # fmt: skip
    text = [
        "Seeds were added until each comparison was decided or no seeds were left. Level: the "
        "largest chance that any of these decisions is between settings that are equal in "
        "distribution; it is larger for settings of equal mean of which only one has failing "
        "seeds. Tests that ignore how the sweep stopped would not hold and are left out. Means and "
        "intervals of such seeds lean slightly towards the decision."
    ]
    columns = ("environment", "A", "B", "verdict", "decided after", "level", "seeds A", "seeds B")
    sentences = [f"{verdict} ({a} against {b}, seeds=auto, family-wise level {level})."
                 for _, a, b, verdict, _, level, *_ in rows]  # fmt: skip
    tables = [Table("sequential", columns, rows)] if rows else []
    return Section("Sequential seeds", text + open_, tables, lead=sentences + open_)


def _comparisons(sweep: Path) -> list[tuple[Cell, ...]]:
    """Return the comparisons of a seeds.json, none if it is damaged or has no look yet."""

    def read(fields: Any) -> list[tuple[Cell, ...]]:
        names = [printable(name) for name in fields["settings"]]
        tasks = [printable(name) for name in fields["tasks"]]
        counts = [len(scores) for scores in fields["scores"]]
        level = finite(fields["level"])
        if math.isnan(level) or not any(counts):
            return []
        undecided = UNDECIDED if fields["status"] == UNDECIDED else "undecided"
        rows: list[tuple[Cell, ...]] = []
        for entry in fields["comparisons"][:_MOST]:
            (a, b), better, after = entry["settings"], entry["better"], entry.get("seeds")
            for index in (a, b, *([] if better is None else [better])):
                if type(index) is not int or not 0 <= index < len(names):
                    raise ValueError("no index of a setting")
            verdict = undecided if better is None else f"{names[better]} is better"
            after = after if type(after) is int else None
            rows += [(tasks[a], names[a], names[b], verdict, after, level, counts[a], counts[b])]
        return rows

    return read_json(sweep / SEEDS, read, [])


def evaluation_table(findings: Findings) -> Table:
    """Return every evaluation of every run, for CSV."""

    def rows() -> Iterator[tuple[Cell, ...]]:
        for group in findings.groups:
            for run in group.everything:
                e = run.evaluations
                for row in zip(e.env_steps, e.wall_seconds, e.return_mean, e.success, strict=True):
                    yield group.environment, group.setting, run.seed, run.name, *map(float, row)

    columns = ("environment", "setting", "seed", "run", "env steps", "wall s", "return", "success")
    return Table("evaluations", columns, MadeRows(rows))


def seed_table(findings: Findings) -> Table:
    """Return the score of every seed, for CSV."""
    rows: list[tuple[Cell, ...]] = [
        (group.environment, group.setting, run.seed, run.name, score(run, findings.kind))
        for group in findings.groups
        for run in group.runs
    ]
    return Table("seeds", ("environment", "setting", "seed", "run", "score"), rows)


_SAID = 3  # most searches, decisions or comparisons that the head of a report puts in words


def build_document(findings: Findings, title: str) -> Document:
    """Return the report on runs."""
    curves, points = curve_section(findings)
    comparisons, searches = comparison_section(findings), selection_section(findings.runs)
    stopped = seeds_auto_section(findings.runs)
    sections = (
        score_section(findings), curves, across_section(findings), comparisons, stopped, searches,
        efficiency_section(findings), sensitivity_section(findings),
        config_section(findings), health_section(findings),
    )  # fmt: skip
    kept = [section for section in sections if section is not None]
    data = [points, evaluation_table(findings), seed_table(findings)]
    heads = (section.lead for section in (searches, stopped, comparisons) if section is not None)
    text = [*_lead(findings), *(s for lead in heads if len(lead) <= _SAID for s in lead)]
    return Document(title, text, kept, data)


def _lead(findings: Findings) -> list[str]:
    """Return sentences that count the runs, and those that are left out."""
    settings = {group.setting for group in findings.groups}
    counted = sum(len(group.runs) for group in findings.groups)
    lines = [
        f"{_count(len(findings.runs), 'run')}, {counted} with a score, of "
        f"{_count(len(settings), 'setting')} in "
        f"{_count(len(findings.environments), 'environment')}."
    ]
    several = len(findings.environments) > 1
    missing = {
        f"{group.setting}{f' on {group.environment}' if several else ''} ({why})": None
        for group in findings.groups if (why := uncounted(group))
    }  # fmt: skip
    if named := [*missing]:
        more = f"; and {_count(len(named) - _NAMED, 'other setting')}" if named[_NAMED:] else ""
        lines.append(f"Not counted: {'; '.join(named[:_NAMED])}{more}. See run health.")
    outside = len(findings.runs) - sum(len(group.everything) for group in findings.groups)
    if outside:
        lines.append(f"{_count(outside, 'run')} without a config that can be read: see run health.")
    return lines


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
