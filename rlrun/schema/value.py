"""Value-based policies."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from rlrun.schema.policy import PolicyConfig
from rlrun.schema.ranges import at_least, need, positive, unit
from rlrun.schema.schedule import ScheduleConfig, schedule_within


@dataclass(frozen=True)
class ValueConfig(PolicyConfig):
    """What every value-based policy has."""

    nstep: int
    gamma: float
    lr: ScheduleConfig
    adam_eps: float
    grad_clip: float | None
    target_update_every: int | None
    target_theta: float | None
    double: bool
    dueling: bool
    head_hidden: tuple[int, ...]
    prev_inputs: bool
    value_rescale_eps: float | None
    reward_scale: float
    reward_clip: float | None
    td_clip: float | None

    def __post_init__(self) -> None:
        at_least(self, 1, "nstep", "target_update_every")
        unit(self, "gamma", "target_theta")
        schedule_within(self, "lr", 0, math.inf)
        positive(self, "adam_eps", "grad_clip", "reward_scale", "reward_clip", "td_clip")
        positive(self, "value_rescale_eps")
        both = (self.target_update_every is None) == (self.target_theta is None)
        need(
            not both,
            "target_update_every",
            self.target_update_every,
            f"exactly one of target_update_every and target_theta (= {self.target_theta}) is a "
            "number, the other null; change one of them",
        )
        for size in self.head_hidden:
            need(size > 0, "head_hidden", list(self.head_hidden), "layer sizes must be > 0")


@dataclass(frozen=True)
class R2D2Config(ValueConfig):
    learn_unroll_len: int
    burnin_step: int
    eta: float
    state_init: Literal["stored", "zero"]

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 0, "burnin_step")
        unit(self, "eta")
        need(
            self.learn_unroll_len > self.nstep,
            "learn_unroll_len",
            self.learn_unroll_len,
            f"must be > policy.nstep = {self.nstep}, else no row is learned; "
            f"set policy.learn_unroll_len >= {self.nstep + 1}",
        )

    @property
    def window(self) -> tuple[int, int, int]:
        """(burn-in, learned, nstep) rows."""
        return self.burnin_step, self.learn_unroll_len - self.nstep, self.nstep


class DQNConfig(ValueConfig):
    """What ValueConfig has."""

    recurrent: ClassVar[bool] = False

    @property
    def window(self) -> tuple[int, int, int]:
        """(burn-in, learned, nstep) rows."""
        return 0, 1, self.nstep
