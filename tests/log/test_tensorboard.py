"""Event files, read back with TensorBoard's own reader."""

import re
import shutil
import struct

import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.hparams import metadata

from rlrun.log.tensorboard import TensorBoardWriter, layout
from rlrun.log.trial import TrialRow


def load(path):
    sizes = dict.fromkeys(("scalars", "tensors", "histograms", "images"), 0)
    events = EventAccumulator(str(path), size_guidance=sizes)
    return events.Reload()


def points(events, tag):
    return [(event.step, event.value) for event in events.Scalars(tag)]


def as_float32(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def test_scalars_read_back(tmp_path):
    board = TensorBoardWriter(tmp_path)
    expected = {"train/loss": [], "eval/length_mean": []}
    for step in range(0, 2000, 10):
        for tag in expected:
            value = (step - 700) / 3 + len(tag)
            board.scalars(step, {tag: value})
            expected[tag].append((step, as_float32(value)))
    board.close()
    board.close()
    events = load(tmp_path)
    assert set(events.Tags()["scalars"]) == set(expected)
    for tag, values in expected.items():
        assert points(events, tag) == values
    assert [path.name for path in tmp_path.iterdir()] == [board.path.name]


TRIAL = TrialRow(
    "r2d2-cartpole-s3",
    {
        "policy": "r2d2",
        "env": "cartpole",
        "seed": 3,
        "policy.double": True,
        "policy.lr": 1e-4,
        "run.total_steps": 5,
    },
    frozenset({"seed", "policy.lr", "policy.double", "policy.clip_range"}),
)


def last_layout(path):
    found = layout_pb2.Layout()
    (last,) = load(path).Tensors("custom_scalars__config__")[-1].tensor_proto.string_val
    found.ParseFromString(last)
    return {page.title: [chart.title for chart in page.chart] for page in found.category}, found


def test_text_and_hparams(tmp_path):
    board = TensorBoardWriter(tmp_path)
    board.text("config", "```yaml\nseed: 3\n```")
    board.hparams(0, TRIAL, {})
    board.scalars(50, {"eval/return_mean": 480.0})
    board.hparams(50, TRIAL, {"eval/return_mean": 480.0, "eval/success": 1.0})
    board.close()
    events = load(tmp_path)
    assert events.Tensors("config")[0].tensor_proto.string_val == [b"```yaml\nseed: 3\n```"]
    assert events.SummaryMetadata("config").plugin_data.plugin_name == "text"
    content = {
        t: events.SummaryMetadata(t).plugin_data.content
        for t in events.PluginTagToContent("hparams")
    }
    start = metadata.parse_session_start_info_plugin_data(content[metadata.SESSION_START_INFO_TAG])
    assert start.group_name == "r2d2-cartpole-s3"
    assert {name: value.WhichOneof("kind") for name, value in start.hparams.items()} == {
        "policy": "string_value",
        "env": "string_value",
        "seed": "number_value",
        "policy.double": "bool_value",
        "policy.lr": "number_value",
    }
    assert start.hparams["policy.lr"].number_value == 1e-4
    experiment = metadata.parse_experiment_plugin_data(content[metadata.EXPERIMENT_TAG])
    differs = {info.name: info.differs for info in experiment.hparam_infos}
    assert differs == dict.fromkeys(("policy", "env"), False) | dict.fromkeys(TRIAL.differing, True)
    assert {info.name.tag: info.display_name for info in experiment.metric_infos} == {
        "eval/return_mean": "final score",
        "eval/best_return_mean": "best score",
        "run/env_steps": "env steps",
        "time/wall_seconds": "wall seconds",
    }
    end = metadata.parse_session_end_info_plugin_data(content[metadata.SESSION_END_INFO_TAG])
    assert end.end_time_secs >= start.start_time_secs
    assert points(events, "eval/return_mean") == [(50, 480.0)]  # not a second time
    assert points(events, "eval/success") == [(50, 1.0)]
    assert points(events, "run/env_steps") == [(50, 50.0)]


def test_the_layout_has_a_chart_for_what_there_is_and_none_that_is_empty(tmp_path):
    """The score comes first; what comes later is added; a resumed run knows what was before."""
    board = TensorBoardWriter(tmp_path, replay="R2D2")
    board.scalars(10, {"train/loss": 1.0, "buffer/fill": 0.5, "train/q_taken": 2.0})
    board.flush()
    assert last_layout(tmp_path)[0] == {"R2D2": ["shares"], "learning": ["loss", "value"]}
    score = dict.fromkeys(("eval/return_mean", "eval/return_min", "eval/return_max"), 1.0)
    board.scalars(20, score | {"train/delta_q_stored_last": 0.1})
    board.close()
    second = TensorBoardWriter(tmp_path, purge_step=21, tags=board._tags, replay="R2D2")
    second.scalars(30, {"codec/weights_ratio": 0.5})
    second.close()
    pages, found = last_layout(tmp_path)
    assert pages == {
        "score": ["return", "return, worst to best episode"],
        "R2D2": ["delta Q from stored states", "shares"],
        "learning": ["loss", "value"],
        "codec": ["ratio"],
    }
    series = found.category[0].chart[1].margin.series[0]
    assert (series.value, series.lower, series.upper) == tuple(score)
    tags = load(tmp_path).Tags()["scalars"]
    for chart in (chart for page in found.category for chart in page.chart):
        patterns = chart.multiline.tag
        assert not patterns or any(re.match(p, tag) for p in patterns for tag in tags), chart


def test_runs_with_other_metrics_have_equal_charts():
    """TensorBoard shows one chart for all runs where these are equal, else one for each kind."""
    found = [layout(tags) for tags in (["train/loss", "train/lr"], ["train/policy_loss"])]
    assert [len(x.category[0].chart) for x in found] == [2, 1]
    assert found[0].category[0].chart[0] == found[1].category[0].chart[0]


def test_a_histogram_holds_every_finite_value_once(tmp_path):
    board = TensorBoardWriter(tmp_path)
    values = np.array([[-1.0, 0.0], [0.5, 3.0]])
    board.histogram("windows/q", 10, np.append(values, [np.nan, np.inf]))
    board.histogram("windows/q", 20, np.zeros(0))
    board.histogram("windows/q", 30, np.full(5, 2.0))
    board.close()
    first, second = load(tmp_path).Histograms("windows/q")
    assert (first.step, second.step) == (10, 30)
    assert sum(first.histogram_value.bucket) == values.size == first.histogram_value.num
    assert (first.histogram_value.min, first.histogram_value.max) == (-1.0, 3.0)
    limits = np.array(first.histogram_value.bucket_limit)
    below = np.cumsum(first.histogram_value.bucket)[np.searchsorted(limits, 0.9)]
    assert below == 3, "all but the largest"
    assert sum(second.histogram_value.bucket) == 5


def test_resume_voids_what_came_after_and_its_file_comes_last(tmp_path):
    first = TensorBoardWriter(tmp_path)
    for step in range(0, 60, 10):
        first.scalars(step, {"train/loss": 1.0})
    first.close()
    second = TensorBoardWriter(tmp_path, purge_step=31)
    for step in range(40, 60, 10):
        second.scalars(step, {"train/loss": 2.0})
    second.close()
    assert [p.name for p in sorted(tmp_path.iterdir())] == [first.path.name, second.path.name]
    expected = [(0, 1.0), (10, 1.0), (20, 1.0), (30, 1.0), (40, 2.0), (50, 2.0)]
    assert points(load(tmp_path), "train/loss") == expected


def test_a_removed_directory_or_a_full_disk_stops_tensorboard_with_one_warning(tmp_path, caplog):
    board = TensorBoardWriter(tmp_path / "run_that_is_missing")
    board.scalars(1, {"train/loss": 1.0})
    board.close()
    assert caplog.text.count("training continues") == len(caplog.records) == 1
    caplog.clear()
    (tmp_path / "run").mkdir()
    board = TensorBoardWriter(tmp_path / "run")
    shutil.rmtree(tmp_path / "run")
    for step in range(3):
        board.scalars(step, {"train/loss": 1.0})
        board.flush()
    board.hparams(3, TRIAL, {"eval/return_mean": 1.0})
    board.text("a", "b")
    board.close()
    assert caplog.text.count("training continues") == len(caplog.records) == 1
    board = TensorBoardWriter(tmp_path)
    board._file.close()
    board._file = open("/dev/full", "wb", buffering=0)  # noqa: SIM115
    for step in range(2):
        board.scalars(step, {"train/loss": 1.0})
        board.flush()
    board.close()
    assert caplog.text.count("No space left") == 1


def test_an_image_is_kept_byte_for_byte(tmp_path):
    board = TensorBoardWriter(tmp_path)
    encoded = b"GIF89a: any bytes \x00\xff"
    board.image("eval/episode", 40, encoded, height=64, width=96)
    board.close()
    (image,) = load(tmp_path).Images("eval/episode")
    shown = (image.step, image.height, image.width, image.encoded_image_string)
    assert shown == (40, 64, 96, encoded)
