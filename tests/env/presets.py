"""The configs under test: every conf/env preset, and small configs written down here."""

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlrun.schema import EnvConfig

FOLDER = Path(__file__).parents[2] / "conf" / "env"
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml") if path.stem != "gym")
needs_envpool = pytest.mark.skipif(find_spec("envpool") is None, reason="envpool is not installed")
OWN = ["counter", "cartpole_novel", "repeat_previous", "tmaze", "bandit", "identity", "bitflip"]


def preset(name: str, **changes: Any) -> EnvConfig:
    """The config of conf/env/<name>.yaml; ``kwargs`` are laid over its own."""
    config = EnvConfig(**yaml.safe_load((FOLDER / f"{name}.yaml").read_text()))
    kwargs = {**config.kwargs, **changes.pop("kwargs", {})}
    return replace(config, kwargs=kwargs, **changes)


def config_of(env_id: str, **changes: Any) -> EnvConfig:
    """A config for any id, without arguments."""
    base = preset("cartpole")
    return replace(base, **{"id": env_id, "kwargs": {}, "eval_kwargs": {}, **changes})
