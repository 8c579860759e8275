"""Searches over toy objectives: what is tried, pruned, gone on with, and reported."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlrun.config.compose import Composer
from rlrun.config.space import Dimension, split_space
from rlrun.errors import Interrupted, StorageError
from rlrun.reports.runs import read_run
from rlrun.schema.studies import SearchConfig
from rlrun.sweeps.search import (
    Search,
    Study,
    Trial,
    best,
    falls_behind,
    first_lost,
    make_rungs,
    partial_score,
)
from tests.sweeps.fakes import FakePool, forge_run, log10_of

pytest.importorskip("optuna")

LR = Dimension("policy.lr", low=1e-6, high=1.0, log=True)


def settings(**changes):
    values: dict[str, Any] = {
        "dir": None, "trials": 8, "seeds": 2, "final_seeds": 5, "workers": 2, "sampler": "tpe",
        "objective": "final", "prune": "none", "reduction": 3, "rungs": 2, "seed": 0,
    }  # fmt: skip
    return SearchConfig(**values | changes)


def search(
    path, pool, *, stored = False, rungs = (), stop = None,
    space = (LR,), **changes,
):  # fmt: skip
    config = settings(workers=pool.workers, **changes)
    path.mkdir(exist_ok=True)
    file = path / "study.db" if stored else None
    study = Study(file, space, sampler=config.sampler, seed=config.seed)
    result = Search(
        path, study, config, fixed=["env=toy"], first_seed=7, rungs=rungs, say=lambda line: None,
        stop_code=stop or (lambda: None),
    ).run(pool)  # fmt: skip
    assert result is not None
    return result


def toy(settings):
    """Best at policy.lr = 1e-3, score 0; seeds shift it a little."""
    return -((log10_of(settings, "policy.lr") + 3) ** 2) + 0.01 * (int(settings["seed"]) % 3)


def lr_of(result):
    return float(result.selection.overrides[0].partition("=")[2])


def test_the_score_is_that_of_fresh_seeds(tmp_path):
    pool = FakePool(2, toy)
    result = search(tmp_path, pool, trials=4)
    assert result.seeds == (9, 10, 11, 12, 13)
    used = [int(s["seed"]) for s in pool.settings[:8]]
    assert set(used) == {7, 8}
    assert {int(s["seed"]) for s in pool.settings[8:]} == set(result.seeds)
    assert {s["policy.lr"] for s in pool.settings[8:]} == {repr(lr_of(result))}
    assert result.estimate is not None
    assert result.estimate.value == pytest.approx(np.mean(result.scores))
    assert result.bias == pytest.approx(result.selection.score - np.mean(result.scores))


def tried_by(pool):
    """Number of a trial -> what it tried."""
    names = {Path(s["run.dir"]).name: s["policy.lr"] for s in pool.settings}
    return {name[:5]: lr for name, lr in names.items() if name.startswith("t")}


def slow(parity):
    """Trials of one parity take five times as long as the others."""
    return lambda name: 20 if int(name.partition("_s")[0][-4:]) % 2 == parity else 100


@pytest.mark.parametrize("prune", ["none", "asha"])
def test_settings_do_not_depend_on_which_run_ends_first(tmp_path, prune):
    """TPE's first ten settings are random; those after them depend on what was told before."""
    tried = []
    rungs = make_rungs(100, 10, seeds=1, reduction=3, count=2) if prune == "asha" else []
    for parity in (0, 1):
        pool = FakePool(3, toy, speed=slow(parity))
        path, given = tmp_path / str(parity), {"trials": 30, "seeds": 1, "final_seeds": 1}
        search(path, pool, prune=prune, rungs=rungs, **given)
        tried.append(tried_by(pool))
    assert tried[0] == tried[1]
    assert len(tried[0]) == 30


@pytest.mark.parametrize("prune", ["asha", "none"])
def test_how_a_trial_ends_does_not_depend_on_when_it_is_looked_at(tmp_path, prune):
    """Trial 4 is the worst; its seed 0 fell behind before it failed, its seed 1 failed at once."""
    ends = []
    rungs = make_rungs(100, 10, seeds=2, reduction=3, count=2) if prune == "asha" else []
    for speed in (10, 100):  # 100: the first look finds that it has failed
        bad = iter([3.0, 2.0, 1.0, 4.0])
        values: dict[str, float] = {}

        def score(settings, bad=bad, values=values):
            number = Path(settings["run.dir"]).name[1:5]
            return -9.0 if number == "0004" else values.setdefault(number, next(bad, 9.0))

        path = tmp_path / str(speed)
        path.mkdir()
        study = Study(None, (LR,), sampler="random", seed=0)
        config = settings(trials=5, final_seeds=1, prune=prune)
        pool = FakePool(2, score, speed=lambda name, speed=speed: speed,
                        fails={"t0004_s0": 80, "t0004_s1": 10})  # fmt: skip
        Search(path, study, config, fixed=[], first_seed=0, rungs=rungs,
               say=lambda line: None).run(pool)  # fmt: skip
        ends.append([(t.state, dict(t.rungs), t.scores) for t in study.trials()])
    assert ends[0] == ends[1]
    assert ends[0][4][0] == ("pruned" if prune == "asha" else "failed")


def test_nothing_is_claimed_where_a_fresh_seed_failed(tmp_path):
    def fails_on_11(settings):
        return "4" if settings["seed"] == "11" else toy(settings)

    result = search(tmp_path, FakePool(2, fails_on_11), trials=2)
    assert (result.failed, result.seeds) == ((11,), (9, 10, 12, 13))
    written = result.to_dict()
    assert not {"score", "low", "high"} & set(written)
    assert (written["failed_seeds"], written["selection_bias"]) == ([11], None)
    last = result.lines([result.selection])[-1]
    assert "1 of 5" in last
    assert "(11)" in last


def test_a_resumed_search_runs_no_trial_twice(tmp_path):
    whole = FakePool(2, toy)
    expected = search(tmp_path / "whole", whole, stored=True, trials=4)
    cut: list[FakePool] = []
    ends: list[tuple[int, str]] = []
    result = None
    for calls in (12, 18, None):  # loops until a signal comes
        pool = FakePool(2, toy)
        cut.append(pool)
        left = iter(range(calls or 10_000))
        stop = lambda left=left: 143 if next(left, None) is None else None  # noqa: E731
        try:
            result = search(tmp_path / "cut", pool, stored=True, stop=stop, trials=4)
        except Interrupted as e:
            ends.append((e.exit_code, str(e)))
    assert [code for code, _ in ends] == [143] * 2
    assert all(f"rlrun resume {tmp_path / 'cut'}" in text for _, text in ends)
    assert result is not None
    assert result.to_dict() == expected.to_dict()
    tried = {}
    for pool in cut:
        tried |= tried_by(pool)
    assert tried == tried_by(whole)
    started = [name for pool in cut for name in pool.started]
    assert len(started) == len(set(started)), "started anew"
    assert sorted(started) == sorted(whole.started)
    assert [name for pool in cut for name in pool.resumed], "gone on with from its directory"


def test_pruning_stops_trials_that_fall_behind(tmp_path):
    rungs = make_rungs(100, 10, seeds=2, reduction=3, count=2)
    pool, all_of_them = FakePool(1, toy), FakePool(1, toy)
    result = search(tmp_path / "pruned", pool, trials=20, sampler="random", prune="asha",
                    rungs=rungs)  # fmt: skip
    search(tmp_path / "all", all_of_them, trials=20, sampler="random")
    scores = {s["run.dir"].split("/")[-1]: toy(s) for s in pool.settings}
    stopped = [scores[name] for name in pool.stopped]
    ended = [score for name, score in scores.items() if name not in pool.stopped]
    assert len(pool.stopped) >= 10
    assert max(stopped) < max(ended)
    assert np.mean(stopped) < np.mean(ended)
    assert len(pool.started) < 0.75 * len(all_of_them.started)
    assert result.selection.state == "complete"


def run_search(path, pool, **changes):
    """The result, what was said, and the trials of a search without a file."""
    said = []
    study = Study(None, (LR,), sampler="random", seed=0)
    found = Search(path, study, settings(**changes), fixed=[], first_seed=0, say=said.append)
    return found.run(pool), said, study.trials()


def test_a_trial_that_fails_is_not_chosen(tmp_path):
    def fails_where_best(settings):
        return "4" if abs(log10_of(settings, "policy.lr") + 3) < 1 else toy(settings)

    result, said, trials = run_search(tmp_path, FakePool(2, fails_where_best), trials=10)
    assert not result.failed
    failed = [line for line in said if "exit 4" in line]
    assert failed
    assert len(trials) == 10
    assert len(failed) == sum(t.state == "failed" for t in trials)
    (tmp_path / "none").mkdir()
    assert run_search(tmp_path / "none", FakePool(1, lambda settings: "2"), trials=3)[0] is None


def test_a_run_killed_before_it_had_a_record_begins_anew(tmp_path):
    lost = tmp_path / "runs/t0000_s0"
    lost.mkdir(parents=True)
    (lost / "config.yaml").touch()
    pool = FakePool(1, toy)
    assert run_search(tmp_path, pool, trials=1)[0] is not None
    assert (pool.started[0], pool.resumed) == ("t0000_s0", [])


def test_a_run_that_another_process_still_saves_is_waited_for(tmp_path):
    locked = iter(["8", "8"])
    pool = FakePool(1, lambda settings: next(locked, None) or toy(settings))
    result, said, _ = run_search(tmp_path, pool, trials=1)
    assert result is not None
    assert not any("exit" in line for line in said)


def test_a_study_of_another_search_is_refused(tmp_path):
    search(tmp_path, FakePool(1, toy), stored=True, trials=1)
    other = Study(tmp_path / "study.db", (Dimension("policy.gamma", low=0.0, high=1.0),),
                  sampler="random", seed=0)  # fmt: skip
    with pytest.raises(StorageError, match="trial 0"):
        other.trials()


def test_a_damaged_study_is_an_error_of_one_line(tmp_path):
    (tmp_path / "study.db").write_bytes(b"garbage" * 100)
    with pytest.raises(StorageError, match=r"study\.db"):
        Study(tmp_path / "study.db", (LR,), sampler="random", seed=0)
    odd = tmp_path / "a?b#c%20 d"
    odd.mkdir()
    Study(odd / "study.db", (LR,), sampler="random", seed=0).ask()
    assert (odd / "study.db").is_file()


@pytest.mark.parametrize(
    ("given", "ends"),
    [("range(1,6,2)", (1, 5)), ("range(1,5,2)", (1, 3)), ("range(5,0,-2)", (1, 5)),
     ("range(3)", (0, 2))],
)  # fmt: skip
def test_a_range_excludes_its_stop(given, ends):
    _, (found,) = split_space(Composer(), [f"policy.nstep={given}"])
    assert (found.low, found.high) == ends


def test_dimensions_give_overrides(tmp_path):
    space = (
        Dimension("policy", choices=("r2d2", "dqn")),
        Dimension("policy.nstep", low=1, high=9, step=2, integer=True),
        Dimension("learner.batch_size", low=16, high=128, log=True, integer=True),
        Dimension("policy.gamma", low=0.9, high=0.99),
    )
    for trial in [Study(None, space, sampler="random", seed=s).ask() for s in range(5)]:
        given = dict(text.split("=") for text in trial.overrides)
        assert given["policy"] in ("r2d2", "dqn")
        assert int(given["policy.nstep"]) in (1, 3, 5, 7, 9)
        assert 16 <= int(given["learner.batch_size"]) <= 128
        assert 0.9 <= float(given["policy.gamma"]) <= 0.99


def test_partial_scores(tmp_path):
    """auc: as that of a whole run, `mean_over_steps`; (1 * 10 + 2 * 10 + 2.5 * 10) / 30.

    A run that ended early keeps its last value.
    """
    forge_run(tmp_path / "a", 9.0, {10: 1.0, 20: 3.0, 30: 2.0, 40: 5.0}, done=False)
    forge_run(tmp_path / "b", 9.0, {10: 6.0, 40: 5.0})
    for name, kind, at, expected in [
        ("a", "final", 20, 3.0), ("a", "final", 15, 3.0), ("a", "best_of_last:2", 30, 3.0),
        ("a", "auc", 30, 55 / 30), ("a", "final", 41, None), ("a", "auc", 10, 1.0),
        ("b", "final", 41, 5.0), ("b", "best_of_last:2", 90, 6.0), ("b", "auc", 50, 275 / 50),
        ("b", "auc", 110, (225 + 5 * 70) / 110),
    ]:  # fmt: skip
        assert partial_score(read_run(tmp_path / name), kind, at) == expected


# -- private: a rung that lies elsewhere, or stops another third, costs a search time alone --------


def test_rungs_of_several_seeds():
    rungs = make_rungs(900, 100, seeds=3, reduction=3, count=3)
    assert [(r.seed, r.env_steps, r.total) for r in rungs] == [
        (0, 100.0, 100), (0, 300.0, 300), (0, 900.0, 900)]  # fmt: skip
    assert [r.total for r in make_rungs(900, 200, seeds=3, reduction=3, count=3)] == [300, 900]
    (later,) = make_rungs(100, 10, seeds=5, reduction=3, count=1)
    assert (later.seed, round(later.env_steps), later.total) == (1, 67, 167)


def test_the_best_third_goes_on():
    assert not falls_behind(0.0, [1.0], 3), "too few to compare"
    assert [falls_behind(s, [1.0, 2.0, 3.0, 4.0, 6.0], 3) for s in (5.0, 3.5, 4.0)] == [
        False, True, False]  # fmt: skip
    assert not falls_behind(0.0, [0.0] * 8, 3), "equal ones go on"
    earlier: list[dict[int, float]] = [{10: 5.0, 30: 5.0}, {10: 6.0, 30: 6.0}, {10: 1.0}]
    assert first_lost({10: 7.0, 30: 4.0}, earlier, 3) == 30
    assert first_lost({10: 2.0, 30: 9.0}, earlier, 3) == 10
    assert first_lost({10: 9.0, 30: 9.0}, earlier, 3) is None


def test_the_first_of_equal_trials_is_best():
    trials = [Trial(n, (), "complete", {}, (1.0, 3.0)) for n in range(3)]
    assert best([Trial(9, (), "failed"), *trials]) is trials[0]
    assert best([Trial(0, (), "pruned", {}, (9.0,))]) is None
