"""The live display: two lines at the bottom of a terminal, redrawn in place."""

import logging
import sys
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rlrun.log.reading import Reading, duration


class LiveDisplay:
    """Draws when told to (no thread of its own).

    While it lives, what is printed to the terminal and what logging handlers write there appears
    above it, line by line; a stdout that goes to a file is left alone.
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

    def show(self, reading: Reading) -> None:
        """Draws one frame."""
        self._live.update(frame(reading), refresh=True)

    def close(self) -> None:
        """Leaves the last frame on the screen and gives the cursor and the streams back."""
        self._live.stop()
        for handler, stream in self._handlers:
            handler.setStream(stream)
        self._handlers = []

    def _redirect_handlers(self) -> list[tuple["logging.StreamHandler[TextIO]", TextIO]]:
        """Points handlers that hold the terminal at the redirected stderr; what they held."""
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


def frame(reading: Reading) -> Group:
    """A line with the bar, and a line with the newest values."""
    bar = Table.grid(padding=(0, 2))
    eta = "-:--" if reading.eta is None else duration(reading.eta)
    bar.add_row(
        Text(reading.title, style="bold"),
        ProgressBar(total=1.0, completed=reading.fraction, width=24),
        Text(f"{reading.env_steps:,}/{reading.total_steps:,}"),
        Text(f"{reading.fraction:4.0%}"),
        Text(f"{reading.fps:,.0f} fps", style="cyan"),
        Text(f"ETA {eta}", style="cyan"),
    )
    values = Text("  ")
    values.append(f"updates {reading.updates:,}", style="dim")
    for name, value in reading.latest.items():
        values.append(f"   {name} ", style="dim").append(f"{value:.4g}", style="bold")
    return Group(bar, values)
