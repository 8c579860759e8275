"""Event files, read back with TensorBoard's own reader."""

import re
import shutil

import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2

from rlrun.log.tensorboard import TensorBoardWriter, layout
from rlrun.log.trial import TrialRow


def load(path):
    sizes = dict.fromkeys(("scalars", "tensors", "histograms", "images"), 0)
    events = EventAccumulator(str(path), size_guidance=sizes)
    return events.Reload()


def points(events, tag):
    return [(event.step, event.value) for event in events.Scalars(tag)]


TRIAL = TrialRow("r2d2-cartpole-s3", {"policy": "r2d2", "seed": 3}, frozenset({"seed"}))


def last_layout(path):
    found = layout_pb2.Layout()
    (last,) = load(path).Tensors("custom_scalars__config__")[-1].tensor_proto.string_val
    found.ParseFromString(last)
    return {page.title: [chart.title for chart in page.chart] for page in found.category}, found


def test_the_layout_has_a_chart_for_what_there_is_and_none_that_is_empty(tmp_path):
    """The score comes first; what comes later is added; a resumed run knows what was before.

    Private: TensorBoard draws the page, so an empty or missing chart shows in a browser alone.
    """
    board = TensorBoardWriter(tmp_path)
    board.scalars(10, {"train/loss": 1.0, "buffer/fill": 0.5, "train/q_taken": 2.0})
    board.flush()
    assert last_layout(tmp_path)[0] == {"replay": ["shares"], "learning": ["loss", "value"]}
    score = dict.fromkeys(("eval/return_mean", "eval/return_min", "eval/return_max"), 1.0)
    board.scalars(20, score | {"train/delta_q_stored_last": 0.1})
    board.close()
    second = TensorBoardWriter(tmp_path, purge_step=21, tags=board._tags)
    second.scalars(30, {"codec/weights_ratio": 0.5})
    second.close()
    pages, found = last_layout(tmp_path)
    assert pages == {
        "score": ["return", "return, worst to best episode"],
        "replay": ["delta Q from stored states", "shares"],
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
    """Private: a disk that is full for one file alone is no test."""
    board = TensorBoardWriter(tmp_path / "run_that_is_missing")
    board.scalars(1, {"train/loss": 1.0})
    board.close()
    assert len(caplog.records) == 1
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
    assert len(caplog.records) == 1
    caplog.clear()
    board = TensorBoardWriter(tmp_path)
    board._file.close()
    board._file = open("/dev/full", "wb", buffering=0)  # noqa: SIM115
    for step in range(2):
        board.scalars(step, {"train/loss": 1.0})
        board.flush()
    board.close()
    assert len(caplog.records) == 1
