"""sweep.json, which may be a stranger's, and the table made from it."""

import json
import os
from io import StringIO

import pytest

from rlrun.errors import CheckpointError, ConfigError
from rlrun.run.files import seal
from rlrun.sweeps import record
from rlrun.sweeps.record import (
    FILE,
    JobProgress,
    JobRecord,
    Lines,
    LiveTable,
    SweepRecord,
    cells,
    differing,
    format_table,
)
from tests.in_process import assert_one_error

JOB = {"num": 0, "name": "0", "overrides": ["seed=0"], "status": "waiting"}


def written(directory, *jobs, **fields):
    directory.mkdir(exist_ok=True)
    (directory / FILE).write_bytes(seal({"jobs": jobs, **fields}))
    return directory


@pytest.mark.parametrize(
    "job",
    [{**JOB, "name": "../elsewhere"}, {**JOB, "name": "/etc"}, {**JOB, "name": "link"},
     {**JOB, "name": "link/x"}, {**JOB, "name": 3}, {**JOB, "num": 1}, {**JOB, "num": True},
     {**JOB, "status": "owned"}, {**JOB, "overrides": "seed=0"}, {**JOB, "overrides": [1]},
     {**JOB, "seconds": "x"}, {**JOB, "total_steps": [1]}, {**JOB, "threads": 0},
     {**JOB, "threads": True}, {**JOB, "pending": [1]}, {**JOB, "pending": "run.total_steps=5"},
     {**JOB, "more": 1}, {}, []],
)  # fmt: skip
def test_forged_records_are_refused(tmp_path, job):
    (tmp_path / "s").mkdir()
    (tmp_path / "s/link").symlink_to("/etc")
    with pytest.raises(CheckpointError):
        SweepRecord.read(written(tmp_path / "s", job))


def test_damaged_and_missing_records(rlrun, tmp_path):
    written(tmp_path / "s", {**JOB, "name": "../x"})
    assert_one_error(rlrun("resume", "s"), code=5)
    for workers in (0, True, "2", [2]):
        with pytest.raises(CheckpointError, match="workers"):
            SweepRecord.read(written(tmp_path / "s", JOB, workers=workers))
    path = written(tmp_path / "s", JOB) / FILE
    assert SweepRecord.read(tmp_path / "s").jobs[0].overrides == ["seed=0"]
    path.write_bytes(path.read_bytes().replace(b"seed=0", b"seed=1"))
    with pytest.raises(CheckpointError):
        SweepRecord.read(tmp_path / "s")
    path.unlink()
    with pytest.raises(ConfigError):
        SweepRecord.read(tmp_path / "s")
    path.symlink_to("/dev/zero")
    with pytest.raises(ConfigError):
        SweepRecord.read(tmp_path / "s")


def test_the_status_is_that_of_the_run(tmp_path):
    """A sweep that was killed could not write how its jobs ended."""
    jobs = [{**JOB, "num": i, "name": str(i), "status": "running"} for i in range(3)]
    written(tmp_path / "s", *jobs)
    for name, status in (("0", "done"), ("1", "running")):
        (tmp_path / "s" / name).mkdir()
        (tmp_path / "s" / name / "run.json").write_bytes(seal({"status": status}))
    assert [job.status for job in SweepRecord.read(tmp_path / "s").jobs] == [
        "done", "interrupted", "interrupted",
    ]  # fmt: skip


def test_done_without_a_usable_record_is_failed(tmp_path):
    """Pending overrides, of a resume that did not come to the job, leave it undone."""
    jobs = [{**JOB, "num": i, "name": str(i), "status": "done", "exit_code": 0} for i in range(4)]
    jobs[3]["pending"] = ["run.total_steps=9"]
    written(tmp_path / "s", *jobs)
    for name, content in (("1", b"{}garbage"), ("2", seal({"status": "done"}))):
        (tmp_path / "s" / name).mkdir()
        (tmp_path / "s" / name / "run.json").write_bytes(content)
    (tmp_path / "s/3").mkdir()
    (tmp_path / "s/3/run.json").write_bytes(seal({"status": "done"}))
    read = SweepRecord.read(tmp_path / "s").jobs
    assert [job.status for job in read] == ["failed", "failed", "done", "interrupted"]
    assert read[0].exit_code is None
    read[3].end(0)
    assert (read[3].status, read[3].pending) == ("done", [])


@pytest.mark.parametrize(
    ("code", "status"),
    [(0, "done"), (4, "failed"), (-9, "failed"), (75, "interrupted"), (-15, "interrupted")],
)
def test_how_a_job_ended_follows_from_its_exit_code(code, status):
    job = JobRecord(0, "0", [], "running")
    job.end(code, 1.0)
    assert (job.status, job.exit_code, job.seconds) == (status, code, 1.0)


def metrics(path, *records):
    with path.open("a") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


def test_progress_reads_what_is_new(tmp_path, monkeypatch):
    now = [10.0]
    monkeypatch.setattr(record.time, "monotonic", lambda: now[0])
    progress, path = JobProgress(tmp_path, 1000), tmp_path / "metrics.jsonl"
    progress.start()
    now[0] = 20.0
    assert (progress.env_steps, progress.score) == (0, None)
    metrics(path, {"env_steps": 100, "eval/return_mean": 2.5}, {"env_steps": 200})
    with path.open("a") as file:
        file.write('{"env_steps": 3')
    progress.read()
    assert (progress.env_steps, progress.score) == (200, 2.5)
    with path.open("a") as file:
        file.write("00}\nnot json\n")
    progress.read()
    assert progress.env_steps == 300
    assert progress.eta() == (1000 - 300) / (300 / 10)
    now[0] = 26.0
    assert progress.eta() is None, "no step in six seconds: it may compile"
    path.write_text("")
    metrics(path, {"env_steps": 50, "eval/return_mean": 1})
    progress.read()
    assert (progress.env_steps, progress.score) == (50, 1.0), "a resume cuts the file"


@pytest.mark.parametrize("kind", ["directory", "fifo", "link", "missing"])
def test_what_is_no_file_of_metrics_is_passed_over(tmp_path, kind):
    path = tmp_path / "metrics.jsonl"
    if kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to("/dev/zero")
    progress = JobProgress(tmp_path, 1000)
    progress.start()
    progress.finish()
    assert (progress.env_steps, progress.score, progress.eta()) == (0, None, None)


@pytest.mark.parametrize(
    "line",
    ['{"env_steps": 1e999}', '{"env_steps": -1}', f'{{"env_steps": {10**400}}}', "[" * 10**5,
     '{"env_steps": "9"}', '{"eval/return_mean": "9"}', "[1]", "null", "\\ud800", "9" * 5000,
     '{"env_steps": true}', f'{{"eval/return_mean": {10**400}}}', "x" * 2**20, "x" * 2**21],
    ids=range(14),
)  # fmt: skip
def test_lines_that_no_run_writes_are_passed_over(tmp_path, line):
    path = tmp_path / "metrics.jsonl"
    progress = JobProgress(tmp_path, 1000)
    metrics(path, {"env_steps": 10, "eval/return_mean": 1.0})
    with path.open("a") as file:
        file.write(f"{line}\n")
    progress.start()
    assert (progress.env_steps, progress.score) == (10, 1.0)
    metrics(path, {"env_steps": 20})
    progress.read()
    assert progress.env_steps == 20
    cells(JobRecord(0, "0", [], "running"), "", progress)
    (tmp_path / "run.json").write_bytes(seal({"env_steps": [], "eval": {"return_mean": {}}}))
    progress.finish()
    assert (progress.env_steps, progress.score) == (20, 1.0)


def test_the_time_left_of_a_resumed_run(tmp_path, monkeypatch):
    """3 MB of metrics are read before it starts; its checkpoint lies 100 env steps back."""
    path = tmp_path / "metrics.jsonl"
    lines = [json.dumps({"env_steps": i, "note": "x" * 1000}) + "\n" for i in range(3001)]
    path.write_text("".join(lines))
    now = [10.0]
    monkeypatch.setattr(record.time, "monotonic", lambda: now[0])
    progress = JobProgress(tmp_path, 4000)
    progress.start()
    now[0] = 11.0
    assert progress.began == (10.0, 3000)
    path.write_text("".join(lines[:2901]))
    progress.read()
    metrics(path, {"env_steps": 3100})
    now[0] = 21.0
    progress.read()
    assert progress.eta() == (4000 - 3100) / (200 / 10)


def jobs_of_every_status(tmp_path):
    statuses = [("done", 0), ("failed", -9), ("failed", 4), ("interrupted", 75), ("running", None)]
    jobs = [
        JobRecord(i, str(i), ["env=tmaze", f"seed={i}\x1b[2J"], status, code, 61.0)
        for i, (status, code) in enumerate([*statuses, ("waiting", None)])
    ]
    return jobs, {job.num: JobProgress(tmp_path, 50) for job in jobs}


def test_the_table(tmp_path):
    jobs, progress = jobs_of_every_status(tmp_path)
    progress[0].env_steps, progress[0].score = 50, 1.25
    lines = format_table(jobs, differing(jobs), progress)
    assert lines[0].split() == ["job", "overrides", "status", "steps", "score", "time"]
    assert lines[1].split() == ["0", r"seed=0\x1b[2J", "done", "50/50", "1.25", "1:01"]
    assert [line.split()[2] for line in lines[2:]] == [
        "failed", "failed", "interrupted", "running", "waiting",
    ]  # fmt: skip
    assert ["SIGKILL" in lines[2], "exit 4" in lines[3], "exit 75" in lines[4]] == [True] * 3
    assert not any("\x1b" in line for line in lines)
    assert lines[1].startswith("  0  seed=0"), "numbers end where their column ends"


def test_quiet_shows_failures_alone(capsys):
    display = Lines([], {}, quiet=True)
    display.ended(JobRecord(0, "0", [], "failed", 4), "job 0 failed")
    display.ended(JobRecord(1, "1", [], "done", 0), "job 1 is done")
    display.close()
    assert capsys.readouterr() == ("", "rlrun: job 0 failed\n")


def test_the_live_table_shows_those_that_run(tmp_path, monkeypatch):
    """24 rows show those that run, of 100 jobs; the last frame has all."""
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("LINES", "24")
    jobs = [JobRecord(i, str(i), [f"seed={i}"], "waiting") for i in range(100)]
    jobs[70].status = "running"
    monkeypatch.setenv("TERM", "xterm")
    out = StringIO()
    out.isatty = lambda: True
    live = LiveTable(jobs, {}, out)
    live.show()
    first = out.getvalue()
    assert "seed=70" in first
    assert "seed=99" not in first
    live.ended(JobRecord(3, "3", [], "failed", 4), "job 3 failed [red]")
    live.close()
    assert "seed=99" in out.getvalue()
    assert "job 3 failed [red]" in out.getvalue()
