"""Settings of searches, sweeps on Ray, ``rlrun bench memory`` and ``rlrun probe``.

They are not part of a run's config.
"""

import re
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from rlrun.schema.ranges import Range, Ranged, Rule, at_least, each, positive
from rlrun.schema.run import RoleConfig


@dataclass(frozen=True)
class BenchTaskConfig(Ranged):
    """One task of the benchmark. ``overrides`` choose it; ``published``: setting -> score."""

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

    rules: ClassVar[tuple[Rule, ...]] = (
        *each(("algorithms", "cells", "tasks"), lambda key: Rule(
            key, lambda c: not getattr(c, key), "nothing is measured",
            "one or more is allowed", "add one")),
        *each(("algorithms", "cells", "tasks"), lambda key: Rule(
            key, lambda c: len({*getattr(c, key)}) < len(getattr(c, key)),
            "holds one more than once", "each once is allowed", "leave it out")),
    )  # fmt: skip


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


MOST_WORKERS = 1024  # runs at a time: processes


_OBJECTIVE = Rule(
    "objective", lambda c: not re.fullmatch(r"final|auc|best_of_last:[1-9]\d{0,8}", c.objective),
    "is not a score", "final, auc or best_of_last:K (K >= 1 evaluations) is allowed", "choose one",
)  # fmt: skip


@dataclass(frozen=True)
class SearchConfig(Ranged):
    dir: str | None
    trials: int = field(metadata={"range": Range(1, 10**6)})
    seeds: int = field(metadata={"range": Range(1, 10**4)})
    final_seeds: int = field(metadata={"range": Range(1, 10**4)})
    workers: int = field(metadata={"range": Range(1, MOST_WORKERS)})
    sampler: Literal["tpe", "random"]
    objective: str
    prune: Literal["asha", "none"]
    reduction: int = field(metadata={"range": Range(2, 10**3)})
    rungs: int = field(metadata={"range": Range(1, 20)})
    seed: int = field(metadata={"range": Range(0, 2**32, open_high=True)})

    rules: ClassVar[tuple[Rule, ...]] = (_OBJECTIVE,)


@dataclass(frozen=True)
class SeedsConfig(Ranged):
    max: int = field(metadata={"range": Range(2, 10**4)})
    group: int = field(metadata={"range": Range(2, 10**4)})
    level: float = field(metadata={"range": Range(0, 1, open_low=True, open_high=True)})
    objective: str

    rules: ClassVar[tuple[Rule, ...]] = (
        _OBJECTIVE,
        Rule("group", lambda c: c.group > c.max, "is more than seeds.max = {max}",
             fix="lower it or raise seeds.max"),
    )  # fmt: skip


@dataclass(frozen=True)
class RayLauncherConfig(RoleConfig):
    """Keys of ``hydra/launcher=ray``: where jobs run, and the resources that each reserves."""

    num_cpus: float = field(metadata=positive())
    address: str | None
    retries: int = field(metadata=at_least(0))

    @property
    def threads(self) -> int:
        """Return the number of cores that a job may use."""
        return max(1, int(self.num_cpus))

    @property
    def reserved(self) -> dict[str, float]:
        """Return the resources that a job reserves, by Ray's names."""
        return {"CPU": self.num_cpus, "GPU": self.num_gpus, **self.resources}


# Nodes of commands that start many runs, each with its own yaml next to config.yaml.
COMMAND_CONFIGS: dict[str, type[Ranged]] = {
    "search": SearchConfig, "seeds": SeedsConfig, "bench": BenchConfig, "probe": ProbeConfig,
}  # fmt: skip
