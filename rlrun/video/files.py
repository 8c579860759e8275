"""Outputs for pictures of episodes: video files, a window, and panels next to the picture.

Videos (MP4, animated GIF) are written next to their path and renamed once they are complete. The
window shows frames at their speed, with pygame. Panels show the agent's outputs over the last steps
of the episode.
"""

import io
import os
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from rlrun.errors import ConfigError, ResourceError, storage_errors

SUFFIXES = (".mp4", ".gif")
_NEEDS = {".mp4": ("imageio", "imageio_ffmpeg"), ".gif": ("PIL",)}  # modules
_QUALITY = 8  # of imageio, 0 to 10
_COLORS = 256  # of a GIF's frame
_MIN_DURATION = 2  # hundredths of a second; browsers take less for 10


def require_packages(subject: str, suffix: str) -> None:
    """Raise ResourceError, beginning with ``subject``, if packages of a format are missing."""
    missing = [name for name in _NEEDS[suffix] if find_spec(name) is None]
    if missing:
        wrong = f"needs packages that are not installed ({', '.join(missing)})"
        fix = "install them: pip install 'rlrun[video]'"
        alternative = "" if suffix == ".gif" else "; a .gif needs only pillow"
        raise ResourceError(f"{subject}: {suffix} {wrong}{alternative}; {fix}")


class VideoFile:
    """A video that exists at ``path`` once the block has ended without an error. No frames, no
    file.

    Raises: StorageError if it cannot be written, ResourceError if the encoder fails.
    """

    def __init__(self, path: Path, *, fps: float) -> None:
        self.path, self.fps, self.frames = path, fps, 0
        self._part = path.with_name(f".tmp_{path.name}")
        self._images: list[Any] = []  # of a GIF, held until the end
        self._encoder: Any = None  # of an MP4
        self._size = (0, 0)

    def add(self, frame: np.ndarray) -> None:
        """Append a frame, uint8 [H, W, 3]. All are shown in the size of the first."""
        if not self.frames:
            self._size = frame.shape[0], frame.shape[1]
        frame = fitted(frame, *self._size)
        with _errors(self.path):
            if self.path.suffix.lower() == ".gif":
                self._images.append(_quantized(frame))
            else:
                import imageio

                self._encoder = self._encoder or imageio.get_writer(  # H.264: any browser plays it
                    self._part, format="FFMPEG", mode="I", fps=self.fps, codec="libx264",
                    quality=_QUALITY, pixelformat="yuv420p", macro_block_size=1,
                    ffmpeg_log_level="error",
                )  # fmt: skip
                self._encoder.append_data(even(frame))
        self.frames += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Finish the file, or remove its parts after an error."""
        try:
            with suppress(Exception) if kind else _errors(self.path):
                if self._encoder is not None:
                    self._encoder.close()
                elif self._images and not kind:
                    self._part.write_bytes(_gif_bytes(self._images, self.fps))
                if self.frames and not kind:
                    os.replace(self._part, self.path)
        finally:
            self._part.unlink(missing_ok=True)


@contextmanager
def _errors(path: Path) -> Iterator[None]:
    """Convert errors of a file or an encoder to those of rlrun."""
    with storage_errors(f"{path}:", "a writable place is needed; choose another"):
        try:
            yield
        except BrokenPipeError as e:
            text = "the encoder ended; FFmpeg is needed for .mp4; write a .gif"
            raise ResourceError(f"{path}: {text}") from e


def encode_gif(frames: Sequence[np.ndarray], *, fps: float) -> bytes:
    """Return frames, each uint8 [H, W, 3] of one size, as an animated GIF that repeats."""
    return _gif_bytes([_quantized(frame) for frame in frames], fps)


def _quantized(frame: np.ndarray) -> Any:
    """Return an image with its own palette, exactly the frame if that has at most 256 colours."""
    from PIL import Image

    image = Image.fromarray(frame)
    few = image.getcolors(_COLORS) is not None
    method = Image.Quantize.MEDIANCUT if few else Image.Quantize.FASTOCTREE  # 15 ms, 5 ms
    return image.quantize(_COLORS, method=method, dither=Image.Dither.NONE)


def _gif_bytes(frames: Sequence[Any], fps: float) -> bytes:
    """Return the file. Frames that would last less than two hundredths of a second are left out.

    A frame begins at a whole hundredth, so the durations differ, and their sum is that of the show.
    """
    starts, shown = [0], [frames[0]]
    for i, frame in enumerate(frames[1:], 1):
        if (start := round(100 * i / fps)) >= starts[-1] + _MIN_DURATION:
            starts.append(start)
            shown.append(frame)
    shown[-1] = frames[-1]  # the end of the episode
    starts.append(max(round(100 * len(frames) / fps), starts[-1] + _MIN_DURATION))
    durations = [10 * (end - start) for start, end in pairwise(starts)]
    out = io.BytesIO()
    shown[0].save(
        out, "GIF", save_all=True, append_images=shown[1:], duration=durations, loop=0, disposal=1
    )
    return out.getvalue()


def even(frame: np.ndarray) -> np.ndarray:
    """Return the frame with even sides, which H.264 needs, by repeating the last line."""
    pad = [(0, frame.shape[0] % 2), (0, frame.shape[1] % 2), (0, 0)]
    return np.pad(frame, pad, mode="edge") if any(p[1] for p in pad) else frame


def fitted(frame: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return the frame in the upper left corner of [height, width, 3], cut or filled with black."""
    if frame.shape[:2] == (height, width):
        return frame
    out = np.zeros((height, width, 3), np.uint8)
    part = frame[:height, :width]
    out[: part.shape[0], : part.shape[1]] = part
    return out


def enlarged(frame: np.ndarray, *, side: int) -> np.ndarray:
    """Return the frame with every pixel repeated until its longer side is about ``side``."""
    factor = max(round(side / max(frame.shape[:2])), 1)
    return frame if factor == 1 else frame.repeat(factor, 0).repeat(factor, 1)


def reduced(frame: np.ndarray, *, side: int) -> np.ndarray:
    """Return the frame with blocks of pixels averaged, so that no side is longer than ``side``."""
    factor = -(-max(frame.shape[:2]) // side)
    if factor == 1:
        return frame
    from PIL import Image

    return np.asarray(Image.fromarray(frame).reduce(factor))


def install_pygame() -> str | None:
    """Return the command that installs the module pygame, or None if it is complete.

    The packages pygame and pygame-ce write the same files. Uninstalling one leaves an empty
    directory of the other, which pip takes for installed.
    """
    spec = find_spec("pygame")
    if spec is None:
        return "pip install 'rlrun[video]'"
    return None if spec.origin else "pip install --force-reinstall --no-deps pygame-ce"


def has_display() -> bool:
    """Return whether this process can open a window."""
    if sys.platform != "linux":
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def prepare_pygame() -> None:
    """Keep pygame quiet, and let it draw into memory if there is no screen."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    if not has_display():
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")


_VIDEO = 'write a file: --video out.gif (in Python video="out.gif")'
_HIDDEN = ("dummy", "offscreen", "kmsdrm", "evdev")  # SDL drivers that open no window


def require_window() -> None:
    """Raise ConfigError if no window can be opened."""
    if install := install_pygame():
        text = "a window needs the package pygame-ce, which is not installed, or incomplete"
        raise ResourceError(f"rlrun play: {text}; install it: {install}; or {_VIDEO}")
    if not (os.environ.get("SDL_VIDEODRIVER") or has_display()):
        raise _no_window("neither DISPLAY nor WAYLAND_DISPLAY is set")


def _no_window(why: str) -> ConfigError:
    needed = "a display or a video file is needed"
    return ConfigError(f"rlrun play: no window can be opened ({why}); {needed}; {_VIDEO}")


class EpisodeWindow:
    """A window of the size of the first frame. Closing it, q or Escape ends the show."""

    def __init__(self, title: str, *, fps: float) -> None:
        self.title, self.fps, self.closed = title, fps, False
        self._screen: Any = None
        self._due = 0.0

    def add(self, frame: np.ndarray) -> None:
        """Show a frame, uint8 [H, W, 3], once it is due. Raises: ConfigError if no window opens."""
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
            raise _no_window(str(e)) from e
        driver = pygame.display.get_driver()
        if driver in _HIDDEN and driver != wanted:
            raise _no_window(f"SDL found only the driver {driver}")
        pygame.display.set_caption(self.title)
        return screen

    def close(self) -> None:
        if self._screen is not None:
            import pygame

            pygame.display.quit()
            self._screen = None


WIDTH, HEIGHT = 360, 400  # pixels of all panels; the height is at least this
STEPS = 80  # of the time axis
UNITS = 64  # first units of a recurrent state that are drawn
LINES = 18  # actions with a line
MARGIN, TITLE, FONT = 8, 18, 13  # pixels
PALETTE = [
    (31, 119, 180), (255, 127, 14), (44, 160, 44), (214, 39, 40), (148, 103, 189), (140, 86, 75),
    (227, 119, 194), (127, 127, 127),
]  # fmt: skip
INK, AXIS, PAPER = (40, 40, 40), (200, 200, 200), (255, 255, 255)


Reading = Any  # ``rlrun.policy.actor.Reading``: kind, values, state and action of one row


class Panels:
    """Draws readings next to pictures, one episode after the other."""

    def __init__(self) -> None:
        from PIL import ImageFont

        self._font = ImageFont.load_default(FONT)
        self._readings: deque[Reading | None] = deque(maxlen=STEPS)
        self._rewards: deque[float] = deque(maxlen=STEPS)
        self._kind, self._units, self._episode = "", 0, -1

    def beside(
        self,
        picture: np.ndarray,
        *,
        episode: int,
        t: int,
        reward: float,
        total: float,
        reading: Reading | None,
    ) -> np.ndarray:
        """Return the picture, uint8 [H, W, 3], with the panels to its right.

        ``reward``: of the step before it. ``total``: the return so far. ``reading`` None: the last
        picture of an episode, for which the policy computes nothing.
        """
        from PIL import Image, ImageDraw

        if episode != self._episode:
            self._episode = episode
            self._readings.clear()
            self._rewards.clear()
        self._readings.append(reading)
        self._rewards.append(reward)
        if reading is not None:
            self._kind, self._units = reading.kind, min(len(reading.state), UNITS)
        picture = enlarged(picture, side=HEIGHT)
        height = max(picture.shape[0], HEIGHT)
        image = Image.new("RGB", (picture.shape[1] + WIDTH, height), PAPER)
        image.paste(Image.fromarray(picture), (0, (height - picture.shape[0]) // 2))
        pen = ImageDraw.Draw(image)
        left = picture.shape[1] + MARGIN
        text = f"episode {episode + 1}   step {t}   return {total:.6g}"
        pen.text((left, MARGIN // 2), text, INK, self._font)
        top, names = TITLE + MARGIN, ["reward"]
        names = [*(["state"] if self._units else []), *(["values"] if self._kind else []), *names]
        room = (height - top) // len(names)
        for name in names:
            box = left, top + TITLE, WIDTH - 2 * MARGIN, room - TITLE - MARGIN
            getattr(self, f"_draw_{name}")(image, pen, box)
            top += room
        return np.asarray(image).copy()

    def _draw_state(self, image: Any, pen: Any, box: tuple[int, int, int, int]) -> None:
        """Draw a heat map: a line per unit, a column per step; blue < 0 < red."""
        from PIL import Image

        left, top, width, height = box
        columns = [r.state[: self._units] for r in self._readings if r is not None]
        if not columns:
            return
        grid = np.stack(columns, 1)
        scale = max(float(np.abs(grid).max()), 1e-9)
        title = f"recurrent state, units 0 to {self._units - 1}, within +-{scale:.3g}"
        pen.text((left, top - TITLE), title, INK, self._font)
        colours = diverging(grid / scale)
        size = max(round(width * len(columns) / STEPS), 1), height
        image.paste(Image.fromarray(colours).resize(size, Image.Resampling.NEAREST), (left, top))
        pen.rectangle((left, top, left + width, top + height), outline=AXIS)

    def _draw_values(self, image: Any, pen: Any, box: tuple[int, int, int, int]) -> None:
        """Draw a line per action. The dot and the star mark the chosen one if it is a number.

        If the labels of all do not fit, that of the chosen one, or of the first, is shown.
        """
        left, top, width, _ = box
        readings = [r for r in self._readings if r is not None]
        if not readings:
            return
        points, span = self._lines(pen, box, np.stack([r.values[:LINES] for r in readings], 1))
        newest = readings[-1]
        numbered = newest.kind != "mean" and newest.action.size == 1
        chosen = int(newest.action.flat[0]) if numbered else -1
        if 0 <= chosen < len(points):
            px, py = points[chosen][-1]
            pen.ellipse((px - 3, py - 3, px + 3, py + 3), fill=_colour(chosen))
        labels = {
            i: f"{'*' if i == chosen else ''}[{i}] {value:.3g}   "
            for i, value in enumerate(newest.values[:LINES])
        }
        kind = f"{newest.kind}   "
        room = width - pen.textlength(kind + span, self._font)
        if sum(pen.textlength(text, self._font) for text in labels.values()) > room:
            labels = {i: labels[i] for i in (chosen if chosen in labels else 0,)}
        pen.text((left, top - TITLE), kind, INK, self._font)
        x = left + pen.textlength(kind, self._font)
        for i, text in labels.items():
            pen.text((x, top - TITLE), text, _colour(i), self._font)
            x += pen.textlength(text, self._font)

    def _draw_reward(self, image: Any, pen: Any, box: tuple[int, int, int, int]) -> None:
        self._lines(pen, box, np.array([self._rewards]))
        text = f"reward {self._rewards[-1]:.4g}"
        pen.text((box[0], box[1] - TITLE), text, _colour(0), self._font)

    def _lines(
        self, pen: Any, box: tuple[int, int, int, int], values: np.ndarray
    ) -> tuple[list[list[tuple[float, float]]], str]:
        """Draw the rows of ``values`` [K, T] as lines. Return their points and the range as text.

        The range is written above the box at its right end.
        """
        left, top, width, height = box
        low, high = float(values.min()), float(values.max())
        span = max(high - low, 1e-9)
        pen.rectangle((left, top, left + width, top + height), outline=AXIS)
        if low < 0 < high:
            zero = top + height * (high / span)
            pen.line((left, zero, left + width, zero), fill=AXIS)
        x = left + np.arange(values.shape[1]) * width / (STEPS - 1)
        y = top + height * (high - values) / span
        points = [list(zip(x.tolist(), row.tolist(), strict=True)) for row in y]
        for i, line in enumerate(points):
            pen.line(line, fill=_colour(i), width=2)
        text = f"{low:.3g} to {high:.3g}"
        end = left + width - pen.textlength(text, self._font)
        pen.text((end, top - TITLE), text, INK, self._font)
        return points, text


def _colour(i: int) -> tuple[int, int, int]:
    return PALETTE[i % len(PALETTE)]


def diverging(values: np.ndarray) -> np.ndarray:
    """Return colours of numbers in [-1, 1]: blue, white at 0, red; uint8 [..., 3]."""
    amount = np.clip(np.abs(values), 0, 1)[..., None]
    ends = np.where(values[..., None] < 0, np.array(PALETTE[0]), np.array(PALETTE[3]))
    colours: np.ndarray = (255 + (ends - 255) * amount).round().astype(np.uint8)
    return colours
