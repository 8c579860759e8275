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
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.hparams import api_pb2, plugin_data_pb2
from tensorboard.summary.writer.record_writer import RecordWriter

_logger = logging.getLogger(__name__)

FLUSH_SECONDS = 2.0

MARGINS = {"evaluation return": ("eval/return_mean", "eval/return_min", "eval/return_max")}
# Category -> chart -> regular expressions of tags.
CHARTS: dict[str, dict[str, list[str]]] = {
    "return": {
        "collected return": [r"collect/return.*"],
        "episode length": [r"(collect|eval)/length.*"],
        "success": [r"eval/success.*"],
        "exploration": [r"collect/epsilon.*"],
    },
    "losses": {
        "loss": [r"train/loss.*"],
        "TD error": [r"train/td.*", r"train/delta_q.*"],
        "value": [r"train/(q|target).*"],
        "gradient norm": [r"train/grad.*"],
        "learning rate": [r"train/lr.*"],
    },
    "speed": {
        "per second": [r"time/.*_per_s$"],
        "phases": [r"time/(collect|add|sample|update|prioritize|eval|log|checkpoint)_seconds$"],
        "parts of collect and update": [r"time/(act|env|forward|backward|optimiser)_seconds$"],
    },
    "codec": {
        "ratio": [r"codec/.*_ratio$"],
        "bytes": [r"codec/.*_bytes$"],
    },
    "buffer": {
        "stored": [r"buffer/(rows|windows|size|fill).*"],
        "priority": [r"buffer/(priority|weight|alpha|beta).*"],
    },
}


class TensorBoardWriter:
    """Event file in ``run_dir`` with scalars, texts, the chart layout and hyperparameters.

    ``purge_step``: TensorBoard discards events of earlier files from this step on.
    """

    def __init__(self, run_dir: Path, *, purge_step: int | None = None) -> None:
        self._file: BinaryIO | None = None
        self._pending = io.BytesIO()
        self._records = RecordWriter(self._pending)
        self._flushed = time.monotonic()
        self._last: dict[str, float] = {}
        self._declared = False
        self.now: float | None = None  # wall time of the next events, None: the present
        try:
            self.path = run_dir / _file_name(run_dir)
            self._file = self.path.open("xb", buffering=0)
        except OSError as e:
            self._stop(e)
        self._event(0, file_version="brain.Event:2")
        if purge_step is not None:
            self.purge(purge_step)
        self._event(0, summary=Summary(value=[_layout()]))
        self.flush()

    def purge(self, step: int) -> None:
        """Let TensorBoard discard the events before this one that are of ``step`` or later."""
        self._event(step, session_log=SessionLog(status=SessionLog.START))

    def scalars(self, env_steps: int, values: Mapping[str, float]) -> None:
        """Write one point per key, with tag = key and step = env steps."""
        self._last.update(values)
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

    def hparams(
        self,
        env_steps: int,
        flat: Mapping[str, bool | int | float | str | None],
        final: Mapping[str, float],
    ) -> None:
        """Write this run's row of the HPARAMS tab; its metrics are scalars of this run.

        The first call declares the row. A call with ``final`` ends it and writes the values that
        differ from the last point of their tag.
        """
        values = [] if self._declared else _declare_hparams(flat, final)
        self._declared = True
        if final:
            values.append(_session_end())
            changed = {key: v for key, v in final.items() if self._last.get(key) != v}
            if changed:
                self.scalars(env_steps, changed)
        for value in values:
            self._event(0, summary=Summary(value=[value]))
        self.flush()

    def flush(self) -> None:
        """Pass pending records to the operating system."""
        self._flushed = time.monotonic()
        if self._file is None:
            return
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
    return Summary.Value(tag=tag, metadata=_metadata(plugin), tensor=tensor)


def _metadata(plugin: str, content: bytes = b"") -> SummaryMetadata:
    data = SummaryMetadata.PluginData(plugin_name=plugin, content=content)
    return SummaryMetadata(plugin_data=data)


def _layout() -> Summary.Value:
    """Return the charts of the CUSTOM SCALARS tab."""
    categories = []
    for title, charts in CHARTS.items():
        rows = [
            layout_pb2.Chart(title=name, multiline=layout_pb2.MultilineChartContent(tag=tags))
            for name, tags in charts.items()
        ]
        if title == "return":
            for name, (value, lower, upper) in MARGINS.items():
                series = layout_pb2.MarginChartContent.Series(value=value, lower=lower, upper=upper)
                margin = layout_pb2.MarginChartContent(series=[series])
                rows.insert(0, layout_pb2.Chart(title=name, margin=margin))
        categories.append(layout_pb2.Category(title=title, chart=rows))
    layout = layout_pb2.Layout(category=categories)
    return _string_value("custom_scalars__config__", "custom_scalars", layout.SerializeToString())


def _hparams_value(tag: str, **fields: Any) -> Summary.Value:
    data = plugin_data_pb2.HParamsPluginData(version=0, **fields)
    return Summary.Value(tag=tag, metadata=_metadata("hparams", data.SerializeToString()))


def _declare_hparams(
    flat: Mapping[str, bool | int | float | str | None], final: Mapping[str, float]
) -> list[Summary.Value]:
    """Return the experiment (columns) and session start (values). Source: api.proto."""
    start = plugin_data_pb2.SessionStartInfo(start_time_secs=time.time())
    columns = []
    for name, value in sorted(flat.items()):
        if isinstance(value, bool):
            start.hparams[name].bool_value = value
            kind = api_pb2.DATA_TYPE_BOOL
        elif isinstance(value, int | float):
            start.hparams[name].number_value = value
            kind = api_pb2.DATA_TYPE_FLOAT64
        else:  # null in yaml shows as "null"
            start.hparams[name].string_value = "null" if value is None else str(value)
            kind = api_pb2.DATA_TYPE_STRING
        columns.append(api_pb2.HParamInfo(name=name, type=kind))
    metrics = [
        api_pb2.MetricInfo(name=api_pb2.MetricName(tag=tag))
        for tag in sorted({"eval/return_mean", *final})
    ]
    experiment = api_pb2.Experiment(hparam_infos=columns, metric_infos=metrics)
    return [
        _hparams_value("_hparams_/experiment", experiment=experiment),
        _hparams_value("_hparams_/session_start_info", session_start_info=start),
    ]


def _session_end() -> Summary.Value:
    end = plugin_data_pb2.SessionEndInfo(status=api_pb2.STATUS_SUCCESS, end_time_secs=time.time())
    return _hparams_value("_hparams_/session_end_info", session_end_info=end)
