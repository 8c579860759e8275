"""Live progress display: two lines redrawn at the bottom of a terminal or in a notebook cell."""

import logging
import sys
from collections.abc import Sequence
from typing import Any, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from rlrun.log.progress import ProgressSnapshot, format_duration

GAP = "  "  # between two parts of a line
TITLE = 16  # columns of the title on the narrowest terminal
MIN_BAR, MAX_BAR = 6, 24  # columns
NOTEBOOK_WIDTH = 100  # columns of a cell's output

Part = tuple[int, Text]  # importance, text


class LiveDisplay:
    """A display drawn by ``show``, without a thread.

    Until it is closed, output of print and logging handlers to the terminal appears above it, line
    by line. A stdout redirected to a file is not changed.
    """

    def __init__(self, stream: TextIO) -> None:
        self._streams = {id(s) for s in (stream, sys.stdout, sys.stderr) if s.isatty()}
        self._live = Live(
            console=Console(file=stream),
            auto_refresh=False,
            redirect_stdout=sys.stdout.isatty(),
            redirect_stderr=sys.stderr.isatty(),
        )
        self._live.start()
        self._handlers = self._redirect_handlers()

    def show(self, snapshot: ProgressSnapshot) -> None:
        width = self._live.console.width
        self._live.update(Group(*frame_lines(snapshot, width)), refresh=True)

    def close(self) -> None:
        """Leave the last frame on the screen. Restore the cursor and the streams."""
        self._live.stop()
        for handler, stream in self._handlers:
            handler.setStream(stream)
        self._handlers = []

    def _redirect_handlers(self) -> list[tuple["logging.StreamHandler[TextIO]", TextIO]]:
        """Redirect the terminal's logging handlers. Return them with their streams."""
        found = []
        for logger in (
            logging.getLogger(),
            *map(logging.getLogger, logging.root.manager.loggerDict),
        ):
            for handler in logger.handlers:
                if (
                    isinstance(handler, logging.StreamHandler)
                    and id(handler.stream) in self._streams
                ):
                    found.append((handler, handler.stream))
                    handler.setStream(sys.stderr if sys.stderr.isatty() else sys.stdout)
        return found


class NotebookDisplay:
    """The two lines as an output of a notebook cell, replaced at every ``show``."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, snapshot: ProgressSnapshot) -> None:
        lines = frame_lines(snapshot, NOTEBOOK_WIDTH)
        output = {"text/plain": "\n".join(line.plain for line in lines)}
        if self._handle is None:
            display = sys.modules["IPython"].display
            self._handle = display.display(output, raw=True, display_id=True)
        else:
            self._handle.update(output, raw=True)

    def close(self) -> None:
        """Leave the last lines in the cell."""


def frame_lines(snapshot: ProgressSnapshot, width: int) -> tuple[Text, Text]:
    """Return two lines of at most ``width`` columns: progress, then the latest values.

    If there is too little room, the least important parts are left out, and the title is cut.
    """
    return _progress_line(snapshot, width), _values_line(snapshot, width)


def _progress_line(snapshot: ProgressSnapshot, width: int) -> Text:
    """Return title, bar, steps, share, speed and remaining time in at most ``width`` columns."""
    eta = "-:--" if snapshot.eta is None else format_duration(snapshot.eta)
    steps = f"{snapshot.env_steps:,}/{snapshot.total_steps:,}"
    parts = [  # importance; the smallest is left out first
        (5, Text(f"{snapshot.fraction:4.0%}")),
        (2, Text(steps)),
        (3, Text(f"{snapshot.fps:,.0f} fps", style="cyan")),
        (4, Text(f"ETA {eta}", style="cyan")),
    ]
    if snapshot.title:
        title = Text(snapshot.title, style="bold")
        title.truncate(max(width // 2, TITLE), overflow="ellipsis")
        parts.insert(0, (1, title))
    parts = _fitting(parts, width)
    free = width - _width(parts) - len(GAP)
    if free >= MIN_BAR:
        parts.insert(len(parts) > 4, (0, _bar(snapshot.fraction, min(free, MAX_BAR))))
    return _joined(parts, width)


def _values_line(snapshot: ProgressSnapshot, width: int) -> Text:
    """Return updates and the latest values in at most ``width`` columns.

    If there is too little room, updates are left out first, then the middle values.
    """
    parts = [(0, Text(f"updates {snapshot.updates:,}", style="dim"))]
    last = len(snapshot.latest) - 1
    for i, (name, value) in enumerate(snapshot.latest.items()):
        text = Text(f"{name} ", style="dim").append(f"{value:.4g}", style="bold not dim")
        parts.append((last + 2 - i if i < last else last + 3, text))
    return _joined(_fitting(parts, width), width)


def _bar(fraction: float, width: int) -> Text:
    done = round(fraction * width)
    return Text("━" * done, style="bar.complete").append("━" * (width - done), style="bar.back")


def _fitting(parts: Sequence[Part], width: int) -> list[Part]:
    """Return the most important parts that fit into ``width`` columns, in order."""
    kept = list(parts)
    while len(kept) > 1 and _width(kept) > width:
        kept.remove(min(kept, key=lambda part: part[0]))
    return kept


def _width(parts: Sequence[Part]) -> int:
    return sum(text.cell_len for _, text in parts) + len(GAP) * (len(parts) - 1)


def _joined(parts: Sequence[Part], width: int) -> Text:
    line = Text(GAP).join(text for _, text in parts)
    line.no_wrap = True
    line.truncate(width, overflow="ellipsis")
    return line
