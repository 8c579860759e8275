"""Policies that learn one value for a team."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from rlrun.schema.ranges import at_least, need
from rlrun.schema.value import SequenceConfig


@dataclass(frozen=True)
class QMIXConfig(SequenceConfig):
    """R2D2's keys for the agents, and the mixer's."""

    actions: ClassVar[tuple[str, ...]] = ("MultiDiscrete",)
    agents: ClassVar[tuple[str, ...]] = ("joint",)

    mixer: Literal["monotonic", "sum"]
    mixer_hidden: int
    hyper_hidden: tuple[int, ...]
    agent_id: bool

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "mixer_hidden")
        for size in self.hyper_hidden:
            need(size > 0, "hyper_hidden", list(self.hyper_hidden), "layer sizes must be > 0")
