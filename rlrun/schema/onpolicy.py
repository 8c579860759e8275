"""Policies that learn from what they have just collected."""

import math
from dataclasses import dataclass, field
from typing import ClassVar

from rlrun.schema.policy import PolicyConfig
from rlrun.schema.ranges import at_least, need, positive, unit
from rlrun.schema.readers import WITH_MEMORY
from rlrun.schema.schedule import ScheduleConfig, schedule_within


@dataclass(frozen=True)
class OnPolicyConfig(PolicyConfig):
    """What every on-policy actor-critic has."""

    actions: ClassVar[tuple[str, ...]] = ("Discrete", "MultiDiscrete", "Box")
    on_policy: ClassVar[bool] = True
    masks: ClassVar[bool] = True

    gamma: float
    lr: ScheduleConfig
    adam_eps: float
    grad_clip: float | None
    value_coef: float
    entropy_coef: float
    separate_value: bool
    head_hidden: tuple[int, ...]
    prev_inputs: bool
    orthogonal_init: bool
    log_std_init: float
    normalize_obs: bool
    normalize_reward: bool
    reward_scale: float
    reward_clip: float | None

    def __post_init__(self) -> None:
        unit(self, "gamma")
        schedule_within(self, "lr", 0, math.inf)
        positive(self, "adam_eps", "grad_clip", "reward_scale", "reward_clip")
        at_least(self, 0, "value_coef", "entropy_coef")
        for size in self.head_hidden:
            need(size > 0, "head_hidden", list(self.head_hidden), "layer sizes must be > 0")


@dataclass(frozen=True)
class A2CConfig(OnPolicyConfig):
    off_by_one: ClassVar[bool] = False  # its gradient knows only its own actions

    gae_lambda: float
    normalize_advantage: bool

    def __post_init__(self) -> None:
        super().__post_init__()
        unit(self, "gae_lambda")


@dataclass(frozen=True)
class PPOConfig(OnPolicyConfig):
    gae_lambda: float
    normalize_advantage: bool
    epochs: int
    batch_size: int
    clip: ScheduleConfig
    value_clip: float | None
    target_kl: float | None
    segment_len: int = field(metadata=WITH_MEMORY)

    def __post_init__(self) -> None:
        super().__post_init__()
        unit(self, "gae_lambda")
        at_least(self, 1, "epochs", "batch_size", "segment_len")
        schedule_within(self, "clip", 0, math.inf)
        positive(self, "value_clip", "target_kl")


@dataclass(frozen=True)
class IMPALAConfig(OnPolicyConfig):
    vtrace_lambda: float
    rho_clip: float
    c_clip: float

    def __post_init__(self) -> None:
        super().__post_init__()
        unit(self, "vtrace_lambda")
        positive(self, "rho_clip", "c_clip")
