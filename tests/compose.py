"""Configs for tests, composed like the command line composes them."""

from copy import deepcopy
from dataclasses import replace
from functools import cache
from typing import Any

from rlrun.config import Composer, read_composed
from rlrun.schema import Config, ScheduleConfig


def config(*overrides: str) -> Config:
    """The validated config of ``rlrun *overrides``."""
    return deepcopy(_composed(overrides))  # env.kwargs is a dict


@cache
def _composed(overrides: tuple[str, ...]) -> Config:
    """Half of the time of a small run is composing its config."""
    composer = Composer()
    return read_composed(composer.compose(composer.rewrite(overrides)))


def changed(node: Any, **fields: Any) -> Any:
    """A frozen config with other fields."""
    return replace(node, **fields)


def constant(value: float) -> ScheduleConfig:
    return ScheduleConfig("constant", value, value, None, None)


def linear(start: float, end: float) -> ScheduleConfig:
    return ScheduleConfig("linear", start, end, None, None)
