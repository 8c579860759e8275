"""The search space of ``rlrun search``, written in Hydra's override grammar.

``KEY=interval(LOW,HIGH)``, ``interval(LOW,HIGH,log)`` (Hydra's ``tag(log,interval(LOW,HIGH))``),
``int(interval(…))``, ``choice(A,B)``, ``A,B`` and ``range(START,STOP,STEP)`` are dimensions.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, RangeSweep, Sweep
from omegaconf import OmegaConf

from rlrun.config.checks import check_typed_keys, read_checked
from rlrun.config.compose import Composer, read_shipped
from rlrun.config.config_errors import config_error, unknown_key
from rlrun.config.hydra_keys import ADDRESSES
from rlrun.config.reader import read_dataclass
from rlrun.errors import ConfigError, RlrunError
from rlrun.schema import Config
from rlrun.schema.override import Override
from rlrun.schema.studies import COMMAND_CONFIGS

_MOST = 1000  # values of a choice
_GOLDEN = (3 - math.sqrt(5)) / 2
_REFUSED = {  # keys that the search sets itself or may not choose
    "seed": "seeds are those of the search; seed=FIRST and search.seeds=N",
    "env": "scores of different environments cannot be compared; search in one at a time",
    "env.id": "scores of different environments cannot be compared; search in one at a time",
    "run.total_steps": "a longer run is no better setting; give every run the same",
    "device": "it changes no score; give one device",
    **dict.fromkeys(ADDRESSES, "it changes no score; give one address"),
    "buffer.mmap": "it changes no score; give one directory",
}


@dataclass(frozen=True)
class Dimension:
    """A searched key: numbers from ``low`` to ``high``, both included, or ``choices``.

    ``name``: the key as typed, with its + or ++. ``step``: None for any number between.
    """

    name: str
    choices: tuple[str, ...] = ()
    low: float = 0.0
    high: float = 0.0
    step: float | None = None
    log: bool = False
    integer: bool = False

    @property
    def key(self) -> str:
        return self.name.lstrip("+~")

    def text(self, value: Any) -> str:
        """Return the override that gives the key ``value``."""
        if self.choices:
            return f"{self.name}={value}"
        return f"{self.name}={int(value) if self.integer else float(value)!r}"

    def examples(self) -> list[str]:
        """Return overrides to check in advance: both ends and a number between, or the choices."""
        if self.choices:
            return [self.text(choice) for choice in self.choices]
        between = self.low + _GOLDEN * (self.high - self.low)  # not a whole number by chance
        if self.step is not None:
            between = self.low + round((between - self.low) / self.step) * self.step
        return [self.text(value) for value in dict.fromkeys((self.low, between, self.high))]


def read_settings(composer: Composer, name: str, overrides: Sequence[str]) -> Any:
    """Return the dataclass of the node ``name`` (search, seeds), read from its yaml file.

    ``overrides`` of the form ``name.key=value`` replace values of the file.

    Raises: ConfigError.
    """
    kind = COMMAND_CONFIGS[name]
    node: Any = OmegaConf.to_container(read_shipped(name)[name])
    for override in composer.parse(overrides):
        key, text, parsed = override.key.removeprefix(f"{name}."), override.value, override.parsed
        if key not in node:
            raise unknown_key(f"{name}.{key}", text, [f.name for f in fields(kind)])
        if parsed.type.name != "CHANGE" or parsed.is_sweep_override():
            allowed = f"{name}.{key}=VALUE is allowed"
            raise config_error(f"{name}.{key}", text, "is not one value", allowed, "give one")
        node[key] = parsed.value()
    return read_dataclass(kind, node, name)


def split_space(
    composer: Composer, overrides: Sequence[str]
) -> tuple[list[Override], tuple[Dimension, ...]]:
    """Split a command line into (overrides of every run, dimensions of the search).

    Raises: ConfigError for a dimension that cannot be searched, or if there is none.
    """
    rewritten = [re.sub(r"interval\(([^()]*?),\s*log\s*\)", r"tag(log,interval(\1))", text)
                 for text in overrides]  # fmt: skip
    fixed, space = [], []
    for override in composer.parse(rewritten):
        key = override.key
        if override.is_hydra or key in ("run.dir", "sweep", "sweep.dir"):
            allowed = "keys of rlrun are allowed; search.dir is the directory of a search"
            raise config_error(key, override.value, "belongs to single runs and sweeps",
                               allowed, "leave it out")  # fmt: skip
        if override.parsed.is_sweep_override():
            space.append(_dimension(override))
        else:
            fixed.append(override)
    keys = [d.key for d in space]
    if twice := next((key for i, key in enumerate(keys) if key in keys[:i]), None):
        wrong, allowed = "is searched twice", "one dimension of a key is allowed"
        raise config_error(twice, "(twice)", wrong, allowed, "leave one out")
    if not space:
        raise ConfigError(
            "rlrun search: nothing is searched; KEY=interval(LOW,HIGH), interval(LOW,HIGH,log), "
            "choice(A,B) and range(START,STOP) are allowed; add e.g. "
            "'policy.lr=interval(1e-4,1e-2,log)'"
        )
    return fixed, tuple(space)


def _dimension(override: Override) -> Dimension:
    name, key, text = override.name, override.key, override.value

    def refuse(wrong: str, allowed: str, fix: str) -> ConfigError:
        return config_error(key, text, wrong, allowed, fix)

    if key in _REFUSED:
        allowed, _, fix = _REFUSED[key].partition("; ")
        raise refuse("is not searched", allowed, fix)
    swept = override.parsed.value()
    if isinstance(swept, IntervalSweep):
        return _interval(name, swept, refuse)
    if isinstance(swept, RangeSweep):
        return _range(name, swept, refuse)
    if isinstance(swept, ChoiceSweep):
        if any(isinstance(choice, Sweep) for choice in swept.list):
            raise refuse("holds a sweep", "values are allowed in a choice", "leave the rest out")
        choices = tuple(dict.fromkeys(override.parsed.sweep_string_iterator()))
        if len(choices) > _MOST:
            raise refuse(f"has {len(choices)} values", f"at most {_MOST} are allowed", "give fewer")
        if swept.tags:
            raise refuse("has tags", "choice(A,B) is allowed", "leave the tags out")
        return Dimension(name, choices)
    allowed = "interval(…), choice(…) and range(…) are allowed"
    raise refuse("is not a dimension", allowed, "write the choices out")


def _interval(name: str, swept: IntervalSweep, refuse: Any) -> Dimension:
    low, high = swept.start, swept.end
    form = "interval(LOW,HIGH) with finite LOW < HIGH is allowed"
    if unknown := swept.tags - {"log", "int"}:
        raise refuse(f"has the tag {min(unknown)}", "the tags log and int", "leave it out")
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        raise refuse("is not finite", form, "give two numbers")
    if not low < high:
        raise refuse("is empty", form, "exchange the numbers")
    log = "log" in swept.tags
    if log and low <= 0:
        raise refuse("has no logarithm", "a logarithmic interval within (0, inf)", "raise LOW")
    integer = "int" in swept.tags or (isinstance(low, int) and isinstance(high, int))
    step = 1 if integer and not log else None
    return Dimension(name, (), math.ceil(low) if integer else low,
                     math.floor(high) if integer else high, step, log, integer)  # fmt: skip


def _range(name: str, swept: RangeSweep, refuse: Any) -> Dimension:
    start, stop, step = swept.start or 0, swept.stop, swept.step
    if stop is None or not step or not all(map(math.isfinite, (start, stop, step))):
        raise refuse("is not finite", "range(START,STOP,STEP) is allowed", "give numbers")
    count = math.ceil((stop - start) / step)
    if count < 2:
        allowed = "range(START,STOP,STEP) excludes STOP"
        raise refuse("has fewer than two values", allowed, "widen it")
    last = start + (count - 1) * step
    low, high = min(start, last), max(start, last)
    integer = all(isinstance(x, int) for x in (start, stop, step))
    return Dimension(name, (), low, high, abs(step), False, integer)


def check_space(
    composer: Composer,
    fixed: Sequence[str],
    space: Sequence[Dimension],
    *,
    typed: Sequence[Override] | None = None,
) -> Config:
    """Return the config of a first run of the search, after checking every value of ``examples``.

    ``typed``: overrides of the command line; None: all. The others come from a file, which may not
    name an untrusted environment, a path to write to or an address.

    Raises: ConfigError and ResourceError, naming the dimension's value.
    """
    sweep = composer.compose([], sweep=True)

    def checked(*examples: str) -> Config:
        words = composer.rewrite([*fixed, *examples])
        config = read_checked(composer, composer.compose_job(sweep, words, 0), words, typed=typed)
        check_typed_keys([config], words)
        return config

    first = [d.examples()[0] for d in space]
    config = checked(*first)
    for i, dimension in enumerate(space):
        for example in dimension.examples()[1:]:
            try:
                checked(*first[:i], example, *first[i + 1 :])
            except RlrunError as e:
                hint = f"; write {dimension.key}=int(interval(…))"
                hint = hint if "is not an integer" in str(e) else ""
                e.args = (f"{e}{hint} (of the search; no run was started)",)
                raise
    return config
