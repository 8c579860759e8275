"""A reward for novelty, whatever the policy."""

import math
from dataclasses import dataclass
from typing import Literal

from rlrun.schema.ranges import at_least, need, positive, unit
from rlrun.schema.schedule import ScheduleConfig, schedule_within


@dataclass(frozen=True)
class BonusConfig:
    """none: rewards are those of the environment."""

    name: Literal["none", "rnd"]


@dataclass(frozen=True)
class RNDConfig(BonusConfig):
    coefficient: ScheduleConfig
    features: int
    hidden: tuple[int, ...]
    predictor_hidden: tuple[int, ...]
    lr: ScheduleConfig
    adam_eps: float
    batch_size: int
    obs_clip: float
    gamma: float

    def __post_init__(self) -> None:
        schedule_within(self, "coefficient", 0, math.inf)
        schedule_within(self, "lr", 0, math.inf)
        at_least(self, 1, "features", "batch_size")
        positive(self, "adam_eps", "obs_clip")
        unit(self, "gamma")
        for key in ("hidden", "predictor_hidden"):
            sizes = getattr(self, key)
            need(all(s > 0 for s in sizes), key, list(sizes), "layer sizes must be > 0")
