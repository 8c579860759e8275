"""Configs for tests, composed like the command line composes them."""

from dataclasses import replace
from typing import Any

from rlrun.config import Composer, read_composed
from rlrun.schema import Config


def config(*overrides: str) -> Config:
    """The validated config of ``rlrun *overrides``."""
    composer = Composer()
    return read_composed(composer.compose(composer.rewrite(overrides)))


def changed(node: Any, **fields: Any) -> Any:
    """A frozen config with other fields."""
    return replace(node, **fields)
