"""Policies that learn one value for a team."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from rlrun.schema.ranges import at_least, positive
from rlrun.schema.value import SequenceConfig


@dataclass(frozen=True)
class QMIXConfig(SequenceConfig):
    """Keys of R2D2 for the agents, and of the mixer."""

    actions: ClassVar[tuple[str, ...]] = ("MultiDiscrete",)
    agents: ClassVar[tuple[str, ...]] = ("joint",)

    mixer: Literal["monotonic", "sum"]
    mixer_hidden: int = field(metadata=at_least(1))
    hyper_hidden: tuple[int, ...] = field(metadata=positive())
    agent_id: bool
