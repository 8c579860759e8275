"""Settings of ``rlrun search`` and of ``seeds=auto``, which are no part of the config of a run."""

import re
from dataclasses import dataclass, field
from typing import Literal

from rlrun.schema.ranges import Range, Ranged, require

MOST_WORKERS = 1024  # runs at a time: processes


def _check_objective(text: str) -> None:
    allowed = "final, auc or best_of_last:K (K >= 1 evaluations) is allowed"
    require(re.fullmatch(r"final|auc|best_of_last:[1-9]\d{0,8}", text) is not None, "objective",
            text, f"is no score; {allowed}; choose one")  # fmt: skip


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

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_objective(self.objective)


@dataclass(frozen=True)
class SeedsConfig(Ranged):
    max: int = field(metadata={"range": Range(2, 10**4)})
    group: int = field(metadata={"range": Range(2, 10**4)})
    level: float = field(metadata={"range": Range(0, 1, open_low=True, open_high=True)})
    objective: str

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_objective(self.objective)
        text = f"is more than seeds.max = {self.max}; lower it or raise seeds.max"
        require(self.group <= self.max, "group", self.group, text)
