"""A full disk: exit 6 with one line, the previous checkpoint valid, the record told."""

import errno
import io
import os
import resource
from pathlib import Path

import pytest

from rlrun.cli.main import main
from rlrun.run.diff import differences
from tests.in_process import assert_one_line
from tests.pipeline.make import on_steps, record_of, saved, state_of

LINE = (
    "policy=dqn", "env=bandit", "debug=smoke", "-q", "run.stop_return=null", "run.total_steps=320",
    "run.checkpoint_every=100", "torso.hidden=[64]", "logger.every=20", "run.eval_episodes=1",
    "logger.tensorboard=false",
)  # fmt: skip


def failed(capsys: pytest.CaptureFixture[str], code: int, run_dir: Path) -> str:
    """The one line of a run that ended in ``code``."""
    err = capsys.readouterr().err
    assert (code, err.count("rlrun: error"), err.count("Traceback")) == (6, 1, 0)
    assert err.count("\n") == 1
    record = record_of(run_dir)
    assert (record["status"], record["exit_code"]) == ("failed", 6)
    return err


def test_a_checkpoint_that_does_not_fit(tmp_path, capsys, monkeypatch):
    """Once there is space again, the run goes on as if nothing had been."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert main([*LINE, f"run.dir={whole}"]) == 0
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def full(n: int) -> None:  # no file may be larger
        if saved(cut):
            resource.setrlimit(resource.RLIMIT_FSIZE, (12_000, before[1]))

    with monkeypatch.context() as patch:
        on_steps(patch, training=full)
        try:
            code = main([*LINE, f"run.dir={cut}"])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    failed(capsys, code, cut)
    assert state_of(cut)["counters"]["env_steps"] < 200
    assert not list(cut.rglob(".tmp_*.json"))
    assert main(["resume", str(cut), "-q"]) == 0
    assert not list(differences(state_of(whole), state_of(cut)))
    assert (cut / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()


@pytest.mark.parametrize("name", ["metrics", "timings"])
def test_a_record_that_does_not_fit(tmp_path, capsys, monkeypatch, name):
    run_dir, left = tmp_path / "run", iter(range(2))

    class Full(io.FileIO):
        def write(self, data):
            if str(self.name).endswith(f"{name}.jsonl") and next(left, None) is None:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().write(data)

    monkeypatch.setattr(io, "FileIO", Full)
    err = failed(capsys, main([*LINE, f"run.dir={run_dir}"]), run_dir)
    assert f"{name}.jsonl" in err


def test_a_disk_that_is_full_at_the_start(tmp_path, capsys, monkeypatch):
    """Whatever file is the first that cannot be written."""

    def fsync(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # a write names no file

    monkeypatch.setattr(os, "fsync", fsync)
    assert main([*LINE, f"run.dir={tmp_path / 'run'}"]) == 6
    assert_one_line(capsys)
