"""``rlrun compare``: config diff, scores, verdict."""

import csv
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rlrun.reports.comparison import Difference
from rlrun.reports.groups import group_runs
from rlrun.reports.intervals import Estimate
from rlrun.reports.runs import read_runs
from rlrun.reports.tables import show_number
from rlrun.reports.versus import Versus, corrected, pairs, same_seeds, versus
from tests.in_process import Done
from tests.reports.forge import forge, forge_seeds

Command = Callable[..., Done]
SCORES = [3.0, 1.0, 4.0, 1.5, 9.0, 2.0, 6.0]
TEN = [*SCORES, 5.0, 8.0, 7.0]


def test_better(rlrun: Command, tmp_path: Path) -> None:
    forge_seeds(tmp_path / "a", TEN, policy__lr=0.1)
    forge_seeds(tmp_path / "b", [x + 31 for x in TEN[::-1]], policy__lr=0.2)
    done = rlrun("compare", "a", "b")
    assert done.code == 0
    lines = done.out.splitlines()
    assert lines[0].split() == ["key", "A", "B"]
    assert lines[1].split() == ["policy.lr", "0.1", "0.2"]
    assert lines[-1].startswith("B is better by 31 [")
    assert "paired by seed, p = 0.002; 10 pairs" in lines[-1]
    assert rlrun("compare", "b", "a").out.splitlines()[-1].startswith("A is better by 31 [")


def test_undecided(rlrun: Command, tmp_path: Path) -> None:
    """Other seeds on both sides: unpaired. The configs may be equal."""
    forge_seeds(tmp_path / "a", SCORES)
    for i, x in enumerate(SCORES):
        forge(tmp_path / f"b/{i}", seed=10 + i, returns=(x + 0.5,))
    done = rlrun("compare", "a", "b/*")
    lines = done.out.splitlines()
    assert lines[0] == "config: only seeds and keys of recording differ"
    assert lines[-1].startswith("undecided: B minus A is 0.5 [")
    assert "which includes 0 (95 %, permutation of labels" in lines[-1]


def test_few_seeds(rlrun: Command, tmp_path: Path) -> None:
    forge_seeds(tmp_path / "a", SCORES[:3])
    forge_seeds(tmp_path / "b", SCORES[:4])
    last = rlrun("compare", "a", "b").out.splitlines()[-1]
    assert last.startswith("undecided: 3 seeds are fewer than 5")


def test_several_environments(rlrun: Command, tmp_path: Path) -> None:
    for env in ("A-v0", "B-v0"):
        for side, shift in (("a", 0), ("b", 31)):
            scores = [x + shift for x in SCORES]
            forge_seeds(tmp_path / side / env, scores, env__id=env, policy__lr=shift)
    forge_seeds(tmp_path / "b/C", SCORES, env__id="C-v0", policy__lr=31)
    lines = rlrun("compare", "a", "b").out.splitlines()
    assert lines[-3].startswith("A-v0: B is better by 31")
    assert lines[-2].startswith("B-v0: B is better by 31")
    assert lines[-1] == "p is corrected for 2 comparisons (Holm)."
    assert "only in B: C-v0" in lines


def test_six_pairs_in_two_environments(rlrun: Command, tmp_path: Path) -> None:
    """Six pairs reach p = 1/32, too much for two comparisons: they are compared unpaired."""
    for env in ("A-v0", "B-v0"):
        for side, shift in (("a", 0), ("b", 100)):
            scores = [x + shift for x in SCORES[:6]]
            forge_seeds(tmp_path / side / env, scores, env__id=env, policy__lr=shift)
    lines = rlrun("compare", "a", "b").out.splitlines()
    assert lines[-3].startswith("A-v0: B is better by 100")
    assert lines[-2].startswith("B-v0: B is better by 100")


def test_trials_of_a_search_are_refused(rlrun: Command, tmp_path: Path) -> None:
    forge_seeds(tmp_path / "a", SCORES)
    for i, x in enumerate(SCORES):
        forge(tmp_path / f"search/runs/t0003_s{i}", seed=i, returns=(x + 50,), policy__lr=3)
        forge(tmp_path / f"search/runs/final_t0003_s{9 + i}", seed=9 + i, policy__lr=3)
    (tmp_path / "search/search.json").write_text("{}")
    for argv in (["a", "search/runs/t0003*"], ["search", "a"]):
        done = rlrun("compare", *argv)
        assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
        assert "holds trials of a search" in done.err
        assert "compare 'SEARCH_DIR/runs/final_*'" in done.err
    assert rlrun("compare", "a", "search/runs/final_*").code == 0


def test_what_differs_besides_the_config_is_named(
    rlrun: Command,
    tmp_path: Path,
) -> None:
    forge(tmp_path / "a")
    forge(tmp_path / "b", record={"git": {"commit": "f00", "dirty": False}})
    assert "commit: differs between A and B (run.json, git)" in rlrun("compare", "a", "b").out


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["mixed", "a"], "A = mixed: holds 2 settings (lr=1; lr=2)"),
        (["a", "mixed"], "B = mixed: holds 2 settings"),
        (["a", "failed"], "B = failed: has no score (1 failed)"),
        (["a", "other"], "B = other: no environment in common; A has CartPole-v1, B has X-v0"),
        (["a"], "the following arguments are required: B"),
    ],
)
def test_misuse(rlrun: Command, tmp_path: Path, argv: list[str], text: str) -> None:
    forge(tmp_path / "a")
    forge(tmp_path / "mixed/1", policy__lr=1)
    forge(tmp_path / "mixed/2", policy__lr=2)
    forge(tmp_path / "failed", status="failed")
    forge(tmp_path / "other", env__id="X-v0")
    done = rlrun("compare", *argv)
    assert (done.code, done.out) == (2, "")
    assert text in done.err


def test_many_settings_are_compared_with_the_first() -> None:
    assert pairs("abc") == [("a", "b"), ("a", "c"), ("b", "c")]
    assert pairs("abcde") == [("a", "b"), ("a", "c"), ("a", "d"), ("a", "e")]


def test_pairs_too_few_for_many_comparisons_are_not_paired(tmp_path: Path) -> None:
    """10 pairs reach p = 1/512: small enough for 25 comparisons."""
    forge_seeds(tmp_path / "a", TEN, policy__lr=1)
    forge_seeds(tmp_path / "b", TEN[::-1], policy__lr=2)
    a, b = group_runs(read_runs([str(tmp_path)]))
    assert same_seeds(a, b)
    assert versus(a, b).paired
    assert not versus(replace(a, runs=a.runs[1:]), replace(b, runs=b.runs[1:])).paired


@pytest.mark.parametrize("seeds", [6, 10])
def test_report_and_compare_give_one_interval(rlrun: Command, tmp_path: Path, seeds: int) -> None:
    """Whatever else is in the report, and whichever side comes first."""
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
        for got in (versus(a, b).gap, negated(versus(b, a).gap)):
            assert [got.value, got.low, got.high] == gap
        said = rlrun("compare", f"runs/{one}", f"runs/{other}").out.splitlines()[-1]
        assert "[{}, {}]".format(*map(show_number, gap[1:])) in said.replace("by -", "by ")


def negated(gap: Difference) -> Difference:
    assert gap.low is not None
    assert gap.high is not None
    return replace(gap, value=-gap.value, low=-gap.high, high=-gap.low)


def test_pairs_that_are_not_used_are_named(tmp_path: Path) -> None:
    a = forge_seeds(tmp_path / "a", [*TEN, 4.5], policy__lr=0.1)
    b = forge_seeds(tmp_path / "b", TEN, policy__lr=0.2)
    first, second = group_runs(read_runs([str(tmp_path)]))
    assert len(a) == len(b) + 1
    got = versus(first, second)
    assert not got.paired
    assert "10 pairs of equal seed are not used, as 1 seed is on one side" in got.gap.why
    fewer = replace(first, runs=first.runs[:10])
    assert "equal seed are not" not in versus(fewer, second).gap.why


def test_a_verdict_says_what_leaves_it_undecided() -> None:
    """p and the interval may disagree: of the IQM they are of different methods."""
    chance = Estimate(0.5, 0.1, 0.9, 0.95, "x", "")
    gap = Difference(1.0, 0.5, 1.5, 0.95, "bootstrap", "Why.", p=0.2)
    words = Versus("E", "a", "b", gap, chance, False, 0.2).verdict
    assert "which leaves out 0, but p is above 0.05" in words
    assert "includes" not in words
    wider = replace(gap, low=-0.5)
    assert "which includes 0" in Versus("E", "a", "b", wider, chance, False, 0.2).verdict


def test_comparisons_without_a_test_are_not_in_the_family() -> None:
    """Few seeds, or seeds=auto: their p is unknown and costs the others nothing."""
    chance = Estimate(0.5, 0.1, 0.9, 0.95, "x", "")
    gap = Difference(1.0, 0.5, 1.5, 0.95, "bootstrap", "Why.", p=0.03)
    every = [Versus("E", "a", "b", gap, chance, False, p) for p in (0.03, math.nan, 0.01)]
    first, untested, last = corrected(every)
    assert (first.adjusted, last.adjusted) == (0.03, 0.02)
    assert (first.family, last.family) == (2, 2)
    assert math.isnan(untested.adjusted)
