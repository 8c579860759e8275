"""``rlrun report`` and ``rlrun compare``: results of finished runs. Does not import torch."""

import math
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from rlrun.reports import figures
from rlrun.reports.document import (
    PAGE,
    Document,
    check_out,
    default_out,
    mark_of,
    terminal_lines,
    write_report,
)
from rlrun.reports.findings import Findings, check_references, parse_references
from rlrun.reports.groups import Axis
from rlrun.reports.runs import parse_score, printable, read_runs
from rlrun.reports.sections import build_document
from rlrun.reports.versus import compare_lines
from rlrun.terminal import paragraph


def report(args: Namespace) -> int:
    """Print a table of runs and write the report on them."""
    out = default_out(args.dirs) if args.out is None else args.out
    document, drawn = make_report(
        args.dirs, score=args.score, threshold=args.threshold, references=args.reference,
        baseline=args.baseline, axes=(args.x,) if args.x else ("env_steps", "wall"), out=out,
    )  # fmt: skip
    lines = [*map(paragraph, document.text), *terminal_lines(document.sections[0].tables[0])]
    lines += [] if drawn else ["no figures: matplotlib is missing; pip install 'rlrun[report]'"]
    print("\n".join([*lines, f"report: {out / PAGE}"]))
    return 0


def make_report(
    dirs: Sequence[str],
    *,
    score: str,
    threshold: float | None,
    references: Sequence[str],
    baseline: str | None,
    axes: tuple[Axis, ...],
    out: Path | None,
) -> tuple[Document, bool]:
    """Return the report on runs, and whether it has figures. ``out``: where it is written.

    The arguments are those of the command line, checked except ``threshold``, a finite number.

    Raises: ConfigError, StorageError.
    """
    parse_score(score)
    known = parse_references(references)
    if out is not None:
        check_out(out, mark_of(dirs, out))
    draw = out is not None and figures.available()
    goal = math.nan if threshold is None else threshold
    findings = Findings(read_runs(dirs), score, goal, axes, draw, baseline, known)
    check_references(findings)
    title = f"Report on {', '.join(map(printable, dirs[:3]))}"
    title += f" and {len(dirs) - 3} more" if dirs[3:] else ""
    document = build_document(findings, title)
    if out is not None:
        write_report(document, out, mark_of(dirs, out))
    return document, draw


def compare(args: Namespace) -> int:
    """Print the config diff, the scores and the verdict on two sides."""
    for line in list(compare_lines(args.a, args.b, args.score)):  # an error comes alone
        print(paragraph(line))
    return 0
