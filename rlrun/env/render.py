"""Pictures of environments: requirements on environments and on their pictures."""

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

from rlrun.env.contract import missing_text, pass_ctrl_c
from rlrun.errors import ConfigError, ResourceError
from rlrun.video.files import install_pygame

RGB = "rgb_array"
FPS = 30.0  # for environments that declare none

Draw = Callable[[], Any]


def require_renderable(env_id: str, env: Any) -> None:
    """Raise ConfigError unless an environment, or what it wraps, renders arrays."""
    modes = (getattr(env, "metadata", None) or {}).get("render_modes") or []
    if RGB not in modes:
        raise ConfigError(
            f"env.id = {env_id}: it cannot be drawn (its render_modes are {list(modes)}); allowed "
            f"are environments that render {RGB}; add render() to it, or watch another"
        )


def frames_per_second(env: Any) -> float:
    """Return the frame rate that an environment declares."""
    fps = (getattr(env, "metadata", None) or {}).get("render_fps")
    return float(fps) if isinstance(fps, int | float) and 0 < fps < 1e4 else FPS


def draw(env_id: str, picture: Draw) -> np.ndarray:
    """Return a picture, uint8 [H, W, 3].

    Raises: ConfigError if it cannot be drawn, for example without a package or a display.
    """
    try:
        image = picture()
    except (ImportError, gym.error.DependencyNotInstalled) as e:
        install = install_pygame() or "pip install 'rlrun[video]'"
        raise ResourceError(
            f"env.id = {env_id}: its picture needs a package that is not installed "
            f"({missing_text(e)}); install it: {install}"
        ) from e
    except BaseException as e:  # a driver may raise anything
        pass_ctrl_c(e)
        text = f"{type(e).__name__}: {' '.join(str(e).split())}"
        raise ConfigError(
            f"env.id = {env_id}: it cannot be drawn ({text}); a working display driver is needed; "
            "without a screen MuJoCo takes MUJOCO_GL=egl or osmesa, pygame SDL_VIDEODRIVER=dummy"
        ) from e
    if isinstance(image, list) and image:  # the environment collects frames
        image = image[-1]
    fits = isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.ndim == 3
    if not fits or not image.size:
        actual = f"{type(image).__name__}"
        if isinstance(image, np.ndarray):
            actual = f"{image.dtype} {list(image.shape)}"
        raise ConfigError(
            f"env.id = {env_id}: render() returned {actual}; uint8 [H, W, 3] is allowed; correct it"
        )
    return np.ascontiguousarray(image[..., :3])
