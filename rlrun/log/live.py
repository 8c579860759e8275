"""Live progress display: two lines at the bottom of a terminal, redrawn in place."""

import logging
import sys
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rlrun.log.snapshot import ProgressSnapshot, format_duration


class LiveDisplay:
    """Display drawn by ``show``, without a thread.

    Until it is closed, output to the terminal by print and logging handlers appears above it, line
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
        self._live.update(render(snapshot), refresh=True)

    def close(self) -> None:
        """Leave the last frame on the screen; restore the cursor and the streams."""
        self._live.stop()
        for handler, stream in self._handlers:
            handler.setStream(stream)
        self._handlers = []

    def _redirect_handlers(self) -> list[tuple["logging.StreamHandler[TextIO]", TextIO]]:
        """Redirect logging handlers of the terminal; return them with their streams."""
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


def render(snapshot: ProgressSnapshot) -> Group:
    """Return a line with the progress bar and a line with the latest values."""
    bar = Table.grid(padding=(0, 2))
    eta = "-:--" if snapshot.eta is None else format_duration(snapshot.eta)
    bar.add_row(
        Text(snapshot.title, style="bold"),
        ProgressBar(total=1.0, completed=snapshot.fraction, width=24),
        Text(f"{snapshot.env_steps:,}/{snapshot.total_steps:,}"),
        Text(f"{snapshot.fraction:4.0%}"),
        Text(f"{snapshot.fps:,.0f} fps", style="cyan"),
        Text(f"ETA {eta}", style="cyan"),
    )
    values = Text("  ")
    values.append(f"updates {snapshot.updates:,}", style="dim")
    for name, value in snapshot.latest.items():
        values.append(f"   {name} ", style="dim").append(f"{value:.4g}", style="bold")
    return Group(bar, values)
