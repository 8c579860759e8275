"""The data that ``rlrun codec bench`` measures: weights and rows of runs, datasets and files."""

import logging
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from rlrun.buffer.ring import is_saved_field, read_columns
from rlrun.codec import tree_table
from rlrun.dataset import read_dataset
from rlrun.dataset.format import DESCRIPTION_FILE
from rlrun.errors import CheckpointError, ConfigError
from rlrun.run import checkpoint, history
from rlrun.run.tensors import read_tensors
from rlrun.tree import Tree, tree_leaves

_logger = logging.getLogger(__name__)

ROWS = 128  # of each column in a chunk
CHUNKS = 64  # of a series at most, the newest
READABLE = "a run directory, a dataset directory, or .npy, .npz and .safetensors files"
_SNAPSHOTS = (".npz", ".safetensors")


@dataclass(slots=True)
class Series:
    """The items of one stream: snapshots that differ little, or chunks of rows."""

    name: str
    rows: bool  # chunks [T, …]; else trees of the same arrays
    items: list[Tree] = field(default_factory=list)  # oldest first
    at: list[int] = field(default_factory=list)  # env steps, rows, or numbers of files
    unit: str = "file"

    @property
    def nbytes(self) -> list[int]:
        """Raw bytes of each item."""
        return [sum(int(x.nbytes) for x in tree_leaves(item)) for item in self.items]


def series_of(paths: list[Path]) -> list[Series]:
    """The series of all paths.

    Raises: ConfigError for what is none of those or cannot be read, CheckpointError for a run
    without anything to measure, StorageError for a damaged dataset.
    """
    found: list[Series] = []
    snapshots: dict[bytes, Series] = {}
    for path in paths:
        if path.is_dir():
            found += _of_directory(path)
        elif not path.exists():
            raise _unreadable(path, "no such file or directory")
        elif path.suffix == ".npy":
            found.append(_of_npy(path))
        elif path.suffix in _SNAPSHOTS:
            tree = _arrays(path)
            key = tree_table(tree)
            if key not in snapshots:
                snapshots[key] = Series(str(path), rows=False)
                found.append(snapshots[key])
            one = snapshots[key]
            one.items.append(tree)
            one.at.append(len(one.items))
        else:
            raise _unreadable(path, "not a file of a supported format")
    found = [one for one in found if sum(one.nbytes)]
    if not found:
        raise ConfigError(f"{paths[0]}: holds no bytes; {READABLE} with some; give another")
    return found


def _unreadable(path: Path, why: str) -> ConfigError:
    return ConfigError(f"FILE = {path}: {why}; {READABLE}; give one of them")


def _of_directory(path: Path) -> list[Series]:
    if (path / DESCRIPTION_FILE).is_file():
        return _of_rows(_dataset_chunks(path), str(path))
    if (path / "config.yaml").is_file():
        return _of_run(path)
    raise _unreadable(path, "neither a run nor a dataset")


# -- runs ------------------------------------------------------------------------------------------


def _of_run(path: Path) -> list[Series]:
    """Weights of its history, else of its checkpoints, and the rows of its replay."""
    directory = path / "checkpoints"
    weights = Series(f"{path}: weights", rows=False, unit="env steps")
    for steps, tree in history.iterate_newest_first(directory / history.DIRECTORY):
        weights.items.insert(0, tree)
        weights.at.insert(0, steps)
    if not weights.items:
        for file in checkpoint.list_checkpoints(directory):
            state = _state(file)
            if "net" in state.get("policy", {}):
                weights.items.append(state["policy"]["net"])
                weights.at.append(int(state["counters"]["env_steps"]))
    found = [weights] if weights.items else []
    try:
        state, _ = checkpoint.load_newest(directory)
    except CheckpointError:
        if not found:
            raise
        return found
    if "buffer" in state:
        found += _of_rows(_replay_chunks(state["buffer"]["ring"]), str(path))
    if not found:
        raise CheckpointError(
            f"{path}: its checkpoints hold neither weights nor rows; a run of a policy that learns "
            "does; choose another run"
        )
    return found


def _state(file: Path) -> dict[str, Any]:
    """The state of a checkpoint, empty if it cannot be used."""
    try:
        return checkpoint.load(file)
    except CheckpointError as e:
        _logger.warning("checkpoint skipped: %s", e)
        return {}


def _replay_chunks(ring: dict[str, Any]) -> Iterator[tuple[int, dict[str, Tree]]]:
    """(first row, fields [ROWS, columns, …]) of a saved ring, newest last."""
    reward = ring["fields"]["reward"]
    for start in _starts(reward.first, reward.stop):
        stop = min(start + ROWS, reward.stop)
        fields = {n: read_columns(ring["fields"][n], start, stop) for n in ("action", "reward")}
        yield start, {"obs": _columns(ring["obs"], start, stop), **fields}


def _columns(tree: Tree, first: int, stop: int) -> Tree:
    """``read_columns`` of a tree of observations."""
    if isinstance(tree, tuple):
        return tuple(_columns(node, first, stop) for node in tree)
    if isinstance(tree, dict) and not is_saved_field(tree):
        return {name: _columns(node, first, stop) for name, node in tree.items()}
    return read_columns(tree, first, stop)


# -- datasets and files ----------------------------------------------------------------------------


def _dataset_chunks(path: Path) -> Iterator[tuple[int, dict[str, Tree]]]:
    """The same of a dataset's newest rows."""
    dataset = read_dataset(path)
    rows = dataset.rows // dataset.columns
    for start in _starts(0, rows):
        yield start, dataset.block(start, min(start + ROWS, rows))


def _starts(oldest: int, stop: int) -> range:
    """First rows of the newest chunks."""
    return range(max(oldest, stop - ROWS * CHUNKS), stop, ROWS)


def _of_rows(chunks: Iterator[tuple[int, dict[str, Tree]]], name: str) -> list[Series]:
    """A series for observations, actions and rewards each."""
    names = {"obs": "observations", "action": "actions", "reward": "rewards"}
    found = {n: Series(f"{name}: {text}", rows=True, unit="row") for n, text in names.items()}
    for start, fields in chunks:
        for n, tree in fields.items():
            found[n].items.append(tree)
            found[n].at.append(start)
    return [one for one in found.values() if one.items]


def _of_npy(path: Path) -> Series:
    """An array, whose first axis is time."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as e:
        raise _unreadable(path, f"cannot be read ({' '.join(str(e).split())})") from e
    if array.ndim == 0 or len(array) < 2:
        return Series(str(path), rows=False, items=[np.asarray(array)], at=[1])
    out = Series(str(path), rows=True, unit="row")
    for start in _starts(0, len(array)):
        out.items.append(np.asarray(array[start : start + ROWS]))
        out.at.append(start)
    return out


def _arrays(path: Path) -> dict[str, Any]:
    """The arrays of a file by name."""
    try:
        if path.suffix == ".npz":
            with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
                return {name: file[name] for name in file.files}
        return dict(read_tensors(path))
    except (OSError, ValueError, EOFError, BadZipFile, zlib.error) as e:
        raise _unreadable(path, f"cannot be read ({' '.join(str(e).split())})") from e
