"""Policies of bounded continuous actions."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from rlrun.schema.policy import PolicyConfig
from rlrun.schema.ranges import at_least, exactly_one, positive, require, unit
from rlrun.schema.readers import WITH_MEMORY, read_when
from rlrun.schema.schedule import ScheduleConfig
from rlrun.schema.window import Window


@dataclass(frozen=True)
class ControlConfig(PolicyConfig):
    """Keys of every actor-critic with replay; lengths are rows."""

    actions: ClassVar[tuple[str, ...]] = ("Box",)

    nstep: int = field(metadata=at_least(1))
    learn_unroll_len: int | None
    burnin_step: int = field(metadata=at_least(0))
    state_init: Literal["stored", "zero"] = field(metadata=WITH_MEMORY)
    gamma: float = field(metadata=unit())
    lr: ScheduleConfig = field(metadata=at_least(0))
    actor_lr: ScheduleConfig = field(metadata=at_least(0))
    memory_lr: ScheduleConfig | None = field(metadata=at_least(0) | WITH_MEMORY)
    adam_eps: float = field(metadata=positive())
    grad_clip: float | None = field(metadata=positive())
    target_update_every: int | None = field(metadata=at_least(1))
    target_tau: float | None = field(metadata=unit())
    actor_every: int = field(metadata=at_least(1))
    head_hidden: tuple[int, ...] = field(metadata=positive())
    prev_inputs: bool
    reward_scale: float = field(metadata=positive())
    reward_clip: float | None = field(metadata=positive())
    td_clip: float | None = field(metadata=positive())
    eta: float = field(metadata=unit())

    def __post_init__(self) -> None:
        super().__post_init__()
        exactly_one(self, "target_update_every", "target_tau")
        require(
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
    """Keys of DDPG; ``noise`` is a share of half the distance between the bounds."""

    noise: ScheduleConfig = field(metadata=at_least(0))


@dataclass(frozen=True)
class TD3Config(DDPGConfig):
    smoothing: float = field(metadata=at_least(0))
    smoothing_clip: float = field(metadata=at_least(0))


@dataclass(frozen=True)
class SACConfig(ControlConfig):
    temperature: float = field(metadata=at_least(0))
    temperature_auto: bool
    target_entropy: float | None = field(metadata=read_when("policy.temperature_auto=true"))

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.temperature > 0 or not self.temperature_auto,
            "temperature",
            self.temperature,
            "is where log temperature starts and must be > 0; policy.temperature_auto=false allows "
            "0 (no entropy bonus)",
        )
