"""Progress display of a run: live, plain lines, or off.

Live is a line, two at 80 columns, redrawn in place in a terminal or a cell of a notebook.
"""

import contextlib
import logging
import os
import sys
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, Literal, TextIO


def format_duration(seconds: float) -> str:
    """Format seconds as 0:07, 12:30 or 1:02:03."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


Mode = Literal["live", "plain", "off"]

LIVE_SECONDS = 0.25  # between two frames of the live display

RATE_SECONDS = 5.0  # window of the fps estimate; the first one of learning has no ETA


def resolve_mode(setting: Literal["auto", "live", "plain", "off"], stream: TextIO) -> Mode:
    """Return the mode for a setting.

    ``auto`` is live in notebooks and on terminals with cursor control, otherwise plain.
    """
    if setting in ("plain", "off"):
        return setting
    terminal = stream.isatty() and os.environ.get("TERM", "") not in ("dumb", "unknown")
    return "live" if terminal or in_notebook() else "plain"


def in_notebook() -> bool:
    """Return whether a notebook shows the output of this process."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


class Progress:
    """Rate-limited progress display. ``update`` takes 1 us if nothing is shown."""

    def __init__(
        self,
        mode: Mode,
        *,
        title: str,
        total_steps: int,
        start_steps: int,
        seconds: float,
        stream: TextIO,
    ) -> None:
        self.mode = mode
        self._title, self._total = title, total_steps
        self._every = LIVE_SECONDS if mode == "live" else seconds
        now = time.monotonic()
        self._due = now + (0 if mode == "live" else seconds)
        self._began, self._past = now, deque([(now, start_steps)])
        self._env_steps, self._updates = start_steps, 0
        self._latest: dict[str, float] = {}
        self._status = ""
        self._display: Display | None = Display(stream) if mode == "plain" else None
        if mode == "live":
            self._display = NotebookDisplay() if in_notebook() else LiveDisplay(stream)

    def begin(self) -> None:
        """Measure the speed from now on, without the time of starting."""
        self._began = time.monotonic()
        self._past = deque([(self._began, self._env_steps)])

    def update(
        self, env_steps: int, updates: int, latest: Mapping[str, float], status: str = ""
    ) -> None:
        """Store the counters and latest values. Show them if the interval has passed.

        ``status``: what is being done instead of training.
        """
        first = updates and not self._updates  # until now it acted without learning, and compiled
        self._status = status
        self._env_steps, self._updates = env_steps, updates
        if latest:
            self._latest.update(latest)
        if first:
            self._began = time.monotonic()
        if self._display is not None and time.monotonic() >= self._due:
            self._show()
        if first:
            self.begin()

    def finish(self, line: str) -> None:
        """End the display and print the run's last line to stdout (nothing when off)."""
        self.close()
        self.note(line)

    def note(self, line: str) -> None:
        """Print a line to stdout (nothing when off)."""
        if self.mode != "off":
            # A closed stdout must not fail a run.
            with contextlib.suppress(OSError, ValueError):
                print(line, flush=True)

    def close(self) -> None:
        """End the display; a live one shows the last counters first. Idempotent."""
        if self._display is None:
            return
        if self.mode == "live":
            self._show()
        if self._display is not None:
            self._display.close()
            self._display = None

    def _show(self) -> None:
        assert self._display is not None
        now = time.monotonic()
        self._due = now + self._every
        try:
            self._display.show(self._line(now))
        except (OSError, ValueError):  # the terminal was closed; training continues
            display, self._display = self._display, None
            with contextlib.suppress(OSError, ValueError):
                display.close()

    def _line(self, now: float) -> str:
        """Return counters, env steps per second and latest values as ``name value`` pairs."""
        while len(self._past) > 1 and now - self._past[1][0] >= RATE_SECONDS:
            self._past.popleft()
        then, steps = self._past[0]
        self._past.append((now, self._env_steps))
        fps = (self._env_steps - steps) / max(now - then, 1e-9)
        left = max(self._total - self._env_steps, 0)
        representative = self._updates or self._env_steps >= self._total / 10
        known = representative and fps > 0 and now - self._began >= RATE_SECONDS
        title = f"{self._status}: {self._title}" if self._status else self._title
        done = min(self._env_steps / max(self._total, 1), 1.0)
        parts = [f"{title}: {done:4.0%}", f"steps {self._env_steps}/{self._total}"]
        parts += [f"updates {self._updates}", f"fps {fps:.0f}"]
        parts += [f"{name} {value:.4g}" for name, value in self._latest.items()]
        parts += [f"eta {format_duration(left / fps)}"] if known else []
        return "  ".join(parts)


class Display:
    """Shows lines below each other, for files and pipes. Base class of the other displays.

    An OSError or ValueError turns a display off.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def show(self, line: str) -> None:
        """Show the present line."""
        self._stream.write(line + "\n")
        self._stream.flush()

    def close(self) -> None:
        """Restore the terminal. Idempotent."""


class LiveDisplay(Display):
    """A display drawn by ``show``, without a thread.

    Until it is closed, output of print and logging handlers to the terminal appears above it, line
    by line. A stdout redirected to a file is not changed.
    """

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console  # slow to import
        from rich.live import Live

        self._streams = {id(s) for s in (stream, sys.stdout, sys.stderr) if s.isatty()}
        self._live = Live(
            console=Console(file=stream),
            auto_refresh=False,
            redirect_stdout=sys.stdout.isatty(),
            redirect_stderr=sys.stderr.isatty(),
        )
        self._live.start()
        self._handlers = self._redirect_handlers()

    def show(self, line: str) -> None:
        from rich.text import Text

        self._live.update(Text(line), refresh=True)

    def close(self) -> None:
        """Leave the last frame on the screen. Restore the cursor and the streams."""
        self._live.stop()
        for handler, stream in self._handlers:
            handler.setStream(stream)
        self._handlers = []

    def _redirect_handlers(self) -> list[tuple["logging.StreamHandler[TextIO]", TextIO]]:
        """Redirect the terminal's logging handlers. Return them with their streams."""
        handlers = []
        for logger in (
            logging.getLogger(),
            *map(logging.getLogger, logging.root.manager.loggerDict),
        ):
            for handler in logger.handlers:
                if (
                    isinstance(handler, logging.StreamHandler)
                    and id(handler.stream) in self._streams
                ):
                    handlers.append((handler, handler.stream))
                    handler.setStream(sys.stderr if sys.stderr.isatty() else sys.stdout)
        return handlers


class NotebookDisplay(Display):
    """The line as an output of a notebook cell, replaced at every ``show``."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, line: str) -> None:
        output = {"text/plain": line}
        if self._handle is None:
            display = sys.modules["IPython"].display
            self._handle = display.display(output, raw=True, display_id=True)
        else:
            self._handle.update(output, raw=True)
