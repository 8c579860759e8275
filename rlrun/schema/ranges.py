"""What a config key may hold: ranges, schedules, durations; which keys decide whether it is read.

``nstep: int = field(metadata=at_least(1))``. A class that inherits ``Ranged`` checks its fields.
"""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

_MOST_ENTRIES = 64  # of a list, as of layers
_SIZES = {  # the largest integers of what is allocated, or done before anything is saved
    **dict.fromkeys(("hidden", "head_hidden", "predictor_hidden", "hyper_hidden"), 2**16),
    **dict.fromkeys(("mixer_hidden", "features", "cosines", "num_envs"), 2**16),
    **dict.fromkeys(("traces", "context", "order", "channels", "layers", "heads"), 2**12),
    **dict.fromkeys(("mlp", "window"), 2**16),
    **dict.fromkeys(("nstep", "burnin_step", "learn_unroll_len", "atoms", "samples"), 10**5),
    **dict.fromkeys(("taus", "taus_target", "taus_act"), 10**5),
    **dict.fromkeys(("eval_episodes", "history", "keep_checkpoints", "keep"), 10**6),
    **dict.fromkeys(("segment_len", "bins"), 10**6),
    "frame_stack": 1024, "height": 10**4, "width": 10**4, "batch_size": 10**7, "n_sample": 10**8,
}  # fmt: skip


class Invalid(ValueError):
    """A field out of range; ``key`` is relative to the dataclass that raised it."""

    def __init__(self, key: str, value: object, text: str) -> None:
        super().__init__(f"{key} = {value}: {text}")
        self.key, self.value, self.text = key, value, text


@dataclass(frozen=True)
class Range:
    """Numbers from ``low`` to ``high``; an open end is not one of them."""

    low: float
    high: float
    open_low: bool = False
    open_high: bool = False
    reason: str = ""  # why numbers outside are refused, and what to do

    def __contains__(self, value: float) -> bool:
        above = value > self.low if self.open_low else value >= self.low
        return above and (value < self.high if self.open_high else value <= self.high)

    def __str__(self) -> str:
        if math.isinf(self.high):
            return f"{'>' if self.open_low else '>='} {_number(self.low)}"
        if math.isinf(self.low):
            return f"{'<' if self.open_high else '<='} {_number(self.high)}"
        ends = "(["[not self.open_low], ")]"[not self.open_high]
        return f"within {ends[0]}{_number(self.low)}, {_number(self.high)}{ends[1]}"


def _number(value: float) -> str:
    return "2^32" if value == 2**32 else f"{value:g}"


def positive() -> dict[str, Any]:
    """Metadata of a number, or a list or schedule of them, that must be > 0."""
    return {"range": Range(0, math.inf, open_low=True)}


def at_least(bound: float) -> dict[str, Any]:
    """Metadata of a number, or a list or schedule of them, that must be >= ``bound``."""
    return {"range": Range(bound, math.inf)}


def at_most(bound: float) -> dict[str, Any]:
    """Metadata of a number, or a list or schedule of them, that must be <= ``bound``."""
    return {"range": Range(-math.inf, bound)}


def unit() -> dict[str, Any]:
    """Metadata of a number or a schedule within [0, 1]."""
    return {"range": Range(0, 1)}


@dataclass(frozen=True)
class Ranged:
    """Base of the config dataclasses: refuses values outside the ranges of its fields."""

    def __post_init__(self) -> None:
        for key in fields(self):
            within: Range | None = key.metadata.get("range")
            value = getattr(self, key.name)
            _check_integers(key.name, value)
            if within is None or value is None:
                continue
            several = isinstance(value, tuple)
            text = f"{'each ' if several else ''}must be {within}"
            text += f": {within.reason}" if within.reason else ""
            if several:
                length = (
                    f"has {len(value)} numbers; at most {_MOST_ENTRIES} are allowed; give fewer"
                )
                require(len(value) <= _MOST_ENTRIES, key.name, list(value)[:4], length)
            for number in _numbers(value):
                shown = list(value) if several else number
                require(number in within, key.name, shown, text)


def _check_integers(name: str, value: Any) -> None:
    """Refuse integers that no machine could mean: a stranger's config asks for nothing absurd."""
    shown = list(value)[:4] if isinstance(value, tuple) else value
    most = _SIZES.get(name, 2**53)
    for number in value if isinstance(value, tuple) else (value,):
        if isinstance(number, int):
            require(number <= most, name, shown, f"must be <= {most}")
            require(number >= -(2**53), name, shown, f"must be >= {-(2**53)}")


def _numbers(value: Any) -> Iterable[float]:
    """The numbers of a value, a list or a schedule."""
    if isinstance(value, tuple):
        return value
    return value.values() if hasattr(value, "values") else (value,)


def require(ok: bool, key: str, value: object, text: str) -> None:
    """Raise ``Invalid`` unless ``ok``."""
    if not ok:
        raise Invalid(key, value, text)


def exactly_one(config: object, first: str, second: str) -> None:
    """Refuse two numbers and two nulls."""
    one, other = getattr(config, first), getattr(config, second)
    shown = "null" if other is None else other
    wrong = f"exactly one of {first} and {second} (= {shown}) is a number, the other null"
    fix = "give one of them a number" if one is None else "set the one you do not want to null"
    require((one is None) != (other is None), first, one, f"{wrong}; {fix}")


NOUNS = {  # properties of a policy that are no keys
    "policy.recurrent": "a policy that has a memory",
    "policy.updates": "a policy that learns",
}


def join_words(words: Sequence[str], last: str) -> str:
    """a, b and c."""
    most = ", ".join(words[:-1])
    return f"{most} {last} {words[-1]}" if most else words[-1]


@dataclass(frozen=True)
class Condition:
    """``key`` has one of ``values``; without values, it is neither null nor false."""

    key: str  # a group stands for the option that was chosen: memory, not memory.name
    values: tuple[str, ...]

    def __str__(self) -> str:
        if not self.values:
            return NOUNS.get(self.key, self.key)
        return f"{self.key}={join_words(self.values, 'or')}"


@dataclass(frozen=True)
class Reader:
    """A key is read when all conditions of one of ``any_of`` hold."""

    any_of: tuple[tuple[Condition, ...], ...]
    fix: str | None  # what to do where they do not; None: set the key of the condition

    def __str__(self) -> str:
        return " or ".join(" with ".join(map(str, every)) for every in self.any_of)


def read_when(*any_of: str, fix: str | None = None) -> dict[str, Any]:
    """Metadata of a key that is read only under some values of others.

    Each of ``any_of`` is ``KEY=VALUE|VALUE`` or ``KEY`` (set at all), or several with `` & ``.
    """
    parsed = tuple(tuple(map(_condition, text.split(" & "))) for text in any_of)
    return {"read_when": Reader(parsed, fix)}


def _condition(text: str) -> Condition:
    key, _, values = text.partition("=")
    return Condition(key, tuple(values.split("|")) if values else ())


WITH_MEMORY = read_when("memory=lstm|gru|mingru|lru|ffm|rtu|lmu|gtrxl & policy.recurrent")


def default_of(key: str) -> dict[str, Any]:
    """Metadata of a key that gives ``key`` its default, and is read by nothing else."""
    return {"default_of": key}


_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


class Seconds(float):
    """A duration in seconds, written ``3600``, ``90m``, ``3.5h`` or ``2d``."""

    @classmethod
    def parse(cls, text: str) -> "Seconds":
        """Return the duration of a text. Raises: ValueError when it is none."""
        found = re.fullmatch(r"(\d{1,12}(?:\.\d{1,6})?)\s*([smhd]?)", text.strip())
        if found is None:
            raise ValueError(f"{text} is not a duration")
        return cls(float(found[1]) * _UNITS[found[2]])


@dataclass(frozen=True)
class ScheduleConfig(Ranged):
    """A number that depends on environment steps; a bare number in yaml is ``constant``."""

    kind: Literal["constant", "linear", "exponential", "cosine", "piecewise"]
    start: float
    end: float
    # env steps; null: run.total_steps. For exponential: the time constant
    over: float | None = field(metadata=positive())
    points: tuple[tuple[float, float], ...] | None  # piecewise only: [[env_steps, value], ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind == "piecewise":
            points = self.points or ()
            steps = [step for step, _ in points]
            require(
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
