"""What a search chose is on the report, with the score on fresh seeds and the selection bias."""

import csv
import html
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlrun.reports import figures
from rlrun.reports.intervals import mean_interval
from rlrun.sweeps.search import SearchResult
from rlrun.sweeps.study import Trial
from tests.in_process import Done
from tests.reports.forge import forge

Command = Callable[..., Done]
FRESH = (300.0, 310.0, 320.0, 330.0, 340.0)


def result(failed: tuple[int, ...] = (), scores: tuple[float, ...] = FRESH) -> dict[str, Any]:
    """What a search writes."""
    trial = Trial(7, ("policy.lr=0.001",), "complete", {}, (400.0, 412.0))
    seeds = tuple(range(2, 2 + len(scores)))
    return SearchResult(trial, seeds, scores, failed, mean_interval(scores)).to_dict()


@pytest.fixture
def search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(figures, "available", lambda: False)
    top = tmp_path / "found"
    forge(top / "runs/t0007_s0", seed=0, returns=(400.0,))
    forge(top / "runs/t0007_s1", seed=1, returns=(412.0,))
    for seed, value in enumerate(FRESH, 2):
        forge(top / f"runs/final_t0007_s{seed}", seed=seed, returns=(value,))
    (top / "search.json").write_text(json.dumps({"settings": {"objective": "auc"}}))
    return top


def test_the_choice_and_its_bias(rlrun: Command, search: Path, tmp_path: Path) -> None:
    (search / "result.json").write_text(json.dumps(result()))
    done = rlrun("report", "found")
    line = next(line for line in done.out.splitlines() if line.startswith("found: trial 7"))
    assert line.startswith("found: trial 7 was chosen (policy.lr=0.001); 320 [")
    assert line.endswith("on 5 fresh seeds. It was chosen by 406: selection bias 86.")
    (row,) = csv.DictReader((tmp_path / "found/report/selection.csv").read_text().splitlines())
    expected = mean_interval(FRESH)
    got = [float(row[key]) for key in ("score", "score low", "score high", "selection bias")]
    assert got == pytest.approx([expected.value, expected.low, expected.high, 86.0])
    assert (row["objective"], row["on seeds"], row["fresh seeds"]) == ("auc", "2", "5")
    page = html.unescape((tmp_path / "found/report/index.html").read_text())
    assert expected.why in page
    assert 'id="table-selection"' in page


def test_fresh_seeds_that_failed_are_counted(rlrun: Command, search: Path, tmp_path: Path) -> None:
    (search / "result.json").write_text(json.dumps(result(failed=(8, 9))))
    rlrun("report", "found/runs/final_*")
    (row,) = csv.DictReader((tmp_path / "report/selection.csv").read_text().splitlines())
    assert row["failed seeds"] == "2"


@pytest.mark.parametrize(
    "content",
    [
        None, "[]", "{", json.dumps({**result(), "trial": "7"}), "[" * 10**5,
        json.dumps({**result(), "seeds": 3}), json.dumps({**result(), "selection_score": 1e999}),
    ],
)  # fmt: skip
def test_without_a_result(rlrun: Command, search: Path, content: str | None) -> None:
    if content is not None:
        (search / "result.json").write_text(content)
    done = rlrun("report", "found")
    assert done.code == 0
    assert "found: the search has no result.json that can be read" in done.out


def test_a_strangers_result(rlrun: Command, search: Path, tmp_path: Path) -> None:
    """Texts are escaped, wrong numbers are no numbers, a link is not followed."""
    hostile = {"overrides": ["<script>\x1b[2J"], "score": "1", "low": True, "why": 3}
    (search / "result.json").write_text(json.dumps({**result(), **hostile}))
    done = rlrun("report", "found")
    assert "(<script>\\x1b[2J); no fresh seed has a score." in done.out
    assert "<script" not in (tmp_path / "found/report/index.html").read_text()
    (search / "other").write_text(json.dumps(result()))
    (search / "result.json").unlink()
    os.symlink("other", search / "result.json")
    assert "no result.json that can be read" in rlrun("report", "found").out
