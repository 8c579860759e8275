"""``rlrun search``: what is refused before the first run, and one search that trains."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from rlrun.cli import search as command
from rlrun.run.files import seal, unseal
from tests.in_process import assert_one_error, files_under
from tests.sweeps.fakes import FakePool, log10_of

pytest.importorskip("optuna")

RUN = ("search", "policy=dqn", "env=bandit")
LR = "policy.lr=interval(1e-6,1e-1,log)"


def pool_of(monkeypatch):
    """The pools that searches get."""
    made: list[FakePool] = []

    class Opened(FakePool):
        def __init__(self, workers, *, own_process):
            assert own_process
            super().__init__(workers, score)
            made.append(self)

        def __enter__(self):
            return self

        def __exit__(self, *error): ...

    def score(settings):
        return "4" if settings["env"] == "chain" else -abs(log10_of(settings, "policy.lr") + 3)

    monkeypatch.setattr(command, "Pool", Opened)
    return made


def test_search_then_resume(rlrun, monkeypatch):
    pools = pool_of(monkeypatch)
    given = ("search.dir=found", "search.trials=3", "search.seeds=1", "run.total_steps=1500")
    done = rlrun(*RUN, LR, *given, "search.final_seeds=5")
    assert done.code == 0, done.err
    assert len([line for line in done.out.splitlines() if line.startswith("trial ")]) == 4
    result = json.loads(Path("found/result.json").read_text())
    last = done.out.splitlines()[-1]
    assert last == f"rlrun policy=dqn env=bandit run.total_steps=1500 {result['overrides'][0]}"
    assert all(s["run.total_steps"] == "1500" for s in pools[0].settings)

    again = rlrun("resume", "found")
    assert again.code == 0
    assert pools[1].started == []
    assert again.out.splitlines()[-4:] == done.out.splitlines()[-4:]

    more = rlrun("resume", "found", "search.trials=4")
    assert more.code == 0
    assert pools[2].started[0] == "t0003_s0"

    failed = rlrun("search", "policy=dqn", "env=chain", LR, "search.trials=2", "search.dir=none")
    assert failed.code == 1
    assert not Path("none/result.json").exists()

    refused = rlrun("resume", "found", "search.seeds=9")
    assert refused.code == 2
    assert "search.seeds = 9" in refused.err
    assert "rlrun resume" in rlrun(*RUN, LR, "search.dir=found").err


def test_a_search_directory_of_a_stranger(rlrun, monkeypatch):
    """It may name neither code, nor links, nor a path to write to."""
    pools = pool_of(monkeypatch)
    assert rlrun(*RUN, LR, "search.dir=s", "search.trials=1", "-q").code == 0
    marker = Path("s/search.json")
    content = unseal(marker.read_bytes())

    def resume(*extra):
        fields = {**content, "overrides": [*content["overrides"], *extra]}
        marker.write_bytes(seal(fields))
        return rlrun("resume", "s", "search.trials=2")

    for extra, named in (
        ("env.id=mypkg:Env-v0", "mypkg"), ("hydra.job.env_set={A: b}", "hydra.job.env_set"),
        ("buffer.mmap=/tmp/elsewhere", "buffer.mmap"),
        ("logger.mlflow=http://x/", "logger.mlflow = http://x/"),
    ):  # fmt: skip
        done = resume(extra)
        assert (done.code, named in done.err) == (2, True)
    for key, value in (("workers", 10**9), ("trials", 10**30), ("seeds", "x"), ("rungs", -1)):
        marker.write_bytes(seal({**content, "settings": {**content["settings"], key: value}}))
        assert rlrun("resume", "s").code == 2, key
    hidden = "buffer.mmap=choice(rows,/tmp/elsewhere)"
    marker.write_bytes(seal({**content, "space": [*content["space"], hidden]}))
    assert "buffer.mmap" in rlrun("resume", "s").err
    marker.write_bytes(b"{}")
    assert rlrun("resume", "s").code == 5
    marker.write_bytes(seal(content))
    Path("s/link").symlink_to("/")
    assert_one_error(rlrun("resume", "s"))
    assert len(pools) == 1, "no job was started"


def test_a_study_of_a_stranger(rlrun, monkeypatch):
    """It runs no SQL of its own; rows that Optuna never wrote are no bug."""
    pool_of(monkeypatch)
    assert rlrun(*RUN, LR, "search.dir=s", "search.trials=1", "-q").code == 0
    with closing(sqlite3.connect("s/study.db")) as file:
        whole = "\n".join(file.iterdump())
    for more, codes in {
        "CREATE TRIGGER t AFTER INSERT ON trials BEGIN DELETE FROM trials; END": (5,),
        "CREATE VIEW v AS SELECT 1": (5,),
        "CREATE VIRTUAL TABLE v USING fts4(x)": (5,),
        "DROP TABLE trials": (0, 5, 6),  # Optuna makes a new one
        "UPDATE trials SET number = 7": (0, 5, 6),
        "UPDATE trial_params SET distribution_json = 'x'": (0, 5, 6),
        "UPDATE trials SET state = 'NOPE'": (0, 5, 6),
        "DELETE FROM studies": (0, 5, 6),
    }.items():
        Path("s/study.db").unlink()
        with closing(sqlite3.connect("s/study.db")) as file:
            file.executescript(f"{whole}\n{more};")
        assert rlrun("resume", "s", "search.trials=2", "-q").code in codes, more


def test_without_optuna(rlrun, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    done = rlrun(*RUN, LR)
    assert done.code == 7
    assert "[search]'" in done.err
    assert files_under(Path()) == []
