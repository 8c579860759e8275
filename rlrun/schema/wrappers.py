"""The wrappers that ``env.wrappers`` may name: their arguments and ranges, without values."""

from dataclasses import dataclass, field
from typing import Literal

from rlrun.schema.ranges import Range, Ranged, at_least, require, unit


@dataclass(frozen=True)
class WrapperConfig(Ranged):
    """One entry of ``env.wrappers``; ``name`` selects the class, its other fields are arguments."""

    name: str


@dataclass(frozen=True)
class PlainConfig(WrapperConfig):
    """A wrapper without arguments."""


@dataclass(frozen=True)
class PickObsConfig(WrapperConfig):
    key: str  # of the Dict observation


@dataclass(frozen=True)
class FilterObsConfig(WrapperConfig):
    keys: tuple[str, ...]  # of the Dict observation

    def __post_init__(self) -> None:
        super().__post_init__()
        require(bool(self.keys), "keys", self.keys, "must name at least one")


@dataclass(frozen=True)
class MaskObsConfig(WrapperConfig):
    keep: tuple[int, ...]  # positions of the observation vector

    def __post_init__(self) -> None:
        super().__post_init__()
        ok = bool(self.keep) and min(self.keep) >= 0 and len({*self.keep}) == len(self.keep)
        require(ok, "keep", list(self.keep), "must be positions from 0 on, each once, at least one")


@dataclass(frozen=True)
class StepsConfig(WrapperConfig):
    steps: int = field(metadata={"range": Range(1, 10**6)})  # env steps


@dataclass(frozen=True)
class MaxAndSkipConfig(StepsConfig):
    steps: int = field(metadata={"range": Range(2, 10**6)})  # env steps


@dataclass(frozen=True)
class ProbabilityConfig(WrapperConfig):
    probability: float = field(metadata=unit())


@dataclass(frozen=True)
class StickyConfig(ProbabilityConfig):
    probability: float = field(metadata={"range": Range(0, 1, open_high=True)})


@dataclass(frozen=True)
class NoiseConfig(WrapperConfig):
    std: float = field(metadata=at_least(0))  # in the observation's own unit


@dataclass(frozen=True)
class BoundsConfig(WrapperConfig):
    low: float
    high: float

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.low < self.high, "low", self.low, f"must be below high (= {self.high})")


@dataclass(frozen=True)
class CastObsConfig(WrapperConfig):
    dtype: Literal["float32", "float64", "uint8", "int64"]


@dataclass(frozen=True)
class ResizeObsConfig(WrapperConfig):
    height: int = field(metadata=at_least(1))  # pixels
    width: int = field(metadata=at_least(1))  # pixels


@dataclass(frozen=True)
class DiscretizeActionConfig(WrapperConfig):
    bins: int = field(metadata=at_least(2))  # per dimension of the action


WRAPPER_CONFIGS: dict[str, type[WrapperConfig]] = {
    "pick_obs": PickObsConfig,
    "filter_obs": FilterObsConfig,
    "encode_mission": PlainConfig,
    "mask_obs": MaskObsConfig,
    "mask_from_info": PlainConfig,
    "flatten_obs": PlainConfig,
    "rescale_obs": BoundsConfig,
    "cast_obs": CastObsConfig,
    "grayscale_obs": PlainConfig,
    "resize_obs": ResizeObsConfig,
    "max_and_skip": MaxAndSkipConfig,
    "time_obs": PlainConfig,
    "delay_obs": StepsConfig,
    "flicker_obs": ProbabilityConfig,
    "noise_obs": NoiseConfig,
    "rescale_action": BoundsConfig,
    "discretize_action": DiscretizeActionConfig,
    "sticky_action": StickyConfig,
    "repeat_action": StepsConfig,
    "clip_reward": BoundsConfig,
}
"""name in ``env.wrappers`` -> its arguments; ``rlrun.env.wrappers.WRAPPERS`` describes each."""
