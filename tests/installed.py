"""Which presets of conf/env need packages that are not part of rlrun, and what they act in."""

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

CONF = Path(__file__).parents[1] / "conf"
FOLDER = CONF / "env"
PRESETS = sorted(  # conform and minatar stand for the presets that start from them
    path.stem
    for path in FOLDER.glob("*.yaml")
    if path.stem not in ("gym", "pettingzoo") and not path.stem.startswith(("conform_", "minatar_"))
)
MODULES = {  # start of the id -> what has to be importable
    "rlrun/Atari-": "ale_py",
    "LunarLander": "Box2D",
    "BipedalWalker-": "Box2D",
    "HalfCheetah-": "mujoco",
    "Hopper-": "mujoco",
    "Walker2d-": "mujoco",
    "Ant-": "mujoco",
    "MiniGrid-": "minigrid",
    "popgym-": "popgym",
}
CONTINUOUS = {
    *("bandit_continuous", "tracking", "pendulum", "mountaincar_continuous"),
    *("lunarlander_continuous", "bipedalwalker", "position_only_pendulum"),
    *("pendulum_novel", "mountaincar_continuous_novel"),
    *("popgym_position_only_pendulum_easy",),
    *("halfcheetah", "hopper", "walker2d", "ant"),
}


def preset_values(name: str) -> dict[str, Any]:
    """The values of a preset, with those of the base."""
    base, own = CONF / "_base/env.yaml", FOLDER / f"{name}.yaml"
    return yaml.safe_load(base.read_text()) | yaml.safe_load(own.read_text())


@cache
def module_of(name: str) -> str | None:
    """The module that the preset needs besides rlrun's own dependencies."""
    env_id = preset_values(name)["id"]
    return next((m for start, m in MODULES.items() if env_id.startswith(start)), None)


@cache
def env_of(experiment: str) -> str | None:
    """The environment preset that an experiment chooses; None: it leaves the choice."""
    given = yaml.safe_load((CONF / f"experiment/{experiment}.yaml").read_text())["defaults"]
    return next((line["override /env"] for line in given if "override /env" in line), None)


def needs(module: str | None) -> Any:
    """A mark that skips a test where ``module`` is not installed."""
    absent = module is not None and find_spec(module) is None
    return pytest.mark.skipif(absent, reason=f"{module} is not installed")


def case(name: str, *rest: Any) -> Any:
    """The parameters (preset, ...), skipped where the preset's package is not installed."""
    return pytest.param(name, *rest, marks=needs(module_of(name)))
