"""The whole report: its sections in order, and what it says in one paragraph."""

from collections.abc import Mapping

from rlrun.reports.across import across_section, matrices_of
from rlrun.reports.document import Document
from rlrun.reports.findings import Findings, uncounted
from rlrun.reports.health import config_section, evaluation_table, health_section, seed_table
from rlrun.reports.score_section import design_choice, score_section
from rlrun.reports.seeds_auto import seeds_auto_section
from rlrun.reports.selection import selection_section
from rlrun.reports.summary import curve_section, efficiency_section, sensitivity_section
from rlrun.reports.versus import comparison_section

_NAMED = 5  # settings of which the head of a report says what is not counted


def build_document(
    found: Findings, title: str, references: Mapping[str, tuple[float, float]]
) -> Document:
    """Return the report on runs."""
    curves, points = curve_section(found)
    choice = design_choice(found)
    over_all = choice is not None and choice.statistic == "iqm"
    comparisons, said = comparison_section(
        found, matrices_of(found, references) if over_all else {}
    )
    stopped, decided = seeds_auto_section(found.runs)
    searches, chosen = selection_section(found.runs)
    sections = [
        score_section(found),
        searches,
        stopped,
        comparisons,
        across_section(found, references) if over_all else None,
        curves,
        efficiency_section(found),
        sensitivity_section(found),
        config_section(found),
        health_section(found),
    ]
    kept = [section for section in sections if section is not None]
    return Document(
        title,
        _lead(found) + chosen + decided + said,
        kept,
        [points, evaluation_table(found), seed_table(found)],
    )


def _lead(found: Findings) -> list[str]:
    """Return sentences that count the runs, and those that are left out."""
    settings = {group.setting for group in found.groups}
    counted = sum(len(group.runs) for group in found.groups)
    text = (
        f"{_count(len(found.runs), 'run')}, {counted} with a score, of "
        f"{_count(len(settings), 'setting')} in {_count(len(found.environments), 'environment')}."
    )
    several = len(found.environments) > 1
    missing = [
        f"{group.setting}{f' on {group.environment}' if several else ''} ({uncounted(group)})"
        for group in found.groups
        if uncounted(group)
    ]
    lines = [text]
    if missing:
        named = list(dict.fromkeys(missing))
        more = f"; and {_count(len(named) - _NAMED, 'other setting')}" if named[_NAMED:] else ""
        lines.append(f"Not counted: {'; '.join(named[:_NAMED])}{more}. See run health.")
    outside = len(found.runs) - sum(len(group.everything) for group in found.groups)
    if outside:
        lines.append(f"{_count(outside, 'run')} without a config that can be read: see run health.")
    return lines


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
