"""Video files, written beside their place and renamed once they are whole: MP4 and animated GIF."""

import io
import os
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np

from rlrun.errors import ConfigError, ResourceError, StorageError, extra

SUFFIXES = (".mp4", ".gif")
_NEEDS = {".mp4": ("imageio", "imageio_ffmpeg"), ".gif": ("PIL",)}  # modules
_QUALITY = 8  # of imageio, 0 to 10
_COLORS = 256  # of a GIF's frame
_HUNDREDTHS = 100  # a second in the unit of a GIF's durations
_MIN_DURATION = 2  # hundredths of a second; browsers take less for 10


def require_writable_video(flag: str, path: Path, *, overwrite: bool) -> None:
    """Raise ConfigError unless a video can be written to ``path``, ``flag`` of the command line."""
    if path.suffix.lower() not in SUFFIXES:
        wrong = "its name does not say the format"
        raise ConfigError(f"{flag} = {path}: {wrong}; .mp4 and .gif are allowed; rename it")
    if not path.parent.is_dir():
        wrong = f"there is no directory {path.parent}"
        raise ConfigError(f"{flag} = {path}: {wrong}; an existing one is allowed; make it")
    if path.is_dir() or (os.path.lexists(path) and not overwrite):
        wrong = "is there already"
        raise ConfigError(f"{flag} = {path}: {wrong}; a new file is allowed; add --overwrite")
    require_packages(f"{flag} = {path}", path.suffix.lower())


def require_packages(subject: str, suffix: str) -> None:
    """Raise ResourceError, beginning with ``subject``, when packages of a format are missing."""
    missing = [name for name in _NEEDS[suffix] if find_spec(name) is None]
    if missing:
        wrong = f"needs packages that are not installed ({', '.join(missing)})"
        fix = f"install them: pip install {extra('video')}"
        other = "" if suffix == ".gif" else "; a .gif needs only pillow"
        raise ResourceError(f"{subject}: {suffix} {wrong}{other}; {fix}")


class Writer(Protocol):
    """Takes the frames of a video one by one."""

    def add(self, frame: np.ndarray) -> None:
        """Append a frame, uint8 [H, W, 3], of the size of the first."""

    def finish(self) -> None:
        """Write what is left."""

    def abandon(self) -> None:
        """Release what is held; the file is removed."""


class VideoFile:
    """A video at ``path`` once the block has ended well; without frames there is none.

    Raises: StorageError when it cannot be written, ResourceError when the encoder fails.
    """

    def __init__(self, path: Path, *, fps: float) -> None:
        self.path, self.fps, self.frames = path, fps, 0
        self._part = path.with_name(f".tmp_{path.name}")
        self._writer: Writer | None = None
        self._size: tuple[int, int] | None = None

    def add(self, frame: np.ndarray) -> None:
        """Append a frame, uint8 [H, W, 3]; all are shown in the size of the first."""
        if self._writer is None:
            kind = Mp4 if self.path.suffix.lower() == ".mp4" else Gif
            self._size = frame.shape[0], frame.shape[1]
            self._writer = kind(self._part, self.fps)
        assert self._size is not None
        with _errors(self.path):
            self._writer.add(fitted(frame, *self._size))
        self.frames += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Finish the file, or remove what there is of it after an error."""
        if self._writer is None:
            return
        if kind is not None:
            with suppress(Exception):
                self._writer.abandon()
            self._part.unlink(missing_ok=True)
            return
        try:
            with _errors(self.path):
                self._writer.finish()
                os.replace(self._part, self.path)
        finally:
            self._part.unlink(missing_ok=True)


class _errors:
    """Turns errors of a file or an encoder into those of rlrun."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, BrokenPipeError):
            text = "the encoder ended"
            raise ResourceError(
                f"{self.path}: {text}; FFmpeg is needed for .mp4; write a .gif"
            ) from error
        if isinstance(error, OSError):
            text = error.strerror or str(error)
            raise StorageError(
                f"{self.path}: cannot be written ({text}); a writable place is needed; choose "
                "another"
            ) from error


class Mp4:
    """H.264 by imageio's FFmpeg, which every browser plays."""

    def __init__(self, path: Path, fps: float) -> None:
        import imageio

        self._writer: Any = imageio.get_writer(
            path, format="FFMPEG", mode="I", fps=fps, codec="libx264", quality=_QUALITY,
            pixelformat="yuv420p", macro_block_size=1, ffmpeg_log_level="error",
        )  # fmt: skip

    def add(self, frame: np.ndarray) -> None:
        self._writer.append_data(even(frame))

    def finish(self) -> None:
        self._writer.close()

    def abandon(self) -> None:
        self._writer.close()


class Gif:
    """An animated GIF by pillow; its frames are held until the end."""

    def __init__(self, path: Path, fps: float) -> None:
        self._path, self._fps = path, fps
        self._frames: list[Any] = []

    def add(self, frame: np.ndarray) -> None:
        self._frames.append(_quantized(frame))

    def finish(self) -> None:
        self._path.write_bytes(_gif_bytes(self._frames, self._fps))

    def abandon(self) -> None:
        self._frames = []


def encode_gif(frames: Sequence[np.ndarray], *, fps: float) -> bytes:
    """Return frames, each uint8 [H, W, 3] of one size, as an animated GIF that repeats."""
    return _gif_bytes([_quantized(frame) for frame in frames], fps)


def _quantized(frame: np.ndarray) -> Any:
    """Return an image with a palette of its own, exactly the frame where that has 256 colours."""
    from PIL import Image

    image = Image.fromarray(frame)
    few = image.getcolors(_COLORS) is not None
    method = Image.Quantize.MEDIANCUT if few else Image.Quantize.FASTOCTREE  # 15 ms, 5 ms
    return image.quantize(_COLORS, method=method, dither=Image.Dither.NONE)


def _gif_bytes(frames: Sequence[Any], fps: float) -> bytes:
    """Return the file; durations are whole hundredths of a second, at least two."""
    duration = max(round(_HUNDREDTHS / fps), _MIN_DURATION) * 1000 // _HUNDREDTHS
    out = io.BytesIO()
    frames[0].save(
        out, "GIF", save_all=True, append_images=frames[1:], duration=duration, loop=0, disposal=1
    )
    return out.getvalue()


def even(frame: np.ndarray) -> np.ndarray:
    """Return the frame with even sides, which H.264 needs: the last line is repeated."""
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
