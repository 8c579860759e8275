"""What a search has chosen, and by how much the score it was chosen by flatters the setting.

The best of many trials is partly the luckiest: only its score on fresh seeds is an honest one
(Cawley & Talbot 2010). Both are in the result.json of the search.

And what sweeps with ``seeds=auto`` have decided; tests that ignore how they stopped do not hold. A
sweep that runs, failed or was interrupted may have decided some comparisons, which hold; of the
others nothing is said.
"""

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rlrun.reports.document import Cell, Interval, Section, Table, show_cell, show_number
from rlrun.reports.findings import reasons
from rlrun.reports.runs import SEARCH, SEEDS, RunData, finite, finite_number, printable
from rlrun.run.files import read_file

RESULT = "result.json"  # of a search
_SAID = 3  # searches that the head of a report puts in words
_COLUMNS = (
    "search", "trial", "setting", "objective", "selection score", "on seeds", "score",
    "fresh seeds", "failed seeds", "selection bias",
)  # fmt: skip


def selection_section(runs: Sequence[RunData]) -> tuple[Section | None, list[str]]:
    """Return the choices of the searches that the runs are of, and a sentence on each of a few.

    None where no run is of a search.
    """
    searches = list(dict.fromkeys(run.search for run in runs if run.search is not None))
    if not searches:
        return None, []
    found = {search: list(_read(search)) for search in searches}
    rows = [row for own in found.values() for row, _ in own]
    open_ = [
        f"{printable(search.name)}: the search has no {RESULT} that can be read: it runs, failed "
        "or was interrupted; the scores of its trials flatter the best of them."
        for search, own in found.items()
        if not own
    ]
    text = [
        "A search chooses the trial with the highest score, which is partly luck. The score of the "
        "setting is the one on fresh seeds, which no trial has used. Selection bias is the score "
        "it was chosen by minus that one. Both are of the search's objective, not of --score.",
        *reasons([(str(row[0]), why) for own in found.values() for row, why in own if why]),
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


def _read(search: Path) -> Iterator[tuple[tuple[Cell, ...], str]]:
    """The row of a search and the reason for its interval; none of a result that is damaged."""
    try:
        fields = json.loads(read_file(search / RESULT))
        seeds, failed, chosen = (
            len(_list(fields[key])) for key in ("seeds", "failed_seeds", "selection_scores")
        )
        setting = printable(" ".join(printable(word) for word in _list(fields["overrides"])))
        trial, selection = fields["trial"], finite_number(fields["selection_score"])
        if type(trial) is not int or selection is None:
            return
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return
    score = Interval(*(finite(fields.get(key)) for key in ("score", "low", "high")))
    why = fields.get("why")
    yield (
        printable(search.name), trial, setting, _objective(search), selection, chosen, score, seeds,
        failed or None, selection - score.value,
    ), printable(why) if isinstance(why, str) else ""  # fmt: skip


def _list(value: Any) -> list[Any]:
    """Raises: TypeError for anything else."""
    if not isinstance(value, list):
        raise TypeError("no list")
    return value


def _objective(search: Path) -> str:
    """The score that the search maximised; "" where search.json does not say."""
    try:
        return printable(json.loads(read_file(search / SEARCH))["settings"]["objective"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""


_MOST = 1000  # comparisons that are read
_OPEN = "undecided so far"  # status in seeds.json while seeds may follow


def seeds_auto_section(runs: Sequence[RunData]) -> tuple[Section | None, list[str]]:
    """Return the decisions of the sweeps that the runs are of, and a sentence on each of a few.

    None where no sweep had ``seeds=auto``.
    """
    sweeps = dict.fromkeys(run.auto for run in runs if run.auto is not None)
    by_sweep = {sweep: list(_rows(sweep)) for sweep in sweeps}
    rows = [row for own in by_sweep.values() for row in own]
    if not sweeps:
        return None, []
    open_ = [
        f"{printable(sweep.name)}: seeds=auto has recorded no decision ({SEEDS}): it runs, failed "
        "or was interrupted; nothing is tested."
        for sweep, own in by_sweep.items() if not own
    ]  # fmt: skip
    text = [
        "Seeds were added until each comparison was decided or the seeds were spent. Level: the "
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


def _rows(sweep: Path) -> Iterator[tuple[Cell, ...]]:
    """The comparisons of a seeds.json; none of one that is damaged or has no look behind it."""
    try:
        fields = json.loads(read_file(sweep / SEEDS))
        names = [printable(name) for name in fields["settings"]]
        tasks = [printable(name) for name in fields["tasks"]]
        counts = [len(scores) for scores in fields["scores"]]
        level = finite(fields["level"])
        found = [_comparison(one, len(names)) for one in fields["comparisons"][:_MOST]]
        shown = [(tasks[a], a, b, better, after, counts[a], counts[b])
                 for a, b, better, after in found]  # fmt: skip
        going_on = fields["status"] == _OPEN
    except (OSError, ValueError, KeyError, TypeError, IndexError, RecursionError):
        return
    if math.isnan(level) or not any(counts):
        return
    for task, a, b, better, after, seeds_a, seeds_b in shown:
        undecided = _OPEN if going_on else "undecided"
        verdict = undecided if better is None else f"{names[better]} is better"
        yield (task, names[a], names[b], verdict, after, level, seeds_a, seeds_b)


def _comparison(fields: Any, settings: int) -> tuple[int, int, int | None, int | None]:
    """Both settings, the better one, and the seeds after which that was decided.

    Raises: ValueError, KeyError, TypeError for what no sweep writes.
    """
    a, b = fields["settings"]
    better, after = fields["better"], fields.get("seeds")
    for index in (a, b, *([] if better is None else [better])):
        if type(index) is not int or not 0 <= index < settings:
            raise ValueError("no index of a setting")
    return a, b, better, after if type(after) is int else None
