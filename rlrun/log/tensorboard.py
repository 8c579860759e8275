"""TensorBoard event files.

Uses TensorBoard's protobuf messages. Unlike torch's SummaryWriter it has no thread: pending records
are written together. A failing disk stops the event file with one warning, not the training.
"""

import logging
import os
import re
import socket
import sys
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
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.hparams import api_pb2, plugin_data_pb2

from rlrun.log import event_records
from rlrun.log.trial import NAMED, TrialRow, Value

_logger = logging.getLogger(__name__)

MARGIN = {"value": "eval/return_mean", "lower": "eval/return_min", "upper": "eval/return_max"}
# Page -> chart -> regular expressions of whole tags.
PAGES: dict[str, dict[str, list[str]]] = {
    "score": {
        "return": [r"eval/return_mean"],  # one line of each run
        "best return so far": [r"eval/best_return_mean"],
        "return of exploring episodes": [r"collect/return_mean"],
        "episode length": [r"eval/length_mean"],
        "success": [r"eval/success"],
    },
    "replay": {
        "delta Q from stored states": [r"train/delta_q_stored_(first|last)"],
        "delta Q from zero states": [r"train/delta_q_zero_(first|last)"],
        "age of sampled rows, env steps": [r"buffer/sample_age"],
        "effective sample size of the priorities": [r"buffer/priority_ess"],
        "spread of the importance weights": [r"buffer/weight_spread"],
        "priority": [r"buffer/priority_(mean|max)"],
        "alpha and beta": [r"buffer/(alpha|beta)"],
        "replay ratio": [r"train/replay_ratio"],
        "windows": [r"buffer/(windows|demo_windows)"],
        "shares": [r"buffer/(fill|learned_fraction|demo_fraction)", r"train/valid_fraction"],
    },
    "learning": {
        "loss": [r"train/(loss|policy_loss|value_loss|actor_loss|bonus_loss)"],
        "TD error": [r"train/td_abs"],
        "value": [r"train/(q_taken|target)"],
        "gradient norm": [r"train/(actor_)?grad_norm"],
        "learning rate": [r"train/lr"],
        "entropy": [r"train/entropy", r"collect/action_entropy"],
        "explained variance": [r"train/explained_variance"],
        "KL and clipping": [r"train/(approx_kl|clip_fraction|rho_clipped)"],
        "imitation": [r"train/(log_prob|imitation_error|imitation_weight|advantage)"],
        "conservatism": [r"train/(conservative_gap|conservatism)"],
        "target network's lag": [r"train/target_lag"],
        "dead units": [r"train/dead_units"],
    },
    "exploration": {
        "epsilon": [r"collect/epsilon_mean"],
        "temperature": [r"collect/temperature", r"train/temperature"],
        "noise": [r"train/(noise|sigma_abs)"],
        "bonus": [r"train/bonus_(mean|scale|coefficient)"],
    },
    "speed": {
        "per second": [r"time/(env_steps|updates)_per_s"],
        "phases, seconds": [
            r"time/(collect|add|bonus|sample|update|prioritize|eval|log|checkpoint)_seconds"
        ],
        "parts of collect and update, seconds": [
            r"time/(act|env|forward|backward|optimiser)_seconds"
        ],
    },
    "roles": {  # pipeline=ray
        "env steps per second, all collectors": [r"ray/collect_steps_per_s"],
        "busy": [r"ray/collectors_busy"],
        "age of the weights, env steps": [r"ray/weights_age"],
        "age of the weights, updates": [r"ray/policy_lag"],
        "bytes of rows": [r"ray/chunks_(raw|sent)_bytes"],
        "bytes of weights": [r"ray/weights_(raw|sent)_bytes"],
        "coding, seconds": [r"ray/coding_seconds"],
        "faults": [r"ray/(restarts|key_frames)"],
    },
    "codec": {
        "ratio": [r"codec/\w+_ratio"],
        "bytes": [r"codec/\w+_bytes"],
    },
}


def layout(tags: Collection[str]) -> layout_pb2.Layout:
    """Return the pages with the charts that show one of ``tags``; empty ones are left out."""
    pages = []
    for title, charts in PAGES.items():
        rows = []
        for name, patterns in charts.items():
            if any(re.fullmatch(p, tag) for p in patterns for tag in tags):
                # Runs with equal patterns share a chart, so all are written. $: match whole tags.
                content = layout_pb2.MultilineChartContent(tag=[f"{p}$" for p in patterns])
                rows.append(layout_pb2.Chart(title=name, multiline=content))
        if title == "score" and {*MARGIN.values()} <= {*tags}:
            content = layout_pb2.MarginChartContent(series=[MARGIN])
            rows.append(layout_pb2.Chart(title="return, worst to best episode", margin=content))
        if rows:
            pages.append(layout_pb2.Category(title=title, chart=rows))
    return layout_pb2.Layout(category=pages)


ENV_STEPS = "run/env_steps"  # only in event files, because a column of the tab must be a scalar
COLUMNS = {
    "eval/return_mean": "final score",
    "eval/best_return_mean": "best score",
    ENV_STEPS: "env steps",
    "time/wall_seconds": "wall seconds",
}
_METRICS = [
    api_pb2.MetricInfo(name=api_pb2.MetricName(tag=tag), display_name=shown)
    for tag, shown in COLUMNS.items()
]
_DIGITS = 12
_FIELDS: dict[type, str] = {bool: "bool_value", float: "number_value"}  # else string_value
_TYPES: dict[type, int] = {bool: api_pb2.DATA_TYPE_BOOL, float: api_pb2.DATA_TYPE_FLOAT64}


def declare(trial: TrialRow) -> list[Summary.Value]:
    """Return the experiment (columns) and the start of the session (values). Source: api.proto.

    Columns are the settings in which trials differ, and policy, environment and seed. TensorBoard
    shows numbers with five digits (300.00), so columns of integers are texts. It takes the columns
    from any one of the runs, sorted by ``differs``, then by name.
    """
    start = plugin_data_pb2.SessionStartInfo(start_time_secs=time.time(), group_name=trial.name)
    columns = []
    for name in [*NAMED, *sorted(trial.differing.difference(NAMED))]:
        value = trial.settings.get(name)
        value_kind = str if value is None else float if type(value) is int else type(value)
        kind = trial.kinds.get(name, value_kind)
        if type(value) is int and abs(value) > sys.float_info.max:  # too large for the table
            kind = str
        if value is not None:
            shown = value if kind in (bool, float) else _text(value, kind)
            setattr(start.hparams[name], _FIELDS.get(kind, "string_value"), shown)
        differs, type_ = name in trial.differing, _TYPES.get(kind, api_pb2.DATA_TYPE_STRING)
        columns.append(api_pb2.HParamInfo(name=name, type=type_, differs=differs))
    experiment = api_pb2.Experiment(hparam_infos=columns, metric_infos=_METRICS)
    return [
        _value("_hparams_/experiment", experiment=experiment),
        _value("_hparams_/session_start_info", session_start_info=start),
    ]


def _text(value: Value, kind: type) -> str:
    """Return a value as text. Integers are padded to sort as numbers; browsers hide that."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return f"{text:>{_DIGITS}}" if kind is int else text


def _value(tag: str, **fields: object) -> Summary.Value:
    data = plugin_data_pb2.HParamsPluginData(version=0, **fields)
    plugin = SummaryMetadata.PluginData(plugin_name="hparams", content=data.SerializeToString())
    return Summary.Value(tag=tag, metadata=SummaryMetadata(plugin_data=plugin))


FLUSH_SECONDS = 2.0
BINS = 30  # of a histogram
SCORE = "eval/return_mean"  # written at every evaluation


class TensorBoardWriter:
    """Event file in ``run_dir`` with scalars, texts, the chart layout and hyperparameters.

    ``purge_step``: TensorBoard discards events of earlier files from this step on. ``tags``: those
    of earlier files.
    """

    def __init__(
        self, run_dir: Path, *, purge_step: int | None = None, tags: Collection[str] = ()
    ) -> None:
        self._file: BinaryIO | None = None
        self._pending = bytearray()
        self._flushed = time.monotonic()
        self._last: dict[str, float] = {}
        self._declared = False
        self._tags = {*tags}
        self._new_tags = bool(tags)  # tags that the layout lacks
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
        """Let TensorBoard discard earlier events with step ``step`` or later."""
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
        """Write a picture, shown in the IMAGES tab. ``encoded``: a PNG, JPEG or GIF file.

        Animated GIFs move in the browser.
        """
        image = Summary.Image(
            height=height, width=width, colorspace=3, encoded_image_string=encoded
        )
        self._event(env_steps, summary=Summary(value=[Summary.Value(tag=tag, image=image)]))

    def histogram(self, tag: str, env_steps: int, values: np.ndarray) -> None:
        """Write the distribution of ``values``, shown in the HISTOGRAMS tab.

        Non-finite values are left out. Without any value nothing is written.
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
        """Write this run's row of the HPARAMS tab. Its metrics are scalars of this run.

        The first call declares the row. A call with ``final`` ends it and writes the values that
        differ from the last point of their tag.
        """
        values = [] if self._declared else declare(trial)
        self._declared = True
        if final:
            ended = {"status": api_pb2.STATUS_SUCCESS, "end_time_secs": time.time()}
            info = plugin_data_pb2.SessionEndInfo(**ended)
            values.append(_value("_hparams_/session_end_info", session_end_info=info))
            changed = {key: v for key, v in final.items() if self._last.get(key) != v}
            if changed:
                self.scalars(env_steps, changed)
        for value in values:
            self._event(0, summary=Summary(value=[value]))
        self.flush()

    def copy(self, event: Event) -> None:
        """Write an event of another file unchanged."""
        if self._file is not None:
            self._pending += event_records.encode(event.SerializeToString())

    def flush(self) -> None:
        """Pass pending records to the operating system."""
        self._flushed = time.monotonic()
        if self._file is None:
            return
        if self._new_tags:  # TensorBoard shows the last layout
            self._new_tags = False
            content = layout(self._tags).SerializeToString()
            value = _string_value("custom_scalars__config__", "custom_scalars", content)
            self._event(0, summary=Summary(value=[value]))
        rest, self._pending = memoryview(self._pending), bytearray()
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
            if os.fstat(self._file.fileno()).st_nlink == 0:
                raise FileNotFoundError(f"{self.path} was removed")
        except OSError as e:
            self._stop(e)

    @property
    def is_open(self) -> bool:
        """True if all events could be written."""
        return self._file is not None

    def close(self) -> None:
        """Flush and close. Idempotent."""
        self.flush()
        self._close_file()

    def _close_file(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
        self._file = None

    def _event(self, step: int, **fields: Any) -> None:
        if self._file is not None:
            now = time.time() if self.now is None else self.now
            self.copy(Event(wall_time=now, step=step, **fields))

    def _stop(self, error: OSError) -> None:
        _logger.warning("TensorBoard logging stops, training continues: %s", error)
        self._close_file()
        self._pending = bytearray()


def _file_name(run_dir: Path) -> str:
    """Return a file name that sorts after all existing ones, because readers use name order."""
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
