"""A full disk: exit 6 with one line, the previous checkpoint valid, the record told."""

import errno
import io
import json
import os
import resource
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rlrun.cli.main import main
from rlrun.log import Log
from rlrun.pipeline.serial import Pipeline
from rlrun.rundir.checkpoint import load_newest
from tests.exact import differences

LINE = (
    "policy=dqn", "env=bandit", "debug=smoke", "-q", "run.stop_value=null", "run.total_steps=320",
    "run.checkpoint_every=100", "torso.hidden=[64]", "logger.every=20",
)  # fmt: skip


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Every file larger than ``size`` bytes cannot be written, as if the disk were full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def on_call(patch: pytest.MonkeyPatch, cls: type, name: str, number: int, act: Callable) -> None:
    """Call ``act`` before the ``number``-th call of a method."""
    method, calls = getattr(cls, name), []

    def counted(self, *given, **named):
        calls.append(1)
        if len(calls) == number:
            act(self)
        return method(self, *given, **named)

    patch.setattr(cls, name, counted)


def failed(capsys: pytest.CaptureFixture[str], code: int, run_dir: Path) -> str:
    """The one line of a run that ended in ``code``."""
    err = capsys.readouterr().err
    assert (code, err.count("rlrun: error"), err.count("Traceback")) == (6, 1, 0)
    assert err.count("\n") == 1
    record = json.loads((run_dir / "run.json").read_text())
    assert (record["status"], record["exit_code"]) == ("failed", 6)
    return err


def test_a_checkpoint_that_does_not_fit(tmp_path, capsys, monkeypatch):
    """Once there is space again, the run goes on as if nothing had been."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    line = (*LINE, "logger.tensorboard=false")
    assert main([*line, f"run.dir={whole}"]) == 0
    with largest_file(10**9), monkeypatch.context() as m:
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        full = lambda _: resource.setrlimit(resource.RLIMIT_FSIZE, (12_000, hard))  # noqa: E731
        on_call(m, Pipeline, "_save", 2, full)
        code = main([*line, f"run.dir={cut}"])
    failed(capsys, code, cut)
    assert load_newest(cut / "checkpoints")[0]["counters"]["env_steps"] < 200
    assert not list(cut.rglob(".tmp_*.json"))
    assert main(["resume", str(cut), "-q"]) == 0
    assert not list(differences(*(load_newest(d / "checkpoints")[0] for d in (whole, cut))))
    assert (cut / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()


@pytest.mark.parametrize("name", ["metrics", "timings"])
def test_a_record_that_does_not_fit(tmp_path, capsys, monkeypatch, name):
    class Full(io.FileIO):
        def write(self, data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fill(log: Log) -> None:
        records = getattr(log, f"_{name}")
        before, records._file = records._file, Full(os.dup(records._file.fileno()), "a")
        before.close()

    on_call(monkeypatch, Log, "write", 3, fill)
    run_dir = tmp_path / "run"
    err = failed(capsys, main([*LINE, f"run.dir={run_dir}"]), run_dir)
    assert f"{name}.jsonl: cannot be written (No space left on device)" in err


def test_a_disk_that_is_full_at_the_start(tmp_path, capsys, monkeypatch):
    """Whatever file is the first that cannot be written."""

    def fsync(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # a write names no file

    monkeypatch.setattr(os, "fsync", fsync)
    assert main([*LINE, f"run.dir={tmp_path / 'run'}"]) == 6
    assert capsys.readouterr().err.count("\n") == 1


def test_tensorboard_is_a_view(tmp_path, capsys, monkeypatch):
    """Its files may be removed, or the disk be full for them: one warning, the run goes on."""
    run_dir = tmp_path / "run"

    def remove(pipeline: Pipeline) -> None:
        for path in run_dir.glob("events.out.tfevents.*"):
            path.unlink()

    on_call(monkeypatch, Pipeline, "_save", 1, remove)
    assert main([*LINE, f"run.dir={run_dir}"]) == 0
    assert capsys.readouterr().err.count("TensorBoard logging stops") <= 1
    assert (run_dir / "rlrun.log").read_text().count("TensorBoard logging stops") == 1


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Callable[[str], Path]]:
    """Mounts a file system of the given size, where that is allowed."""
    disk = tmp_path / "disk"
    disk.mkdir()

    def mount(size: str) -> Path:
        line = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)]
        if os.geteuid() or subprocess.run(line, capture_output=True, check=False).returncode:
            pytest.skip("mounting needs root")
        return disk

    yield mount
    if os.path.ismount(disk):
        subprocess.run(["umount", "-l", str(disk)], check=False)


@pytest.mark.parametrize("size", ["8k", "64k"])
def test_a_file_system_that_fills_up(small_disk, capsys, size):
    run_dir = small_disk(size) / "run"
    code = main([*LINE, "torso.hidden=[8]", f"run.dir={run_dir}"])
    err = capsys.readouterr().err
    assert (code, err.count("rlrun: error"), err.count("Traceback")) == (6, 1, 0)
    if size == "64k":
        assert json.loads((run_dir / "run.json").read_text())["exit_code"] == 6
