"""Value-based policies."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from rlrun.schema.policy import PolicyConfig
from rlrun.schema.ranges import at_least, at_most, exactly_one, positive, require, unit
from rlrun.schema.readers import WITH_MEMORY, read_when
from rlrun.schema.schedule import ScheduleConfig
from rlrun.schema.window import Window

_CATEGORICAL = read_when("policy.distribution=categorical")
_IMPLICIT = read_when("policy.distribution=implicit")
_MUNCHAUSEN = read_when("policy.munchausen", fix="set policy.munchausen=0.9")
_Q_LAMBDA = "peng_q_lambda|watkins_q_lambda|harutyunyan_q_lambda"
_Trace = Literal["nstep", "retrace", "peng_q_lambda", "watkins_q_lambda", "harutyunyan_q_lambda"]


@dataclass(frozen=True)
class ActionValueConfig(PolicyConfig):
    """Keys of every policy that learns a Q-network."""

    gamma: float = field(metadata=unit())
    lr: ScheduleConfig = field(metadata=at_least(0))
    adam_eps: float = field(metadata=positive())
    grad_clip: float | None = field(metadata=positive())
    dueling: bool
    head_hidden: tuple[int, ...] = field(metadata=positive())
    prev_inputs: bool
    reward_scale: float = field(metadata=positive())
    reward_clip: float | None = field(metadata=positive())


@dataclass(frozen=True)
class ValueConfig(ActionValueConfig):
    """Keys of every value-based policy with a replay."""

    nstep: int = field(metadata=at_least(1))
    target_update_every: int | None = field(metadata=at_least(1))
    target_tau: float | None = field(metadata=unit())
    double: bool
    value_rescale_eps: float | None = field(metadata=positive())
    td_clip: float | None = field(metadata=positive())

    def __post_init__(self) -> None:
        super().__post_init__()
        exactly_one(self, "target_update_every", "target_tau")


@dataclass(frozen=True)
class SwitchedConfig(ValueConfig):
    """Keys that DQN and R2D2 share: traces, distribution of returns, noisy heads, Munchausen."""

    has_values: ClassVar[bool] = True
    masks: ClassVar[bool] = True

    trace: _Trace
    trace_lambda: float = field(metadata=unit() | read_when(f"policy.trace=retrace|{_Q_LAMBDA}"))
    trace_epsilon: float = field(metadata=unit() | read_when("policy.trace=retrace"))
    distribution: Literal["none", "categorical", "quantile", "implicit"]
    atoms: int = field(metadata=at_least(2) | read_when("policy.distribution=categorical|quantile"))
    v_min: float = field(metadata=_CATEGORICAL)
    v_max: float = field(metadata=_CATEGORICAL)
    kappa: float = field(metadata=at_least(0) | read_when("policy.distribution=quantile|implicit"))
    taus: int = field(metadata=at_least(1) | _IMPLICIT)
    taus_target: int = field(metadata=at_least(1) | _IMPLICIT)
    taus_act: int = field(metadata=at_least(1) | _IMPLICIT)
    cosines: int = field(metadata=at_least(1) | _IMPLICIT)
    noisy: float | None = field(metadata=positive())
    noisy_resample: Literal["step", "chunk"] = field(
        metadata=read_when("policy.noisy", fix="set policy.noisy=0.5")
    )
    munchausen: float | None = field(metadata=unit())
    munchausen_tau: float = field(metadata=positive() | _MUNCHAUSEN)
    munchausen_clip: float = field(metadata=at_most(0) | _MUNCHAUSEN)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_distribution()
        self._check_munchausen()
        self._check_trace()

    def _check_distribution(self) -> None:
        require(
            self.v_max > self.v_min,
            "v_max",
            self.v_max,
            f"must be > policy.v_min = {self.v_min}; set them to bounds of the return",
        )
        text = (
            f"clips the TD error of distribution=none, not of {self.distribution}; set it to null"
        )
        require(self.distribution == "none" or self.td_clip is None, "td_clip", self.td_clip, text)

    def _check_munchausen(self) -> None:
        """Refuse the combinations that Vieillard et al. 2020 leave undefined."""
        value = self.munchausen
        if value is None:
            return
        wrong = "it is defined for distribution=none, quantile or implicit; set one of them"
        require(self.distribution != "categorical", "munchausen", value, wrong)
        wrong = (
            "its soft value takes no single best action, its log-policy is in units of reward; "
            "set policy.double=false and policy.value_rescale_eps=null"
        )
        require(not self.double and self.value_rescale_eps is None, "munchausen", value, wrong)

    def _check_trace(self) -> None:
        """Refuse traces of what they are not derived for, and traces of a single row."""
        if self.trace == "nstep":
            return
        wrong = (
            "it corrects expected values, not distributions of returns; "
            "set policy.distribution=none or policy.trace=nstep"
        )
        require(self.distribution == "none", "trace", self.trace, wrong)
        wrong = (
            "it has values of a greedy policy, Munchausen's are soft; "
            "set policy.munchausen=null or policy.trace=nstep"
        )
        require(self.munchausen is None, "trace", self.trace, wrong)
        window = self.window
        assert window is not None
        wrong = (
            "a trace needs two rows, a window has one learned row and policy.nstep is 1; "
            "set policy.nstep=3 or policy.trace=nstep"
        )
        require(window.learned + window.nstep > 2, "trace", self.trace, wrong)

    @property
    def records_log_prob(self) -> bool:
        return self.trace == "retrace"


@dataclass(frozen=True)
class SequenceConfig(ValueConfig):
    """Keys of policies that learn sequences."""

    learn_unroll_len: int
    burnin_step: int = field(metadata=at_least(0))
    eta: float = field(metadata=unit())
    memory_lr: ScheduleConfig | None = field(metadata=at_least(0) | WITH_MEMORY)
    state_init: Literal["stored", "zero"] = field(metadata=WITH_MEMORY)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
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
    """Keys of R2D2: those of sequences and those shared with DQN."""


class DQNConfig(SwitchedConfig):
    """Keys of DQN: those shared with R2D2."""

    recurrent: ClassVar[bool] = False
    recurrent_variant: ClassVar[str | None] = "policy=r2d2 (with distributions: r2d2_c51, r2d2_qr)"

    @property
    def window(self) -> Window:
        return Window(0, 1, self.nstep)
