"""Whether there is a screen, and pygame without one."""

import os
import sys


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
