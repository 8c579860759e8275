"""Types and ranges of every config key, without values: yaml is the only home of a default.

Torch-free. Each ``__post_init__`` checks its own ranges (``Invalid``); ``rlrun.config`` reads the
yaml and checks what spans several fields. Lengths and periods are in environment steps.
"""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal


class Invalid(ValueError):
    """A field out of range; ``key`` is relative to the dataclass that raised it."""

    def __init__(self, key: str, value: object, text: str) -> None:
        super().__init__(f"{key} = {value}: {text}")
        self.key, self.value, self.text = key, value, text


def _need(ok: bool, key: str, value: object, text: str) -> None:
    if not ok:
        raise Invalid(key, value, text)


def _positive(config: object, *keys: str) -> None:
    for key in keys:
        value = getattr(config, key)
        _need(value is None or value > 0, key, value, "must be > 0")


def _at_least(config: object, bound: float, *keys: str) -> None:
    for key in keys:
        value = getattr(config, key)
        _need(value is None or value >= bound, key, value, f"must be >= {bound}")


def _unit(config: object, *keys: str) -> None:
    for key in keys:
        value = getattr(config, key)
        _need(value is None or 0 <= value <= 1, key, value, "must be within [0, 1]")


@dataclass(frozen=True)
class ScheduleConfig:
    """A number that depends on environment steps; a bare number in yaml is ``constant``."""

    kind: Literal["constant", "linear", "exponential", "cosine", "piecewise"]
    start: float
    end: float
    over: float | None  # env steps; null: run.total_steps. For exponential: the time constant
    points: tuple[tuple[float, float], ...] | None  # piecewise only: [[env_steps, value], ...]

    def __post_init__(self) -> None:
        _positive(self, "over")
        if self.kind == "piecewise":
            points = self.points or ()
            steps = [step for step, _ in points]
            _need(
                len(points) >= 2 and steps == sorted(set(steps)),
                "points",
                self.points,
                "piecewise needs at least two [env_steps, value] pairs with rising env_steps",
            )

    def values(self) -> tuple[float, ...]:
        """The numbers between which the schedule stays."""
        if self.kind == "piecewise":
            return tuple(value for _, value in self.points or ())
        return (self.start,) if self.kind == "constant" else (self.start, self.end)


def _schedule_within(config: object, key: str, low: float, high: float) -> None:
    schedule: ScheduleConfig = getattr(config, key)
    for value in schedule.values():
        span = f"[{low:g}, {high:g}]" if math.isfinite(high) else f"[{low:g}, inf)"
        _need(low <= value <= high, key, value, f"must stay within {span}")


@dataclass(frozen=True)
class RunConfig:
    dir: str | None
    total_steps: int
    eval_every: int
    eval_episodes: int
    checkpoint_every: int
    keep_checkpoints: int
    stop_value: float | None
    stop_after: int

    def __post_init__(self) -> None:
        _positive(self, "total_steps", "eval_every", "eval_episodes", "checkpoint_every")
        _at_least(self, 1, "keep_checkpoints", "stop_after")


@dataclass(frozen=True)
class EnvConfig:
    id: str
    kwargs: dict[str, Any]
    eval_kwargs: dict[str, Any]
    backend: Literal["auto", "vector", "sync", "async"]
    max_episode_steps: int | None
    reward_scale: float
    stop_value: float | None
    total_steps: int
    success: str | None
    note: str

    def __post_init__(self) -> None:
        _positive(self, "max_episode_steps", "reward_scale", "total_steps")


@dataclass(frozen=True)
class TorsoConfig:
    name: Literal["mlp", "nature_cnn"]
    hidden: tuple[int, ...]
    activation: Literal["relu", "tanh", "elu"]

    def __post_init__(self) -> None:
        for size in self.hidden:
            _need(size > 0, "hidden", list(self.hidden), "layer sizes must be > 0")


@dataclass(frozen=True)
class MemoryConfig:
    name: Literal["lstm", "gru", "none"]
    hidden: int
    forget_bias: float

    def __post_init__(self) -> None:
        _at_least(self, 0 if self.name == "none" else 1, "hidden")


@dataclass(frozen=True)
class ValueConfig:
    """What every value-based policy has."""

    name: str
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
        _at_least(self, 1, "nstep", "target_update_every")
        _unit(self, "gamma", "target_theta")
        _schedule_within(self, "lr", 0, math.inf)
        _positive(self, "adam_eps", "grad_clip", "reward_scale", "reward_clip", "td_clip")
        _positive(self, "value_rescale_eps")
        both = (self.target_update_every is None) == (self.target_theta is None)
        _need(
            not both,
            "target_update_every",
            self.target_update_every,
            f"exactly one of target_update_every and target_theta (= {self.target_theta}) is a "
            "number, the other null; change one of them",
        )
        for size in self.head_hidden:
            _need(size > 0, "head_hidden", list(self.head_hidden), "layer sizes must be > 0")


@dataclass(frozen=True)
class R2D2Config(ValueConfig):
    learn_unroll_len: int
    burnin_step: int
    eta: float
    state_init: Literal["stored", "zero"]

    def __post_init__(self) -> None:
        super().__post_init__()
        _at_least(self, 0, "burnin_step")
        _unit(self, "eta")
        _need(
            self.learn_unroll_len > self.nstep,
            "learn_unroll_len",
            self.learn_unroll_len,
            f"must be > policy.nstep = {self.nstep}, else no row is learned; "
            f"set policy.learn_unroll_len >= {self.nstep + 1}",
        )


class DQNConfig(ValueConfig):
    """What ValueConfig has."""


@dataclass(frozen=True)
class RandomConfig:
    name: str


@dataclass(frozen=True)
class BufferConfig:
    name: Literal["uniform", "prioritized"]
    capacity: int
    window_capacity: int | None

    def __post_init__(self) -> None:
        _positive(self, "capacity", "window_capacity")


@dataclass(frozen=True)
class PrioritizedConfig(BufferConfig):
    alpha: ScheduleConfig
    beta: ScheduleConfig
    priority_eps: float
    weight_norm: Literal["batch", "buffer"]
    initial_priority: Literal["max", "td"]

    def __post_init__(self) -> None:
        super().__post_init__()
        _schedule_within(self, "alpha", 0, 1)
        _schedule_within(self, "beta", 0, 1)
        values = self.beta.values()
        _need(
            all(a <= b for a, b in pairwise(values)),
            "beta",
            list(values),
            "must not decrease (it anneals towards the full correction, 1); swap start and end",
        )
        _at_least(self, 0, "priority_eps")


@dataclass(frozen=True)
class ExploreConfig:
    """ladder: eps ** (1 + alpha i / (N - 1)), `single` when N = 1. schedule: `epsilon`."""

    name: Literal["ladder", "schedule"]
    eps: float | None
    alpha: float | None
    epsilon: ScheduleConfig

    def __post_init__(self) -> None:
        _schedule_within(self, "epsilon", 0, 1)
        _unit(self, "eps")
        _at_least(self, 0, "alpha")
        if self.name == "ladder":
            _need(self.eps is not None, "eps", self.eps, "the ladder needs a number in [0, 1]")
            _need(self.alpha is not None, "alpha", self.alpha, "the ladder needs a number >= 0")


@dataclass(frozen=True)
class CollectorConfig:
    num_envs: int
    n_sample: int
    unit: Literal["step", "window", "episode"]
    tiling: Literal["lossless", "plain"]
    learned_overlap: int
    trajectory: Literal["episode", "collect"]
    residual: Literal["last", "null_padding", "drop"] | None
    overlap: int | None
    keep_info: tuple[str, ...]

    def __post_init__(self) -> None:
        _at_least(self, 1, "num_envs", "n_sample")
        _at_least(self, 0, "learned_overlap", "overlap")
        if self.tiling == "lossless":
            for key in ("overlap", "residual"):
                value = getattr(self, key)
                _need(
                    value is None, key, value, "belongs to collector.tiling=plain; set it to null"
                )
        else:
            for key in ("overlap", "residual"):
                value = getattr(self, key)
                text = "collector.tiling=plain needs a value (overlap=0, residual=last)"
                _need(value is not None, key, value, text)
            text = "belongs to collector.tiling=lossless; set it to 0"
            _need(self.learned_overlap == 0, "learned_overlap", self.learned_overlap, text)


@dataclass(frozen=True)
class LearnerConfig:
    batch_size: int
    update_per_collect: int | None
    replay_ratio: float | None
    start_after: int
    threads: int | None

    def __post_init__(self) -> None:
        _at_least(self, 1, "batch_size", "update_per_collect", "threads")
        _positive(self, "replay_ratio")
        _at_least(self, 0, "start_after")
        both = (self.update_per_collect is None) == (self.replay_ratio is None)
        _need(
            not both,
            "update_per_collect",
            self.update_per_collect,
            f"exactly one of update_per_collect and replay_ratio (= {self.replay_ratio}) is a "
            "number, the other null; change one of them",
        )


@dataclass(frozen=True)
class LoggerConfig:
    every: int
    tensorboard: bool
    progress: Literal["auto", "live", "plain", "off"]
    progress_seconds: float

    def __post_init__(self) -> None:
        _positive(self, "every", "progress_seconds")


@dataclass(frozen=True)
class PipelineConfig:
    name: Literal["serial"]


@dataclass(frozen=True)
class Config:
    """The whole run. ``policy`` and ``buffer`` are the dataclass their ``name`` selects."""

    seed: int
    device: str
    run: RunConfig
    env: EnvConfig
    policy: R2D2Config | DQNConfig | RandomConfig
    torso: TorsoConfig
    memory: MemoryConfig
    buffer: BufferConfig
    explore: ExploreConfig
    collector: CollectorConfig
    learner: LearnerConfig
    logger: LoggerConfig
    pipeline: PipelineConfig

    def __post_init__(self) -> None:
        _need(0 <= self.seed < 2**32, "seed", self.seed, "must be within [0, 2^32)")


POLICY_CONFIGS: dict[str, type[R2D2Config] | type[DQNConfig] | type[RandomConfig]] = {
    "r2d2": R2D2Config,
    "dqn": DQNConfig,
    "random": RandomConfig,
}
BUFFER_CONFIGS: dict[str, type[BufferConfig]] = {
    "uniform": BufferConfig,
    "prioritized": PrioritizedConfig,
}
