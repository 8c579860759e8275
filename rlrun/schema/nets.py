"""Torsos."""

from dataclasses import dataclass, field
from typing import Literal

from rlrun.schema.ranges import Ranged, positive


@dataclass(frozen=True)
class TorsoConfig(Ranged):
    name: Literal["mlp", "nature_cnn"]
    hidden: tuple[int, ...] = field(metadata=positive())
    activation: Literal["relu", "tanh", "elu"]
    layer_norm: bool
