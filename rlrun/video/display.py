"""Whether there is a screen, and pygame without one."""

import os
import sys
from importlib.util import find_spec

from rlrun.errors import extra


def install_pygame() -> str | None:
    """Return the command that brings the module pygame; None where it is whole.

    The packages pygame and pygame-ce write the same files: uninstalling one leaves an empty
    directory of the other, which pip takes for installed.
    """
    spec = find_spec("pygame")
    if spec is None:
        return f"pip install {extra('video')}"
    return None if spec.origin else "pip install --force-reinstall --no-deps pygame-ce"


def has_display() -> bool:
    """Return whether this process can open a window."""
    if sys.platform != "linux":
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def prepare_pygame() -> None:
    """Keep pygame quiet, and let it draw into memory where there is no screen."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    if not has_display():
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
