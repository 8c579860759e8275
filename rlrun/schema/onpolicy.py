"""On-policy policies: actor-critics, and PQN."""

from dataclasses import dataclass, field
from typing import ClassVar

from rlrun.schema.policy import PolicyConfig
from rlrun.schema.ranges import at_least, positive, unit
from rlrun.schema.readers import WITH_MEMORY
from rlrun.schema.schedule import ScheduleConfig
from rlrun.schema.value import ActionValueConfig


@dataclass(frozen=True)
class OnPolicyConfig(PolicyConfig):
    """Keys of every on-policy actor-critic."""

    actions: ClassVar[tuple[str, ...]] = ("Discrete", "MultiDiscrete", "Box")
    on_policy: ClassVar[bool] = True
    masks: ClassVar[bool] = True

    gamma: float = field(metadata=unit())
    lr: ScheduleConfig = field(metadata=at_least(0))
    memory_lr: ScheduleConfig | None = field(metadata=at_least(0) | WITH_MEMORY)
    adam_eps: float = field(metadata=positive())
    grad_clip: float | None = field(metadata=positive())
    value_coef: float = field(metadata=at_least(0))
    entropy_coef: float = field(metadata=at_least(0))
    separate_value: bool
    head_hidden: tuple[int, ...] = field(metadata=positive())
    prev_inputs: bool
    orthogonal_init: bool
    log_std_init: float
    rescale_actions: bool
    normalize_obs: bool
    normalize_reward: bool
    reward_scale: float = field(metadata=positive())
    reward_clip: float | None = field(metadata=positive())


@dataclass(frozen=True)
class A2CConfig(OnPolicyConfig):
    tolerates_lag: ClassVar[bool] = False  # its gradient holds for its own actions only

    gae_lambda: float = field(metadata=unit())
    normalize_advantage: bool


@dataclass(frozen=True)
class PPOConfig(OnPolicyConfig):
    gae_lambda: float = field(metadata=unit())
    normalize_advantage: bool
    epochs: int = field(metadata=at_least(1))
    batch_size: int = field(metadata=at_least(1))
    clip: ScheduleConfig = field(metadata=at_least(0))
    value_clip: float | None = field(metadata=positive())
    target_kl: float | None = field(metadata=positive())
    segment_len: int = field(metadata=at_least(1) | WITH_MEMORY)


@dataclass(frozen=True)
class IMPALAConfig(OnPolicyConfig):
    vtrace_lambda: float = field(metadata=unit())
    rho_clip: float = field(metadata=positive())
    c_clip: float = field(metadata=positive())


@dataclass(frozen=True)
class PQNConfig(ActionValueConfig):
    on_policy: ClassVar[bool] = True
    explores: ClassVar[bool] = True
    has_values: ClassVar[bool] = True
    masks: ClassVar[bool] = True

    q_lambda: float = field(metadata=unit())
    epochs: int = field(metadata=at_least(1))
    batch_size: int = field(metadata=at_least(1))
    segment_len: int = field(metadata=at_least(1) | WITH_MEMORY)
    memory_lr: ScheduleConfig | None = field(metadata=at_least(0) | WITH_MEMORY)
