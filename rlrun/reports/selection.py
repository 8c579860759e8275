"""The choices of searches, and the bias of the scores by which they chose.

The best of many trials is partly the luckiest, so only its score on fresh seeds is unbiased (Cawley
& Talbot 2010). Both are in the search's result.json.

Also the decisions of sweeps with ``seeds=auto``, for which tests that ignore the stopping rule are
invalid. A sweep that runs, failed or was interrupted may have decided some comparisons, which hold;
nothing is claimed about the others.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlrun.reports.document import Cell, Interval, Section, Table, show_cell, show_number
from rlrun.reports.findings import reasons
from rlrun.reports.runs import SEARCH, SEEDS, RunData, finite, finite_number, printable, read_json

RESULT = "result.json"  # of a search
_SAID = 3  # searches described at the head of a report
_COLUMNS = (
    "search", "trial", "setting", "objective", "selection score", "on seeds", "score",
    "fresh seeds", "failed seeds", "selection bias",
)  # fmt: skip


def selection_section(runs: Sequence[RunData]) -> tuple[Section | None, list[str]]:
    """Return the choices of the searches to which the runs belong, and a sentence on each of a few.

    None if no run belongs to a search.
    """
    searches = list(dict.fromkeys(run.search for run in runs if run.search is not None))
    if not searches:
        return None, []
    found = {search: _read(search) for search in searches}
    results = [result for result in found.values() if result is not None]
    rows = [row for row, _ in results]
    open_ = [
        f"{printable(search.name)}: the search has no {RESULT} that can be read: it runs, failed "
        "or was interrupted; the score of its best trial is too high."
        for search, result in found.items()
        if result is None
    ]
    text = [
        "A search chooses the trial with the highest score, which is partly luck. The score of the "
        "setting is the one on fresh seeds, which no trial has used. Selection bias is the score "
        "it was chosen by minus that one. Both are of the search's objective, not of --score.",
        *reasons([(str(row[0]), why) for row, why in results if why]),
        *open_,
    ]
    said = [*map(_sentence, rows), *open_]
    tables = [Table("selection", _COLUMNS, rows)] if rows else []
    return Section("Search", text, tables), said if len(said) <= _SAID else []


def _sentence(row: tuple[Cell, ...]) -> str:
    name, trial, setting, _, chosen_by, _, score, seeds, _, bias = row
    if not isinstance(bias, float) or math.isnan(bias):
        return f"{name}: trial {trial} was chosen ({setting}); no fresh seed has a score."
    return (
        f"{name}: trial {trial} was chosen ({setting}); {show_cell(score)} on {seeds} fresh seeds. "
        f"It was chosen by {show_cell(chosen_by)}: selection bias {show_number(bias)}."
    )


def _read(search: Path) -> tuple[tuple[Cell, ...], str] | None:
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
_OPEN = "undecided so far"  # status in seeds.json while seeds may follow


def seeds_auto_section(runs: Sequence[RunData]) -> tuple[Section | None, list[str]]:
    """Return the decisions of the sweeps to which the runs belong, and a sentence on each of a few.

    None if no sweep had ``seeds=auto``.
    """
    sweeps = dict.fromkeys(run.auto for run in runs if run.auto is not None)
    by_sweep = {sweep: _rows(sweep) for sweep in sweeps}
    rows = [row for own in by_sweep.values() for row in own]
    if not sweeps:
        return None, []
    open_ = [
        f"{printable(sweep.name)}: seeds=auto has recorded no decision ({SEEDS}): it runs, failed "
        "or was interrupted; nothing is tested."
        for sweep, own in by_sweep.items() if not own
    ]  # fmt: skip
    text = [
        "Seeds were added until each comparison was decided or no seeds were left. Level: the "
        "largest chance that any of these decisions is between settings that are equal in "
        "distribution; it is larger for settings of equal mean of which only one has failing "
        "seeds. Tests that ignore how the sweep stopped would not hold and are left out. Means and "
        "intervals of such seeds lean slightly towards the decision."
    ]
    columns = (
        "environment", "A", "B", "verdict", "decided after", "level", "seeds A", "seeds B",
    )  # fmt: skip
    said = [
        f"{row[3]} ({row[1]} against {row[2]}, seeds=auto, family-wise level {row[5]})."
        for row in rows
    ]
    tables = [Table("sequential", columns, rows)] if rows else []
    said = [*said, *open_]
    return Section("Sequential seeds", text + open_, tables), said if len(said) <= 3 else []


def _rows(sweep: Path) -> list[tuple[Cell, ...]]:
    """Return the comparisons of a seeds.json, none if it is damaged or has no look yet."""

    def read(fields: Any) -> list[tuple[Cell, ...]]:
        names = [printable(name) for name in fields["settings"]]
        tasks = [printable(name) for name in fields["tasks"]]
        counts = [len(scores) for scores in fields["scores"]]
        level = finite(fields["level"])
        if math.isnan(level) or not any(counts):
            return []
        undecided = _OPEN if fields["status"] == _OPEN else "undecided"
        rows: list[tuple[Cell, ...]] = []
        for one in fields["comparisons"][:_MOST]:
            (a, b), better, after = one["settings"], one["better"], one.get("seeds")
            for index in (a, b, *([] if better is None else [better])):
                if type(index) is not int or not 0 <= index < len(names):
                    raise ValueError("no index of a setting")
            verdict = undecided if better is None else f"{names[better]} is better"
            after = after if type(after) is int else None
            rows += [(tasks[a], names[a], names[b], verdict, after, level, counts[a], counts[b])]
        return rows

    return read_json(sweep / SEEDS, read, [])
