"""Parts of networks."""

from dataclasses import dataclass, field
from typing import Literal

from rlrun.schema.ranges import at_least, need
from rlrun.schema.readers import WITH_MEMORY, read_when


@dataclass(frozen=True)
class TorsoConfig:
    name: Literal["mlp", "nature_cnn"]
    hidden: tuple[int, ...]
    activation: Literal["relu", "tanh", "elu"]

    def __post_init__(self) -> None:
        for size in self.hidden:
            need(size > 0, "hidden", list(self.hidden), "layer sizes must be > 0")


@dataclass(frozen=True)
class MemoryConfig:
    name: str = field(metadata={"or_class": ("lstm", "gru", "mingru", "none")})  # or mypkg.mod:Cell
    hidden: int = field(metadata=WITH_MEMORY)
    forget_bias: float = field(metadata=read_when("memory=lstm|mingru & policy.recurrent"))

    def __post_init__(self) -> None:
        at_least(self, 0 if self.name == "none" else 1, "hidden")
