"""The log of a run, rlrun.log in its directory."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

LOG = "rlrun.log"
_FORMAT = "[%(asctime)s][%(name)s][%(levelname)s] - %(message)s"  # Hydra's


@contextmanager
def closed_log(run_dir: Path, *, own_process: bool) -> Iterator[None]:
    """Close the run's log after the block: later records of this process are not of the run.

    ``own_process``: False in the process of a user's script, whose handlers of logging stay.
    """
    try:
        with nullcontext() if own_process else _added_log(run_dir):
            yield
    finally:
        for handler in logging.getLogger().handlers[:]:
            if _directory(handler) == run_dir:
                _close(handler)


@contextmanager
def _added_log(run_dir: Path) -> Iterator[None]:
    """Write the records of a process that is not the run's own to the run's log too.

    Hydra's logging, that of the command line, would close the handlers which such a process has.
    Where it has none, warnings are shown on stderr.
    """
    root, own = logging.getLogger(), logging.getLogger("rlrun")
    asked = any(_directory(handler) == run_dir for handler in root.handlers)  # hydra/job_logging=…
    added: list[logging.Handler] = [] if asked else [logging.FileHandler(run_dir / LOG)]
    if not root.handlers:
        console = logging.StreamHandler()
        console.setLevel(logging.WARNING)
        added.append(console)
    level = own.level
    if own.getEffectiveLevel() > logging.INFO:
        own.setLevel(logging.INFO)
    for handler in added:
        handler.setFormatter(logging.Formatter(_FORMAT))
        root.addHandler(handler)
    try:
        yield
    finally:
        own.setLevel(level)
        for handler in added:
            _close(handler)


def _directory(handler: logging.Handler) -> Path | None:
    """The directory of the file that a handler writes."""
    return Path(handler.baseFilename).parent if isinstance(handler, logging.FileHandler) else None


def _close(handler: logging.Handler) -> None:
    logging.getLogger().removeHandler(handler)
    with suppress(OSError):  # a full disk
        handler.close()
