"""Torsos and memories."""

from dataclasses import dataclass, field
from typing import Literal

from rlrun.schema.ranges import Ranged, at_least, positive, require
from rlrun.schema.readers import WITH_MEMORY, read_when


@dataclass(frozen=True)
class TorsoConfig(Ranged):
    name: Literal["mlp", "nature_cnn"]
    hidden: tuple[int, ...] = field(metadata=positive())
    activation: Literal["relu", "tanh", "elu"]
    layer_norm: bool


@dataclass(frozen=True)
class MemoryConfig(Ranged):
    name: str = field(metadata={"or_class": ("lstm", "gru", "mingru", "none")})  # or mypkg.mod:Cell
    hidden: int = field(metadata=at_least(0) | WITH_MEMORY)
    forget_bias: float = field(metadata=read_when("memory=lstm|mingru & policy.recurrent"))

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.name == "none" or self.hidden >= 1, "hidden", self.hidden, "must be >= 1")
