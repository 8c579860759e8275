"""A run as a trial: its settings, and a short name made of them."""

import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

Value: TypeAlias = bool | int | float | str

# Keys that choose where to run and how to record, not what is computed.
IGNORED = (
    "seed", "device", "run.dir", "run.max_time", "run.keep_checkpoints", "run.checkpoint_every",
    "env.note", "env.needs_memory", "env.not_learned_by",
)  # fmt: skip
IGNORED_GROUPS = ("logger.", "checkpoint.", "sweep.", "resume.")
NAMED = ("policy", "env", "seed")  # the first settings of a name
_LONGEST = 64  # characters of a name
_LONGEST_PART = 24
_OTHERS = r"[^\w.+=-]+"  # characters that no file name should have


@dataclass(frozen=True, slots=True)
class TrialRow:
    """A row of the HPARAMS tab: name, settings, and the keys in which trials differ.

    ``settings`` has ``policy``, ``env``, ``seed`` and typed keys. It may lack keys of ``differing``
    that only other trials have. ``kinds``: bool, int, float or str of a column, if that differs
    from the kind of the trial's own value.
    """

    name: str
    settings: Mapping[str, Value]
    differing: frozenset[str]
    kinds: Mapping[str, type] = field(default_factory=dict)


def column_kinds(trials: Sequence[Mapping[str, Value]]) -> dict[str, type]:
    """Return bool, int, float or str of every setting: a kind that fits all ``trials`` with it."""
    types: dict[str, set[type]] = {}
    for settings in trials:
        for key, value in settings.items():
            types.setdefault(key, set()).add(type(value))
    kinds = {key: kind.pop() for key, kind in types.items() if len(kind) == 1}
    return {key: float if kind <= {int, float} else str for key, kind in types.items()} | kinds


def trial_name(
    settings: Mapping[str, Value], shown: Collection[str], begin: Collection[str] = NAMED
) -> str:
    """Return ``r2d2-cartpole-s0-lr1e-3``: policy, environment, seed and the settings ``shown``.

    ``begin``: which of the first three to name; all if the name would be empty otherwise. Settings
    that do not fit are counted at the end (``+2``).
    """
    others = [key for key in settings if key in shown and key not in NAMED]
    often = Counter(key.rpartition(".")[2] for key in others)
    named = [key for key in NAMED if key in begin or not (begin or others)]
    parts = [f"s{settings[key]}" if key == "seed" else str(settings[key]) for key in named]
    for key in others:
        last = key.rpartition(".")[2]
        parts.append(_part(last if often[last] == 1 else key, settings[key]))
    parts = [file_name(part) for part in parts if part]
    kept = [part[:_LONGEST_PART] for part in parts if part]
    while len("-".join(kept)) > _LONGEST - 3:
        kept.pop()
    left = len(parts) - len(kept)
    return re.sub(r"-{2,}", "-", "-".join(kept)) + (f"+{left}" if left else "")


def file_name(text: str) -> str:
    """Return ``text`` with ``_`` for characters that file names should not have."""
    return re.sub(_OTHERS, "_", text, flags=re.ASCII).strip("_")[:_LONGEST]


def _part(name: str, value: Value) -> str:
    """Return ``lr1e-3`` for a number, ``gru`` for a group's option, else ``double=true``."""
    if isinstance(value, bool):
        return f"{name}={str(value).lower()}"
    if isinstance(value, int | float) and abs(value) < math.inf:
        return f"{name}{short_number(value)}"
    return str(value) if name in _GROUPS else f"{name}={value}"


_GROUPS = (
    "agents", "bonus", "buffer", "collector", "experiment", "explore", "learner", "memory",
    "pipeline", "torso", "transport",
)  # fmt: skip


def short_number(value: float) -> str:
    """Return ``1e-3`` for 0.001 and ``20000`` for 20000, with at most four digits."""
    if isinstance(value, int) or not math.isfinite(value):
        return str(value)
    if value == 0 or 0.01 <= abs(value) < 1e5:
        return f"{value:.4g}"
    digits, _, exponent = f"{value:.3e}".partition("e")
    return f"{digits.rstrip('0').rstrip('.')}e{int(exponent)}"
