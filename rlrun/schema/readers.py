"""Conditions under which a key is read, as metadata of its dataclass field.

``atoms: int = field(metadata=read_when("policy.distribution=categorical|quantile"))``
``total_steps: int = field(metadata=default_of("run.total_steps"))``
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

NOUNS = {  # properties of a policy that are no keys
    "policy.recurrent": "a policy that has a memory",
    "policy.updates": "a policy that learns",
}


def join_words(words: Sequence[str], last: str) -> str:
    """a, b and c."""
    most = ", ".join(words[:-1])
    return f"{most} {last} {words[-1]}" if most else words[-1]


@dataclass(frozen=True)
class Condition:
    """``key`` has one of ``values``; without values, it is neither null nor false."""

    key: str  # a group stands for the option that was chosen: memory, not memory.name
    values: tuple[str, ...]

    def __str__(self) -> str:
        if not self.values:
            return NOUNS.get(self.key, self.key)
        return f"{self.key}={join_words(self.values, 'or')}"


@dataclass(frozen=True)
class Reader:
    """A key is read when all conditions of one of ``any_of`` hold."""

    any_of: tuple[tuple[Condition, ...], ...]
    fix: str | None  # what to do where they do not; None: set the key of the condition

    def __str__(self) -> str:
        return " or ".join(" with ".join(map(str, every)) for every in self.any_of)


def read_when(*any_of: str, fix: str | None = None) -> dict[str, Any]:
    """Metadata of a key that is read only under some values of others.

    Each of ``any_of`` is ``KEY=VALUE|VALUE`` or ``KEY`` (set at all), or several with `` & ``.
    """
    parsed = tuple(tuple(map(_condition, text.split(" & "))) for text in any_of)
    return {"read_when": Reader(parsed, fix)}


def _condition(text: str) -> Condition:
    key, _, values = text.partition("=")
    return Condition(key, tuple(values.split("|")) if values else ())


WITH_MEMORY = read_when("memory=lstm|gru|mingru|lru|ffm|rtu|lmu|gtrxl & policy.recurrent")


def default_of(key: str) -> dict[str, Any]:
    """Metadata of a key that gives ``key`` its default, and is read by nothing else."""
    return {"default_of": key}
