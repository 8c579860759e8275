"""``rlrun codec bench``: size and speed of every coder on a user's weights and rows, and a plot.

A stream is coded as a run would code it: framed and hashed, each snapshot as a delta to the two
before it, each chunk by itself. Every frame is decoded and compared. Speeds are of raw bytes, with
one thread, the best of a few passes.
"""

import logging
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from rlrun import codec
from rlrun.buffer.layout import amount
from rlrun.buffer.ring import is_saved_field, read_columns
from rlrun.cli.commands import READABLE
from rlrun.codec import planes, tree_table
from rlrun.dataset import read_dataset
from rlrun.dataset.format import DESCRIPTION_FILE
from rlrun.errors import CheckpointError, ConfigError, storage_errors
from rlrun.run import checkpoint, history
from rlrun.run.files import require_run
from rlrun.run.manifest import list_checkpoints
from rlrun.run.tensors import read_tensors
from rlrun.spaces import Tree, tree_leaves

_logger = logging.getLogger(__name__)

ROWS = 128  # of each column in a chunk
CHUNKS = 64  # most chunks per series, the newest
_SNAPSHOTS = (".npz", ".safetensors")


@dataclass(slots=True)
class Series:
    """The items of one stream: snapshots that differ little, or chunks of rows."""

    name: str
    rows: bool  # chunks [T, …]; else trees of the same arrays
    items: list[Tree] = field(default_factory=list)  # oldest first
    at: list[int] = field(default_factory=list)  # env steps, rows, or numbers of files
    unit: str = "file"

    def add(self, item: Tree, at: int) -> None:
        self.items.append(item)
        self.at.append(at)

    @property
    def nbytes(self) -> list[int]:
        """Return the raw bytes of each item."""
        return [sum(int(x.nbytes) for x in tree_leaves(item)) for item in self.items]


def unreadable(path: Path, why: str) -> ConfigError:
    """Return the error of a path in which nothing can be measured."""
    return ConfigError(f"FILE = {path}: {why}; {READABLE}; give one of them")


def series_of(paths: list[Path]) -> list[Series]:
    """Return the series of all paths.

    Raises: ConfigError for a path of another kind or an unreadable one, CheckpointError for a run
    without anything to measure, StorageError for a damaged dataset.
    """
    all_series: list[Series] = []
    snapshots: dict[bytes, Series] = {}
    for path in paths:
        if (path / DESCRIPTION_FILE).is_file():
            all_series += _of_rows(_dataset_chunks(path), str(path))
        elif (path / "config.yaml").is_file():
            require_run(path)
            all_series += _of_run(path)
        elif path.is_dir():
            raise unreadable(path, "neither a run nor a dataset")
        elif path.suffix == ".npy":
            all_series.append(_of_npy(path))
        elif path.suffix in _SNAPSHOTS:
            tree = _arrays(path)
            key = tree_table(tree)
            if key not in snapshots:
                snapshots[key] = Series(str(path), rows=False)
                all_series.append(snapshots[key])
            snapshots[key].add(tree, len(snapshots[key].items) + 1)
        else:
            raise unreadable(path, "not a file of a supported format")
    all_series = [series for series in all_series if sum(series.nbytes)]
    if not all_series:
        raise ConfigError(f"{paths[0]}: holds no bytes; {READABLE} with some; give another")
    return all_series


def _of_run(path: Path) -> list[Series]:
    """Return the weights of its history, else of its checkpoints, and the rows of its replay."""
    directory = path / "checkpoints"
    weights = Series(f"{path}: weights", rows=False, unit="env steps")
    for steps, tree in [*history.iterate_newest_first(directory / history.DIRECTORY)][::-1]:
        weights.add(tree, steps)
    if not weights.items:
        for file in list_checkpoints(directory):
            state = _state(file)
            if "net" in state.get("policy", {}):
                weights.add(state["policy"]["net"], int(state["counters"]["env_steps"]))
    all_series = [weights] if weights.items else []
    try:
        state, _ = checkpoint.load_newest(directory)
    except CheckpointError:
        if not all_series:
            raise
        return all_series
    saved = state.get("buffer", {})  # with a replay per collector, with demonstrations, or rollouts
    for replay in saved.get("streams", [saved.get("own", saved)]):
        if "ring" in replay:
            all_series += _of_rows(_replay_chunks(replay["ring"]), str(path))
    if not all_series:
        raise CheckpointError(
            f"{path}: its checkpoints hold neither weights nor rows; a run of a policy that learns "
            "does; choose another run"
        )
    return all_series


def _state(file: Path) -> dict[str, Any]:
    """Return the state of a checkpoint, empty if it cannot be used."""
    try:
        return checkpoint.load(file)
    except CheckpointError as e:
        _logger.warning("checkpoint skipped: %s", e)
        return {}


def _replay_chunks(ring: dict[str, Any]) -> Iterator[tuple[int, dict[str, Tree]]]:
    """Yield (first row, fields [ROWS, columns, …]) of a saved ring, newest last."""
    reward = ring["fields"]["reward"]
    for start in _starts(reward.first, reward.stop):
        stop = min(start + ROWS, reward.stop)
        fields = {n: read_columns(ring["fields"][n], start, stop) for n in ("action", "reward")}
        yield start, {"obs": _columns(ring["obs"], start, stop), **fields}


def _columns(tree: Tree, first: int, stop: int) -> Tree:
    """Return ``read_columns`` of a tree of observations."""
    if isinstance(tree, tuple):
        return tuple(_columns(node, first, stop) for node in tree)
    if isinstance(tree, dict) and not is_saved_field(tree):
        return {name: _columns(node, first, stop) for name, node in tree.items()}
    return read_columns(tree, first, stop)


def _dataset_chunks(path: Path) -> Iterator[tuple[int, dict[str, Tree]]]:
    """Yield (first row, fields [ROWS, columns, …]) of a dataset's newest rows."""
    dataset = read_dataset(path)
    rows = dataset.rows // dataset.columns
    for start in _starts(0, rows):
        yield start, dataset.block(start, min(start + ROWS, rows))


def _starts(oldest: int, stop: int) -> range:
    """Return the first rows of the newest chunks."""
    return range(max(oldest, stop - ROWS * CHUNKS), stop, ROWS)


def _of_rows(chunks: Iterator[tuple[int, dict[str, Tree]]], name: str) -> list[Series]:
    """Return a series each for observations, actions and rewards."""
    names = {"obs": "observations", "action": "actions", "reward": "rewards"}
    by_field = {n: Series(f"{name}: {text}", rows=True, unit="row") for n, text in names.items()}
    for start, fields in chunks:
        for n, tree in fields.items():
            by_field[n].add(tree, start)
    return [series for series in by_field.values() if series.items]


def _of_npy(path: Path) -> Series:
    """Return an array whose first axis is time."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as e:
        raise unreadable(path, f"cannot be read ({' '.join(str(e).split())})") from e
    if array.ndim == 0 or len(array) < 2:
        return Series(str(path), rows=False, items=[np.asarray(array)], at=[1])
    out = Series(str(path), rows=True, unit="row")
    for start in _starts(0, len(array)):
        out.add(np.asarray(array[start : start + ROWS]), start)
    return out


def _arrays(path: Path) -> dict[str, Any]:
    """Return the arrays of a file by name."""
    try:
        if path.suffix == ".npz":
            with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
                return {name: file[name] for name in file.files}
        return dict(read_tensors(path))
    except (OSError, ValueError, EOFError, BadZipFile, zlib.error) as e:
        raise unreadable(path, f"cannot be read ({' '.join(str(e).split())})") from e


PASSES, SECONDS = 3, 2.0  # limits for one coder on one series


@dataclass(frozen=True, slots=True)
class Measurement:
    """One coder on one series, with a number per item."""

    coder: str
    rows: bool  # chunks, each by itself
    raw: np.ndarray  # int64 bytes
    coded: np.ndarray  # int64 bytes, headers included
    encode: np.ndarray  # seconds
    decode: np.ndarray
    chosen: str  # choice of ``auto`` and its reason; empty for others

    @property
    def figures(self) -> tuple[float, float, float]:
        """Return (coded / raw, raw bytes/s encoded, decoded), if possible without a key frame."""
        rest = slice(0 if self.rows or len(self.raw) == 1 else 1, None)
        raw, coded = self.raw[rest].sum(), self.coded[rest].sum()
        encode, decode = (max(x[rest].sum(), 1e-9) for x in (self.encode, self.decode))
        return float(coded / raw), float(raw / encode), float(raw / decode)


def measure(series: Series, coder: str) -> Measurement:
    """Encode the series, decode it and compare."""
    best = np.full((2, len(series.items)), np.inf)
    began = time.perf_counter()
    for done in range(PASSES):
        coded, spent, encoder = _pass(series, coder)
        best = np.minimum(best, spent)
        if done and time.perf_counter() - began > SECONDS:
            break
    chosen = ""
    if coder == "auto":
        chosen = "; ".join(dict.fromkeys(f"{c.coder}: {c.reason}" for c in encoder.choices))
    raw = np.array(series.nbytes)
    return Measurement(coder, series.rows, raw, coded, best[0], best[1], chosen)


def _pass(series: Series, coder: str) -> tuple[np.ndarray, np.ndarray, codec.Encoder]:
    """Return (bytes of the frames, seconds [2, N] to encode and decode, the encoder)."""
    encoder = codec.Encoder("bench", keep=2, key_seconds=0.0, coder=coder)
    decoder = codec.Decoder("bench")
    sizes, spent = [], np.zeros((2, len(series.items)))
    for k, item in enumerate(series.items):
        start = time.perf_counter()
        frame = encoder.encode_chunk(item) if series.rows else encoder.encode(item)
        middle = time.perf_counter()
        back = decoder.decode(frame)
        spent[:, k] = middle - start, time.perf_counter() - middle
        sizes.append(len(frame))
        for x, y in zip(tree_leaves(item), tree_leaves(back), strict=True):
            equal = codec.as_bytes(x) == codec.as_bytes(y)
            assert equal, f"{series.name}: {coder} is not lossless"
    return np.array(sizes), spent, encoder


def table_lines(series: Series, results: Sequence[Measurement]) -> Iterator[str]:
    """Yield the table of one series."""
    raw = series.nbytes
    what = "chunks" if series.rows else "snapshots" if len(raw) > 1 else "snapshot, by itself"
    yield f"{series.name}: {len(raw)} {what} of {amount(float(np.mean(raw)))}"
    yield "  coder         ratio     encode     decode  pays below"
    for result in results:
        ratio, encode, decode = result.figures
        gain = (1 - ratio) / (1 / encode + 1 / decode)
        worth = f"{gain / 1e6:7.0f} MB/s" if gain > 0 else "     never"
        speeds = f"{encode / 1e6:5.0f} MB/s {decode / 1e6:5.0f} MB/s"
        yield f"  {result.coder:10s} {100 * ratio:6.1f} % {speeds}  {worth}"
        if result.coder == "auto":
            yield f"             = {result.chosen}"


def report(paths: Sequence[Path], plot: Path | None) -> Iterator[str]:
    """Yield the lines of the report as they are measured. ``plot``: also draw a plot there.

    Raises: ConfigError (nothing to read), CheckpointError, StorageError.
    """
    measured: list[tuple[Series, list[Measurement]]] = []
    usable = [name for name in codec.CODER_OPTIONS if name != "pco" or planes.installed()]
    for series in series_of(list(paths)):
        measured.append((series, [measure(series, coder) for coder in usable]))
        yield from table_lines(*measured[-1])
        yield ""
    if not planes.installed():
        yield "pco: not measured, pcodec is not installed (pip install 'rlrun[pco]')"
    if plot is not None:
        plot_ratios(measured, plot)
        yield f"drawn: {plot}"


def plot_ratios(measured: Sequence[tuple[Series, Sequence[Measurement]]], path: Path) -> None:
    """Draw a panel per series: ratio of every coder over the number of the items.

    Raises: StorageError if the file cannot be written.
    """
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(9, 3.2 * len(measured)), layout="constrained")
    panels = figure.subplots(len(measured), squeeze=False)[:, 0]
    for axes, (series, results) in zip(panels, measured, strict=True):
        for result in results:
            if result.coder not in ("raw", "auto"):
                style = "o-" if len(series.at) < 40 else "-"
                axes.plot(
                    series.at, 100 * result.coded / result.raw, style, label=result.coder, ms=3
                )
        axes.set(title=series.name, xlabel=series.unit, ylabel="coded / raw, %")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend(ncols=3, fontsize="small")
    with storage_errors(f"--plot = {path}:", "a writable file is needed; choose another"):
        figure.savefig(path, dpi=130)
