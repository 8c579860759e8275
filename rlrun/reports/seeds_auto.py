"""What sweeps with ``seeds=auto`` have decided; tests that ignore how they stopped do not hold.

A sweep that runs, failed or was interrupted may have decided some comparisons, which hold; of the
others nothing is said.
"""

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rlrun.reports.document import Section
from rlrun.reports.inputs import SEEDS
from rlrun.reports.runs import RunData, finite, printable
from rlrun.reports.tables import Cell, Table
from rlrun.run.files import read_file

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
