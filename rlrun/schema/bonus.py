"""Intrinsic rewards for novelty."""

from dataclasses import dataclass, field
from typing import Literal

from rlrun.schema.ranges import Ranged, at_least, positive, unit
from rlrun.schema.schedule import ScheduleConfig


@dataclass(frozen=True)
class BonusConfig(Ranged):
    """none: rewards are those of the environment."""

    name: Literal["none", "rnd"]


@dataclass(frozen=True)
class RNDConfig(BonusConfig):
    coefficient: ScheduleConfig = field(metadata=at_least(0))
    features: int = field(metadata=at_least(1))
    hidden: tuple[int, ...] = field(metadata=positive())
    predictor_hidden: tuple[int, ...] = field(metadata=positive())
    lr: ScheduleConfig = field(metadata=at_least(0))
    adam_eps: float = field(metadata=positive())
    batch_size: int = field(metadata=at_least(1))
    obs_clip: float = field(metadata=positive())
    gamma: float = field(metadata=unit())
