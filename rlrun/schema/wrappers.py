"""The wrappers that ``env.wrappers`` may name: their arguments and ranges, without values."""

from dataclasses import dataclass, field
from typing import Literal

from rlrun.schema.ranges import Range, Ranged, at_least, require, unit


@dataclass(frozen=True)
class WrapperConfig(Ranged):
    """One entry of ``env.wrappers``; ``name`` selects the class, its other fields are arguments."""

    name: str


@dataclass(frozen=True)
class Plain(WrapperConfig):
    """A wrapper without arguments."""


@dataclass(frozen=True)
class PickObs(WrapperConfig):
    key: str  # of the Dict observation


@dataclass(frozen=True)
class FilterObs(WrapperConfig):
    keys: tuple[str, ...]  # of the Dict observation

    def __post_init__(self) -> None:
        super().__post_init__()
        require(bool(self.keys), "keys", self.keys, "must name at least one")


@dataclass(frozen=True)
class MaskObs(WrapperConfig):
    keep: tuple[int, ...]  # positions of the observation vector

    def __post_init__(self) -> None:
        super().__post_init__()
        ok = bool(self.keep) and min(self.keep) >= 0 and len({*self.keep}) == len(self.keep)
        require(ok, "keep", list(self.keep), "must be positions from 0 on, each once, at least one")


@dataclass(frozen=True)
class Steps(WrapperConfig):
    steps: int = field(metadata=at_least(1))  # env steps


@dataclass(frozen=True)
class MaxAndSkip(Steps):
    steps: int = field(metadata=at_least(2))  # env steps


@dataclass(frozen=True)
class Chance(WrapperConfig):
    probability: float = field(metadata=unit())


@dataclass(frozen=True)
class Sticky(Chance):
    probability: float = field(metadata={"range": Range(0, 1, open_high=True)})


@dataclass(frozen=True)
class Noise(WrapperConfig):
    std: float = field(metadata=at_least(0))  # in the observation's own unit


@dataclass(frozen=True)
class Bounds(WrapperConfig):
    low: float
    high: float

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.low < self.high, "low", self.low, f"must be below high (= {self.high})")


@dataclass(frozen=True)
class CastObs(WrapperConfig):
    dtype: Literal["float32", "float64", "uint8", "int64"]


@dataclass(frozen=True)
class ResizeObs(WrapperConfig):
    height: int = field(metadata=at_least(1))  # pixels
    width: int = field(metadata=at_least(1))  # pixels


@dataclass(frozen=True)
class DiscretizeAction(WrapperConfig):
    bins: int = field(metadata=at_least(2))  # per dimension of the action


WRAPPER_CONFIGS: dict[str, type[WrapperConfig]] = {
    "pick_obs": PickObs,
    "filter_obs": FilterObs,
    "encode_mission": Plain,
    "mask_obs": MaskObs,
    "mask_from_info": Plain,
    "flatten_obs": Plain,
    "rescale_obs": Bounds,
    "cast_obs": CastObs,
    "grayscale_obs": Plain,
    "resize_obs": ResizeObs,
    "max_and_skip": MaxAndSkip,
    "time_obs": Plain,
    "delay_obs": Steps,
    "flicker_obs": Chance,
    "noise_obs": Noise,
    "rescale_action": Bounds,
    "discretize_action": DiscretizeAction,
    "sticky_action": Sticky,
    "repeat_action": Steps,
    "clip_reward": Bounds,
}
"""name in ``env.wrappers`` -> its arguments; ``rlrun.env.wrappers.WRAPPERS`` describes each."""
