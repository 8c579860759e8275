"""``rlrun compare``: config diff, scores, verdict."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rlrun.reports.comparison import Difference
from rlrun.reports.groups import group_runs
from rlrun.reports.intervals import Estimate
from rlrun.reports.runs import read_runs
from rlrun.reports.versus import Versus, pairs, same_seeds, versus
from tests.in_process import Done
from tests.reports.forge import forge, forge_seeds

Command = Callable[..., Done]
SCORES = [3.0, 1.0, 4.0, 1.5, 9.0, 2.0, 6.0]


def test_better(rlrun: Command, tmp_path: Path) -> None:
    forge_seeds(tmp_path / "a", SCORES, policy__lr=0.1)
    forge_seeds(tmp_path / "b", [x + 31 for x in SCORES[::-1]], policy__lr=0.2)
    done = rlrun("compare", "a", "b")
    assert done.code == 0
    lines = done.out.splitlines()
    assert lines[0].split() == ["key", "A", "B"]
    assert lines[1].split() == ["policy.lr", "0.1", "0.2"]
    assert lines[-1].startswith("B is better by 31 [")
    assert "paired by seed, p = 0.016; 7 pairs" in lines[-1]
    assert rlrun("compare", "b", "a").out.splitlines()[-1].startswith("A is better by 31 [")


def test_undecided(rlrun: Command, tmp_path: Path) -> None:
    """Other seeds on both sides: unpaired. The configs may be equal."""
    forge_seeds(tmp_path / "a", SCORES)
    for i, x in enumerate(SCORES):
        forge(tmp_path / f"b/{i}", seed=10 + i, returns=(x + 0.5,))
    done = rlrun("compare", "a", "b/*")
    lines = done.out.splitlines()
    assert lines[0] == "config: no key differs but seeds and keys of recording"
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


def test_pairs_too_few_for_the_family_are_not_paired(tmp_path: Path) -> None:
    """7 pairs reach p = 1/64 at least: enough for three comparisons, not for four."""
    forge_seeds(tmp_path / "a", SCORES, policy__lr=1)
    forge_seeds(tmp_path / "b", SCORES[::-1], policy__lr=2)
    a, b = group_runs(read_runs([str(tmp_path)]))
    assert same_seeds(a, b)
    assert versus(a, b, 3).paired
    assert not versus(a, b, 4).paired


def test_pairs_that_are_not_used_are_named(tmp_path: Path) -> None:
    a = forge_seeds(tmp_path / "a", SCORES, policy__lr=0.1)
    b = forge_seeds(tmp_path / "b", SCORES[:-1], policy__lr=0.2)
    first, second = group_runs(read_runs([str(tmp_path)]))
    assert len(a) == len(b) + 1
    got = versus(first, second)
    assert not got.paired
    assert got.gap.why.endswith(
        "6 pairs of equal seed are not used, as 1 seed is on one side alone."
    )
    fewer = replace(first, runs=first.runs[:6])
    assert "equal seed are" not in versus(fewer, second).gap.why
    assert "6 pairs of equal seed are too few for 2 comp" in versus(fewer, second, 2).gap.why


def test_a_verdict_says_what_leaves_it_undecided() -> None:
    """p and the interval may disagree: of the IQM they are of different methods."""
    chance = Estimate(0.5, 0.1, 0.9, 0.95, "x", "")
    gap = Difference(1.0, 0.5, 1.5, 0.95, "bootstrap", "Why.", p=0.2)
    words = Versus("E", "a", "b", gap, chance, False, 0.2).verdict
    assert "which leaves out 0, but p is above 0.05" in words
    assert "includes" not in words
    wider = replace(gap, low=-0.5)
    assert "which includes 0" in Versus("E", "a", "b", wider, chance, False, 0.2).verdict
