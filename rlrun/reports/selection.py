"""What a search has chosen, and by how much the score it was chosen by flatters the setting.

The best of many trials is partly the luckiest: only its score on fresh seeds is an honest one
(Cawley & Talbot 2010). Both are in the result.json of the search.
"""

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rlrun.reports.document import Section
from rlrun.reports.findings import reasons
from rlrun.reports.records import finite_number
from rlrun.reports.runs import SEARCH, RunData, finite, printable
from rlrun.reports.tables import Cell, Interval, Table, show_cell, show_number
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
