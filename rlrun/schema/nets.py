"""Torsos."""

from dataclasses import dataclass, field
from typing import Literal

from rlrun.schema.ranges import Ranged, positive


@dataclass(frozen=True)
class TorsoConfig(Ranged):
    name: Literal["mlp", "nature_cnn", "image_and_vector"]
    hidden: tuple[int, ...] = field(metadata=positive())
    activation: Literal["relu", "tanh", "elu"]
    layer_norm: bool


@dataclass(frozen=True)
class ImageAndVectorConfig(TorsoConfig):
    """``hidden``: of the convolutions of every image."""

    vector_hidden: tuple[int, ...] = field(metadata=positive())
