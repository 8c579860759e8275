"""Metadata of config keys: ranges, schedules, durations, and which keys decide that a key is read.

``nstep: int = field(metadata=at_least(1))``. A class that inherits ``Ranged`` checks its fields.
"""

import math
import re
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal

from rlrun.errors import ConfigError, RlrunError, redact

_MOST_ENTRIES = 64  # of a list, for instance of layers
_MOST_INTEGER = 2**53  # beyond it, not every integer is a float
_LONGEST = 120  # characters of a value in an error
MOST_UNITS = 2**16  # of a layer
MOST_CRITICS = 100
MOST_ROWS = 10**5  # of a window, or numbers of a distribution


class Invalid(ValueError):
    """A field out of range. ``key`` is relative to the dataclass that raised it."""

    def __init__(self, key: str, value: object, text: str) -> None:
        super().__init__(f"{key} = {value}: {text}")
        self.key, self.value, self.text = key, value, text


@dataclass(frozen=True)
class Range:
    """Numbers from ``low`` to ``high``. An open end is excluded."""

    low: float
    high: float
    open_low: bool = False
    open_high: bool = False
    reason: str = ""  # why numbers outside are rejected, and what to do

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
    if value == 2**32:
        return "2^32"
    return str(value) if isinstance(value, int) else f"{value:g}"


def positive() -> dict[str, Any]:
    """Return metadata of a number, or a list or schedule of them, that must be > 0."""
    return {"range": Range(0, math.inf, open_low=True)}


def at_least(bound: float) -> dict[str, Any]:
    """Return metadata of a number, or a list or schedule of them, that must be >= ``bound``."""
    return {"range": Range(bound, math.inf)}


def within(low: float, high: float) -> dict[str, Any]:
    """Return metadata of a number, or a list or schedule of them, within [``low``, ``high``].

    ``high`` bounds allocations and work before anything is saved, so that an untrusted config
    cannot ask for too much.
    """
    return {"range": Range(low, high)}


def unit() -> dict[str, Any]:
    """Return metadata of a number or a schedule within [0, 1]."""
    return {"range": Range(0, 1)}


def format_value(value: object) -> str:
    """Return the value as it would be typed on the command line, on one line."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(format_value(v) for v in value)}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k}: {format_value(v)}" for k, v in value.items()) + "}"
    text = redact(" ".join(str(value).split()))  # before shortening
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


class _Template(string.Formatter):
    """Formats ``{policy.name}``, an attribute of the object that a rule is about, as typed."""

    def get_value(self, key: int | str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return getattr(args[0], str(key))

    def format_field(self, value: Any, format_spec: str) -> str:
        return value if isinstance(value, str) else format_value(value)


def fill(text: str, facts: object) -> str:
    """Return ``text`` with the attributes of ``facts`` that it names in braces."""
    return _Template().vformat(text, (facts,), {})


@dataclass(frozen=True)
class Rule:
    """A combination of keys that do not fit together: ``key`` is rejected if ``when`` is true.

    ``wrong``, ``allowed`` and ``fix`` form the error. ``{policy.nstep}`` in them is an attribute of
    the object passed to ``when``. ``kind``: the class of the error.
    """

    key: str
    when: Callable[[Any], object]
    wrong: str
    allowed: str = ""
    fix: str = ""
    kind: type[RlrunError] = ConfigError

    def text(self, facts: object) -> str:
        """Return what is wrong; what is allowed; what to do."""
        parts = (self.wrong, self.allowed, self.fix)
        return "; ".join(fill(part, facts) for part in parts if part)


@dataclass(frozen=True)
class Ranged:
    """Base class of the config dataclasses, which checks ranges and ``rules``.

    Fields must be in their ranges. The ``rules`` of the class and of its base classes apply.
    """

    rules: ClassVar[tuple[Rule, ...]] = ()

    def __post_init__(self) -> None:
        for key in fields(self):
            self._check_field(key.name, getattr(self, key.name), key.metadata.get("range"))
        for kind in reversed(type(self).__mro__):
            for rule in vars(kind).get("rules", ()):
                if rule.when(self):
                    raise Invalid(rule.key, getattr(self, rule.key), rule.text(self))

    def _check_field(self, name: str, value: Any, bounds: Range | None) -> None:
        several = isinstance(value, tuple)
        shown = list(value)[:4] if several else value
        if several and bounds is not None and len(value) > _MOST_ENTRIES:
            wrong = f"has {len(value)} numbers; at most {_MOST_ENTRIES} are allowed; give fewer"
            raise Invalid(name, shown, wrong)
        schedule = value.values() if isinstance(value, ScheduleConfig) else (value,)
        for number in value if several else schedule:
            if bounds is not None and value is not None and number not in bounds:
                text = f"{'each ' if several else ''}must be {bounds}"
                text += f": {bounds.reason}" if bounds.reason else ""
                raise Invalid(name, shown if several else number, text)
            if isinstance(number, int) and abs(number) > _MOST_INTEGER:
                raise Invalid(name, shown, f"must be within [-{_MOST_INTEGER}, {_MOST_INTEGER}]")


def each(keys: Iterable[str], rule: Callable[[str], Rule]) -> tuple[Rule, ...]:
    """Return the same rule for several keys."""
    return tuple(map(rule, keys))


def exactly_one(first: str, second: str) -> Rule:
    """Return the rule of two keys, one of which must be a number and the other null."""
    return Rule(
        first,
        lambda c: (getattr(c, first) is None) == (getattr(c, second) is None),
        f"exactly one of {first} and {second} (= {{{second}}}) is a number, the other null",
        fix="give one of them a number, and set the other to null",
    )


NOUNS = {  # what is no key but decides whether one is read -> its text, what to do if it is false
    "policy.recurrent": ("a policy that has a memory", "use {with_memory}"),
    "policy.updates": ("a policy that learns", "use one"),
    "several_rows":
        ("a window of several learned rows", "set policy.learn_unroll_len={unroll_len}"),
    "several_columns": ("more than one column", "set collector.num_envs=2 or more"),
    "one_column": ("one column (collector.num_envs=1)", "set collector.num_envs=1"),
    "several_agents": ("an environment of several agents", "choose another env"),
    "continuous": ("an environment with continuous actions", "choose another env"),
}  # fmt: skip


def join_words(words: Sequence[str], last: str) -> str:
    """Return ``a, b and c``."""
    most = ", ".join(words[:-1])
    return f"{most} {last} {words[-1]}" if most else words[-1]


@dataclass(frozen=True)
class Condition:
    """``key`` has one of ``values``, or without values is neither null nor false."""

    key: str  # a group names its chosen option: memory, not memory.name
    values: tuple[str, ...]

    def __str__(self) -> str:
        if not self.values:
            return NOUNS[self.key][0] if self.key in NOUNS else self.key
        return f"{self.key}={join_words(self.values, 'or')}"

    @property
    def fix(self) -> str:
        """What to do if it does not hold."""
        return NOUNS[self.key][1] if self.key in NOUNS else f"set {self.key}={self.values[0]}"


@dataclass(frozen=True)
class Reader:
    """A key is read if all conditions of one of ``any_of`` hold."""

    any_of: tuple[tuple[Condition, ...], ...]
    fix: str | None  # what to do otherwise; None: set the key of the condition

    def __str__(self) -> str:
        return " or ".join(" with ".join(map(str, every)) for every in self.any_of)


def read_when(*any_of: str, fix: str | None = None) -> dict[str, Any]:
    """Return metadata of a key that is read only under some values of others.

    Each of ``any_of`` is ``KEY=VALUE|VALUE`` or ``KEY`` (set at all), or several joined by `` & ``.
    """
    words = [[part.partition("=") for part in text.split(" & ")] for text in any_of]
    parsed = (tuple(Condition(k, tuple(filter(None, v.split("|")))) for k, _, v in every)
              for every in words)  # fmt: skip
    return {"read_when": Reader(tuple(parsed), fix)}


MEMORIES = ("lstm", "gru", "mingru", "lru", "ffm", "rtu", "lmu", "gtrxl", "indrnn", "bmru",
            "mlstm", "slstm", "gated_deltanet", "mamba2")  # fmt: skip
WITH_MEMORY = read_when(f"memory={'|'.join(MEMORIES)} & policy.recurrent")


def default_of(key: str) -> dict[str, Any]:
    """Return metadata of a key that only provides the default of ``key``."""
    return {"default_of": key}


_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


class Seconds(float):
    """A duration in seconds, written ``3600``, ``90m``, ``3.5h`` or ``2d``."""

    @classmethod
    def parse(cls, text: str) -> "Seconds":
        """Return the duration of a text. Raises: ValueError if it is not one."""
        match = re.fullmatch(r"(\d{1,12}(?:\.\d{1,6})?)\s*([smhd]?)", text.strip())
        if match is None:
            raise ValueError(f"{text} is not a duration")
        return cls(float(match[1]) * _UNITS[match[2]])


_VARYING = ("linear", "exponential", "cosine")
SCHEDULE_READERS = {  # part of a schedule -> the kinds that read it
    "start": ("constant", *_VARYING), "end": _VARYING, "over": _VARYING, "points": ("piecewise",),
}  # fmt: skip


@dataclass(frozen=True)
class ScheduleConfig(Ranged):
    """A number that depends on environment steps. A bare number in yaml is ``constant``."""

    kind: Literal["constant", "linear", "exponential", "cosine", "piecewise"]
    start: float
    end: float
    # env steps; null: run.total_steps. For exponential: the time constant
    over: float | None = field(metadata=positive())
    points: tuple[tuple[float, float], ...] | None  # piecewise only: [[env_steps, value], ...]

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule("points", lambda c: c.kind == "piecewise" and not c.rises(),
             "piecewise needs at least two [env_steps, value] pairs with rising env_steps"),
    )  # fmt: skip

    def rises(self) -> bool:
        """Return whether there are at least two points, with rising env_steps."""
        steps = [step for step, _ in self.points or ()]
        return len(steps) >= 2 and steps == sorted(set(steps))

    def values(self) -> tuple[float, ...]:
        """Return the numbers between which the schedule stays."""
        if self.kind == "piecewise":
            return tuple(value for _, value in self.points or ())
        return (self.start,) if self.kind == "constant" else (self.start, self.end)
