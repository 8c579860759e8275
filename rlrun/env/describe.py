"""An environment config in a few words, for ``rlrun list``."""

from typing import Any

import gymnasium as gym
from gymnasium import spaces

from rlrun.env.adapter import probe
from rlrun.env.catalog import MissingPackage
from rlrun.schema import EnvConfig


def short(space: gym.Space[Any]) -> str:
    """``float32 [4]`` of a Box, ``Discrete 3``, ``MultiDiscrete 2 5``; parts joined by ``+``."""
    match space:
        case spaces.Dict():
            return " + ".join(map(short, space.spaces.values()))
        case spaces.Tuple():
            return " + ".join(map(short, space.spaces))
        case spaces.Discrete():
            return f"Discrete {space.n}"
        case spaces.MultiDiscrete():
            return f"MultiDiscrete {' '.join(map(str, space.nvec.ravel()))}"
        case _:
            return f"{space.dtype} {list(space.shape or ())}"


def describe(config: EnvConfig) -> str:
    """``observation -> action`` as rows hold them, or the command that installs what is missing.

    Raises:
        ConfigError: it cannot be made, for another reason.
    """
    try:
        obs, action = probe(config)
    except MissingPackage as e:
        return f"needs: pip install {e.install}"
    stack = f" x {config.frame_stack} frames" if config.frame_stack > 1 else ""
    return f"{short(obs)}{stack} -> {short(action)}"
