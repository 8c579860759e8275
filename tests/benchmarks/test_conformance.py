"""Cells of the conformance table."""

import json

import pytest

from tests.benchmarks import killed
from tests.benchmarks.__main__ import main
from tests.benchmarks.conformance import table
from tests.benchmarks.runs import RESULTS, json_lines


def test_results_are_kept_and_printed(tmp_path, capsys):
    """With FILE complete no run is made; without one the committed results are shown."""
    scores = {"probe": "last", "control": 1.0, "mark": 0.75}
    libraries = {"other": 0.0, "rlrun R2D2": 1.0, "rlrun RSAC": 1.0, "rlrun PPO-LSTM": 0.5}
    rows = [scores | {"library": name, "score": score} for name, score in libraries.items()]
    (tmp_path / "rows").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert main(["conformance", "--out", str(tmp_path / "rows"), "--only", "nothing"]) == 0
    line = "| 0.75 | **no** 0.00 | 2 yes, 1 **no** 0.50 |"
    assert f"| `last` | The last row of an episode is learned {line}" in capsys.readouterr().out
    assert json_lines(tmp_path / "rows") == rows


def test_the_page_shows_the_results():
    page = (RESULTS.parent / "CONFORMANCE.md").read_text("utf-8")
    assert table(json_lines(RESULTS / "conformance.jsonl")) in page
    assert killed.table(json_lines(RESULTS / "killed.jsonl")) in page


def event(name, step=0, **parts):
    return {"event": name, "step": step, "parts": parts}


BEFORE = [event("saved", 64, weights="a", replay="b"), event("saved", 128, weights="c", replay="d")]


@pytest.mark.parametrize(
    ("after", "verdict", "differs"),
    [([event("resumed", 128, weights="c", replay="d"), event("done", weights="e")], "equal", []),
     ([event("resumed", 128, weights="c", replay="x"), event("done", weights="f")],
      "near", ["replay"]),
     ([event("unreadable", 128), event("resumed", 64, weights="a", replay="b"),
       event("done", weights="f")], "near", ["newest checkpoint unreadable"]),
     ([event("done", weights="f")], "lost", ["begins again"])],
)  # fmt: skip
def test_a_resumed_training_is_compared_with_one_that_was_not_killed(after, verdict, differs):
    found = killed.compare(BEFORE, BEFORE + after, {"weights": "e"})
    assert (found["verdict"], found["differs"]) == (verdict, differs)
