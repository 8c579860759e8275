"""Reading of runs, sweeps and globs: nothing is dropped, and damage is a status."""

import json
import os

import numpy as np
import pytest
import yaml

from rlrun.errors import ConfigError
from rlrun.reports.runs import parse_config, read_run, read_runs, score
from tests.reports.forge import forge, forge_sweep


def test_a_run(tmp_path):
    run = read_run(forge(tmp_path / "a", seed=3, returns=(1.0, 2.0, 4.0), steps=(0, 500, 1000)))
    assert (run.name, run.status, run.seed) == ("a", "done", 3)
    np.testing.assert_array_equal(run.evaluations.env_steps, [0, 500, 1000])
    np.testing.assert_array_equal(run.evaluations.return_mean, [1, 2, 4])
    np.testing.assert_array_equal(run.evaluations.wall_seconds, [0, 5, 10])
    assert run.keys["policy.lr"] == 0.001


@pytest.mark.parametrize(
    "text",
    [
        "seed: 1\npolicy:\n  lr: 1e-4\n  sizes:\n  - 1\nwords:\n- a\n- b\n",
        "---\n# of another program\nseed: 1\nseed: 2\n",
        "{seed: 1,\npolicy: {lr: 1}}\n",
        'text: "one\nseed: 2"\nseed: 1\n',
        f"seed: 1\nlarge: {'x' * 5000}\n",
    ],
)
def test_a_config_is_what_its_yaml_says(text):
    for _ in range(2):
        assert parse_config(text.encode()) == yaml.safe_load(text)


@pytest.mark.parametrize(
    "text", ["", "1", "- [seed, 1]\n", "a: *b\n", "a: [\n", "a: &b 1\nc: *b\n"]
)
def test_what_is_no_config(text):
    with pytest.raises(ValueError, match=r"config\.yaml"):
        parse_config(text.encode())


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("final", 4.0), ("best_of_last:2", 8.0), ("best_of_last:1", 4.0),
     ("auc", (4.5 * 200 + 6 * 300 + 4 * 500) / 1000)],
)  # fmt: skip
def test_scores(tmp_path, kind, expected):
    """The area is that of trapezoids; the last evaluation holds to run.total_steps."""
    run = read_run(forge(tmp_path / "a", returns=(1.0, 8.0, 4.0), steps=(0, 200, 500)))
    assert score(run, kind) == pytest.approx(expected)


@pytest.mark.parametrize("status", ["failed", "running", "interrupted"])
def test_only_done_runs_have_a_score(tmp_path, status):
    run = read_run(forge(tmp_path / "a", status=status))
    assert run.status == status
    assert [score(run, kind) for kind in ("final", "auc", "best_of_last:3")] == [None] * 3


def test_arguments(tmp_path, monkeypatch):
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
def test_no_run(tmp_path, monkeypatch, argument):
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=f"DIR = {argument.replace('*', '.')}"):
        read_runs([argument])


def test_unreadable_directory(tmp_path, monkeypatch):
    """What is in it is not dropped without a word."""
    forge(tmp_path / "a")

    def refuse(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("rlrun.reports.runs.os.scandir", refuse)
    with pytest.raises(ConfigError, match=r"DIR = .*Permission denied"):
        read_runs([str(tmp_path)])


def test_sweep_lists_jobs_without_a_run(tmp_path):
    """Waiting jobs, jobs that failed before they had a directory, and killed ones."""
    forge(tmp_path / "0_a", seed=0)
    forge(tmp_path / "1_a", seed=1, status="running")
    forge(tmp_path / "9_added_by_hand", seed=9)
    jobs = [("0_a", "done"), ("1_a", "interrupted"), ("2_a", "failed"), ("3_a", "waiting")]
    forge_sweep(tmp_path, jobs)
    found = {run.name: run.status for run in read_runs([str(tmp_path)])}
    assert found == {**dict(jobs), "9_added_by_hand": "done"}


def damage_record(path):
    text = (path / "run.json").read_text()
    (path / "run.json").write_text(text.replace('"done"', '"DONE"'))


def link_record(path):
    os.rename(path / "run.json", path / "other.json")
    os.symlink("other.json", path / "run.json")


def pipe_config(path):
    (path / "config.yaml").unlink()
    os.mkfifo(path / "config.yaml")


@pytest.mark.parametrize(
    "damage",
    [damage_record, link_record, pipe_config,
     lambda path: (path / "config.yaml").unlink(),
     lambda path: (path / "config.yaml").write_text("a: &a [1]\nb: [*a, *a]\n"),
     lambda path: (path / "config.yaml").write_text("[" * 100_000)],
)  # fmt: skip
def test_damage_is_listed(tmp_path, damage):
    path = forge(tmp_path / "a")
    damage(path)
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
def test_records_end_at_a_damaged_line(tmp_path, line):
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
def test_numbers_are_finite(tmp_path, value):
    path = forge(tmp_path / "a", returns=(1.0,), steps=(500,))
    with (path / "metrics.jsonl").open("a") as file:
        file.write(f'{{"env_steps": 600, "eval/return_mean": {value}}}\n')
    np.testing.assert_array_equal(read_run(path).evaluations.return_mean, [1])


def linked(lines, path):
    (path / "other").write_bytes(b"\n".join(lines))
    (path / "metrics.jsonl").unlink()
    (path / "metrics.jsonl").symlink_to("other")


HARMS = {  # of the lines of an intact file of four evaluations -> what the damage names
    "line 2 ": lambda a, b, *rest: [a, b[:30], *rest],  # as by a full disk; what follows is whole
    "line 4 ": lambda *lines: [*lines[:3], lines[3][:-9]],
    "1000 env steps": lambda *lines: [*lines[:3], b""],
    "250 env steps": lambda a, b, *rest: [b, a, *rest],
    "eval/return_mean": lambda a, b, *rest: [a, b.replace(b"2.0", b"null"), *rest],
    "symbolic links": None,
    "": lambda *lines: [*lines, b""],
}


@pytest.mark.parametrize("named", HARMS)
def test_damaged_metrics_of_a_run_that_is_done(tmp_path, named):
    """Its final score is that of run.json; scores of its evaluations would be of a part of them."""
    path = forge(tmp_path / "a", returns=(1.0, 2.0, 3.0, 4.0))
    lines = (path / "metrics.jsonl").read_bytes().split(b"\n")[:4]
    if HARMS[named]:
        (path / "metrics.jsonl").write_bytes(b"\n".join(HARMS[named](*lines)))
    else:
        linked([*lines, b""], path)
    run = read_run(path)
    assert bool(run.damage) == bool(named)
    assert named in run.damage
    assert (run.status, score(run, "final")) == ("done", 4.0)
    assert (score(run, "auc") is None) == (score(run, "best_of_last:2") is None) == bool(named)


def test_a_line_that_is_being_written_is_no_damage(tmp_path):
    path = forge(tmp_path / "a", returns=(1.0, 2.0), status="running")
    (path / "metrics.jsonl").write_bytes((path / "metrics.jsonl").read_bytes()[:-10])
    run = read_run(path)
    assert (run.damage, [*run.evaluations.return_mean]) == ("", [1.0])


def test_the_steps_of_a_killed_run_are_those_of_its_records(tmp_path):
    """run.json of a run that was killed early says 0; of a run that is done it is right."""
    none = {"env_steps": 0, "wall_seconds": 0.0}
    given = {"returns": (1.0, 2.0), "steps": (300, 900)}
    killed = read_run(forge(tmp_path / "a", status="running", record=none, **given))
    assert killed.progress == (900, 9.0)
    later = {"env_steps": 950, "wall_seconds": 9.5}
    ahead = read_run(forge(tmp_path / "b", status="running", record=later, **given))
    assert ahead.progress == (950, 9.5)
    assert read_run(forge(tmp_path / "c", record=later, **given)).progress == (950, 9.5)


def test_damaged_timings_give_no_wall_times(tmp_path):
    path = forge(tmp_path / "a", returns=(1.0, 2.0))
    (path / "timings.jsonl").write_bytes((path / "timings.jsonl").read_bytes()[:-5])
    run = read_run(path)
    assert (run.damage, "line 2 " in run.damaged_times) == ("", True)
    assert np.isnan(run.evaluations.wall_seconds).all()


def test_names_of_runs_in_several_sweeps_tell_them_apart(tmp_path):
    for name in ("one/0_seed=0", "two/0_seed=0", "two/1_seed=1"):
        forge(tmp_path / name)
    names = {run.name for run in read_runs([str(tmp_path)])}
    assert names == {"one/0_seed=0", "two/0_seed=0", "1_seed=1"}
