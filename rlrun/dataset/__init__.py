"""Datasets on disk, for offline training and demonstrations.

format    layout of a dataset directory: file names, tree structure, spaces
writer    rows -> a dataset directory, written atomically
reader    a dataset directory -> its trajectories
packing   trajectories -> collected segments with any number of columns, for a buffer
minari    a Minari dataset -> its trajectories
"""

from rlrun.dataset.minari import MinariDataset, import_minari
from rlrun.dataset.packing import Trajectory, pack_trajectories
from rlrun.dataset.reader import Dataset, read_dataset
from rlrun.dataset.writer import write_dataset

__all__ = [
    "Dataset",
    "MinariDataset",
    "Trajectory",
    "import_minari",
    "open_source",
    "pack_trajectories",
    "read_dataset",
    "write_dataset",
]

_MINARI = "minari:"


def open_source(path: str, key: str = "buffer.load") -> Dataset | MinariDataset:
    """Open the value of ``key``: a dataset directory, or ``minari:`` and a dataset id.

    All errors of the source begin with the key.

    Raises: ConfigError (no dataset), ResourceError (minari missing), StorageError (damaged).
    """
    if path.startswith(_MINARI):
        return import_minari(path.removeprefix(_MINARI), key)
    return read_dataset(path, key)
