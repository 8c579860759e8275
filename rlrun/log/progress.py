"""What a person sees while a run goes on: a live display, or plain lines, or nothing; never two."""

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Literal, Protocol, TextIO

from rlrun.log.reading import Reading, duration

Mode = Literal["live", "plain", "off"]

LIVE_SECONDS = 0.25  # between two frames of the live display

RATE_SECONDS = 5.0  # the span fps is measured over


class Display(Protocol):
    """Shows readings; an OSError or ValueError out of it turns the display off."""

    def show(self, reading: Reading) -> None:
        """Shows one reading."""

    def close(self) -> None:
        """Puts the terminal back as it was; harmless twice."""


def choose(wish: Literal["auto", "live", "plain", "off"], stream: TextIO) -> Mode:
    """The mode a wish comes to on this stream: live needs a terminal that can move its cursor."""
    if wish in ("plain", "off"):
        return wish
    terminal = stream.isatty() and os.environ.get("TERM", "") not in ("dumb", "unknown")
    return "live" if terminal else "plain"


class Progress:
    """Decides when something is shown; ``update`` costs a microsecond when nothing is due."""

    def __init__(
        self,
        mode: Mode,
        *,
        title: str,
        total_steps: int,
        start_steps: int,
        seconds: float,
        stream: TextIO,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.mode = mode
        self._title, self._total, self._clock = title, total_steps, clock
        self._every = LIVE_SECONDS if mode == "live" else seconds
        now = clock()
        self._due = now + (0 if mode == "live" else seconds)
        self._past = deque([(now, start_steps)])
        self._env_steps, self._updates = start_steps, 0
        self._latest: dict[str, float] = {}
        self._display: Display | None = _display(mode, stream)

    def update(self, env_steps: int, updates: int, latest: Mapping[str, float]) -> None:
        """Takes note of the counters and the newest values, and shows them when it is time."""
        self._env_steps, self._updates = env_steps, updates
        if latest:
            self._latest.update(latest)
        if self._display is not None and self._clock() >= self._due:
            self._show()

    def done(self, line: str) -> None:
        """Ends the display and prints the run's last word to stdout (nothing when off)."""
        self.close()
        self.note(line)

    def note(self, line: str) -> None:
        """Prints a line to stdout (nothing when off)."""
        if self.mode != "off":
            # A closed stdout is no reason to fail a run.
            with contextlib.suppress(OSError, ValueError):
                print(line, flush=True)

    def close(self) -> None:
        """Ends the display; a live one shows the last counters first. Harmless twice."""
        if self._display is None:
            return
        if self.mode == "live":
            self._show()
        if self._display is not None:
            self._display.close()
            self._display = None

    def _show(self) -> None:
        assert self._display is not None
        now = self._clock()
        self._due = now + self._every
        try:
            self._display.show(self._reading(now))
        except (OSError, ValueError):  # the terminal went away; training stays
            display, self._display = self._display, None
            with contextlib.suppress(OSError, ValueError):
                display.close()

    def _reading(self, now: float) -> Reading:
        while len(self._past) > 1 and now - self._past[1][0] >= RATE_SECONDS:
            self._past.popleft()
        then, steps = self._past[0]
        self._past.append((now, self._env_steps))
        fps = (self._env_steps - steps) / max(now - then, 1e-9)
        left = max(self._total - self._env_steps, 0)
        return Reading(
            title=self._title,
            env_steps=self._env_steps,
            total_steps=self._total,
            updates=self._updates,
            fps=fps,
            eta=left / fps if fps > 0 else None,
            latest=self._latest,
        )


def _display(mode: Mode, stream: TextIO) -> Display | None:
    if mode == "off":
        return None
    if mode == "plain":
        return PlainLines(stream)
    from rlrun.log.live import LiveDisplay  # rich is imported only for a live display

    return LiveDisplay(stream)


class PlainLines:
    """One line per reading, for files and pipes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def show(self, reading: Reading) -> None:
        """Writes and flushes one line."""
        self._stream.write(plain(reading) + "\n")
        self._stream.flush()

    def close(self) -> None:
        """Nothing to put back."""


def plain(reading: Reading) -> str:
    """The line of a reading: ASCII, one ``name value`` after another."""
    parts = [
        f"{reading.title}: {reading.fraction:4.0%}",
        f"steps {reading.env_steps}/{reading.total_steps}",
        f"updates {reading.updates}",
        f"fps {reading.fps:.0f}",
        *(f"{name} {value:.4g}" for name, value in reading.latest.items()),
    ]
    if reading.eta is not None:
        parts.append(f"eta {duration(reading.eta)}")
    return "  ".join(parts)
