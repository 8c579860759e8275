"""Replay buffers."""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from rlrun.schema.ranges import at_least, need, positive, unit
from rlrun.schema.readers import read_when
from rlrun.schema.schedule import ScheduleConfig, schedule_within


@dataclass(frozen=True)
class BufferConfig:
    name: Literal["uniform", "prioritized", "rank", "rollout"]
    capacity: int
    window_capacity: int | None
    max_bytes: int | None
    device: str
    mmap: str | None
    compress: bool
    load: str | None
    relabel: Literal["future", "final", "episode"] | None
    relabel_ratio: float = field(
        metadata=read_when("buffer.relabel", fix="set buffer.relabel=future")
    )
    demos: str | None
    demo_ratio: float = field(metadata=read_when("buffer.demos", fix="set buffer.demos=DIR"))

    def __post_init__(self) -> None:
        positive(self, "capacity", "window_capacity", "max_bytes")
        unit(self, "relabel_ratio")
        text = "must be > 0 and < 1: batches are mixed; demonstrations alone are pipeline=offline"
        need(0 < self.demo_ratio < 1, "demo_ratio", self.demo_ratio, text)
        for key in ("mmap", "load", "demos"):
            value = getattr(self, key)
            need(value != "", key, value, f"is empty; a path, or null; set buffer.{key}=null")
        need(
            self.mmap is None or self.device == "cpu",
            "mmap",
            self.mmap,
            f"files are mapped into host memory, not buffer.device = {self.device}; set one of "
            "them back (null, cpu)",
        )
        other = "mmap" if self.mmap is not None else "device"
        need(
            not self.compress or (self.mmap is None and self.device == "cpu"),
            "compress",
            self.compress,
            f"compressed rows live in host memory, buffer.{other} = {getattr(self, other)}; set "
            "one of them back (compress=false, or mmap=null and device=cpu)",
        )


@dataclass(frozen=True)
class PriorityConfig(BufferConfig):
    """What every buffer that draws by priority has."""

    alpha: ScheduleConfig
    beta: ScheduleConfig
    weight_norm: Literal["batch", "buffer"]
    initial_priority: Literal["max", "td"]

    def __post_init__(self) -> None:
        super().__post_init__()
        schedule_within(self, "alpha", 0, 1)
        schedule_within(self, "beta", 0, 1)
        values = self.beta.values()
        need(
            all(a <= b for a, b in pairwise(values)),
            "beta",
            list(values),
            "must not decrease (it anneals towards the full correction, 1); swap start and end",
        )


@dataclass(frozen=True)
class PrioritizedConfig(PriorityConfig):
    priority_eps: float

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 0, "priority_eps")


@dataclass(frozen=True)
class RankConfig(PriorityConfig):
    resort_every: int

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "resort_every")


@dataclass(frozen=True)
class RolloutConfig(BufferConfig):
    """On-policy storage: what one collect call brought, in host memory."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for key, only in (("device", "cpu"), ("mmap", None), ("window_capacity", None)):
            value = getattr(self, key)
            text = f"a rollout is drawn from once and then dropped; set it to {only or 'null'}"
            need(value == only, key, value, text)
