"""Policies that learn from a dataset."""

import math
from dataclasses import dataclass
from typing import ClassVar

from rlrun.schema.continuous import SACConfig
from rlrun.schema.policy import PolicyConfig
from rlrun.schema.ranges import at_least, need, positive, unit
from rlrun.schema.schedule import ScheduleConfig, schedule_within
from rlrun.schema.value import ValueConfig
from rlrun.schema.window import Window


def _layers(config: PolicyConfig, sizes: tuple[int, ...]) -> None:
    for size in sizes:
        need(size > 0, "head_hidden", list(sizes), "layer sizes must be > 0")


@dataclass(frozen=True)
class BCConfig(PolicyConfig):
    actions: ClassVar[tuple[str, ...]] = ("Discrete", "Box")
    masks: ClassVar[bool] = True
    learns: ClassVar[bool] = False  # from actions, whatever they were paid

    learn_unroll_len: int
    burnin_step: int
    lr: ScheduleConfig
    adam_eps: float
    grad_clip: float | None
    head_hidden: tuple[int, ...]

    def __post_init__(self) -> None:
        at_least(self, 2, "learn_unroll_len")
        at_least(self, 0, "burnin_step")
        schedule_within(self, "lr", 0, math.inf)
        positive(self, "adam_eps", "grad_clip")
        _layers(self, self.head_hidden)

    @property
    def window(self) -> Window:
        """The row after the learned ones is not read."""
        return Window(self.burnin_step, self.learn_unroll_len - 1, 1)


@dataclass(frozen=True)
class CQLConfig(ValueConfig):
    recurrent: ClassVar[bool] = False
    has_values: ClassVar[bool] = True
    masks: ClassVar[bool] = True
    twin: ClassVar[str | None] = "cql_sac"

    conservatism: float

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 0, "conservatism")

    @property
    def window(self) -> Window:
        return Window(0, 1, self.nstep)


@dataclass(frozen=True)
class CQLSACConfig(SACConfig):
    twin: ClassVar[str | None] = "cql"

    conservatism: float
    gap_threshold: float | None
    samples: int
    entropy_in_target: bool

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 0, "conservatism")
        at_least(self, 1, "samples")
        need(
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

    nstep: int
    gamma: float
    expectile: float
    inverse_temperature: float
    weight_clip: float
    lr: ScheduleConfig
    adam_eps: float
    grad_clip: float | None
    target_tau: float
    head_hidden: tuple[int, ...]
    reward_scale: float
    reward_clip: float | None

    def __post_init__(self) -> None:
        at_least(self, 1, "nstep", "weight_clip")
        unit(self, "gamma", "expectile", "target_tau")
        at_least(self, 0, "inverse_temperature")
        schedule_within(self, "lr", 0, math.inf)
        positive(self, "adam_eps", "grad_clip", "reward_scale", "reward_clip")
        _layers(self, self.head_hidden)

    @property
    def window(self) -> Window:
        return Window(0, 1, self.nstep)
