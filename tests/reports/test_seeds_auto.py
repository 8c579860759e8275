"""Sweeps with seeds=auto: their own decision is reported, no test that ignores how they stopped."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from rlrun.reports import figures
from rlrun.reports.runs import read_run
from tests.in_process import Done
from tests.reports.forge import forge_seeds, forge_sweep

Command = Callable[..., Done]
DECISION = {
    "settings": ["policy=dqn", "policy=r2d2"],
    "tasks": ["CartPole-v1"] * 2,
    "scores": [[1.0] * 6, [9.0] * 6],
    "level": 0.05,
    "status": "decided",
    "looks": 2,
    "comparisons": [{"settings": [0, 1], "better": 1, "look": 1, "seeds": 3}],
}


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(figures, "available", lambda: False)
    for name, level in (("dqn", 0.0), ("r2d2", 50.0)):
        for path in forge_seeds(tmp_path / "made" / name, [level + i for i in range(6)],
                                policy__name=name):  # fmt: skip
            path.rename(tmp_path / path.name)
    (tmp_path / "seeds.json").write_text(json.dumps(DECISION))
    return tmp_path


def test_its_decision_is_reported(rlrun: Command, sweep: Path) -> None:
    done = rlrun("report", ".")
    line = "policy=r2d2 is better (policy=dqn against policy=r2d2, seeds=auto, family-wise level"
    assert line in done.out
    assert "p = " not in done.out
    page = (sweep / "report/index.html").read_text()
    assert "Sequential seeds" in page
    assert "Comparisons" not in page
    (row,) = csv.DictReader((sweep / "report/sequential.csv").read_text().splitlines())
    assert (row["verdict"], row["decided after"]) == ("policy=r2d2 is better", "3")


def test_a_sweep_that_goes_on_is_undecided_so_far(rlrun: Command, sweep: Path) -> None:
    """seeds.json is there from the start: before the first look nothing is in it."""
    pair = {"settings": [0, 1], "better": None, "look": None, "seeds": None}
    plan = {**DECISION, "comparisons": [pair], "status": "undecided so far"}
    (sweep / "seeds.json").write_text(json.dumps(plan))
    assert "undecided so far (policy=dqn against policy=r2d2" in rlrun("report", ".").out
    (sweep / "seeds.json").write_text(json.dumps({**plan, "scores": [[], []]}))
    assert "seeds=auto has recorded no decision (seeds.json)" in rlrun("report", ".").out


def test_compare_refers_to_it(rlrun: Command, sweep: Path) -> None:
    last = rlrun("compare", "dqn_s*", "r2d2_s*").out.splitlines()[-1]
    assert last.startswith("not tested: seeds=auto chose when to stop; see seeds.json")


@pytest.fixture
def two_environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two settings far apart in two environments, in nested job directories; their names."""
    monkeypatch.setattr(figures, "available", lambda: False)
    for env in ("A-v0", "B-v0"):
        for name, level in (("dqn", 0.0), ("r2d2", 50.0)):
            scores = [level + i for i in range(6)]
            forge_seeds(tmp_path / f"sweep/{env}/{name}", scores, env__id=env, policy__name=name)
    return [str(path.relative_to(tmp_path / "sweep")) for path in tmp_path.glob("sweep/*/*/*")]


def test_what_is_undecided_is_not_decided_over_all_environments(
    rlrun: Command, two_environments: list[str], tmp_path: Path
) -> None:
    undecided = [{"settings": [a, a + 1], "better": None} for a in (0, 2)]
    decision = {
        **DECISION, "settings": ["dqn", "r2d2"] * 2, "comparisons": undecided,
        "tasks": ["A-v0"] * 2 + ["B-v0"] * 2, "scores": [[1.0] * 6] * 4,
    }  # fmt: skip
    (tmp_path / "sweep/seeds.json").write_text(json.dumps(decision))
    forge_sweep(tmp_path / "sweep", [(name, "done") for name in two_environments])
    done = rlrun("report", "sweep")
    assert "is better" not in done.out
    assert not (tmp_path / "sweep/report/comparisons.csv").exists()
    assert "undecided (dqn against r2d2, seeds=auto" in done.out


@pytest.mark.parametrize("status", ["running", "failed", "interrupted", "done"])
def test_it_is_known_without_a_decision(
    rlrun: Command, two_environments: list[str], tmp_path: Path, status: str
) -> None:
    """While it runs, after a failure, and where rlrun resume finished it."""
    jobs = [(name, "done") for name in two_environments]
    command = ["rlrun", "-m", "policy=dqn,r2d2", "seeds=auto"]
    forge_sweep(tmp_path / "sweep", [*jobs[1:], (jobs[0][0], status)], commands=[command])
    done = rlrun("report", "sweep")
    assert "sweep: seeds=auto has recorded no decision (seeds.json)" in done.out
    assert not (tmp_path / "sweep/report/comparisons.csv").exists()
    last = rlrun("compare", "sweep/*/dqn", "sweep/*/r2d2").out.splitlines()[-1]
    assert "B-v0: not tested: seeds=auto chose when to stop" in last


@pytest.mark.parametrize("name", ["sweep/A-v0/dqn/dqn_s1/below/..", "link"])
def test_it_is_known_by_any_name_of_a_run(
    two_environments: list[str], tmp_path: Path, name: str
) -> None:
    (tmp_path / "sweep/seeds.json").write_text(json.dumps(DECISION))
    forge_sweep(tmp_path / "sweep", [(name, "done") for name in two_environments])
    (tmp_path / "sweep/A-v0/dqn/dqn_s1/below").mkdir()
    (tmp_path / "link").symlink_to("sweep/A-v0/dqn/dqn_s1")
    assert read_run(tmp_path / name).auto == tmp_path / "sweep"


def test_other_sweeps_and_their_neighbours_are_tested(
    rlrun: Command, two_environments: list[str], tmp_path: Path
) -> None:
    """seeds=auto in a sweep above says nothing of runs that it does not list."""
    command = ["rlrun", "-m", "policy=dqn,r2d2", "seed=range(6)"]
    forge_sweep(tmp_path / "sweep", [(n, "done") for n in two_environments], commands=[command])
    forge_sweep(tmp_path, [("other", "done")], commands=[["rlrun", "-m", "seeds=auto"]])
    assert "all (IQM): r2d2 is better" in rlrun("report", "sweep").out


@pytest.mark.parametrize(
    "content",
    [
        "[]", "{", json.dumps({**DECISION, "comparisons": [{"settings": [0, 7], "better": 1}]}),
        json.dumps({**DECISION, "level": "x"}),
    ],
)  # fmt: skip
def test_damage_is_no_decision(rlrun: Command, sweep: Path, content: str) -> None:
    (sweep / "seeds.json").write_text(content)
    done = rlrun("report", ".")
    assert done.code == 0
    assert "is better" not in done.out
