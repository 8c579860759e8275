"""Settings of ``rlrun bench memory`` and ``rlrun probe``, no part of the config of a run."""

from dataclasses import dataclass, field
from typing import Any

from rlrun.schema.ranges import Ranged, at_least, positive, require


@dataclass(frozen=True)
class BenchTaskConfig(Ranged):
    """One task of the benchmark: ``overrides`` choose it; ``published``: setting -> score."""

    overrides: tuple[str, ...]
    steps: int = field(metadata=positive())
    random: float
    published: dict[str, Any]


@dataclass(frozen=True)
class BenchConfig(Ranged):
    dir: str | None
    algorithms: tuple[str, ...]
    cells: tuple[str, ...]
    tasks: tuple[str, ...]
    seeds: int = field(metadata=at_least(1))
    steps: int | None = field(metadata=positive())
    evaluations: int = field(metadata=at_least(1))
    quick: tuple[str, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("algorithms", "cells", "tasks"):
            values = getattr(self, key)
            require(bool(values), key, "[]", "nothing is measured; one or more is allowed; add one")
            text = "holds one more than once; each once is allowed; leave it out"
            require(len({*values}) == len(values), key, list(values), text)


@dataclass(frozen=True)
class ProbeConfig(Ranged):
    dir: str | None
    seeds: int = field(metadata=at_least(5))
    budget: int | None = field(metadata=positive())
    stack: int = field(metadata=at_least(2))
    episodes: int = field(metadata=positive())
    discrete: tuple[str, ...]
    discrete_memory: tuple[str, ...]
    real: tuple[str, ...]
    real_memory: tuple[str, ...]
