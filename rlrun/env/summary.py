"""One-line summary of an environment config, for ``rlrun list``."""

from typing import Any

import gymnasium as gym
from gymnasium import spaces

from rlrun.env.adapter import probe
from rlrun.env.catalog import MissingPackageError
from rlrun.schema import EnvConfig


def space_summary(space: gym.Space[Any]) -> str:
    """Return ``float32 [4]`` (Box), ``Discrete 3`` or ``MultiDiscrete 2 5``; parts with ``+``."""
    match space:
        case spaces.Dict():
            return " + ".join(map(space_summary, space.spaces.values()))
        case spaces.Tuple():
            return " + ".join(map(space_summary, space.spaces))
        case spaces.Discrete():
            return f"Discrete {space.n}"
        case spaces.MultiDiscrete():
            return f"MultiDiscrete {' '.join(map(str, space.nvec.ravel()))}"
        case _:
            return f"{space.dtype} {list(space.shape or ())}"


def env_summary(config: EnvConfig) -> str:
    """Return ``observation -> action`` with dtypes and shapes, or the install command it needs.

    Raises:
        ConfigError: the environment cannot be made, for a reason other than a missing package.
    """
    try:
        obs, action = probe(config)
    except MissingPackageError as e:
        return f"needs: pip install {e.install}"
    stack = f" x {config.frame_stack} frames" if config.frame_stack > 1 else ""
    return f"{space_summary(obs)}{stack} -> {space_summary(action)}"
