"""Policies that learn from a dataset."""

from dataclasses import dataclass, field
from typing import ClassVar

from rlrun.schema.continuous import SACConfig
from rlrun.schema.policy import PolicyConfig
from rlrun.schema.ranges import at_least, positive, require, unit
from rlrun.schema.readers import WITH_MEMORY
from rlrun.schema.schedule import ScheduleConfig
from rlrun.schema.value import ValueConfig
from rlrun.schema.window import Window


@dataclass(frozen=True)
class BCConfig(PolicyConfig):
    actions: ClassVar[tuple[str, ...]] = ("Discrete", "Box")
    masks: ClassVar[bool] = True
    learns: ClassVar[bool] = False  # from actions, whatever they were paid

    learn_unroll_len: int = field(metadata=at_least(2))
    burnin_step: int = field(metadata=at_least(0))
    lr: ScheduleConfig = field(metadata=at_least(0))
    memory_lr: ScheduleConfig | None = field(metadata=at_least(0) | WITH_MEMORY)
    adam_eps: float = field(metadata=positive())
    grad_clip: float | None = field(metadata=positive())
    head_hidden: tuple[int, ...] = field(metadata=positive())

    @property
    def window(self) -> Window:
        """The row after the learned ones is not read."""
        return Window(self.burnin_step, self.learn_unroll_len - 1, 1)


@dataclass(frozen=True)
class CQLConfig(ValueConfig):
    recurrent: ClassVar[bool] = False
    has_values: ClassVar[bool] = True
    masks: ClassVar[bool] = True
    counterpart: ClassVar[str | None] = "cql_sac"

    conservatism: float = field(metadata=at_least(0))

    @property
    def window(self) -> Window:
        return Window(0, 1, self.nstep)


@dataclass(frozen=True)
class CQLSACConfig(SACConfig):
    counterpart: ClassVar[str | None] = "cql"

    conservatism: float = field(metadata=at_least(0))
    gap_threshold: float | None
    samples: int = field(metadata=at_least(1))
    entropy_in_target: bool

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.conservatism > 0 or self.gap_threshold is None,
            "conservatism",
            self.conservatism,
            "is where the weight starts and must be > 0; policy.gap_threshold=null allows 0 (SAC)",
        )


@dataclass(frozen=True)
class IQLConfig(PolicyConfig):
    actions: ClassVar[tuple[str, ...]] = ("Discrete", "Box")
    masks: ClassVar[bool] = True
    recurrent: ClassVar[bool] = False

    nstep: int = field(metadata=at_least(1))
    gamma: float = field(metadata=unit())
    expectile: float = field(metadata=unit())
    inverse_temperature: float = field(metadata=at_least(0))
    weight_clip: float = field(metadata=at_least(1))
    lr: ScheduleConfig = field(metadata=at_least(0))
    adam_eps: float = field(metadata=positive())
    grad_clip: float | None = field(metadata=positive())
    target_tau: float = field(metadata=unit())
    head_hidden: tuple[int, ...] = field(metadata=positive())
    reward_scale: float = field(metadata=positive())
    reward_clip: float | None = field(metadata=positive())

    @property
    def window(self) -> Window:
        return Window(0, 1, self.nstep)
