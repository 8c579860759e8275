"""Run health, config differences, and the tables of all runs and evaluations."""

import math
from collections import Counter

from rlrun.reports.document import Section
from rlrun.reports.findings import Findings, interval_of
from rlrun.reports.groups import Group, differences
from rlrun.reports.intervals import success_interval
from rlrun.reports.runs import RunData
from rlrun.reports.score import score
from rlrun.reports.tables import Cell, Table

_NAN = math.nan
_NAMED = 5  # damaged runs that are named


def config_section(found: Findings) -> Section | None:
    """The keys in which the settings differ; None for a single one."""
    settings = {group.setting: group.keys for group in found.groups}
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


_COLUMNS: tuple[str, ...] = (
    "run", "setting", "seed", "status", "exit code", "env steps", "wall s", "steps/s",
    "NaN rollbacks", "worker restarts", "resumes", "exact", "backend", "success", "note",
)  # fmt: skip


def health_section(found: Findings) -> Section:
    """How every run ended, whether it can be trusted, and what it took."""
    settings = {id(run): group for group in found.groups for run in group.everything}
    rows = [_health(run, settings.get(id(run))) for run in found.runs]
    states = Counter(run.status for run in found.runs)
    counts = ", ".join(f"{n} {status}" for status, n in states.items())
    text = [f"{len(found.runs)} runs: {counts}. Only runs that are done have a score."]
    at, columns = _COLUMNS.index("success"), _COLUMNS
    if any(row[at] is not None for row in rows):
        text.append(
            "Success: share of the last evaluation's episodes, with the exact binomial interval. "
            "It is that of one trained policy; episodes of several seeds are not independent."
        )
    else:
        rows = [(*row[:at], *row[at + 1 :]) for row in rows]
        columns = (*columns[:at], *columns[at + 1 :])
    damaged = [run for run in found.runs if run.damage]
    if damaged:
        text.append(
            f"{_names(damaged)}: metrics.jsonl is damaged. Evaluations up to the damage are drawn; "
            "means of curves, sample efficiency and the scores auc and best_of_last leave them "
            "out."
        )
    return Section("Run health", text + _mixtures(found), [Table("runs", columns, rows)])


def _names(runs: list[RunData]) -> str:
    names = ", ".join(run.name for run in runs[:_NAMED])
    return names + (f" and {len(runs) - _NAMED} more runs" if runs[_NAMED:] else "")


def _health(run: RunData, group: Group | None) -> tuple[Cell, ...]:
    steps, wall = run.progress
    exact, resumes = run.record.get("exact"), run.record.get("resumes")
    note = run.problem or ("" if run.status == "done" else run.failure) or run.text("exact_reason")
    if group is not None and any(run is other for other in group.repeats):
        note = "not counted: this seed was run again later"
    if group is not None and any(run is other for other in group.failed_again):
        note = f"an earlier run of this seed counts; {note}".rstrip("; ")
    note = "; ".join(filter(None, [note, run.damage, run.damaged_times]))
    success = None
    if run.successes is not None:
        success = interval_of(success_interval(*run.successes))
    return (
        run.name, group.setting if group else "", run.seed, run.status, run.exit_code, steps,
        wall, steps / wall if wall > 0 else _NAN, run.number("rollbacks"), run.restarts,
        len(resumes) if isinstance(resumes, list) else None,
        exact if isinstance(exact, bool) else None, run.text("backend"), success, note,
    )  # fmt: skip


def _mixtures(found: Findings) -> list[str]:
    """Warnings on what differs between runs besides the config."""
    out = []
    for name, of in (
        ("devices", "device"),
        ("versions", "versions"),
        ("machines", "host"),
        ("commits", "git"),
    ):
        values = {str(run.record.get(of)) for run in found.runs if run.record}
        if len(values) > 1:
            out.append(
                f"Runs of {len(values)} different {name} are in this report (run.json, {of})."
            )
    return out


def evaluation_table(found: Findings) -> Table:
    """Every evaluation of every run, for CSV."""
    rows: list[tuple[Cell, ...]] = []
    for group in found.groups:
        for run in group.everything:
            e = run.evaluations
            cells = zip(e.env_steps, e.wall_seconds, e.return_mean, e.success, strict=True)
            rows += [(group.environment, group.setting, run.seed, run.name, *map(float, own))
                     for own in cells]  # fmt: skip
    columns = ("environment", "setting", "seed", "run", "env steps", "wall s", "return", "success")
    return Table("evaluations", columns, rows)


def seed_table(found: Findings) -> Table:
    """The score of every seed, for CSV."""
    rows: list[tuple[Cell, ...]] = [
        (group.environment, group.setting, run.seed, run.name, score(run, found.kind))
        for group in found.groups
        for run in group.runs
    ]
    return Table("seeds", ("environment", "setting", "seed", "run", "score"), rows)
