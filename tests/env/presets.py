"""The configs under test: every conf/env preset, and small configs written down here."""

from dataclasses import replace
from typing import Any

import yaml

from rlrun.config.reader import read_dataclass
from rlrun.schema import WRAPPER_CONFIGS, EnvConfig
from tests.installed import FOLDER, PRESETS, needs

__all__ = ["FOLDER", "NAMES", "OWN", "config_of", "needs_envpool", "preset", "wrapper"]

NAMES = PRESETS
needs_envpool = needs("envpool")
OWN = ["counter", "cartpole_novel", "repeat_previous", "tmaze", "bandit", "identity", "bitflip"]
OWN += ["battleship", "minesweeper", "chain", "bandit_continuous", "tracking"]
OWN += ["count_recall", "position_only_cartpole"]
OWN += ["multiarmed_bandit"]


def preset(name: str, **changes: Any) -> EnvConfig:
    """The config of conf/env/<name>.yaml; ``kwargs`` are laid over its own."""
    values = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    if values["id"] == "???":
        values["id"] = ""
    config: EnvConfig = read_dataclass(EnvConfig, values, "env")
    kwargs = {**config.kwargs, **changes.pop("kwargs", {})}
    return replace(config, kwargs=kwargs, **changes)


def config_of(env_id: str, **changes: Any) -> EnvConfig:
    """A config for any id, without arguments."""
    base = preset("cartpole")
    return replace(base, **{"id": env_id, "kwargs": {}, "eval_kwargs": {}, **changes})


def wrapper(name: str, **arguments: Any) -> Any:
    """An entry of ``env.wrappers``."""
    return WRAPPER_CONFIGS[name](name=name, **arguments)
