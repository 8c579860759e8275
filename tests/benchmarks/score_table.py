"""The score table of TABLES.md, from the JSON lines of finished runs."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.iqm import interval, iqm
from tests.benchmarks.product import RENAMED
from tests.benchmarks.score_row import Row, bound_of

BEGIN, END = "<!-- scores:begin -->\n", "<!-- scores:end -->\n"
Result = dict[str, Any]


def read(path: Path | None) -> list[Result]:
    """The lines of a results file; none when it is not there yet.

    A last line that an interruption cut short is left out.
    """
    if path is None or not path.exists():
        return []
    *lines, rest = path.read_text("utf-8").split("\n")
    assert not rest or rest[0] == "{", f"{path} holds something else"
    return [json.loads(_with_present_keys(line)) for line in lines if line]


def _with_present_keys(line: str) -> str:
    """A result whose command has the present names of keys that were renamed since."""
    for old, new in RENAMED.items():
        line = line.replace(f" {old}=", f" {new}=")
    return line


def done(results: Sequence[Result], name: str, row: Row) -> dict[int, Result]:
    """seed -> the last finished run of the row's present command."""
    mine = [r for r in results if r["row"] == name and r.get("command") == row.command]
    return {r["seed"]: r for r in mine if r["status"] == "done"}


def markdown(rows: Mapping[str, Row], results: Sequence[Result]) -> str:
    """One line for every row, those that were not run with the reason; then what they ran on."""
    head = ("command", "wanted", "IQM (95 %)", "met", "scores", "env steps", "wall s")
    lines = [_line(head), _line(["---"] * len(head))]
    lines += [_line(_cells(name, row, rows, results)) for name, row in rows.items()]
    used = [r for name, row in rows.items() for r in done(results, name, row).values()]
    if used:
        commits = ", ".join(sorted({r["commit"] for r in used}))
        machines = "; ".join(sorted({r["machine"] for r in used}))
        own = ", ".join(sorted({f"{r['row']} seed {r['seed']}" for r in used if r.get("alone")}))
        threads = f" (as many as their config says: {own})" if own else ""
        lines += ["", f"Commits: {commits}. Machine: {machines}, one thread a run{threads}."]
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |"


def _cells(name: str, row: Row, rows: Mapping[str, Row], results: Sequence[Result]) -> list[str]:
    runs = [r for _, r in sorted(done(results, name, row).items())]
    start = [f"`{row.command}`", row.threshold]
    if not runs:
        return [*start, why_not(name, row, results), "", "", "", ""]
    scores = [r["score"] for r in runs]
    low, high = interval([scores])
    number = _format(scores)
    steps = sorted(r["env_steps"] for r in runs)
    span = " to ".join(dict.fromkeys(_thousands(s) for s in (steps[0], steps[-1])))
    wall = sorted(r["wall_seconds"] for r in runs)
    return [
        *start,
        f"{number(iqm(np.array(scores)))} ({number(low)} to {number(high)})",
        _met(row, runs, rows, results),
        " ".join(map(number, scores)),
        span,
        f"{wall[0]:.0f} to {wall[-1]:.0f}",
    ]


def _thousands(steps: int) -> str:
    return f"{steps / 1000:.0f}k" if steps >= 1000 else str(steps)


def _format(scores: Sequence[float]) -> Any:
    digits = 3 if max(map(abs, scores)) <= 2 else 1 if max(map(abs, scores)) < 100 else 0
    return lambda x: f"{x:.{digits}f}"


def _met(row: Row, runs: Sequence[Result], rows: Mapping[str, Row], results: list[Result]) -> str:
    bound = bound_of(row.threshold)
    if bound is None:
        return ""

    def score_of(other: str) -> float | None:
        if other == "behaviour":
            found = [r["behaviour"] for r in runs if "behaviour" in r]
        elif other not in rows:  # a table of some rows
            return None
        else:
            found = [r["score"] for r in done(results, other, rows[other]).values()]
        return float(iqm(np.array(found))) if found else None

    verdict = bound.met(float(iqm(np.array([r["score"] for r in runs]))), score_of)
    word = {True: "yes", False: "**no**", None: f"no {bound.other} yet"}[verdict]
    return word if len(runs) >= row.seeds else f"{word}, {len(runs)} of {row.seeds} seeds"


def why_not(name: str, row: Row, results: Sequence[Result]) -> str:
    """Why a row has no score: skipped, failed, or not run yet."""
    said = [r for r in results if r["row"] == name and r.get("command") == row.command]
    return f"{said[-1]['status']}: {said[-1]['why']}" if said else "not run yet"


def insert(text: str, table: str) -> str:
    """``text`` with the table between its markers."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin and end, "the markers of the score table are gone"  # noqa: PT018
    return f"{before}{BEGIN}{table}{END}{after}"
