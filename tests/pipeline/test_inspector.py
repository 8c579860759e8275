"""Figure and histograms of sampled windows in a run."""

import json

import numpy as np
import pytest

from rlrun.cli.main import main
from rlrun.log.tensorboard import TensorBoardWriter
from rlrun.log.window_figure import LEARNED, WindowFigure
from tests.pipeline.make import TINY

LINE = ("debug=smoke", "-q", "run.eval_every=50", "run.total_steps=200", "run.stop_return=null",
        *TINY)  # fmt: skip
POLICIES = {
    "r2d2": ("policy=r2d2", "env=cartpole", "buffer=uniform", "policy.priority_eta=0.7"),
    "dqn rank": ("policy=rainbow", "env=cartpole", "buffer=rank", "bonus=rnd"),
    "qmix": ("policy=qmix", "env=twostep"),
}  # fmt: skip


@pytest.mark.parametrize("name", POLICIES)
def test_the_figure_is_faithful_and_leaves_the_run_as_it_is(name, tmp_path, monkeypatch):
    figures, histograms = [], {}
    png, histogram = WindowFigure.png, TensorBoardWriter.histogram

    def keep(self):
        figures.append(self)
        return png(self)

    def note(self, tag, env_steps, values):
        histograms[tag] = values
        histogram(self, tag, env_steps, values)

    monkeypatch.setattr(WindowFigure, "png", keep)
    monkeypatch.setattr(TensorBoardWriter, "histogram", note)
    for every in ("2", "null"):
        given = (f"run.dir={tmp_path / every}", f"logger.figures_every={every}")
        assert main([*POLICIES[name], *LINE, *given]) == 0
        if every == "2":
            shown = len(figures)
            evaluations = (tmp_path / "2/metrics.jsonl").read_text().count("eval/return_mean")
            assert shown in (evaluations // 2, (evaluations + 1) // 2), "the first may have none"
            assert shown > 0
    assert len(figures) == shown, "null: none"
    records = [json.loads((tmp_path / n / "run.json").read_text()) for n in ("2", "null")]
    assert records[0]["digest"] == records[1]["digest"]

    figure = figures[-1]
    assert list(figure.priority) == sorted(figure.priority, reverse=True)
    learned = figure.kind == LEARNED
    assert learned.any()
    assert (figure.td[learned] >= 0).all()
    assert not np.nan_to_num(figure.td[~learned]).any()
    td = histograms["windows/td_abs"]
    assert set(figure.td[learned]) <= set(td)
    assert len(histograms["windows/q_taken"]) == len(td)
    if name == "r2d2":  # uniform: the priorities that the batch would get
        size = np.where(learned, figure.td, 0)
        mean = size.sum(0) / np.maximum(learned.sum(0), 1)
        assert figure.priority == pytest.approx(0.7 * size.max(0) + 0.3 * mean, rel=1e-5)


def test_other_policies_have_none(tmp_path):
    assert main(["policy=sac", "env=bandit_continuous", *LINE, f"run.dir={tmp_path}"]) == 0
    (path,) = tmp_path.glob("events.out.tfevents.*")
    assert b"windows/" not in path.read_bytes()
