"""Overrides of a command line or of a Python call."""

from collections.abc import Iterable, Sequence
from typing import Any

_HYDRA = ("hydra.", "hydra/", "hydra@", "hydra=", "hydra:")


class Override(str):
    """An override as it was typed, ``KEY=VALUE``: a text wherever a text is asked for.

    ``key``: without the +, ++ or ~ that ``name`` begins with. ``value``: the text after the equals
    sign. ``parsed``: Hydra's object of that name, once ``Composer.parse`` has read the text.
    """

    name: str
    key: str
    value: str
    parsed: Any = None

    def __new__(cls, text: str) -> "Override":
        override = super().__new__(cls, text)
        override.name, _, override.value = text.partition("=")
        override.key = override.name.lstrip("+~")
        return override

    @property
    def is_hydra(self) -> bool:
        """True for a key of the ``hydra`` node or one of its groups."""
        return self.lstrip("+~").startswith(_HYDRA)

    def is_below(self, *nodes: str) -> bool:
        """True for the keys ``nodes`` and for keys below one of them."""
        return f"{self.key}.".startswith(tuple(f"{node}." for node in nodes))

    def __reduce__(self) -> tuple[Any, ...]:  # ``parsed`` holds Hydra's loader
        return Override, (str(self),)


def read_overrides(texts: Iterable[str]) -> list[Override]:
    """The overrides of these texts; those that are overrides already stay as they are."""
    return [text if isinstance(text, Override) else Override(text) for text in texts]


def split_node(overrides: Sequence[Override], node: str) -> tuple[list[Override], list[Override]]:
    """(overrides of ``node`` and of keys below it, the others)."""
    of_node = [override for override in overrides if override.is_below(node)]
    return of_node, [override for override in overrides if not override.is_below(node)]


def keys_of(overrides: Iterable[Override]) -> set[str]:
    return {override.key for override in overrides}
