"""sweep.json, which may be a stranger's, and the table made from it."""

import json
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from rlrun.errors import CheckpointError, ConfigError
from rlrun.rundir.durable import seal
from rlrun.sweep import table
from rlrun.sweep.record import FILE, JobRecord, SweepRecord
from rlrun.sweep.table import JobProgress, LiveTable, format_table
from tests.in_process import Done

JOB = {"num": 0, "name": "0", "overrides": ["seed=0"], "status": "waiting"}


def written(directory: Path, *jobs: dict[str, Any], **fields: Any) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / FILE).write_bytes(seal({"jobs": jobs, **fields}))
    return directory


@pytest.mark.parametrize(
    "job",
    [
        {**JOB, "name": "../elsewhere"},
        {**JOB, "name": "/etc"},
        {**JOB, "name": "link"},
        {**JOB, "name": "link/x"},
        {**JOB, "name": 3},
        {**JOB, "num": 1},
        {**JOB, "num": True},
        {**JOB, "num": "0"},
        {**JOB, "status": "owned"},
        {**JOB, "exit_code": "0"},
        {**JOB, "overrides": "seed=0"},
        {**JOB, "overrides": [1]},
        {**JOB, "seconds": "x"},
        {**JOB, "total_steps": [1]},
        {**JOB, "more": 1},
        {},
        [],
    ],
)
def test_forged_records_are_refused(tmp_path: Path, job: dict[str, Any]) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s/link").symlink_to("/etc")
    with pytest.raises(CheckpointError, match="is damaged"):
        SweepRecord.read(written(tmp_path / "s", job))


def test_damaged_and_missing_records(tmp_path: Path) -> None:
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


def test_a_forged_sweep_is_one_line(rlrun: Callable[..., Done], tmp_path: Path) -> None:
    written(tmp_path / "s", {**JOB, "name": "../x"})
    done = rlrun("resume", "s")
    assert (done.code, done.out, done.err.count("\n")) == (5, "", 1)


def test_the_status_is_that_of_the_run(tmp_path: Path) -> None:
    """A sweep that was killed could not write how its jobs ended."""
    jobs = [{**JOB, "num": i, "name": str(i), "status": "running"} for i in range(3)]
    written(tmp_path / "s", *jobs)
    for name, status in (("0", "done"), ("1", "running")):
        (tmp_path / "s" / name).mkdir()
        (tmp_path / "s" / name / "run.json").write_bytes(seal({"status": status}))
    assert [job.status for job in SweepRecord.read(tmp_path / "s").jobs] == [
        "done", "interrupted", "interrupted",
    ]  # fmt: skip


def metrics(path: Path, *records: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


def test_progress_reads_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 20.0])
    monkeypatch.setattr(table.time, "monotonic", lambda: next(clock))
    progress, path = JobProgress(tmp_path, 1000), tmp_path / "metrics.jsonl"
    progress.start()
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
    path.write_text("")
    metrics(path, {"env_steps": 50, "eval/return_mean": 1})
    progress.read()
    assert (progress.env_steps, progress.score) == (50, 1.0), "a resume cuts the file"


def jobs_of_every_status(tmp_path: Path) -> tuple[list[JobRecord], dict[int, JobProgress]]:
    statuses = [("done", 0), ("failed", -9), ("failed", 4), ("interrupted", 75), ("running", None)]
    jobs = [
        JobRecord(i, str(i), ["env=tmaze", f"seed={i}\x1b[2J"], status, code, 61.0)  # type: ignore[arg-type]
        for i, (status, code) in enumerate([*statuses, ("waiting", None)])
    ]
    return jobs, {job.num: JobProgress(tmp_path, 50) for job in jobs}


def test_the_table(tmp_path: Path) -> None:
    jobs, progress = jobs_of_every_status(tmp_path)
    progress[0].env_steps, progress[0].score = 50, 1.25
    lines = format_table(jobs, progress)
    assert lines[0].split() == ["job", "overrides", "status", "steps", "score", "time"]
    assert lines[1].split() == ["0", r"seed=0\x1b[2J", "done", "50/50", "1.25", "1:01"]
    assert [line.split()[2] for line in lines[2:]] == [
        "failed", "failed", "interrupted", "running", "waiting",
    ]  # fmt: skip
    assert ["SIGKILL" in lines[2], "exit 4" in lines[3], "exit 75" in lines[4]] == [True] * 3
    assert not any("\x1b" in line for line in lines)


def test_the_live_table_fits_the_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """24 rows show those that run, of 100 jobs; the last frame has all."""
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("LINES", "24")
    jobs = [JobRecord(i, str(i), [f"seed={i}"], "waiting") for i in range(100)]
    jobs[70].status = "running"
    out = StringIO()
    live = LiveTable(jobs, {}, out)
    live.show()
    shown = {job.num for job in live._chosen(20)}
    assert len(shown) == 20
    assert 70 in shown
    live.ended(JobRecord(3, "3", [], "failed", 4), "job 3 failed [red]")
    live.close()
    text = out.getvalue()
    assert "seed=99" in text
    assert "rlrun: job 3 failed [red]" in text
    assert "1 running, 99 waiting" in text
