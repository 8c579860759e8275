"""Configs for tests, composed like the command line composes them."""

from dataclasses import replace
from typing import Any

from hydra import compose, initialize_config_module

from rlrun.config import read_composed
from rlrun.schema import Config


def config(*overrides: str) -> Config:
    """The validated config of ``rlrun *overrides``."""
    with initialize_config_module("rlrun.conf", version_base="1.3"):
        cfg = compose("config", overrides=list(overrides), return_hydra_config=True)
    return read_composed(cfg)


def changed(node: Any, **fields: Any) -> Any:
    """A frozen config with other fields."""
    return replace(node, **fields)
