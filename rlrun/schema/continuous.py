"""Policies whose actions are real numbers within bounds."""

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from rlrun.schema.policy import PolicyConfig
from rlrun.schema.ranges import at_least, exactly_one, need, positive, unit
from rlrun.schema.readers import WITH_MEMORY, read_when
from rlrun.schema.schedule import ScheduleConfig, schedule_within
from rlrun.schema.window import Window


@dataclass(frozen=True)
class ControlConfig(PolicyConfig):
    """What every actor-critic with replay has; lengths are rows."""

    actions: ClassVar[tuple[str, ...]] = ("Box",)

    nstep: int
    learn_unroll_len: int | None
    burnin_step: int
    state_init: Literal["stored", "zero"] = field(metadata=WITH_MEMORY)
    gamma: float
    lr: ScheduleConfig
    actor_lr: ScheduleConfig
    adam_eps: float
    grad_clip: float | None
    target_update_every: int | None
    target_tau: float | None
    actor_every: int
    head_hidden: tuple[int, ...]
    prev_inputs: bool
    reward_scale: float
    reward_clip: float | None
    td_clip: float | None
    eta: float

    def __post_init__(self) -> None:
        at_least(self, 1, "nstep", "target_update_every", "actor_every")
        at_least(self, 0, "burnin_step")
        unit(self, "gamma", "target_tau", "eta")
        schedule_within(self, "lr", 0, math.inf)
        schedule_within(self, "actor_lr", 0, math.inf)
        positive(self, "adam_eps", "grad_clip", "reward_scale", "reward_clip", "td_clip")
        exactly_one(self, "target_update_every", "target_tau")
        for size in self.head_hidden:
            need(size > 0, "head_hidden", list(self.head_hidden), "layer sizes must be > 0")
        need(
            self.learn_unroll_len is None or self.learn_unroll_len > self.nstep,
            "learn_unroll_len",
            self.learn_unroll_len,
            f"must be > policy.nstep = {self.nstep}, else no row is learned; set it to null (one "
            f"learned row) or policy.learn_unroll_len >= {self.nstep + 1}",
        )

    @property
    def window(self) -> Window:
        unroll = self.learn_unroll_len
        learned = 1 if unroll is None else unroll - self.nstep
        return Window(self.burnin_step, learned, self.nstep)


@dataclass(frozen=True)
class DDPGConfig(ControlConfig):
    """A deterministic actor; ``noise`` is a share of half the distance between the bounds."""

    noise: ScheduleConfig

    def __post_init__(self) -> None:
        super().__post_init__()
        schedule_within(self, "noise", 0, math.inf)


@dataclass(frozen=True)
class TD3Config(DDPGConfig):
    smoothing: float
    smoothing_clip: float

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 0, "smoothing", "smoothing_clip")


@dataclass(frozen=True)
class SACConfig(ControlConfig):
    temperature: float
    temperature_auto: bool
    target_entropy: float | None = field(metadata=read_when("policy.temperature_auto=true"))

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 0, "temperature")
        need(
            self.temperature > 0 or not self.temperature_auto,
            "temperature",
            self.temperature,
            "is where log temperature starts and must be > 0; policy.temperature_auto=false allows "
            "0 (no entropy bonus)",
        )
