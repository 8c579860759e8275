"""Pipelines and the transport between their parts."""

from dataclasses import dataclass, field
from typing import Any, Literal

from rlrun.schema.ranges import Ranged, at_least, positive
from rlrun.schema.readers import read_when

_FRAMES = read_when("transport=coded|auto")
_ASYNC = read_when("pipeline.strict=false")


@dataclass(frozen=True)
class PipelineConfig(Ranged):
    name: Literal["serial", "overlapped", "offline", "ray"]


@dataclass(frozen=True)
class RoleConfig(Ranged):
    """What a role asks of the node that it is placed on."""

    num_cpus: float = field(metadata=at_least(0))
    num_gpus: float = field(metadata=at_least(0))
    resources: dict[str, Any]


@dataclass(frozen=True)
class RayConfig(PipelineConfig):
    """Roles as Ray actors; ``num_actors`` are the collectors."""

    num_actors: int = field(metadata=at_least(1))
    num_shards: int = field(metadata=at_least(1))
    inference: Literal["local", "central"]
    strict: bool
    weights_every: int = field(metadata=at_least(1))
    max_lead: int | None = field(metadata=at_least(1))
    prefetch: int = field(metadata=at_least(1))
    address: str | None
    collector: RoleConfig
    replay: RoleConfig
    learner: RoleConfig
    evaluator: RoleConfig
    predictor: RoleConfig


Coder = Literal["auto", "raw", "xor", "planes", "planes_ctx", "xorz", "zstd", "pco"]


@dataclass(frozen=True)
class TransportConfig(Ranged):
    """Transfer of weights and collected rows between learner and collector."""

    name: Literal["raw", "coded", "auto"]
    weights: Coder = field(metadata=_FRAMES)
    chunks: Coder = field(metadata=_FRAMES)
    keep: int = field(metadata=at_least(2) | _FRAMES)
    key_seconds: float = field(metadata=at_least(0) | _FRAMES)
    link_mbps: float | None = field(metadata=positive() | read_when("transport=auto"))
    copies: Literal["float32", "bf16"]
