"""Size and speed of every coder on a user's own weights and rows, and a plot of ratio over time.

A stream is coded as a run would code it: framed, hashed, each snapshot a delta to the two before
it, each chunk by itself. Every frame is decoded and compared. Speeds are of raw bytes, one thread,
the best of a few passes.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlrun import codec
from rlrun.cli.codec_sources import Series, series_of
from rlrun.codec import pco
from rlrun.errors import StorageError
from rlrun.tree import tree_leaves

PASSES, SECONDS = 3, 2.0  # at most, of one coder on one series


@dataclass(frozen=True, slots=True)
class Measurement:
    """One coder on one series; a number for each item."""

    coder: str
    rows: bool  # chunks, each by itself
    raw: np.ndarray  # int64 bytes
    coded: np.ndarray  # int64 bytes, headers included
    encode: np.ndarray  # seconds
    decode: np.ndarray
    chosen: str  # what ``auto`` took, and why; empty for the others

    @property
    def figures(self) -> tuple[float, float, float]:
        """(coded / raw, raw bytes/s encoded, decoded); a stream's key frame left out, if it can."""
        rest = slice(0 if self.rows or len(self.raw) == 1 else 1, None)
        raw = self.raw[rest].sum()
        return (
            float(self.coded[rest].sum() / raw),
            float(raw / max(self.encode[rest].sum(), 1e-9)),
            float(raw / max(self.decode[rest].sum(), 1e-9)),
        )


def usable_coders() -> list[str]:
    """The coders that can be measured here."""
    return [name for name in codec.CODER_OPTIONS if name != "pco" or pco.installed()]


def measure(series: Series, coder: str) -> Measurement:
    """Encode the series, decode it, compare."""
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
    """(bytes of the frames, seconds [2, N] to encode and decode, the encoder)."""
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
            own = codec.as_bytes(x)
            assert own == codec.as_bytes(y), f"{series.name}: {coder} is not lossless"
    return np.array(sizes), spent, encoder


# -- the table -------------------------------------------------------------------------------------


def table_lines(series: Series, found: Sequence[Measurement]) -> Iterator[str]:
    """The table of one series."""
    raw = series.nbytes
    what = "chunks" if series.rows else "snapshots" if len(raw) > 1 else "snapshot, by itself"
    yield f"{series.name}: {len(raw)} {what} of {_size(float(np.mean(raw)))}"
    yield "  coder         ratio     encode     decode  pays below"
    for one in found:
        ratio, encode, decode = one.figures
        gain = (1 - ratio) / (1 / encode + 1 / decode)
        worth = f"{gain / 1e6:7.0f} MB/s" if gain > 0 else "     never"
        speeds = f"{encode / 1e6:5.0f} MB/s {decode / 1e6:5.0f} MB/s"
        yield f"  {one.coder:10s} {100 * ratio:6.1f} % {speeds}  {worth}"
        if one.coder == "auto":
            yield f"             = {one.chosen}"


def _size(nbytes: float) -> str:
    for unit in ("B", "KB", "MB"):
        if nbytes < 1000:
            return f"{nbytes:.4g} {unit}"
        nbytes /= 1000
    return f"{nbytes:.4g} GB"


def bench(paths: Sequence[Path], plot: Path | None) -> Iterator[str]:
    """Lines of the report, as they are measured; ``plot``: where to draw it, besides.

    Raises: ConfigError (nothing to read), CheckpointError, StorageError.
    """
    measured: list[tuple[Series, list[Measurement]]] = []
    for series in series_of(list(paths)):
        found = [measure(series, coder) for coder in usable_coders()]
        measured.append((series, found))
        yield from table_lines(series, found)
        yield ""
    if not pco.installed():
        yield f"pco: not measured, pcodec is not installed ({pco.install()})"
    if plot is not None:
        plot_ratios(measured, plot)
        yield f"drawn: {plot}"


# -- the plot --------------------------------------------------------------------------------------


def plot_ratios(measured: Sequence[tuple[Series, Sequence[Measurement]]], path: Path) -> None:
    """A panel a series: ratio of every coder over what the items are numbered by.

    Raises: StorageError when the file cannot be written.
    """
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(9, 3.2 * len(measured)), layout="constrained")
    for axes, (series, found) in zip(
        figure.subplots(len(measured), squeeze=False)[:, 0], measured, strict=True
    ):
        for one in found:
            if one.coder not in ("raw", "auto"):
                style = "o-" if len(series.at) < 40 else "-"
                axes.plot(series.at, 100 * one.coded / one.raw, style, label=one.coder, ms=3)
        axes.set(title=series.name, xlabel=series.unit, ylabel="coded / raw, %")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend(ncols=3, fontsize="small")
    try:
        figure.savefig(path, dpi=130)
    except OSError as e:
        raise StorageError(
            f"--plot = {path}: cannot be written ({e.strerror or e}); a writable file is needed; "
            "choose another"
        ) from e
