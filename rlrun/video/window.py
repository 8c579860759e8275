"""A window that shows frames at their speed, by pygame."""

import os
import sys
import time
from importlib.util import find_spec
from typing import Any

import numpy as np

from rlrun.errors import ConfigError, ResourceError, extra


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


_HIDDEN = ("dummy", "offscreen", "kmsdrm", "evdev")  # drivers of SDL without a window of ours


def require_window() -> None:
    """Raise ConfigError when no window can be opened."""
    fix = "add --video out.mp4"
    if install := install_pygame():
        text = "a window needs the package pygame-ce, which is not installed, or not whole"
        raise ResourceError(f"rlrun play: {text}; install it: {install}; or {fix}")
    if not (os.environ.get("SDL_VIDEODRIVER") or has_display()):
        wrong = "no window can be opened (neither DISPLAY nor WAYLAND_DISPLAY is set)"
        raise ConfigError(f"rlrun play: {wrong}; a display or a video file is needed; {fix}")


class EpisodeWindow:
    """A window of the size of the first frame; closing it, q or Escape end the show."""

    def __init__(self, title: str, *, fps: float) -> None:
        self.title, self.fps, self.closed = title, fps, False
        self._screen: Any = None
        self._due = 0.0

    def add(self, frame: np.ndarray) -> None:
        """Show a frame, uint8 [H, W, 3], once it is due. Raises: ConfigError: no window opens."""
        prepare_pygame()
        import pygame

        height, width = frame.shape[:2]
        if self._screen is None:
            self._screen = self._open(width, height)
        pygame.time.wait(max(round((self._due - time.monotonic()) * 1000), 0))
        self._due = max(self._due, time.monotonic()) + 1 / self.fps
        self._screen.blit(pygame.image.frombuffer(frame.tobytes(), (width, height), "RGB"), (0, 0))
        pygame.display.flip()
        for event in pygame.event.get():
            keys = (pygame.K_q, pygame.K_ESCAPE)
            pressed = event.type == pygame.KEYDOWN and event.key in keys
            self.closed = self.closed or event.type == pygame.QUIT or pressed

    def _open(self, width: int, height: int) -> Any:
        import pygame

        wanted = os.environ.get("SDL_VIDEODRIVER")
        try:
            pygame.display.init()
            screen = pygame.display.set_mode((width, height))
        except pygame.error as e:
            raise self._failure(str(e)) from e
        driver = pygame.display.get_driver()
        if driver in _HIDDEN and driver != wanted:
            raise self._failure(f"SDL found only the driver {driver}")
        pygame.display.set_caption(self.title)
        return screen

    def _failure(self, text: str) -> ConfigError:
        wrong = f"no window can be opened ({text})"
        fix = "add --video out.mp4"
        return ConfigError(f"rlrun play: {wrong}; a display or a video file is needed; {fix}")

    def close(self) -> None:
        """Close the window."""
        if self._screen is not None:
            import pygame

            pygame.display.quit()
            self._screen = None
