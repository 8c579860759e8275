"""The row of a run in TensorBoard's HPARAMS tab."""

import sys
import time

from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.plugins.hparams import api_pb2, plugin_data_pb2

from rlrun.log.trial import NAMED, TrialRow, Value

ENV_STEPS = "run/env_steps"  # only in event files: a column of the tab has to be a scalar
COLUMNS = {
    "eval/return_mean": "final score",
    "eval/best_return_mean": "best score",
    ENV_STEPS: "env steps",
    "time/wall_seconds": "wall seconds",
}
_DIGITS = 12
_FIELDS: dict[type, str] = {bool: "bool_value", float: "number_value"}  # of the rest: string_value
_TYPES: dict[type, int] = {bool: api_pb2.DATA_TYPE_BOOL, float: api_pb2.DATA_TYPE_FLOAT64}


def declare(trial: TrialRow) -> list[Summary.Value]:
    """Return the experiment (columns) and the start of the session (values). Source: api.proto.

    Columns are the settings in which trials differ, and policy, environment and seed.
    TensorBoard shows a number with five digits (300.00): where all trials have integers these are
    texts. It takes the columns of any one of the runs, sorted by ``differs``, then by name.
    """
    start = plugin_data_pb2.SessionStartInfo(start_time_secs=time.time(), group_name=trial.name)
    columns = []
    for name in [*NAMED, *sorted(trial.differing.difference(NAMED))]:
        value = trial.settings.get(name)
        own = str if value is None else float if type(value) is int else type(value)
        kind = trial.kinds.get(name, own)
        if type(value) is int and abs(value) > sys.float_info.max:  # no number of the table's
            kind = str
        if value is not None:
            shown = value if kind in (bool, float) else _text(value, kind)
            setattr(start.hparams[name], _FIELDS.get(kind, "string_value"), shown)
        differs, type_ = name in trial.differing, _TYPES.get(kind, api_pb2.DATA_TYPE_STRING)
        columns.append(api_pb2.HParamInfo(name=name, type=type_, differs=differs))
    metrics = [
        api_pb2.MetricInfo(name=api_pb2.MetricName(tag=tag), display_name=shown)
        for tag, shown in COLUMNS.items()
    ]
    experiment = api_pb2.Experiment(hparam_infos=columns, metric_infos=metrics)
    return [
        _value("_hparams_/experiment", experiment=experiment),
        _value("_hparams_/session_start_info", session_start_info=start),
    ]


def _text(value: Value, kind: type) -> str:
    """An integer is padded, so that numbers are sorted as such; a browser shows no padding."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return f"{text:>{_DIGITS}}" if kind is int else text


def end() -> Summary.Value:
    """Return the end of the session."""
    info = plugin_data_pb2.SessionEndInfo(status=api_pb2.STATUS_SUCCESS, end_time_secs=time.time())
    return _value("_hparams_/session_end_info", session_end_info=info)


def _value(tag: str, **fields: object) -> Summary.Value:
    data = plugin_data_pb2.HParamsPluginData(version=0, **fields)
    plugin = SummaryMetadata.PluginData(plugin_name="hparams", content=data.SerializeToString())
    return Summary.Value(tag=tag, metadata=SummaryMetadata(plugin_data=plugin))
