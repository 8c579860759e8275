"""Policies (shared, value-based, continuous, offline, on-policy keys), bonuses and networks."""

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple

from rlrun.schema.ranges import (
    MOST_CRITICS,
    MOST_ROWS,
    MOST_UNITS,
    WITH_MEMORY,
    Range,
    Ranged,
    Rule,
    ScheduleConfig,
    at_least,
    exactly_one,
    positive,
    read_when,
    unit,
    within,
)


class Window(NamedTuple):
    """The rows of one window that ``update`` needs: S = burnin + learned + nstep positions.

    Positions [0, burnin) warm the state up, [burnin, burnin + learned) are learned, and only
    targets read the last ``nstep``.
    """

    burnin: int
    learned: int
    nstep: int

    @property
    def rows(self) -> int:
        """S."""
        return self.burnin + self.learned + self.nstep


@dataclass(frozen=True)
class PolicyConfig(Ranged):
    """Keys of a policy; properties of its class are ClassVars."""

    actions: ClassVar[tuple[str, ...]] = ("Discrete",)  # supported action spaces
    recurrent: ClassVar[bool] = True  # may have a memory
    agents: ClassVar[tuple[str, ...]] = ("shared", "separate")  # layouts of several agents
    learns: ClassVar[bool] = True  # learns from rewards
    has_values: ClassVar[bool] = False  # has action values, so explore=boltzmann works
    masks: ClassVar[bool] = False  # uses an observed action_mask
    counterpart: ClassVar[str | None] = None  # the same algorithm for other action spaces
    recurrent_variant: ClassVar[str | None] = None  # the same algorithm with a memory
    on_policy: ClassVar[bool] = False  # learns once from every rollout, then drops it
    explores: ClassVar[bool] = False  # on-policy, but `explore` defines its random actions
    tolerates_lag: ClassVar[bool] = True  # may learn from rows of one chunk old weights

    name: str

    @property
    def updates(self) -> bool:
        """Whether the policy has parameters that a learner updates."""
        return self.on_policy or self.window is not None

    @property
    def records_log_prob(self) -> bool:
        """Whether replayed rows hold the log-probability of their action, ``log_prob``."""
        return False

    @property
    def window(self) -> Window | None:
        """The rows of a window, or None if the policy keeps no replay."""
        return None


@dataclass(frozen=True)
class RandomConfig(PolicyConfig):
    agents: ClassVar[tuple[str, ...]] = ("shared", "separate", "joint")
    learns: ClassVar[bool] = False
    masks: ClassVar[bool] = True
    actions: ClassVar[tuple[str, ...]] = ("Discrete", "MultiDiscrete", "MultiBinary", "Box")


@dataclass(frozen=True)
class ScriptedConfig(PolicyConfig):
    actions: ClassVar[tuple[str, ...]] = ("Discrete", "MultiDiscrete", "MultiBinary", "Box")
    recurrent: ClassVar[bool] = False
    learns: ClassVar[bool] = False

    script: Literal["constant", "cycle", "uniform", "sine", "function"]
    choices: tuple[float | tuple[float, ...], ...]
    hold: int = field(metadata=at_least(1))
    period: float = field(metadata=positive())
    amplitude: float = field(metadata=unit())
    phase: float
    function: str | None

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule("choices", lambda c: c.script == "constant" and len(c.choices) != 1,
             "policy.script=constant takes exactly one action", fix="set 'policy.choices=[0]'"),
        Rule("choices", lambda c: c.script in ("cycle", "uniform") and not c.choices,
             "policy.script={script} takes at least one action", fix="set 'policy.choices=[0]'"),
        Rule("function", lambda c: c.script == "function" and c.function is None,
             "policy.script=function needs mypkg.mod:function", fix="give policy.function"),
        Rule("function", lambda c: c.script != "function" and c.function is not None,
             "policy.script is {script}", fix="set policy.script=function"),
    )  # fmt: skip


_CATEGORICAL = read_when("policy.distribution=categorical")
_IMPLICIT = read_when("policy.distribution=implicit")
_MUNCHAUSEN = read_when("policy.munchausen", fix="set policy.munchausen=0.9")
_SEVERAL_ROWS, _CONTINUOUS = read_when("several_rows"), read_when("continuous")
_Q_LAMBDA = "peng_q_lambda|watkins_q_lambda|harutyunyan_q_lambda"
_Trace = Literal["nstep", "retrace", "peng_q_lambda", "watkins_q_lambda", "harutyunyan_q_lambda"]


@dataclass(frozen=True)
class NetworkConfig(PolicyConfig):
    """Keys of every policy with networks: optimiser and heads."""

    lr: ScheduleConfig = field(metadata=at_least(0))
    adam_eps: float = field(metadata=positive())
    max_grad_norm: float | None = field(metadata=positive())
    head_hidden: tuple[int, ...] = field(metadata=within(1, MOST_UNITS))


@dataclass(frozen=True)
class ReturnConfig(NetworkConfig):
    """Keys of every policy with networks that learns from rewards."""

    gamma: float = field(metadata=unit())
    reward_scale: float = field(metadata=positive())
    reward_clip: float | None = field(metadata=positive())


@dataclass(frozen=True)
class ActionValueConfig(ReturnConfig):
    """Keys of every policy that learns a Q-network."""

    dueling: bool
    prev_inputs: bool


@dataclass(frozen=True)
class ValueConfig(ActionValueConfig):
    """Keys of every value-based policy with a replay."""

    nstep: int = field(metadata=within(1, MOST_ROWS))
    target_update_every: int | None = field(metadata=at_least(1))
    target_tau: float | None = field(metadata=unit())
    double: bool
    value_rescale_eps: float | None = field(metadata=positive())
    td_clip: float | None = field(metadata=positive())

    rules: ClassVar[tuple[Rule, ...]] = (exactly_one("target_update_every", "target_tau"),)

    @property
    def window(self) -> Window:
        return Window(0, 1, self.nstep)


@dataclass(frozen=True)
class SwitchedConfig(ValueConfig):
    """Keys that DQN and R2D2 share: traces, distribution of returns, noisy heads, Munchausen."""

    has_values: ClassVar[bool] = True
    masks: ClassVar[bool] = True

    trace: _Trace
    trace_lambda: float = field(metadata=unit() | read_when(f"policy.trace=retrace|{_Q_LAMBDA}"))
    trace_epsilon: float = field(metadata=unit() | read_when("policy.trace=retrace"))
    distribution: Literal["none", "categorical", "quantile", "implicit"]
    atoms: int = field(
        metadata=within(2, MOST_ROWS) | read_when("policy.distribution=categorical|quantile")
    )
    v_min: float = field(metadata=_CATEGORICAL)
    v_max: float = field(metadata=_CATEGORICAL)
    kappa: float = field(metadata=at_least(0) | read_when("policy.distribution=quantile|implicit"))
    num_quantiles: int = field(metadata=within(1, MOST_ROWS) | _IMPLICIT)
    num_quantiles_target: int = field(metadata=within(1, MOST_ROWS) | _IMPLICIT)
    num_quantiles_act: int = field(metadata=within(1, MOST_ROWS) | _IMPLICIT)
    cosines: int = field(metadata=within(1, MOST_UNITS) | _IMPLICIT)
    noisy: float | None = field(metadata=positive())
    noisy_resample: Literal["step", "chunk"] = field(
        metadata=read_when("policy.noisy", fix="set policy.noisy=0.5")
    )
    munchausen: float | None = field(metadata=unit())
    munchausen_tau: float = field(metadata=positive() | _MUNCHAUSEN)
    munchausen_clip: float = field(metadata=within(-math.inf, 0) | _MUNCHAUSEN)

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule("v_max", lambda c: c.v_max <= c.v_min, "must be > policy.v_min = {v_min}",
             fix="set them to bounds of the return"),
        Rule("td_clip", lambda c: c.distribution != "none" and c.td_clip is not None,
             "clips the TD error of distribution=none, not of {distribution}",
             fix="set it to null"),
        # combinations that Vieillard et al. 2020 do not define
        Rule("munchausen", lambda c: c.munchausen is not None and c.distribution == "categorical",
             "it is defined for distribution=none, quantile or implicit", fix="set one of them"),
        Rule("munchausen", lambda c: c.munchausen is not None
             and (c.double or c.value_rescale_eps is not None),
             "its soft value takes no single best action, its log-policy is in units of reward",
             fix="set policy.double=false and policy.value_rescale_eps=null"),
        # traces outside their derivation, and of a single row
        Rule("trace", lambda c: c.trace != "nstep" and c.distribution != "none",
             "it corrects expected values, not distributions of returns",
             fix="set policy.distribution=none or policy.trace=nstep"),
        Rule("trace", lambda c: c.trace != "nstep" and c.munchausen is not None,
             "it has values of a greedy policy, Munchausen's are soft",
             fix="set policy.munchausen=null or policy.trace=nstep"),
        Rule("trace", lambda c: c.trace != "nstep" and c.window.learned + c.window.nstep <= 2,
             "a trace needs two rows, a window has one learned row and policy.nstep is 1",
             fix="set policy.nstep=3 or policy.trace=nstep"),
    )  # fmt: skip

    @property
    def records_log_prob(self) -> bool:
        return self.trace == "retrace"


@dataclass(frozen=True)
class SequenceConfig(ValueConfig):
    """Keys of policies that learn from sequences."""

    learn_unroll_len: int = field(metadata=within(1, MOST_ROWS))
    burnin_step: int = field(metadata=within(0, MOST_ROWS))
    priority_eta: float = field(metadata=unit() | _SEVERAL_ROWS)
    memory_lr: ScheduleConfig | None = field(metadata=at_least(0) | WITH_MEMORY)
    state_init: Literal["stored", "zero"] = field(metadata=WITH_MEMORY)

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule("learn_unroll_len", lambda c: c.learn_unroll_len <= c.nstep,
             "must be > policy.nstep = {nstep}, else no row is learned", fix="raise it"),
    )  # fmt: skip

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


@dataclass(frozen=True)
class QMIXConfig(SequenceConfig):
    """Keys of R2D2 for the agents, and of the mixer."""

    actions: ClassVar[tuple[str, ...]] = ("MultiDiscrete",)
    agents: ClassVar[tuple[str, ...]] = ("joint",)

    mixer: Literal["monotonic", "sum"]
    mixer_hidden: int = field(metadata=within(1, MOST_UNITS))
    hyper_hidden: tuple[int, ...] = field(metadata=within(1, MOST_UNITS))
    agent_id: bool


@dataclass(frozen=True)
class ControlConfig(ReturnConfig):
    """Keys of every actor-critic with replay. Lengths are in rows."""

    actions: ClassVar[tuple[str, ...]] = ("Box",)

    nstep: int = field(metadata=within(1, MOST_ROWS))
    learn_unroll_len: int | None = field(metadata=within(1, MOST_ROWS))
    burnin_step: int = field(metadata=within(0, MOST_ROWS))
    state_init: Literal["stored", "zero"] = field(metadata=WITH_MEMORY)
    actor_lr: ScheduleConfig = field(metadata=at_least(0))
    memory_lr: ScheduleConfig | None = field(metadata=at_least(0) | WITH_MEMORY)
    target_update_every: int | None = field(metadata=at_least(1))
    target_tau: float | None = field(metadata=unit())
    actor_every: int = field(metadata=at_least(1))
    prev_inputs: bool
    td_clip: float | None = field(metadata=positive())
    priority_eta: float = field(metadata=unit() | _SEVERAL_ROWS)

    rules: ClassVar[tuple[Rule, ...]] = (
        exactly_one("target_update_every", "target_tau"),
        Rule("learn_unroll_len", lambda c: (c.learn_unroll_len or math.inf) <= c.nstep,
             "must be > policy.nstep = {nstep}, else no row is learned",
             fix="raise it, or set it to null (one learned row)"),
    )  # fmt: skip

    @property
    def window(self) -> Window:
        unroll = self.learn_unroll_len
        learned = 1 if unroll is None else unroll - self.nstep
        return Window(self.burnin_step, learned, self.nstep)


@dataclass(frozen=True)
class DDPGConfig(ControlConfig):
    """Keys of DDPG. ``noise`` is a fraction of half the distance between the bounds."""

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

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule("temperature", lambda c: c.temperature_auto and c.temperature <= 0,
             "is where log temperature starts and must be > 0",
             fix="policy.temperature_auto=false allows 0 (no entropy bonus)"),
    )  # fmt: skip


@dataclass(frozen=True)
class TQCConfig(SACConfig):
    num_critics: int = field(metadata=within(1, MOST_CRITICS))
    num_quantiles: int = field(metadata=within(1, MOST_ROWS))
    dropped_quantiles: int = field(metadata=at_least(0))
    kappa: float = field(metadata=at_least(0))

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule("dropped_quantiles", lambda c: c.dropped_quantiles >= c.num_quantiles,
             "must be < policy.num_quantiles = {num_quantiles}, else no target is left",
             fix="lower it"),
        Rule("td_clip", lambda c: c.td_clip is not None,
             "is not read: policy.kappa bounds the slope of quantiles' losses", "null is allowed",
             "use policy.kappa"),
    )  # fmt: skip


@dataclass(frozen=True)
class CrossQConfig(SACConfig):
    adam_beta1: float = field(metadata={"range": Range(0, 1, open_high=True)})
    norm_momentum: float = field(metadata=unit())
    norm_warmup: int = field(metadata=at_least(0))

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule("target_update_every", lambda c: c.target_update_every is not None,
             "policy crossq has no target networks", "null is allowed", "leave it out"),
        Rule("target_tau", lambda c: c.target_tau != 1,
             "policy crossq has no target networks", "1 is allowed", "leave it out"),
    )  # fmt: skip


@dataclass(frozen=True)
class BCConfig(NetworkConfig):
    actions: ClassVar[tuple[str, ...]] = ("Discrete", "Box")
    masks: ClassVar[bool] = True
    learns: ClassVar[bool] = False  # imitates actions, whatever their reward

    learn_unroll_len: int = field(metadata=within(2, MOST_ROWS))
    burnin_step: int = field(metadata=within(0, MOST_ROWS))
    memory_lr: ScheduleConfig | None = field(metadata=at_least(0) | WITH_MEMORY)

    @property
    def window(self) -> Window:
        """The window without the row after the learned ones, which is not read."""
        return Window(self.burnin_step, self.learn_unroll_len - 1, 1)


@dataclass(frozen=True)
class CQLConfig(ValueConfig):
    recurrent: ClassVar[bool] = False
    has_values: ClassVar[bool] = True
    masks: ClassVar[bool] = True
    counterpart: ClassVar[str | None] = "cql_sac"

    conservatism: float = field(metadata=at_least(0))


@dataclass(frozen=True)
class CQLSACConfig(SACConfig):
    counterpart: ClassVar[str | None] = "cql"

    conservatism: float = field(metadata=at_least(0))
    gap_threshold: float | None
    samples: int = field(metadata=within(1, MOST_ROWS))
    entropy_in_target: bool

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule("conservatism", lambda c: c.conservatism <= 0 and c.gap_threshold is not None,
             "is where the weight starts and must be > 0",
             fix="policy.gap_threshold=null allows 0 (SAC)"),
    )  # fmt: skip


@dataclass(frozen=True)
class IQLConfig(ReturnConfig):
    actions: ClassVar[tuple[str, ...]] = ("Discrete", "Box")
    masks: ClassVar[bool] = True
    recurrent: ClassVar[bool] = False

    nstep: int = field(metadata=within(1, MOST_ROWS))
    expectile: float = field(metadata=unit())
    inverse_temperature: float = field(metadata=at_least(0))
    weight_clip: float = field(metadata=at_least(1))
    target_tau: float = field(metadata=unit())

    @property
    def window(self) -> Window:
        return Window(0, 1, self.nstep)


@dataclass(frozen=True)
class OnPolicyConfig(ReturnConfig):
    """Keys of every on-policy actor-critic."""

    actions: ClassVar[tuple[str, ...]] = ("Discrete", "MultiDiscrete", "Box")
    on_policy: ClassVar[bool] = True
    masks: ClassVar[bool] = True

    memory_lr: ScheduleConfig | None = field(metadata=at_least(0) | WITH_MEMORY)
    value_coef: float = field(metadata=at_least(0))
    entropy_coef: float = field(metadata=at_least(0))
    separate_value: bool
    prev_inputs: bool
    orthogonal_init: bool
    log_std_init: float = field(metadata=_CONTINUOUS)
    rescale_actions: bool = field(metadata=_CONTINUOUS)
    normalize_obs: bool | None
    normalize_reward: bool


@dataclass(frozen=True)
class A2CConfig(OnPolicyConfig):
    tolerates_lag: ClassVar[bool] = False  # its gradient is valid for its own actions only

    gae_lambda: float = field(metadata=unit())
    normalize_advantage: bool


@dataclass(frozen=True)
class PPOConfig(OnPolicyConfig):
    gae_lambda: float = field(metadata=unit())
    normalize_advantage: bool
    epochs: int = field(metadata=at_least(1))
    batch_size: int = field(metadata=within(1, 10**7))
    clip_range: ScheduleConfig = field(metadata=at_least(0))
    value_clip: float | None = field(metadata=positive())
    target_kl: float | None = field(metadata=positive())
    segment_len: int = field(metadata=within(1, 10**6) | WITH_MEMORY)


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
    batch_size: int = field(metadata=within(1, 10**7))
    segment_len: int = field(metadata=within(1, 10**6) | WITH_MEMORY)
    memory_lr: ScheduleConfig | None = field(metadata=at_least(0) | WITH_MEMORY)
    normalize_reward: bool


@dataclass(frozen=True)
class BonusConfig(Ranged):
    """Keys of ``bonus=none``: rewards are those of the environment."""

    name: Literal["none", "rnd"]


@dataclass(frozen=True)
class RNDConfig(BonusConfig):
    coefficient: ScheduleConfig = field(metadata=at_least(0))
    features: int = field(metadata=within(1, MOST_UNITS))
    hidden: tuple[int, ...] = field(metadata=within(1, MOST_UNITS))
    predictor_hidden: tuple[int, ...] = field(metadata=within(1, MOST_UNITS))
    lr: ScheduleConfig = field(metadata=at_least(0))
    batch_size: int = field(metadata=within(1, 10**7))
    gamma: float = field(metadata=unit())


_HIDDEN_STATES = {  # memory -> arrays of its state, if all are as wide as its outputs
    "none": 0, "gru": 1, "mingru": 1, "indrnn": 1, "bmru": 1, "lstm": 2, "lru": 2, "rtu": 2,
    "slstm": 4,
}  # fmt: skip


@dataclass(frozen=True)
class MemoryConfig(Ranged):
    name: str  # or mypkg.mod:Cell
    hidden: int = field(metadata=within(0, MOST_UNITS) | WITH_MEMORY)
    forget_bias: float = field(
        metadata=read_when("memory=lstm|mingru|mlstm|slstm & policy.recurrent")
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule("hidden", lambda c: c.name != "none" and c.hidden < 1, "must be >= 1"),
    )

    def state_widths(self) -> tuple[int, ...]:
        """Return the widths S of the arrays [B, S] in a built-in memory's state."""
        return (self.hidden,) * _HIDDEN_STATES[self.name]


@dataclass(frozen=True)
class RingConfig(MemoryConfig):
    """Memories with complex decays on a ring r_min <= |lambda| <= r_max, phases up to max_phase."""

    r_min: float = field(metadata=unit())
    r_max: float = field(metadata=unit())
    max_phase: float = field(metadata={"range": Range(0, 2 * math.pi + 1e-6, open_low=True)})

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule("r_min", lambda c: c.r_min >= c.r_max, "must be below memory.r_max = {r_max}"),
    )


@dataclass(frozen=True)
class LRUConfig(RingConfig):
    readout: bool


@dataclass(frozen=True)
class MinGRUConfig(MemoryConfig):
    readout: bool


@dataclass(frozen=True)
class RTUConfig(RingConfig):
    recurrence: Literal["linear", "nonlinear"]
    activation: Literal["relu", "tanh"]


@dataclass(frozen=True)
class FFMConfig(MemoryConfig):
    traces: int = field(metadata=within(1, 2**12))
    context: int = field(metadata=within(1, 2**12))
    horizon: float = field(metadata={"range": Range(2, 30_000)})  # beyond, float32 has |lambda| = 1

    def state_widths(self) -> tuple[int, ...]:
        return (self.traces * self.context,) * 2


@dataclass(frozen=True)
class LMUConfig(MemoryConfig):
    order: int = field(metadata=within(1, 2**12))
    channels: int = field(metadata=within(1, 2**12))
    theta: float = field(metadata=positive())

    def state_widths(self) -> tuple[int, ...]:
        return (self.hidden, self.channels * self.order)


@dataclass(frozen=True)
class HeadsConfig(MemoryConfig):
    """Memories of several heads of equal width."""

    heads: int = field(metadata=within(1, 2**12))

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule("heads", lambda c: c.hidden % c.heads, "must divide memory.hidden = {hidden}"),
    )


@dataclass(frozen=True)
class GTrXLConfig(HeadsConfig):
    window: int = field(metadata=within(1, MOST_UNITS))
    layers: int = field(metadata=within(1, 2**12))
    mlp: int = field(metadata=within(1, MOST_UNITS))
    gate_bias: float

    def state_widths(self) -> tuple[int, ...]:
        return (*(self.window * self.hidden,) * self.layers, 1)


@dataclass(frozen=True)
class IndRNNConfig(MemoryConfig):
    horizon: float = field(metadata=at_least(1))


@dataclass(frozen=True)
class BMRUConfig(MemoryConfig):
    threshold: float = field(metadata=at_least(0))
    readout: bool


@dataclass(frozen=True)
class MLSTMConfig(HeadsConfig):
    readout: bool

    def state_widths(self) -> tuple[int, ...]:
        d = self.hidden // self.heads
        return (self.heads * (d + 1) * d, self.heads)


@dataclass(frozen=True)
class SLSTMConfig(HeadsConfig):
    """Keys of ``memory=slstm``."""


@dataclass(frozen=True)
class DecayConfig(HeadsConfig):
    """Memories whose heads have decays exp(-dt) of the input."""

    dt_min: float = field(metadata={"range": Range(1e-8, 100)})
    dt_max: float = field(metadata={"range": Range(1e-8, 100)})
    readout: bool

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule("dt_min", lambda c: c.dt_min > c.dt_max, "must be at most memory.dt_max = {dt_max}"),
    )  # fmt: skip


@dataclass(frozen=True)
class GatedDeltaNetConfig(DecayConfig):
    def state_widths(self) -> tuple[int, ...]:
        return (self.hidden**2 // self.heads,)


@dataclass(frozen=True)
class Mamba2Config(DecayConfig):
    state_size: int = field(metadata=within(1, 2**12))

    def state_widths(self) -> tuple[int, ...]:
        return (self.hidden * self.state_size,)


@dataclass(frozen=True)
class TorsoConfig(Ranged):
    name: Literal["mlp", "nature_cnn", "small_cnn", "image_and_vector"]
    hidden: tuple[int, ...] = field(metadata=within(1, MOST_UNITS))
    activation: Literal["relu", "tanh", "elu"]
    layer_norm: bool


@dataclass(frozen=True)
class ImageAndVectorConfig(TorsoConfig):
    """Keys of ``torso=image_and_vector``. ``hidden``: of the convolutions of every image."""

    vector_hidden: tuple[int, ...] = field(metadata=positive())
