"""Live progress display: a line, two at 80 columns, redrawn in place in a terminal or a cell."""

import logging
import sys
from typing import Any, TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from rlrun.log.progress import ProgressSnapshot, format_line


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
        self._live.update(Text(format_line(snapshot)), refresh=True)

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


class NotebookDisplay:
    """The line as an output of a notebook cell, replaced at every ``show``."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, snapshot: ProgressSnapshot) -> None:
        output = {"text/plain": format_line(snapshot)}
        if self._handle is None:
            display = sys.modules["IPython"].display
            self._handle = display.display(output, raw=True, display_id=True)
        else:
            self._handle.update(output, raw=True)

    def close(self) -> None:
        """Leave the last line in the cell."""
