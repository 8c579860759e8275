"""A run as a trial: its settings, and a short name made of them."""

import hashlib
import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TypeAlias

Value: TypeAlias = bool | int | float | str

NAMED = ("policy", "env", "seed")  # the settings that every name begins with
_LONGEST = 64  # characters of a name
_OTHERS = r"[^\w.+=-]+"  # characters that no file name should have


@dataclass(frozen=True, slots=True)
class TrialRow:
    """A row of the HPARAMS tab: name, settings, and those in which the trials differ.

    ``settings`` has ``policy``, ``env``, ``seed`` and keys that were typed; it may lack some of
    those in ``differing``, which other trials have.
    """

    name: str
    settings: Mapping[str, Value]
    differing: frozenset[str]


def trial_name(settings: Mapping[str, Value], shown: Collection[str]) -> str:
    """Return ``r2d2-cartpole-s0-lr1e-3``: policy, environment, seed and the settings ``shown``.

    A name that would be long ends with a hash of its settings instead.
    """
    others = [key for key in settings if key in shown and key not in NAMED]
    often = Counter(key.rpartition(".")[2] for key in others)
    parts = [str(settings["policy"]), str(settings["env"]), f"s{settings['seed']}"]
    for key in others:
        last = key.rpartition(".")[2]
        parts.append(_part(last if often[last] == 1 else key, settings[key]))
    name = "-".join(re.sub(_OTHERS, "_", part, flags=re.ASCII).strip("_") for part in parts if part)
    name = re.sub(r"-{2,}", "-", name)
    if len(name) <= _LONGEST:
        return name
    whole = repr([(key, settings[key]) for key in others]).encode()
    return f"{name[: _LONGEST - 7]}-{hashlib.sha256(whole).hexdigest()[:6]}"


def _part(name: str, value: Value) -> str:
    """``lr1e-3`` of a number, ``gru`` of a group's option, ``double=true`` of the rest."""
    if isinstance(value, bool):
        return f"{name}={str(value).lower()}"
    if isinstance(value, int | float):
        return f"{name}{short_number(value)}"
    return value if name in _GROUPS else f"{name}={value}"


_GROUPS = (
    "agents", "bonus", "buffer", "collector", "experiment", "explore", "learner", "memory",
    "pipeline", "torso", "transport",
)  # fmt: skip


def short_number(value: float) -> str:
    """Return ``1e-3`` for 0.001, ``20000`` for 20000, with four digits at most."""
    if isinstance(value, int):
        return str(value)
    if value == 0 or 0.01 <= abs(value) < 1e5:
        return f"{value:.4g}"
    digits, _, exponent = f"{value:.3e}".partition("e")
    return f"{digits.rstrip('0').rstrip('.')}e{int(exponent)}"
