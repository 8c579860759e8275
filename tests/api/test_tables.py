"""Sweeps and reports from Python: rows of plain values, or pandas where that is installed."""

import math
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import rlrun
from rlrun.api.run import as_frame
from rlrun.errors import NumericError
from tests.reports.forge import forge_seeds

RECORDS = [(10, {"a": 1.0}), (20, {"a": 2.0, "b": 5.0}), (20, {"c": 7.0})]


@pytest.fixture
def plain(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)  # as if it were not installed


@pytest.mark.usefixtures("plain", "rlrun")
def test_a_sweep(build, capsys):
    """A failed job is a row, with the line of its error, which is printed as it ends."""
    build.codes = {1: NumericError("loss = nan: it is bad")}
    line = ["policy=dqn", "env=bandit", "seed=0,1", "policy.lr=1e-3", "sweep.dir=s"]
    table = rlrun.sweep(line, quiet=True)
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("rlrun: job 1 (seed=1) failed (exit 4)")
    assert [row["seed"] for row in table] == [0, 1]
    done, failed = table
    assert list(done) == ["policy", "env", "seed", "policy.lr", "status", "exit_code", "score",
                          "env_steps", "seconds", "directory", "error"]  # fmt: skip
    assert (done["policy"], done["policy.lr"]) == ("dqn", 1e-3)
    assert (done["status"], done["exit_code"], done["error"]) == ("done", 0, None)
    assert (failed["status"], failed["exit_code"]) == ("failed", 4)
    assert failed["error"] == "loss = nan: it is bad"
    assert Path(failed["directory"]).parent == Path("s").absolute()
    build.codes = {}
    more = rlrun.sweep([*line[:2], "seed=2", "policy.lr=1e-3", "sweep.dir=s"], quiet=True)
    assert [row["seed"] for row in more] == [0, 1, 2], "all jobs of the directory"


@pytest.mark.parametrize(
    ("line", "text"),
    [(["policy=dqn", "seed=0,1", "policy.lrr=1"], "policy.lrr = 1: "),
     (["policy=dqn", "seeds=auto"], "seeds=auto: "),
     (["seed=0,1", "hydra/launcher=basic"], "hydra/launcher: ")],
)  # fmt: skip
def test_a_sweep_that_is_refused(line, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(rlrun.ConfigError) as error:
        rlrun.sweep(line)
    assert text in str(error.value)
    assert [*tmp_path.iterdir()] == []


@pytest.mark.usefixtures("plain")
def test_a_report(tmp_path):
    """The numbers of the CSV files; nothing is written unless it is asked for."""
    runs = forge_seeds(tmp_path / "runs", [10.0, 12.0, 14.0, 16.0, 18.0])
    before = sorted(tmp_path.rglob("*"))
    tables = rlrun.report(runs[0].parent)
    assert sorted(tmp_path.rglob("*")) == before
    (row,) = tables["scores"]
    assert (row["seeds"], row["score"]) == (5, 14.0)
    assert row["score low"] < 14 < row["score high"]
    assert {"scores", "runs", "curves", "evaluations", "seeds"} <= {*tables}
    assert len(tables["evaluations"]) == 15
    cells = [x for rows in tables.values() for row in rows for x in row.values()]
    assert {type(x) for x in cells} <= {str, int, float, bool, type(None)}
    found = rlrun.report([rlrun.Run(run) for run in runs[:2]], score="auc", out=tmp_path / "page")
    assert (tmp_path / "page/index.html").exists()
    assert math.isnan(found["scores"][0]["score low"])


def test_a_report_that_is_refused(tmp_path):
    (run,) = forge_seeds(tmp_path / "runs", [1.0])
    for paths, given, text in [
        ([run], {"threshold": math.nan}, "threshold = nan"),
        ([run], {"threshold": "x"}, "threshold = x"),
        ([run], {"references": {"Pong": (0, 1)}}, "Pong=0:1"),
        ([run], {"references": {"Pong": 1}}, "references = {'Pong': 1}"),
        ([run], {"references": [1]}, "references = .1"),
        ([run], {"score": 3}, "score = 3"),
        ([run], {"score": "best"}, "score"),
        ([run], {"baseline": "nope"}, "nope"),
        ([], {}, "rlrun.report"),
        (tmp_path / "nowhere", {}, "nowhere"),
    ]:
        with pytest.raises(rlrun.ConfigError, match=text):
            rlrun.report(paths, **given)


def test_with_pandas(monkeypatch, tmp_path):
    """A stand-in notes what pandas gets: a row for each env step, a column for each metric."""
    pandas: Any = ModuleType("pandas")
    pandas.Index = lambda values, name, dtype: (values, name, dtype)
    pandas.DataFrame = lambda rows, **given: ("frame", rows, given)
    monkeypatch.setitem(sys.modules, "pandas", pandas)
    kind, rows, given = as_frame(RECORDS)
    assert (kind, rows) == ("frame", [{"a": 1.0}, {"a": 2.0, "b": 5.0, "c": 7.0}])
    assert given["index"] == ([10, 20], "env_steps", "int64")
    assert given["columns"] == ["a", "b", "c"]
    (run,) = forge_seeds(tmp_path / "runs", [4.0])
    assert rlrun.Run(run).metrics[0] == "frame"
    assert rlrun.report(run)["scores"][0] == "frame"
