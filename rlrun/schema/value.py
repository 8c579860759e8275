"""Value-based policies."""

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from rlrun.schema.policy import PolicyConfig
from rlrun.schema.ranges import at_least, exactly_one, need, positive, unit
from rlrun.schema.readers import WITH_MEMORY, read_when
from rlrun.schema.schedule import ScheduleConfig, schedule_within
from rlrun.schema.window import Window

_CATEGORICAL = read_when("policy.distribution=categorical")
_IMPLICIT = read_when("policy.distribution=implicit")
_MUNCHAUSEN = read_when("policy.munchausen", fix="set policy.munchausen=0.9")


@dataclass(frozen=True)
class ValueConfig(PolicyConfig):
    """What every value-based policy has."""

    nstep: int
    gamma: float
    lr: ScheduleConfig
    adam_eps: float
    grad_clip: float | None
    target_update_every: int | None
    target_tau: float | None
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
        unit(self, "gamma", "target_tau")
        schedule_within(self, "lr", 0, math.inf)
        positive(self, "adam_eps", "grad_clip", "reward_scale", "reward_clip", "td_clip")
        positive(self, "value_rescale_eps")
        exactly_one(self, "target_update_every", "target_tau")
        for size in self.head_hidden:
            need(size > 0, "head_hidden", list(self.head_hidden), "layer sizes must be > 0")


@dataclass(frozen=True)
class SwitchedConfig(ValueConfig):
    """What the core's switches are: what heads say, their noise, Munchausen."""

    has_values: ClassVar[bool] = True
    masks: ClassVar[bool] = True

    distribution: Literal["none", "categorical", "quantile", "implicit"]
    atoms: int = field(metadata=read_when("policy.distribution=categorical|quantile"))
    v_min: float = field(metadata=_CATEGORICAL)
    v_max: float = field(metadata=_CATEGORICAL)
    kappa: float = field(metadata=read_when("policy.distribution=quantile|implicit"))
    taus: int = field(metadata=_IMPLICIT)
    taus_target: int = field(metadata=_IMPLICIT)
    taus_act: int = field(metadata=_IMPLICIT)
    cosines: int = field(metadata=_IMPLICIT)
    noisy: float | None
    noisy_resample: Literal["step", "chunk"] = field(
        metadata=read_when("policy.noisy", fix="set policy.noisy=0.5")
    )
    munchausen: float | None
    munchausen_tau: float = field(metadata=_MUNCHAUSEN)
    munchausen_clip: float = field(metadata=_MUNCHAUSEN)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_distribution()
        self._check_munchausen()

    def _check_distribution(self) -> None:
        at_least(self, 2, "atoms")
        at_least(self, 0, "kappa")
        at_least(self, 1, "taus", "taus_target", "taus_act", "cosines")
        positive(self, "noisy")
        need(
            self.v_max > self.v_min,
            "v_max",
            self.v_max,
            f"must be > policy.v_min = {self.v_min}; set them to bounds of the return",
        )
        text = (
            f"clips the TD error of distribution=none, not of {self.distribution}; set it to null"
        )
        need(self.distribution == "none" or self.td_clip is None, "td_clip", self.td_clip, text)

    def _check_munchausen(self) -> None:
        """What the paper leaves undefined is refused."""
        value = self.munchausen
        unit(self, "munchausen")
        positive(self, "munchausen_tau")
        need(self.munchausen_clip <= 0, "munchausen_clip", self.munchausen_clip, "must be <= 0")
        if value is None:
            return
        wrong = "it is defined for distribution=none, quantile or implicit; set one of them"
        need(self.distribution != "categorical", "munchausen", value, wrong)
        wrong = (
            "its soft value takes no single best action, its log-policy is in units of reward; "
            "set policy.double=false and policy.value_rescale_eps=null"
        )
        need(not self.double and self.value_rescale_eps is None, "munchausen", value, wrong)


@dataclass(frozen=True)
class SequenceConfig(ValueConfig):
    """What a learner of sequences has besides."""

    learn_unroll_len: int
    burnin_step: int
    eta: float
    state_init: Literal["stored", "zero"] = field(metadata=WITH_MEMORY)

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
    def window(self) -> Window:
        return Window(self.burnin_step, self.learn_unroll_len - self.nstep, self.nstep)


@dataclass(frozen=True)
class R2D2Config(SequenceConfig, SwitchedConfig):
    """What both have."""


class DQNConfig(SwitchedConfig):
    """What SwitchedConfig has."""

    recurrent: ClassVar[bool] = False
    remembers: ClassVar[str | None] = "policy=r2d2 (with distributions: r2d2_c51, r2d2_qr)"

    @property
    def window(self) -> Window:
        return Window(0, 1, self.nstep)
