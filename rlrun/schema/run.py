"""The run, the environment, and the loop around the policy."""

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from rlrun.schema.ranges import at_least, exactly_one, need, positive, unit
from rlrun.schema.readers import default_of, read_when
from rlrun.schema.schedule import ScheduleConfig, schedule_within
from rlrun.schema.window import Window
from rlrun.schema.wrappers import WrapperConfig

_LADDER = read_when("explore=ladder")
_EPSILON = read_when("explore=schedule", "explore=ladder & collector.num_envs=1")
_BOLTZMANN = read_when("explore=boltzmann")
_UPDATES = read_when("policy.updates")
_CODED = read_when("transport=coded")


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
        positive(self, "total_steps", "eval_every", "eval_episodes", "checkpoint_every")
        at_least(self, 1, "keep_checkpoints", "stop_after")


@dataclass(frozen=True)
class CheckpointConfig:
    history: int

    def __post_init__(self) -> None:
        at_least(self, 0, "history")


@dataclass(frozen=True)
class EnvConfig:
    id: str
    kwargs: dict[str, Any]
    eval_kwargs: dict[str, Any]
    wrappers: tuple[WrapperConfig, ...]
    backend: Literal["auto", "vector", "sync", "async", "envpool"]
    max_episode_steps: int | None
    frame_stack: int
    reward_scale: float
    stop_value: float | None = field(metadata=default_of("run.stop_value"))
    total_steps: int = field(metadata=default_of("run.total_steps"))
    eval_every: int = field(metadata=default_of("run.eval_every"))
    warmup_steps: int = field(metadata=default_of("learner.learning_starts"))
    success: str | None
    note: str

    def __post_init__(self) -> None:
        positive(self, "max_episode_steps", "reward_scale", "total_steps", "eval_every")
        at_least(self, 1, "frame_stack")
        at_least(self, 0, "warmup_steps")


@dataclass(frozen=True)
class ExploreConfig:
    """ladder: eps ** (1 + alpha i / (N - 1)), N = 1: `epsilon`. schedule: `epsilon`. none: 0.
    boltzmann: softmax(Q / `temperature`)."""

    name: Literal["ladder", "schedule", "boltzmann", "none"]
    eps: float | None = field(metadata=_LADDER)
    alpha: float | None = field(metadata=_LADDER)
    epsilon: ScheduleConfig = field(metadata=_EPSILON)
    temperature: ScheduleConfig | None = field(metadata=_BOLTZMANN)

    def __post_init__(self) -> None:
        schedule_within(self, "epsilon", 0, 1)
        unit(self, "eps")
        at_least(self, 0, "alpha")
        if self.temperature is not None:
            schedule_within(self, "temperature", 0, math.inf)
        if self.name == "boltzmann":
            text = "boltzmann needs a number >= 0 or a schedule"
            need(self.temperature is not None, "temperature", self.temperature, text)
        if self.name == "ladder":
            need(self.eps is not None, "eps", self.eps, "the ladder needs a number in [0, 1]")
            need(self.alpha is not None, "alpha", self.alpha, "the ladder needs a number >= 0")


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
        at_least(self, 1, "num_envs", "n_sample")
        at_least(self, 0, "learned_overlap", "overlap")
        if self.tiling == "lossless":
            for key in ("overlap", "residual"):
                value = getattr(self, key)
                need(value is None, key, value, "belongs to collector.tiling=plain; set it to null")
        else:
            for key in ("overlap", "residual"):
                value = getattr(self, key)
                text = "collector.tiling=plain needs a value (overlap=0, residual=last)"
                need(value is not None, key, value, text)
            text = "belongs to collector.tiling=lossless; set it to 0"
            need(self.learned_overlap == 0, "learned_overlap", self.learned_overlap, text)

    @property
    def shared_rows(self) -> int:
        """Rows that successive windows share: learned ones (lossless), or any (plain)."""
        return self.learned_overlap if self.tiling == "lossless" else self.overlap or 0

    def stride(self, window: Window) -> int:
        """Rows from the start of one window to that of the next."""
        own = window.learned if self.tiling == "lossless" else window.rows
        return own - self.shared_rows


@dataclass(frozen=True)
class LearnerConfig:
    batch_size: int = field(metadata=_UPDATES)
    update_per_collect: int | None = field(metadata=_UPDATES)
    replay_ratio: float | None = field(metadata=_UPDATES)
    learning_starts: int = field(metadata=_UPDATES)
    threads: int | None
    target_thread: bool | None = field(metadata=_UPDATES)
    precision: Literal["float32", "bf16"] = field(metadata=_UPDATES)
    cuda_graph: bool = field(metadata=_UPDATES)
    compile: bool = field(metadata=_UPDATES)

    def __post_init__(self) -> None:
        at_least(self, 1, "batch_size", "update_per_collect", "threads")
        positive(self, "replay_ratio")
        at_least(self, 0, "learning_starts")
        exactly_one(self, "update_per_collect", "replay_ratio")


@dataclass(frozen=True)
class LoggerConfig:
    every: int
    tensorboard: bool
    progress: Literal["auto", "live", "plain", "off"]
    progress_seconds: float
    profile: int | None

    def __post_init__(self) -> None:
        positive(self, "every", "progress_seconds")
        at_least(self, 1, "profile")


@dataclass(frozen=True)
class PipelineConfig:
    name: Literal["serial", "overlapped", "offline"]


Coder = Literal["auto", "raw", "xor", "planes", "planes_ctx", "xorz", "zstd", "pco"]


@dataclass(frozen=True)
class TransportConfig:
    """How weights and collected rows travel between learner and collector."""

    name: Literal["raw", "coded"]
    weights: Coder = field(metadata=_CODED)
    chunks: Coder = field(metadata=_CODED)
    keep: int = field(metadata=_CODED)
    key_seconds: float = field(metadata=_CODED)

    def __post_init__(self) -> None:
        at_least(self, 2, "keep")
        at_least(self, 0, "key_seconds")
