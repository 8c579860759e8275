"""Everything but policies and networks: run, environment, collector, buffer, learner, ..."""

import math
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar, Literal

from rlrun.schema.policy import Window
from rlrun.schema.ranges import (
    MOST_UNITS,
    Invalid,
    Range,
    Ranged,
    Rule,
    ScheduleConfig,
    Seconds,
    at_least,
    default_of,
    each,
    exactly_one,
    positive,
    read_when,
    unit,
    within,
)


@dataclass(frozen=True)
class WrapperConfig(Ranged):
    """One entry of ``env.wrappers``; ``name`` selects the class, its other fields are arguments."""

    name: str


@dataclass(frozen=True)
class PickObsConfig(WrapperConfig):
    key: str  # of the Dict observation, or position in the Tuple


@dataclass(frozen=True)
class FilterObsConfig(WrapperConfig):
    keys: tuple[str, ...]  # of the Dict observation, or positions in the Tuple

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule("keys", lambda c: not c.keys, "must name at least one"),
    )


@dataclass(frozen=True)
class MaskObsConfig(WrapperConfig):
    keep: tuple[int, ...]  # positions of the observation vector

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule("keep", lambda c: not c.keep or min(c.keep) < 0 or len({*c.keep}) < len(c.keep),
             "must be positions from 0 on, each once, at least one"),
    )  # fmt: skip


@dataclass(frozen=True)
class StepsConfig(WrapperConfig):
    steps: int = field(metadata={"range": Range(1, 10**6)})  # env steps


@dataclass(frozen=True)
class MaxAndSkipConfig(StepsConfig):
    steps: int = field(metadata={"range": Range(2, 10**6)})  # env steps


@dataclass(frozen=True)
class ProbabilityConfig(WrapperConfig):
    probability: float = field(metadata=unit())


@dataclass(frozen=True)
class StickyConfig(ProbabilityConfig):
    probability: float = field(metadata={"range": Range(0, 1, open_high=True)})


@dataclass(frozen=True)
class NoiseConfig(WrapperConfig):
    std: float = field(metadata=at_least(0))  # in the observation's own unit


@dataclass(frozen=True)
class BoundsConfig(WrapperConfig):
    low: float
    high: float

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule("low", lambda c: c.low >= c.high, "must be below high (= {high})"),
    )


@dataclass(frozen=True)
class CastObsConfig(WrapperConfig):
    dtype: Literal["float32", "float64", "uint8", "int64"]


@dataclass(frozen=True)
class ResizeObsConfig(WrapperConfig):
    height: int = field(metadata=within(1, 10**4))  # pixels
    width: int = field(metadata=within(1, 10**4))  # pixels


@dataclass(frozen=True)
class DiscretizeActionConfig(WrapperConfig):
    bins: int = field(metadata=within(2, 10**6))  # per dimension of the action


WRAPPER_CONFIGS: dict[str, type[WrapperConfig]] = {
    "pick_obs": PickObsConfig, "filter_obs": FilterObsConfig, "encode_mission": WrapperConfig,
    "mask_obs": MaskObsConfig, "mask_from_info": WrapperConfig, "flatten_obs": WrapperConfig,
    "rescale_obs": BoundsConfig, "cast_obs": CastObsConfig, "grayscale_obs": WrapperConfig,
    "resize_obs": ResizeObsConfig, "max_and_skip": MaxAndSkipConfig, "time_obs": WrapperConfig,
    "delay_obs": StepsConfig, "flicker_obs": ProbabilityConfig, "noise_obs": NoiseConfig,
    "rescale_action": BoundsConfig, "discretize_action": DiscretizeActionConfig,
    "sticky_action": StickyConfig, "repeat_action": StepsConfig, "clip_reward": BoundsConfig,
}  # fmt: skip
"""name in ``env.wrappers`` -> its arguments; ``rlrun.env.wrappers.WRAPPERS`` describes each."""


_LADDER = read_when("explore=ladder & several_columns")
_EPSILON = read_when("explore=schedule", "explore=ladder & one_column")
_BOLTZMANN = read_when("explore=boltzmann")
_UPDATES = read_when("policy.updates")
_COLLECTS = read_when("pipeline=serial|overlapped|ray")


CHECKPOINT_STEPS, CHECKPOINT_SECONDS = 10_000, 1.0  # at least; run.checkpoint_every=null


@dataclass(frozen=True)
class RunConfig(Ranged):
    dir: str | None
    total_steps: int = field(metadata=at_least(0))
    eval_every: int = field(metadata=positive())
    eval_episodes: int = field(metadata=within(1, 10**6))
    video_every: int | None = field(metadata=positive())
    checkpoint_every: int | None = field(metadata=positive())
    keep_checkpoints: int = field(metadata=within(1, 10**6))
    stop_return: float | None
    stop_after: int = field(metadata=at_least(1))
    max_time: Seconds | None = field(metadata=positive())
    on_nan: Literal["stop", "rollback"]


@dataclass(frozen=True)
class EvalConfig(Ranged):
    max_episode_steps: int = field(metadata=at_least(1))


@dataclass(frozen=True)
class WatchdogConfig(Ranged):
    warn_seconds: float = field(metadata=positive())
    max_seconds: float | None = field(metadata=positive())


@dataclass(frozen=True)
class ResumeConfig(Ranged):
    rescale: bool
    allow: tuple[str, ...]


@dataclass(frozen=True)
class CheckpointConfig(Ranged):
    history: int = field(metadata=within(0, 10**6))


OBJECT = "python/"  # namespace of ids for environments from scripts


@dataclass(frozen=True)
class EnvConfig(Ranged):
    id: str
    kwargs: dict[str, Any]
    eval_kwargs: dict[str, Any]
    wrappers: tuple[WrapperConfig, ...]
    backend: Literal["auto", "vector", "sync", "async", "envpool"]
    max_episode_steps: int | None = field(metadata=positive())
    worker_seconds: float = field(metadata=positive())
    on_worker_failure: Literal["stop", "restart"]
    max_replay_steps: int = field(metadata=at_least(0))
    instances: int | None = field(metadata={"range": Range(1, 1)})
    frame_stack: int = field(metadata=within(1, 1024))
    reward_scale: float = field(metadata=positive())
    gamma: float = field(metadata=unit() | default_of("policy.gamma"))
    log_std_init: float = field(metadata=default_of("policy.log_std_init"))
    prev_inputs: bool = field(metadata=default_of("policy.prev_inputs"))
    stop_return: float | None = field(metadata=default_of("run.stop_return"))
    total_steps: int = field(metadata=positive() | default_of("run.total_steps"))
    eval_every: int = field(metadata=positive() | default_of("run.eval_every"))
    eval_episodes: int = field(metadata=within(1, 10**6) | default_of("run.eval_episodes"))
    warmup_steps: int = field(metadata=at_least(0) | default_of("learner.learning_starts"))
    success: str | None
    not_learned_by: tuple[str, ...]
    needs_memory: bool
    note: str


@dataclass(frozen=True)
class ExploreConfig(Ranged):
    """Keys of exploration.

    ladder: base_epsilon ** (1 + alpha i / (N - 1)), or `epsilon` if N = 1. schedule: `epsilon`.
    none: 0. boltzmann: softmax(q / `temperature`), with the network's q.
    """

    name: Literal["ladder", "schedule", "boltzmann", "none"]
    base_epsilon: float | None = field(metadata=unit() | _LADDER)
    alpha: float | None = field(metadata=at_least(0) | _LADDER)
    epsilon: ScheduleConfig = field(metadata=unit() | _EPSILON)
    temperature: ScheduleConfig | None = field(metadata=at_least(0) | _BOLTZMANN)

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule("temperature", lambda c: c.name == "boltzmann" and c.temperature is None,
             "boltzmann needs a number >= 0 or a schedule"),
        Rule("base_epsilon", lambda c: c.name == "ladder" and c.base_epsilon is None,
             "the ladder needs a number in [0, 1]"),
        Rule("alpha", lambda c: c.name == "ladder" and c.alpha is None,
             "the ladder needs a number >= 0"),
    )  # fmt: skip


_OWN_COLUMNS = ("log_prob", "raw_action", "prev_action", "prev_reward", "bonus.raw_reward")


@dataclass(frozen=True)
class CollectorConfig(Ranged):
    num_envs: int = field(metadata=within(1, MOST_UNITS))
    n_sample: int = field(metadata=within(1, 10**8) | _COLLECTS)
    unit: Literal["step", "window", "episode"] = field(metadata=_COLLECTS)
    tiling: Literal["lossless", "plain"]
    learned_overlap: int = field(metadata=at_least(0))
    residual: Literal["last", "null_padding", "drop"] | None
    overlap: int | None = field(metadata=at_least(0))
    keep_info: tuple[str, ...]

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule("keep_info", lambda c: {*c.keep_info} & {*_OWN_COLUMNS},
             "holds the name of a column that rlrun adds", f"not one of {', '.join(_OWN_COLUMNS)}",
             "choose another key of info"),
        *each(("overlap", "residual"), lambda key: Rule(
            key, lambda c: c.tiling == "lossless" and getattr(c, key) is not None,
            "belongs to collector.tiling=plain", fix="set it to null")),
        *each(("overlap", "residual"), lambda key: Rule(
            key, lambda c: c.tiling == "plain" and getattr(c, key) is None,
            "collector.tiling=plain needs a value (overlap=0, residual=last)")),
        Rule("learned_overlap", lambda c: c.tiling == "plain" and c.learned_overlap,
             "belongs to collector.tiling=lossless", fix="set it to 0"),
    )  # fmt: skip

    def columns(self, per_env: int) -> int:
        """Return the columns of one collector, ``per_env`` of each environment."""
        return per_env * self.num_envs

    def stride(self, window: Window) -> int:
        """Return the rows from the start of one window to that of the next."""
        if self.tiling == "lossless":
            return window.learned - self.learned_overlap
        return window.rows - (self.overlap or 0)


_MIXED = Range(
    0, 1, open_low=True, open_high=True,
    reason="batches are mixed; demonstrations alone are pipeline=offline",
)  # fmt: skip


@dataclass(frozen=True)
class BufferConfig(Ranged):
    name: Literal["uniform", "prioritized", "rank", "rollout"]
    capacity: int = field(metadata=positive())
    window_capacity: int | None = field(metadata=positive())
    max_bytes: int | None = field(metadata=positive())
    device: str
    mmap: str | None
    compress: bool
    load: str | None
    relabel: Literal["future", "final", "episode"] | None
    relabel_ratio: float = field(
        metadata=unit() | read_when("buffer.relabel", fix="set buffer.relabel=future")
    )
    demos: str | None
    demo_ratio: float = field(
        metadata={"range": _MIXED} | read_when("buffer.demos", fix="set buffer.demos=DIR")
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule("mmap", lambda c: c.mmap is not None and c.device != "cpu",
             "files are mapped into host memory, not buffer.device = {device}",
             fix="set one of them back (null, cpu)"),
        Rule("compress", lambda c: c.compress and c.mmap is not None,
             "compressed rows live in host memory, buffer.mmap = {mmap}",
             fix="set one of them back (compress=false, or mmap=null)"),
        Rule("compress", lambda c: c.compress and c.device != "cpu",
             "compressed rows live in host memory, buffer.device = {device}",
             fix="set one of them back (compress=false, or device=cpu)"),
    )  # fmt: skip

    def column_rows(self, columns: int) -> int:
        """Return the rows that each of ``columns`` columns holds."""
        return self.capacity // columns


@dataclass(frozen=True)
class PriorityConfig(BufferConfig):
    """Keys of every prioritized buffer."""

    alpha: ScheduleConfig = field(metadata=unit())
    beta: ScheduleConfig = field(metadata=unit())
    initial_priority: Literal["max", "td"]

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule("beta", lambda c: any(a > b for a, b in pairwise(c.beta.values())),
             "must not decrease (it anneals towards the full correction, 1)",
             fix="swap start and end"),
    )  # fmt: skip


@dataclass(frozen=True)
class PrioritizedConfig(PriorityConfig):
    priority_eps: float = field(metadata=at_least(0))


@dataclass(frozen=True)
class RankConfig(PriorityConfig):
    resort_every: int = field(metadata=positive())


_OF_ROLLOUTS = {"device": "cpu", "mmap": None, "window_capacity": None}


@dataclass(frozen=True)
class RolloutConfig(BufferConfig):
    """On-policy storage: the rows of one collect call, in host memory."""

    rules: ClassVar[tuple[Rule, ...]] = each(
        ("device", "mmap", "window_capacity"),
        lambda key: Rule(key, lambda c: getattr(c, key) != _OF_ROLLOUTS[key],
                         "a rollout is drawn from once and then dropped",
                         fix=f"set it to {_OF_ROLLOUTS[key] or 'null'}"),
    )  # fmt: skip


@dataclass(frozen=True)
class LearnerConfig(Ranged):
    batch_size: int = field(metadata=within(1, 10**7) | _UPDATES)
    update_per_collect: int | None = field(metadata=at_least(1) | _UPDATES)
    replay_ratio: float | None = field(metadata=positive() | _UPDATES)
    learning_starts: int = field(metadata=at_least(0) | _UPDATES)
    threads: int | None = field(metadata=at_least(1))
    target_thread: bool | None = field(metadata=_UPDATES)
    backend: Literal["auto", "torch", "numpy"] = field(metadata=_UPDATES)
    precision: Literal["float32", "tf32", "bf16"] = field(metadata=_UPDATES)
    cuda_graph: bool = field(metadata=_UPDATES)
    compile: bool = field(metadata=_UPDATES)

    rules: ClassVar[tuple[Rule, ...]] = (exactly_one("update_per_collect", "replay_ratio"),)


@dataclass(frozen=True)
class LoggerConfig(Ranged):
    every: int = field(metadata=positive())
    tensorboard: bool
    progress: Literal["auto", "live", "plain", "off"]
    profile: int | None = field(metadata=at_least(1))
    figures_every: int | None = field(metadata=at_least(1))
    csv: bool
    wandb: Literal["offline", "online"] | None
    trackio: bool
    mlflow: str | None


_FRAMES = read_when("transport=coded|auto")


@dataclass(frozen=True)
class PipelineConfig(Ranged):
    name: Literal["serial", "overlapped", "offline", "ray"]


@dataclass(frozen=True)
class RoleConfig(Ranged):
    """Resources that a role, or a job of a sweep, reserves on its node."""

    num_cpus: float = field(metadata=at_least(0))
    num_gpus: float = field(metadata=at_least(0))
    resources: dict[str, Any]

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, amount in self.resources.items():
            key = f"resources.{name}"
            if type(amount) not in (int, float) or not 0 < amount < math.inf:
                text = "is not an amount of a resource; a number > 0 is allowed"
                raise Invalid(key, amount, text)
            if name in ("CPU", "GPU", "memory"):
                allowed = "other names are allowed; use num_cpus or num_gpus"
                raise Invalid(key, amount, f"is not a custom resource; {allowed}")


@dataclass(frozen=True)
class RayConfig(PipelineConfig):
    """Keys of pipeline=ray: roles as Ray actors; ``num_actors`` is the number of collectors."""

    num_actors: int = field(metadata=at_least(1))
    collectors_per_process: int = field(metadata=at_least(1))
    inference: Literal["local", "central"]
    strict: bool
    weights_every: int = field(metadata=at_least(1))
    address: str | None
    collector: RoleConfig
    evaluator: RoleConfig
    predictor: RoleConfig


Coder = Literal["auto", "raw", "planes", "planes_ctx", "xorz", "zstd", "pco"]


@dataclass(frozen=True)
class TransportConfig(Ranged):
    """Transfer of weights and collected rows between learner and collector."""

    name: Literal["raw", "coded", "auto"]
    weights: Coder = field(metadata=_FRAMES)
    chunks: Coder = field(metadata=_FRAMES)
    keep: int = field(metadata=within(2, 10**6) | _FRAMES)
    key_seconds: float = field(metadata=at_least(0) | _FRAMES)
    link_mbps: float | None = field(metadata=positive() | read_when("transport=auto"))
    copies: Literal["float32", "bf16"]


_JOINT = read_when("agents=joint", fix="use policy=qmix or policy=vdn")


@dataclass(frozen=True)
class AgentsConfig(Ranged):
    """Layout of several agents. shared, separate: a column per agent. joint: one row for all."""

    name: Literal["shared", "separate", "joint"]
    agent_id: bool = field(metadata=read_when("several_agents"))
    team_reward: Literal["mean", "sum"] = field(metadata=_JOINT)
    state: Literal["env", "concat"] = field(metadata=_JOINT)
