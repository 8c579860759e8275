"""TensorBoard event files.

Uses TensorBoard's protobuf messages and record writer. Unlike torch's SummaryWriter there is no
thread: pending records are written together. A failing disk stops the event file with one warning,
not the training.
"""

import io
import logging
import os
import re
import socket
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.summary.writer.record_writer import RecordWriter

from rlrun.log import hparams
from rlrun.log.hparams import ENV_STEPS
from rlrun.log.layout import REPLAY, layout
from rlrun.log.trial import TrialRow

_logger = logging.getLogger(__name__)

FLUSH_SECONDS = 2.0
BINS = 30  # of a histogram
SCORE = "eval/return_mean"  # written at every evaluation


class TensorBoardWriter:
    """Event file in ``run_dir`` with scalars, texts, the chart layout and hyperparameters.

    ``purge_step``: TensorBoard discards events of earlier files from this step on. ``tags``: those
    of earlier files. ``replay``: title of the page on replayed windows.
    """

    def __init__(
        self,
        run_dir: Path,
        *,
        purge_step: int | None = None,
        tags: Collection[str] = (),
        replay: str = REPLAY,
    ) -> None:
        self._file: BinaryIO | None = None
        self._pending = io.BytesIO()
        self._records = RecordWriter(self._pending)
        self._flushed = time.monotonic()
        self._last: dict[str, float] = {}
        self._declared = False
        self._tags, self._replay = {*tags}, replay
        self._new_tags = bool(tags)  # the layout does not know
        self.now: float | None = None  # wall time of the next events, None: the present
        try:
            self.path = run_dir / _file_name(run_dir)
            self._file = self.path.open("xb", buffering=0)
        except OSError as e:
            self._stop(e)
        self._event(0, file_version="brain.Event:2")
        if purge_step is not None:
            self.purge(purge_step)
        self.flush()

    def purge(self, step: int) -> None:
        """Let TensorBoard discard the events before this one that are of ``step`` or later."""
        self._event(step, session_log=SessionLog(status=SessionLog.START))

    def scalars(self, env_steps: int, values: Mapping[str, float]) -> None:
        """Write one point per key, with tag = key and step = env steps."""
        if SCORE in values:
            values = {**values, ENV_STEPS: env_steps}
        self._last.update(values)
        if not self._tags.issuperset(values):
            self._tags.update(values)
            self._new_tags = True
        points = [Summary.Value(tag=key, simple_value=value) for key, value in values.items()]
        self._event(env_steps, summary=Summary(value=points))
        if time.monotonic() - self._flushed > FLUSH_SECONDS:
            self.flush()

    def text(self, tag: str, text: str) -> None:
        """Write a markdown text, shown in the TEXT tab."""
        self._event(0, summary=Summary(value=[_string_value(tag, "text", text.encode())]))

    def image(self, tag: str, env_steps: int, encoded: bytes, *, height: int, width: int) -> None:
        """Write a picture, shown in the IMAGES tab; ``encoded``: a PNG, JPEG or GIF file.

        The pixels of an animated GIF move in the browser.
        """
        image = Summary.Image(
            height=height, width=width, colorspace=3, encoded_image_string=encoded
        )
        self._event(env_steps, summary=Summary(value=[Summary.Value(tag=tag, image=image)]))

    def histogram(self, tag: str, env_steps: int, values: np.ndarray) -> None:
        """Write the distribution of ``values``, shown in the HISTOGRAMS tab.

        Those that are not finite are left out; nothing is written of no value.
        """
        flat = np.asarray(values, np.float64).ravel()
        flat = flat[np.isfinite(flat)]
        if not flat.size:
            return
        counts, edges = np.histogram(flat, BINS)
        histo = HistogramProto(
            min=flat.min(), max=flat.max(), num=flat.size, sum=flat.sum(),
            sum_squares=(flat * flat).sum(), bucket_limit=edges[1:], bucket=counts,
        )  # fmt: skip
        self._event(env_steps, summary=Summary(value=[Summary.Value(tag=tag, histo=histo)]))

    def hparams(self, env_steps: int, trial: TrialRow, final: Mapping[str, float]) -> None:
        """Write this run's row of the HPARAMS tab; its metrics are scalars of this run.

        The first call declares the row. A call with ``final`` ends it and writes the values that
        differ from the last point of their tag.
        """
        values = [] if self._declared else hparams.declare(trial)
        self._declared = True
        if final:
            values.append(hparams.end())
            changed = {key: v for key, v in final.items() if self._last.get(key) != v}
            if changed:
                self.scalars(env_steps, changed)
        for value in values:
            self._event(0, summary=Summary(value=[value]))
        self.flush()

    def copy(self, event: Event) -> None:
        """Write an event of another file as it is."""
        if self._file is not None:
            self._records.write(event.SerializeToString())

    def flush(self) -> None:
        """Pass pending records to the operating system."""
        self._flushed = time.monotonic()
        if self._file is None:
            return
        if self._new_tags:  # TensorBoard shows the last layout
            self._new_tags = False
            content = layout(self._tags, replay=self._replay).SerializeToString()
            value = _string_value("custom_scalars__config__", "custom_scalars", content)
            self._event(0, summary=Summary(value=[value]))
        rest = memoryview(self._pending.getvalue())
        self._pending.seek(0)
        self._pending.truncate()
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
            if os.fstat(self._file.fileno()).st_nlink == 0:
                raise FileNotFoundError(f"{self.path} was removed")
        except OSError as e:
            self._stop(e)

    @property
    def is_open(self) -> bool:
        """True while all events could be written."""
        return self._file is not None

    def close(self) -> None:
        """Flush and close; idempotent."""
        self.flush()
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            self._file = None

    def _event(self, step: int, **fields: Any) -> None:
        if self._file is not None:
            now = time.time() if self.now is None else self.now
            event = Event(wall_time=now, step=step, **fields)
            self._records.write(event.SerializeToString())

    def _stop(self, error: OSError) -> None:
        _logger.warning("TensorBoard logging stops, training continues: %s", error)
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
        self._file = None
        self._pending.seek(0)
        self._pending.truncate()


def _file_name(run_dir: Path) -> str:
    """Return a file name that sorts after all existing ones, since readers use name order."""
    second = int(time.time())
    for path in run_dir.glob("events.out.tfevents.*"):
        match = re.match(r"events\.out\.tfevents\.(\d{10})\.", path.name)
        if match is not None:
            second = max(second, int(match[1]) + 1)
    return f"events.out.tfevents.{second:010d}.{socket.gethostname()}.{os.getpid()}.0"


def _string_value(tag: str, plugin: str, content: bytes) -> Summary.Value:
    """Return a summary value with bytes for a plugin."""
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)] if plugin == "text" else [])
    tensor = TensorProto(dtype=DT_STRING, string_val=[content], tensor_shape=shape)
    metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name=plugin))
    return Summary.Value(tag=tag, metadata=metadata, tensor=tensor)
