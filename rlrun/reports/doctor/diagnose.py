"""All rules, applied to a run, and the findings as text."""

from collections.abc import Iterator
from dataclasses import replace
from textwrap import fill

import numpy as np

from rlrun.reports.doctor import behaviour, learning
from rlrun.reports.doctor.evidence import METRICS_READ, Evidence, Finding, Rule
from rlrun.reports.runs import RunData, printable

RULES: tuple[Rule, ...] = (*learning.RULES, *behaviour.RULES)
_WIDTH = 100
_FEW = 3  # records; below nothing can be said of learning
_EVENTS = {"collect/restarts", "eval/cut_episodes"}  # recorded only where they happen


def diagnose(run: RunData) -> dict[str, Finding]:
    """Return the findings by the name of their rule, the most severe first.

    A finding that another one explains is left out.
    """
    evidence = Evidence(run)
    with np.errstate(all="ignore"):  # a stranger's numbers may be of any size
        each = {rule.name: rule.find(evidence) for rule in RULES}
    found = {name: finding for name, finding in each.items() if finding is not None}
    explained = {name for rule in RULES if rule.name in found for name in rule.explains}
    kept = {name: _recorded(f, evidence) for name, f in found.items() if name not in explained}
    return dict(sorted(kept.items(), key=lambda item: -item[1].severity))


def _recorded(finding: Finding, evidence: Evidence) -> Finding:
    """The finding without the metrics that this run does not record."""
    columns = evidence.records.columns
    seen = [name for name in finding.metrics if name not in METRICS_READ or len(columns[name][0])]
    return replace(finding, metrics=seen)


def report_lines(run: RunData) -> Iterator[str]:
    """Yield what ``rlrun doctor`` prints of a run."""
    found, evidence = diagnose(run), Evidence(run)
    unchecked = _unchecked(evidence)
    records = max((len(x) for x, _ in evidence.records.columns.values()), default=0)
    what = f"{records} record{'' if records == 1 else 's'} up to {evidence.env_steps:.0f} env steps"
    if not found:
        early = records < _FEW and evidence.learns and not evidence.solved
        text = f"too early to say; {what}" if early else (
            f"nothing looks wrong; {len(RULES) - unchecked} of {len(RULES)} rules had something to "
            f"look at in {what} (rlrun help health)"
        )  # fmt: skip
        yield f"{run.name}: {text}"
        return
    count = f"{len(found)} finding{'s' if len(found) > 1 else ''}"
    yield f"{run.name}: {count}; {what}, status {run.status}"
    for number, finding in enumerate(found.values(), 1):
        yield _wrapped(f"{number}. ", finding.symptom)
        yield _wrapped("   why:  ", finding.meaning)
        if finding.tries:
            yield _wrapped("   try:  ", ", or ".join(finding.tries))
        if finding.metrics:
            yield _wrapped("   look: ", ", ".join(finding.metrics))


def _unchecked(evidence: Evidence) -> int:
    """Return how many rules found none of the metrics that they looked at."""
    count = 0
    with np.errstate(all="ignore"):
        for rule in RULES:
            evidence.looked_at.clear()
            rule.find(evidence)
            seen = [len(evidence.records.columns[name][0]) for name in evidence.looked_at - _EVENTS]
            count += bool(seen) and not any(seen)
    return count


def _wrapped(head: str, text: str) -> str:
    return fill(
        printable(text), _WIDTH, initial_indent=head, subsequent_indent=" " * len(head),
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
