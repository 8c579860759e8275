"""Reading of runs, sweeps and globs: nothing is dropped, and damage is a status."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from rlrun.errors import ConfigError
from rlrun.reports.findings import Findings
from rlrun.reports.health import health_section
from rlrun.reports.runs import printable, read_run, read_runs
from rlrun.reports.score import parse_score, score
from tests.reports.forge import forge, forge_sweep


def test_a_run(tmp_path: Path) -> None:
    run = read_run(forge(tmp_path / "a", seed=3, returns=(1.0, 2.0, 4.0), steps=(0, 500, 1000)))
    assert (run.name, run.status, run.seed) == ("a", "done", 3)
    np.testing.assert_array_equal(run.evaluations.env_steps, [0, 500, 1000])
    np.testing.assert_array_equal(run.evaluations.return_mean, [1, 2, 4])
    np.testing.assert_array_equal(run.evaluations.wall_seconds, [0, 5, 10])
    assert run.keys["policy.lr"] == 0.001


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("final", 4.0),
        ("best_of_last:2", 8.0),
        ("best_of_last:1", 4.0),
        ("auc", (4.5 * 200 + 6 * 300 + 4 * 500) / 1000),
    ],
)
def test_scores(tmp_path: Path, kind: str, expected: float) -> None:
    """The area is that of trapezoids; the last evaluation holds to run.total_steps."""
    run = read_run(forge(tmp_path / "a", returns=(1.0, 8.0, 4.0), steps=(0, 200, 500)))
    assert score(run, kind) == pytest.approx(expected)


@pytest.mark.parametrize("kind", ["best", "best_of_last", "best_of_last:0", "best_of_last:x"])
def test_bad_score(kind: str) -> None:
    with pytest.raises(ConfigError, match=r"--score = .*; correct the command"):
        parse_score(kind)


@pytest.mark.parametrize("status", ["failed", "running", "interrupted"])
def test_only_done_runs_have_a_score(tmp_path: Path, status: str) -> None:
    run = read_run(forge(tmp_path / "a", status=status))
    assert run.status == status
    assert [score(run, kind) for kind in ("final", "auc", "best_of_last:3")] == [None] * 3


def test_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A parent, a glob and a run name each run once, in the order of their numbers."""
    for i in (0, 1, 2, 10):
        forge(tmp_path / f"sweep/{i}_x", seed=i)
    monkeypatch.chdir(tmp_path)
    names = ["0_x", "1_x", "2_x", "10_x"]
    assert [run.name for run in read_runs(["sweep"])] == names
    assert [run.name for run in read_runs(["sweep/*_x"])] == names
    assert [run.name for run in read_runs(["sweep/2_x", "sweep", "sweep/1*"])] == [
        "2_x", "0_x", "1_x", "10_x",
    ]  # fmt: skip


@pytest.mark.parametrize("argument", ["nowhere", "empty", "empty/*"])
def test_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argument: str) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=f"DIR = {argument.replace('*', '.')}: "):
        read_runs([argument])


def test_unreadable_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in it is not dropped without a word."""
    forge(tmp_path / "a")

    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("rlrun.reports.inputs.os.scandir", refuse)
    with pytest.raises(ConfigError, match=r"DIR = .*: cannot be read \(Permission denied\)"):
        read_runs([str(tmp_path)])


def test_sweep_lists_jobs_without_a_run(tmp_path: Path) -> None:
    """Waiting jobs, jobs that failed before they had a directory, and killed ones."""
    forge(tmp_path / "0_a", seed=0)
    forge(tmp_path / "1_a", seed=1, status="running")
    forge(tmp_path / "9_added_by_hand", seed=9)
    jobs = [("0_a", "done"), ("1_a", "interrupted"), ("2_a", "failed"), ("3_a", "waiting")]
    forge_sweep(tmp_path, jobs)
    found = {run.name: run.status for run in read_runs([str(tmp_path)])}
    assert found == {**dict(jobs), "9_added_by_hand": "done"}


def damage_record(path: Path) -> None:
    text = (path / "run.json").read_text()
    (path / "run.json").write_text(text.replace('"done"', '"DONE"'))


def damage_config(path: Path) -> None:
    (path / "config.yaml").write_text("a: &a [1]\nb: [*a, *a]\n")


def deep_config(path: Path) -> None:
    (path / "config.yaml").write_text("[" * 100_000)


def link_record(path: Path) -> None:
    os.rename(path / "run.json", path / "other.json")
    os.symlink("other.json", path / "run.json")


def pipe_config(path: Path) -> None:
    (path / "config.yaml").unlink()
    os.mkfifo(path / "config.yaml")


@pytest.mark.parametrize(
    "damage", [damage_record, damage_config, deep_config, link_record, pipe_config]
)
def test_damage_is_listed(tmp_path: Path, damage: object) -> None:
    path = forge(tmp_path / "a")
    damage(path)  # type: ignore[operator]
    (run,) = read_runs([str(tmp_path)])
    assert run.status == "damaged"
    assert run.problem
    assert score(run, "final") is None


@pytest.mark.parametrize(
    "line",
    [
        "[1]", "{", '{"env_steps": "x", "eval/return_mean": 1}',
        '{"env_steps": 1, "eval/return_mean": 1}', "[" * 100_000 + '"eval/return_mean"',
    ],
)  # fmt: skip
def test_records_end_at_a_damaged_line(tmp_path: Path, line: str) -> None:
    """Also where env steps go back: no run writes that."""
    path = forge(tmp_path / "a", returns=(1.0, 2.0), steps=(500, 1000))
    with (path / "metrics.jsonl").open("a") as file:
        file.write(line + '"eval/return_mean"' * (line == "{") + "\n")
        file.write(json.dumps({"env_steps": 2000, "eval/return_mean": 3.0}) + "\n")
    steps = read_run(path).evaluations.env_steps
    assert [*steps] in ([500, 1000], [500, 1000, 2000])
    if "eval" in line:
        assert [*steps] == [500, 1000]


@pytest.mark.parametrize("value", ["NaN", "Infinity", "1e999", "true", '"3"', "1" * 5000])
def test_numbers_are_finite(tmp_path: Path, value: str) -> None:
    path = forge(tmp_path / "a", returns=(1.0,), steps=(500,))
    with (path / "metrics.jsonl").open("a") as file:
        file.write(f'{{"env_steps": 600, "eval/return_mean": {value}}}\n')
    np.testing.assert_array_equal(read_run(path).evaluations.return_mean, [1])


def cut(path: Path) -> None:
    """The end of the second evaluation, as by a full disk; what follows is whole."""
    lines = (path / "metrics.jsonl").read_bytes().split(b"\n")
    (path / "metrics.jsonl").write_bytes(b"\n".join([lines[0], lines[1][:30], *lines[2:]]))


def cut_at_the_end(path: Path) -> None:
    content = (path / "metrics.jsonl").read_bytes()
    (path / "metrics.jsonl").write_bytes(content[:-10])


def cut_between_lines(path: Path) -> None:
    lines = (path / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (path / "metrics.jsonl").write_bytes(b"".join(lines[:-1]))


def unsorted(path: Path) -> None:
    lines = (path / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (path / "metrics.jsonl").write_bytes(b"".join([lines[1], lines[0], *lines[2:]]))


def not_finite(path: Path) -> None:
    text = (path / "metrics.jsonl").read_text()
    (path / "metrics.jsonl").write_text(text.replace("2.0", "null"))


def linked(path: Path) -> None:
    (path / "metrics.jsonl").rename(path / "other")
    (path / "metrics.jsonl").symlink_to("other")


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (cut, "line 2 is no record"),
        (cut_at_the_end, "line 4 is cut"),
        (cut_between_lines, "the evaluation at 1000 env steps is missing"),
        (unsorted, "line 2 goes back to 250 env steps"),
        (not_finite, "line 2 has no finite eval/return_mean"),
        (linked, "cannot be read (Too many levels of symbolic links)"),
        (lambda path: None, ""),
    ],
)
def test_damaged_metrics_of_a_run_that_is_done(tmp_path: Path, harm: object, said: str) -> None:
    """Its final score is that of run.json; scores of its evaluations would be of a part of them."""
    path = forge(tmp_path / "a", returns=(1.0, 2.0, 3.0, 4.0))
    harm(path)  # type: ignore[operator]
    run = read_run(path)
    assert run.damage == (f"metrics.jsonl: {said}" if said else "")
    assert (run.status, score(run, "final")) == ("done", 4.0)
    assert (score(run, "auc") is None) == (score(run, "best_of_last:2") is None) == bool(said)


def test_a_line_that_is_being_written_is_no_damage(tmp_path: Path) -> None:
    path = forge(tmp_path / "a", returns=(1.0, 2.0), status="running")
    cut_at_the_end(path)
    run = read_run(path)
    assert (run.damage, [*run.evaluations.return_mean]) == ("", [1.0])


def test_the_steps_of_a_killed_run_are_those_of_its_records(tmp_path: Path) -> None:
    """run.json of a run that was killed early says 0; of a run that is done it is right."""
    none = {"env_steps": 0, "wall_seconds": 0.0}
    given = {"returns": (1.0, 2.0), "steps": (300, 900)}
    killed = read_run(forge(tmp_path / "a", status="running", record=none, **given))
    assert killed.progress == (900, 9.0)
    later = {"env_steps": 950, "wall_seconds": 9.5}
    ahead = read_run(forge(tmp_path / "b", status="running", record=later, **given))
    assert ahead.progress == (950, 9.5)
    assert read_run(forge(tmp_path / "c", record=later, **given)).progress == (950, 9.5)
    table = health_section(Findings([killed], "final")).tables[0]
    row = dict(zip(table.columns, table.rows[0], strict=True))
    assert (row["env steps"], row["wall s"], row["steps/s"]) == (900, 9.0, 100.0)


def test_damaged_timings_give_no_wall_times(tmp_path: Path) -> None:
    path = forge(tmp_path / "a", returns=(1.0, 2.0))
    (path / "timings.jsonl").write_bytes((path / "timings.jsonl").read_bytes()[:-5])
    run = read_run(path)
    assert (run.damage, run.damaged_times) == ("", "timings.jsonl: line 2 is cut")
    assert np.isnan(run.evaluations.wall_seconds).all()


def test_names_cannot_steer_a_terminal() -> None:
    assert printable("a\x1b[2Jb\nc\u202ed\udc80") == "a\\x1b[2Jb\\nc\\u202ed\\udc80"


def test_names_of_runs_in_several_sweeps_tell_them_apart(tmp_path: Path) -> None:
    for name in ("one/0_seed=0", "two/0_seed=0", "two/1_seed=1"):
        forge(tmp_path / name)
    names = {run.name for run in read_runs([str(tmp_path)])}
    assert names == {"one/0_seed=0", "two/0_seed=0", "1_seed=1"}
