"""Datasets on disk, for offline training and demonstrations.

format    layout of a dataset directory: file names, tree structure, spaces
writer    rows -> a dataset directory, written atomically
reader    a dataset directory -> its trajectories
packing   trajectories -> collected segments with any number of columns, for a buffer
minari    a Minari dataset -> its trajectories
"""

from collections.abc import Iterator
from contextlib import contextmanager

from rlrun.dataset.minari import MinariDataset, import_minari
from rlrun.dataset.packing import Trajectory, pack_trajectories
from rlrun.dataset.reader import Dataset, read_dataset
from rlrun.dataset.writer import write_dataset
from rlrun.errors import ConfigError, ResourceError, StorageError

__all__ = [
    "Dataset",
    "MinariDataset",
    "Trajectory",
    "errors_name_key",
    "import_minari",
    "open_source",
    "pack_trajectories",
    "read_dataset",
    "write_dataset",
]

_MINARI = "minari:"


@contextmanager
def errors_name_key(key: str) -> Iterator[None]:
    """Make errors about a dataset name ``buffer.KEY`` instead of ``buffer.load``."""
    try:
        yield
    except (ConfigError, ResourceError, StorageError) as e:
        text = str(e)
        if key == "load" or not text.startswith("buffer.load"):
            raise
        raise type(e)(text.replace("buffer.load", f"buffer.{key}", 1)) from e


def open_source(path: str) -> Dataset | MinariDataset:
    """Open a value of ``buffer.load``: a dataset directory, or ``minari:`` and a dataset id.

    Raises: ConfigError (no dataset), ResourceError (minari missing), StorageError (damaged).
    """
    if path.startswith(_MINARI):
        return import_minari(path.removeprefix(_MINARI))
    return read_dataset(path)
