"""A finding of a rule."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rlrun.reports.doctor.evidence import Evidence

BROKEN, HARMFUL, NOTE = 3, 2, 1  # severities


@dataclass(frozen=True)
class Finding:
    """A symptom with its numbers, what it usually means, and what to try.

    ``tries``: overrides ``key=value``, or a word on what to do, the likeliest first. ``metrics``:
    where to look.
    """

    severity: int
    symptom: str
    meaning: str
    tries: Sequence[str]
    metrics: Sequence[str] = ()


@dataclass(frozen=True)
class Rule:
    """A symptom that doctor looks for. ``explains``: names of findings that follow from it."""

    name: str
    find: Callable[[Evidence], Finding | None]
    explains: tuple[str, ...] = ()


def steps(count: float) -> str:
    """A number of env steps as text."""
    return f"{count:.0f} env steps"
