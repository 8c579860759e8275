"""Replay buffers."""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar, Literal

from rlrun.schema.ranges import (
    Range,
    Ranged,
    Rule,
    ScheduleConfig,
    at_least,
    each,
    positive,
    read_when,
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

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule("mmap", lambda c: c.mmap is not None and c.device != "cpu",
             "files are mapped into host memory, not buffer.device = {device}", "",
             "set one of them back (null, cpu)"),
        Rule("compress", lambda c: c.compress and c.mmap is not None,
             "compressed rows live in host memory, buffer.mmap = {mmap}", "",
             "set one of them back (compress=false, or mmap=null)"),
        Rule("compress", lambda c: c.compress and c.device != "cpu",
             "compressed rows live in host memory, buffer.device = {device}", "",
             "set one of them back (compress=false, or device=cpu)"),
    )  # fmt: skip


@dataclass(frozen=True)
class PriorityConfig(BufferConfig):
    """Keys of every prioritized buffer."""

    alpha: ScheduleConfig = field(metadata=unit())
    beta: ScheduleConfig = field(metadata=unit())
    weight_norm: Literal["batch", "buffer"]
    initial_priority: Literal["max", "td"]

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule("beta", lambda c: any(a > b for a, b in pairwise(c.beta.values())),
             "must not decrease (it anneals towards the full correction, 1)", "",
             "swap start and end"),
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
                         "a rollout is drawn from once and then dropped", "",
                         f"set it to {_OF_ROLLOUTS[key] or 'null'}"),
    )  # fmt: skip
