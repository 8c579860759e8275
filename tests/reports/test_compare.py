"""``rlrun compare``: config diff, scores, verdict."""

import csv

import numpy as np
import pytest

from rlrun.reports.groups import group_runs
from rlrun.reports.runs import read_runs
from rlrun.reports.versus import versus
from tests.in_process import assert_one_error
from tests.reports.forge import forge, forge_seeds

SCORES = [3.0, 1.0, 4.0, 1.5, 9.0, 2.0, 6.0]
TEN = [*SCORES, 5.0, 8.0, 7.0]


def verdict(rlrun, *words):
    done = rlrun("compare", *words)
    assert done.code == 0, done
    return done.unwrapped.splitlines()[0]


def test_better(rlrun, tmp_path):
    forge_seeds(tmp_path / "a", TEN, policy__lr=0.1)
    forge_seeds(tmp_path / "b", [x + 31 for x in TEN[::-1]], policy__lr=0.2)
    out = rlrun("compare", "a", "b").unwrapped
    assert ["policy.lr", "0.1", "0.2"] in [line.split() for line in out.splitlines()]
    first = out.splitlines()[0]
    for fact in ("B is better by 31 [", "paired", "p = 0.002", "10 pairs"):
        assert fact in first
    assert verdict(rlrun, "b", "a").startswith("A is better by 31 [")


def test_undecided(rlrun, tmp_path):
    """Other seeds on both sides: unpaired. Three seeds are no test."""
    forge_seeds(tmp_path / "a", SCORES)
    for i, x in enumerate(SCORES):
        forge(tmp_path / f"b/{i}", seed=10 + i, returns=(x + 0.5,))
    assert verdict(rlrun, "a", "b/*").startswith("undecided: B minus A is 0.5 [")
    forge_seeds(tmp_path / "c", SCORES[:3])
    assert verdict(rlrun, "a", "c").startswith("undecided: 3 seeds")


@pytest.mark.parametrize("seeds", [6, 7])
def test_several_environments(rlrun, tmp_path, seeds):
    """Six pairs reach p = 1/32, too much for two comparisons: they are compared unpaired."""
    for env in ("A-v0", "B-v0"):
        for side, shift in (("a", 0), ("b", 100)):
            scores = [x + shift for x in SCORES[:seeds]]
            forge_seeds(tmp_path / side / env, scores, env__id=env, policy__lr=shift)
    forge_seeds(tmp_path / "b/C", SCORES, env__id="C-v0", policy__lr=100)
    lines = rlrun("compare", "a", "b").unwrapped.splitlines()
    for env in ("A-v0", "B-v0"):
        assert any(line.startswith(f"{env}: B is better by 100") for line in lines)
    for once in ("2 comparisons", "seeds fail on one side only"):
        assert sum(once in line for line in lines) == 1
    assert any("C-v0" in line for line in lines)


def test_trials_of_a_search_are_refused(rlrun, tmp_path):
    forge_seeds(tmp_path / "a", SCORES)
    for i, x in enumerate(SCORES):
        forge(tmp_path / f"search/runs/t0003_s{i}", seed=i, returns=(x + 50,), policy__lr=3)
        forge(tmp_path / f"search/runs/final_t0003_s{9 + i}", seed=9 + i, policy__lr=3)
    (tmp_path / "search/search.json").write_text("{}")
    for argv in (["a", "search/runs/t0003*"], ["search", "a"]):
        assert_one_error(rlrun("compare", *argv), "runs/final_*")
    assert rlrun("compare", "a", "search/runs/final_*").code == 0


@pytest.mark.parametrize(
    ("argv", "text"),
    [("mixed a", "A = mixed"), ("a mixed", "B = mixed"), ("a failed", "B = failed"),
     ("a other", "CartPole-v1, B has X-v0"), ("a", "B")],
)  # fmt: skip
def test_misuse(rlrun, tmp_path, argv, text):
    forge(tmp_path / "a")
    forge(tmp_path / "mixed/1", policy__lr=1)
    forge(tmp_path / "mixed/2", policy__lr=2)
    forge(tmp_path / "failed", status="failed")
    forge(tmp_path / "other", env__id="X-v0")
    assert_one_error(rlrun("compare", *argv.split()), text)


def test_what_differs_besides_the_config_is_named(rlrun, tmp_path):
    forge(tmp_path / "a")
    forge(tmp_path / "b", record={"git": {"commit": "f00", "dirty": False}})
    assert "commit" in rlrun("compare", "a", "b").unwrapped


@pytest.mark.parametrize("seeds", [6, 10])
def test_report_and_compare_give_one_interval(rlrun, tmp_path, monkeypatch, seeds):
    """Whatever else is in the report, and whichever side comes first."""
    monkeypatch.setattr("rlrun.reports.figures.available", lambda: False)
    rng = np.random.default_rng(seeds)
    for lr in (1, 2, 3):
        scores = [float(x) for x in rng.normal(50 * lr, 40, seeds)]
        forge_seeds(tmp_path / f"runs/{lr}", scores, policy__lr=lr)
    assert rlrun("report", "runs", "--out", "out").code == 0
    with (tmp_path / "out/comparisons.csv").open(encoding="utf-8") as file:
        rows = {(row["A"], row["B"]): row for row in csv.DictReader(file)}
    for one, other in ((1, 2), (1, 3), (2, 3)):
        row = rows[f"lr={one}", f"lr={other}"]
        gap = [float(row[name]) for name in ("B - A", "B - A low", "B - A high")]
        a, b = (group_runs(read_runs([str(tmp_path / f"runs/{lr}")]))[0] for lr in (one, other))
        got, back = versus(a, b).gap, versus(b, a).gap
        assert [got.value, got.low, got.high] == gap
        assert [-back.value, -back.high, -back.low] == gap
        for number in gap[1:]:
            assert f"{abs(number):.4g}" in verdict(rlrun, f"runs/{one}", f"runs/{other}")


def test_many_settings_are_compared_with_the_first(rlrun, tmp_path, monkeypatch):
    monkeypatch.setattr("rlrun.reports.figures.available", lambda: False)
    for count, expected in ((3, 3), (5, 4)):
        for lr in range(count):
            forge_seeds(tmp_path / f"{count}/{lr}", [lr + x for x in SCORES[:5]], policy__lr=lr)
        assert rlrun("report", str(count)).code == 0
        with (tmp_path / f"{count}/report/comparisons.csv").open() as file:
            rows = list(csv.DictReader(file))
        assert len(rows) == expected
        assert count == 3 or {row["A"] for row in rows} == {"lr=0"}
