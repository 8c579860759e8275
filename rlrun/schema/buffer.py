"""Replay buffers."""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from rlrun.schema.ranges import (
    Range,
    Ranged,
    ScheduleConfig,
    at_least,
    positive,
    read_when,
    require,
    unit,
)

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

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("mmap", "load", "demos"):
            value = getattr(self, key)
            require(value != "", key, value, f"is empty; a path, or null; set buffer.{key}=null")
        require(
            self.mmap is None or self.device == "cpu",
            "mmap",
            self.mmap,
            f"files are mapped into host memory, not buffer.device = {self.device}; set one of "
            "them back (null, cpu)",
        )
        other = "mmap" if self.mmap is not None else "device"
        require(
            not self.compress or (self.mmap is None and self.device == "cpu"),
            "compress",
            self.compress,
            f"compressed rows live in host memory, buffer.{other} = {getattr(self, other)}; set "
            "one of them back (compress=false, or mmap=null and device=cpu)",
        )


@dataclass(frozen=True)
class PriorityConfig(BufferConfig):
    """Keys of every prioritized buffer."""

    alpha: ScheduleConfig = field(metadata=unit())
    beta: ScheduleConfig = field(metadata=unit())
    weight_norm: Literal["batch", "buffer"]
    initial_priority: Literal["max", "td"]

    def __post_init__(self) -> None:
        super().__post_init__()
        values = self.beta.values()
        require(
            all(a <= b for a, b in pairwise(values)),
            "beta",
            list(values),
            "must not decrease (it anneals towards the full correction, 1); swap start and end",
        )


@dataclass(frozen=True)
class PrioritizedConfig(PriorityConfig):
    priority_eps: float = field(metadata=at_least(0))


@dataclass(frozen=True)
class RankConfig(PriorityConfig):
    resort_every: int = field(metadata=positive())


@dataclass(frozen=True)
class RolloutConfig(BufferConfig):
    """On-policy storage: the rows of one collect call, in host memory."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for key, only in (("device", "cpu"), ("mmap", None), ("window_capacity", None)):
            value = getattr(self, key)
            text = f"a rollout is drawn from once and then dropped; set it to {only or 'null'}"
            require(value == only, key, value, text)
