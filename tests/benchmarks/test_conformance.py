"""Cells of the conformance table."""

import json

import pytest

from tests.benchmarks.__main__ import main
from tests.benchmarks.conformance import table, verdict
from tests.benchmarks.runs import RESULTS, json_lines


@pytest.mark.parametrize(
    ("row", "text"),
    [({"control": 1.0, "score": 0.9, "mark": 0.75}, "passes"),
     ({"control": 1.0, "score": 0.75, "mark": 0.75}, "**fails** (0.75, mark 0.75)"),
     ({"control": 0.75, "score": 1.0, "mark": 0.75}, "control not learned"),
     ({"cannot": "no replay"}, "cannot be expressed")],
)  # fmt: skip
def test_a_miss_counts_only_beside_a_learned_control(row, text):
    assert verdict(row) == text


def test_results_are_kept_and_printed(tmp_path, capsys):
    """With FILE complete no run is made; without one the committed results are shown."""
    rows = [{"library": "other", "probe": "last", "control": 1.0, "score": 0.0, "mark": 0.75}]
    (tmp_path / "rows").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert main(["conformance", "--out", str(tmp_path / "rows"), "--only", "nothing"]) == 0
    assert "| `last` | **fails** (0.00, mark 0.75) |" in capsys.readouterr().out
    assert json_lines(tmp_path / "rows") == rows


def test_the_page_shows_the_results():
    page = (RESULTS.parent / "CONFORMANCE.md").read_text("utf-8")
    assert table(json_lines(RESULTS / "conformance.jsonl")) in page
