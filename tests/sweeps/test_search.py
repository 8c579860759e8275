"""Searches over toy objectives: what is tried, pruned, gone on with, and reported."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlrun.config.compose import Composer
from rlrun.config.space import Dimension, split_space
from rlrun.errors import Interrupted, StorageError
from rlrun.reports.runs import read_run
from rlrun.schema import SearchConfig
from rlrun.sweeps.objective import falls_behind, first_lost, make_rungs, partial_score
from rlrun.sweeps.search import Search, SearchResult
from rlrun.sweeps.seed_runs import SeedRun, SeedRuns
from rlrun.sweeps.study import Study, Trial, best
from tests.sweeps.fakes import FakePool, Settings, forge_run, log10_of

pytest.importorskip("optuna")
from optuna.exceptions import StorageInternalError

LR = Dimension("policy.lr", low=1e-6, high=1.0, log=True)


def settings(**changes: Any) -> SearchConfig:
    values: dict[str, Any] = {
        "dir": None, "trials": 8, "seeds": 2, "final_seeds": 5, "workers": 2, "sampler": "tpe",
        "objective": "final", "prune": "none", "reduction": 3, "rungs": 2, "seed": 0,
    }  # fmt: skip
    return SearchConfig(**values | changes)


def search(
    path: Path, pool: FakePool, *, stored: bool = False, rungs: Any = (), stop: Any = None,
    space: tuple[Dimension, ...] = (LR,), **changes: Any,
) -> SearchResult:  # fmt: skip
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


def toy(settings: Settings) -> float:
    """Best at policy.lr = 1e-3, score 0; seeds shift it a little."""
    return -((log10_of(settings, "policy.lr") + 3) ** 2) + 0.01 * (int(settings["seed"]) % 3)


def lr_of(result: SearchResult) -> float:
    return float(result.selection.overrides[0].partition("=")[2])


def distance(sampler: str) -> float:
    """Mean distance of settings 20 to 29 of 30 from the best: chance gives 1.5 decades of 3."""
    found: list[float] = []
    for seed in range(4):
        study = Study(None, (LR,), sampler=sampler, seed=seed)
        for _ in range(30):
            trial = study.ask()
            lr = {"policy.lr": trial.overrides[0].partition("=")[2], "seed": "0"}
            found.append(abs(log10_of(lr, "policy.lr") + 3))
            study.tell(replace(trial, state="complete", scores=(toy(lr),)))
    return float(np.mean(np.reshape(found, (4, 30))[:, 20:]))


def test_tpe_comes_closer_to_the_optimum_than_chance() -> None:
    assert distance("tpe") < 1.0
    assert distance("random") > 1.2, "the bound would not tell them apart"


def test_the_score_is_that_of_fresh_seeds(tmp_path: Path) -> None:
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
    text = "\n".join(result.lines([result.selection]))
    assert "5 fresh seeds" in text
    assert "selection bias" in text


def tried_by(pool: FakePool) -> dict[str, str]:
    """Number of a trial -> what it tried."""
    names = {Path(s["run.dir"]).name: s["policy.lr"] for s in pool.settings}
    return {name[:5]: lr for name, lr in names.items() if name.startswith("t")}


def slow(parity: int) -> Callable[[str], int]:
    """Trials of one parity take five times as long as the others."""
    return lambda name: 20 if int(name.partition("_s")[0][-4:]) % 2 == parity else 100


@pytest.mark.parametrize("prune", ["none", "asha"])
def test_settings_do_not_depend_on_which_run_ends_first(tmp_path: Path, prune: str) -> None:
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


def test_a_resumed_search_tries_what_an_uncut_one_does(tmp_path: Path) -> None:
    whole = FakePool(2, toy, speed=slow(0))
    changes = {"trials": 14, "seeds": 1, "final_seeds": 1}
    search(tmp_path / "whole", whole, **changes)
    tried: dict[str, str] = {}
    for calls in (9, 11, None):  # loops until a signal comes
        left = iter(range(calls or 10_000))
        pool = FakePool(2, toy, speed=slow(1))
        with nullcontext() if calls is None else pytest.raises(Interrupted):
            stop = lambda left=left: 143 if next(left, None) is None else None  # noqa: E731
            search(tmp_path / "cut", pool, stored=True, stop=stop, **changes)
        tried |= tried_by(pool)
    assert tried == tried_by(whole)


@pytest.mark.parametrize("prune", ["asha", "none"])
def test_how_a_trial_ends_does_not_depend_on_when_it_is_looked_at(
    tmp_path: Path, prune: str
) -> None:
    """Trial 4 is the worst; its seed 0 fell behind before it failed, its seed 1 failed at once."""
    ends = []
    rungs = make_rungs(100, 10, seeds=2, reduction=3, count=2) if prune == "asha" else []
    for speed in (10, 100):  # 100: the first look finds that it has failed
        bad = iter([3.0, 2.0, 1.0, 4.0])
        values: dict[str, float] = {}

        def score(settings: Settings, bad: Any = bad, values: Any = values) -> float:
            number = Path(settings["run.dir"]).name[1:5]
            return -9.0 if number == "0004" else values.setdefault(number, next(bad, 9.0))

        path = tmp_path / str(speed)
        path.mkdir()
        study = Study(None, (LR,), sampler="random", seed=0)
        config = settings(trials=5, final_seeds=1, prune=prune)
        pool = FakePool(2, score, speed=lambda name, speed=speed: speed,  # type: ignore[misc]
                        fails={"t0004_s0": 80, "t0004_s1": 10})  # fmt: skip
        Search(path, study, config, fixed=[], first_seed=0, rungs=rungs,
               say=lambda line: None).run(pool)  # fmt: skip
        ends.append([(t.state, dict(t.rungs), t.scores) for t in study.trials()])
    assert ends[0] == ends[1]
    assert ends[0][4][0] == ("pruned" if prune == "asha" else "failed")


def test_nothing_is_claimed_where_a_fresh_seed_failed(tmp_path: Path) -> None:
    def fails_on_11(settings: Settings) -> float | str:
        return "4" if settings["seed"] == "11" else toy(settings)

    result = search(tmp_path, FakePool(2, fails_on_11), trials=2)
    assert (result.failed, result.seeds) == ((11,), (9, 10, 12, 13))
    written = result.to_dict()
    assert not {"score", "low", "high"} & set(written)
    assert (written["failed_seeds"], written["selection_bias"]) == ([11], None)
    last = result.lines([result.selection])[-1]
    assert last.startswith("no score: 1 of 5 fresh seeds failed (11); ")


def test_another_seed_tries_other_settings(tmp_path: Path) -> None:
    one, other = (search(tmp_path / str(s), FakePool(1, toy), trials=2, seed=s) for s in (0, 1))
    assert lr_of(one) != lr_of(other)


def test_a_resumed_search_runs_no_trial_twice(tmp_path: Path) -> None:
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
    assert all(text.endswith(f"go on: rlrun resume {tmp_path / 'cut'}") for _, text in ends)
    assert result is not None
    assert result.to_dict() == expected.to_dict()
    started = [name for pool in cut for name in pool.started]
    assert len(started) == len(set(started)), "started anew"
    assert sorted(started) == sorted(whole.started)
    assert [name for pool in cut for name in pool.resumed], "gone on with from its directory"


def test_more_trials_go_on_with_a_finished_search(tmp_path: Path) -> None:
    first, second = FakePool(1, toy), FakePool(1, toy)
    search(tmp_path, first, stored=True, trials=3)
    search(tmp_path, second, stored=True, trials=5)
    again = [n for n in second.started if n.startswith("t")]
    assert again == ["t0003_s7", "t0003_s8", "t0004_s7", "t0004_s8"]


def test_pruning_stops_trials_that_fall_behind(tmp_path: Path) -> None:
    rungs = make_rungs(100, 10, seeds=2, reduction=3, count=2)
    assert [(r.seed, round(r.env_steps), r.total) for r in rungs] == [(0, 22, 22), (0, 67, 67)]
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


def test_a_trial_that_fails_is_not_chosen(tmp_path: Path) -> None:
    def fails_where_best(settings: Settings) -> float | str:
        return "4" if abs(log10_of(settings, "policy.lr") + 3) < 1 else toy(settings)

    lines: list[str] = []
    study = Study(None, (LR,), sampler="random", seed=0)
    config = settings(trials=10, sampler="random")
    found = Search(tmp_path, study, config, fixed=[], first_seed=0, say=lines.append)
    result = found.run(FakePool(2, fails_where_best))
    assert result is not None
    assert not result.failed
    failed = [line for line in lines if "seed run ended with exit 4, see" in line]
    assert failed
    assert all("console" in line for line in failed)
    assert len(study.trials()) == 10
    assert len(failed) == sum(t.state == "failed" for t in study.trials())


def test_a_run_without_a_score_says_so(tmp_path: Path) -> None:
    runs = SeedRuns(FakePool(1, lambda settings: "0"), "auc")
    (tmp_path / "console").mkdir()
    run = SeedRun(tmp_path / "run", tmp_path / "console/run.txt", ("seed=0",))
    runs.start(run)
    while not run.has_ended:
        runs.wait()
    assert run.state == "failed"
    assert run.failure == "ended without a score auc: it has no evaluation"


def test_no_trial_ends_well(tmp_path: Path) -> None:
    study = Study(None, (LR,), sampler="random", seed=0)
    config = settings(trials=3)
    found = Search(tmp_path, study, config, fixed=[], first_seed=0, say=lambda line: None)
    assert found.run(FakePool(1, lambda settings: "2")) is None


def test_a_study_of_another_search_is_refused(tmp_path: Path) -> None:
    search(tmp_path, FakePool(1, toy), stored=True, trials=1)
    other = Study(tmp_path / "study.db", (Dimension("policy.gamma", low=0.0, high=1.0),),
                  sampler="random", seed=0)  # fmt: skip
    with pytest.raises(StorageError, match=r"trial 0 is of another search"):
        other.trials()


def test_a_study_that_another_program_added_to_is_refused(tmp_path: Path) -> None:
    study = Study(tmp_path / "study.db", (LR,), sampler="random", seed=0)
    study._study.enqueue_trial({"policy.lr": 0.1})
    with pytest.raises(StorageError, match=r"trial 0 is of another search \('WAITING'\)"):
        study.trials()


def test_every_access_of_a_study_names_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = Study(tmp_path / "study.db", (LR,), sampler="random", seed=0)
    trial = study.ask()

    def fails(deepcopy: bool) -> Any:
        raise StorageInternalError("database disk image is malformed")

    monkeypatch.setattr(study._study, "get_trials", fails)
    for access in (study.trials, study.running, study.ask, lambda: study.tell(trial)):
        with pytest.raises(StorageError, match=r"study.db: cannot be used as a study \(database"):
            access()


def test_a_damaged_study_is_an_error_of_one_line(tmp_path: Path) -> None:
    (tmp_path / "study.db").write_bytes(b"garbage" * 100)
    with pytest.raises(StorageError, match=r"study.db: cannot be used as a study .*not a database"):
        Study(tmp_path / "study.db", (LR,), sampler="random", seed=0)
    odd = tmp_path / "a?b#c%20 d"
    odd.mkdir()
    Study(odd / "study.db", (LR,), sampler="random", seed=0).ask()
    assert (odd / "study.db").is_file()


@pytest.mark.parametrize(
    ("given", "ends"),
    [
        ("range(1,6,2)", (1, 5)),
        ("range(1,5,2)", (1, 3)),
        ("range(5,0,-2)", (1, 5)),
        ("range(3)", (0, 2)),
    ],
)
def test_a_range_excludes_its_stop(given: str, ends: tuple[float, float]) -> None:
    _, (found,) = split_space(Composer(), [f"policy.nstep={given}"])
    assert (found.low, found.high) == ends


def test_dimensions_give_overrides(tmp_path: Path) -> None:
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


def test_selection_bias_of_the_best_of_50(tmp_path: Path) -> None:
    """Scores are pure noise: the best of 50 looks 2 sd better than it is, its re-run does not."""
    rng = np.random.default_rng(0)
    results = []
    for repetition in range(10):
        pool = FakePool(1, lambda settings: float(rng.normal()))
        pool.wait_any = lambda timeout=None, pool=pool: _end_at_once(pool)  # type: ignore[method-assign]
        results.append(
            search(
                tmp_path / str(repetition),
                pool,
                trials=50,
                seeds=1,
                final_seeds=40,
                sampler="random",
                seed=repetition,
            )
        )
    selection = np.mean([result.selection.score for result in results])
    reported = np.mean([result.estimate.value for result in results if result.estimate])
    assert selection > 1.8
    assert abs(reported) < 0.1


def _end_at_once(pool: FakePool) -> list[Any]:
    ended = []
    for job, values in [*pool._running.items()]:
        forge_run(Path(values["run.dir"]), float(pool.score(values)), {})
        pool._end(job, 0)
        ended.append(job)
    return ended


@pytest.mark.parametrize(
    ("kind", "at", "expected"),
    [("final", 20, 3.0), ("final", 15, 3.0), ("best_of_last:2", 30, 3.0), ("auc", 30, 55 / 30),
     ("final", 41, None), ("auc", 10, 1.0)],
)  # fmt: skip
def test_partial_scores(tmp_path: Path, kind: str, at: float, expected: float | None) -> None:
    """auc: as that of a whole run, `mean_over_steps`; (1 * 10 + 2 * 10 + 2.5 * 10) / 30."""
    forge_run(tmp_path, 9.0, {10: 1.0, 20: 3.0, 30: 2.0, 40: 5.0}, done=False)
    assert partial_score(read_run(tmp_path), kind, at) == expected


@pytest.mark.parametrize(
    ("kind", "at", "expected"),
    [("final", 41, 5.0), ("best_of_last:2", 90, 6.0), ("auc", 50, 275 / 50),
     ("auc", 40, 225 / 40), ("auc", 110, (225 + 5 * 70) / 110)],
)  # fmt: skip
def test_a_run_that_ended_early_keeps_its_last_value(
    tmp_path: Path, kind: str, at: float, expected: float
) -> None:
    forge_run(tmp_path, 9.0, {10: 6.0, 40: 5.0})
    assert partial_score(read_run(tmp_path), kind, at) == expected


def test_solved_at_once_scores_high_at_every_rung(tmp_path: Path) -> None:
    forge_run(tmp_path, 500.0, {500: 0.0, 1000: 500.0})
    assert partial_score(read_run(tmp_path), "auc", 5000) == pytest.approx(425)


def test_rungs_of_several_seeds() -> None:
    rungs = make_rungs(900, 100, seeds=3, reduction=3, count=3)
    assert [(r.seed, r.env_steps, r.total) for r in rungs] == [
        (0, 100.0, 100), (0, 300.0, 300), (0, 900.0, 900)]  # fmt: skip
    assert [r.total for r in make_rungs(900, 200, seeds=3, reduction=3, count=3)] == [300, 900]
    (later,) = make_rungs(100, 10, seeds=5, reduction=3, count=1)
    assert (later.seed, round(later.env_steps), later.total) == (1, 67, 167)


def test_the_best_third_goes_on() -> None:
    assert not falls_behind(0.0, [1.0], 3), "too few to compare"
    assert [falls_behind(s, [1.0, 2.0, 3.0, 4.0, 6.0], 3) for s in (5.0, 3.5, 4.0)] == [
        False, True, False]  # fmt: skip
    assert not falls_behind(0.0, [0.0] * 8, 3), "equal ones go on"
    earlier: list[dict[int, float]] = [{10: 5.0, 30: 5.0}, {10: 6.0, 30: 6.0}, {10: 1.0}]
    assert first_lost({10: 7.0, 30: 4.0}, earlier, 3) == 30
    assert first_lost({10: 2.0, 30: 9.0}, earlier, 3) == 10
    assert first_lost({10: 9.0, 30: 9.0}, earlier, 3) is None


def test_the_first_of_equal_trials_is_best() -> None:
    trials = [Trial(n, (), "complete", {}, (1.0, 3.0)) for n in range(3)]
    assert best([Trial(9, (), "failed"), *trials]) is trials[0]
    assert best([Trial(0, (), "pruned", {}, (9.0,))]) is None


def test_a_run_killed_before_it_had_a_record_begins_anew(tmp_path: Path) -> None:
    study = Study(None, (LR,), sampler="random", seed=0)
    lost = tmp_path / "runs/t0000_s0"
    lost.mkdir(parents=True)
    (lost / "config.yaml").touch()
    pool = FakePool(1, toy)
    found = Search(tmp_path, study, settings(trials=1), fixed=[], first_seed=0, say=lambda _: None)
    assert found.run(pool) is not None
    assert pool.started[0] == "t0000_s0"
    assert pool.resumed == []


def test_a_run_that_another_process_still_saves_is_waited_for(tmp_path: Path) -> None:
    locked = iter(["8", "8"])
    pool = FakePool(1, lambda settings: next(locked, None) or toy(settings))
    study = Study(None, (LR,), sampler="random", seed=0)
    lines: list[str] = []
    found = Search(tmp_path, study, settings(trials=1), fixed=[], first_seed=0, say=lines.append)
    assert found.run(pool) is not None
    assert not any("failed" in line for line in lines)
