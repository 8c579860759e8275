"""Rows on disk, to learn from without (or before) an environment.

files     what a dataset directory looks like: names, structure, spaces, the sealed description
writing   rows -> a dataset directory, whole or not there at all
dealing   trajectories -> collected segments of any number of columns, ready for a buffer
reading   a dataset directory -> its trajectories
minari    a Minari dataset -> its trajectories
"""

from collections.abc import Iterator
from contextlib import contextmanager

from rlrun.dataset.dealing import Trajectory, deal
from rlrun.dataset.files import require_new
from rlrun.dataset.minari import Minari, import_minari
from rlrun.dataset.reading import Dataset, read
from rlrun.dataset.writing import export, write
from rlrun.errors import ConfigError, StorageError

__all__ = [
    "Dataset",
    "Minari",
    "Trajectory",
    "deal",
    "export",
    "import_minari",
    "named",
    "open_source",
    "read",
    "require_new",
    "write",
]

_MINARI = "minari:"


@contextmanager
def named(key: str) -> Iterator[None]:
    """Errors about a dataset name ``buffer.KEY``, the key that led to it."""
    try:
        yield
    except (ConfigError, StorageError) as e:
        text = str(e)
        if key == "load" or not text.startswith("buffer.load"):
            raise
        raise type(e)(text.replace("buffer.load", f"buffer.{key}", 1)) from e


def open_source(where: str) -> Dataset | Minari:
    """What ``buffer.load`` names: a dataset directory, or ``minari:`` and a dataset id.

    Raises: ConfigError (nothing there, minari missing), StorageError (damaged).
    """
    if where.startswith(_MINARI):
        return import_minari(where.removeprefix(_MINARI))
    return read(where)
