"""Networks: memory cells and torsos."""

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from rlrun.schema.ranges import (
    MOST_UNITS,
    WITH_MEMORY,
    Range,
    Ranged,
    Rule,
    at_least,
    positive,
    read_when,
    unit,
    within,
)

MEMORIES = ("lstm", "gru", "mingru", "lru", "ffm", "rtu", "lmu", "gtrxl", "indrnn", "bmru",
            "mlstm", "slstm", "gated_deltanet", "mamba2", "none")  # fmt: skip


@dataclass(frozen=True)
class MemoryConfig(Ranged):
    name: str = field(metadata={"or_class": MEMORIES})  # or mypkg.mod:Cell
    hidden: int = field(metadata=within(0, MOST_UNITS) | WITH_MEMORY)
    forget_bias: float = field(
        metadata=read_when("memory=lstm|mingru|mlstm|slstm & policy.recurrent")
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule("hidden", lambda c: c.name != "none" and c.hidden < 1, "must be >= 1", "", ""),
    )

    def state_widths(self) -> tuple[int, ...]:
        """Return the widths S of the arrays [B, S] in a built-in memory's state."""
        count = {"lstm": 2, "gru": 1, "mingru": 1, "none": 0}[self.name]
        return (self.hidden,) * count


@dataclass(frozen=True)
class RingConfig(MemoryConfig):
    """Memories with complex decays on a ring r_min <= |lambda| <= r_max, phases up to max_phase."""

    r_min: float = field(metadata=unit())
    r_max: float = field(metadata=unit())
    max_phase: float = field(metadata={"range": Range(0, 2 * math.pi + 1e-6, open_low=True)})

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule("r_min", lambda c: c.r_min >= c.r_max, "must be below memory.r_max = {r_max}", "", ""),
    )

    def state_widths(self) -> tuple[int, ...]:
        return (self.hidden, self.hidden)


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
        Rule("heads", lambda c: c.hidden % c.heads, "must divide memory.hidden = {hidden}", "", ""),
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

    def state_widths(self) -> tuple[int, ...]:
        return (self.hidden,)


@dataclass(frozen=True)
class BMRUConfig(MemoryConfig):
    threshold: float = field(metadata=at_least(0))
    readout: bool

    def state_widths(self) -> tuple[int, ...]:
        return (self.hidden,)


@dataclass(frozen=True)
class MLSTMConfig(HeadsConfig):
    readout: bool

    def state_widths(self) -> tuple[int, ...]:
        d = self.hidden // self.heads
        return (self.heads * (d + 1) * d, self.heads)


@dataclass(frozen=True)
class SLSTMConfig(HeadsConfig):
    def state_widths(self) -> tuple[int, ...]:
        return (self.hidden,) * 4


@dataclass(frozen=True)
class DecayConfig(HeadsConfig):
    """Memories whose heads have decays exp(-dt) of the input."""

    dt_min: float = field(metadata={"range": Range(1e-8, 100)})
    dt_max: float = field(metadata={"range": Range(1e-8, 100)})
    readout: bool

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule("dt_min", lambda c: c.dt_min > c.dt_max, "must be at most memory.dt_max = {dt_max}",
             "", ""),
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
