"""run.json, the digest and the lock."""

import fcntl
import hashlib
import json
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors import SafetensorError

from rlrun import version
from rlrun.cli.main import main
from rlrun.errors import CheckpointError, ConfigError, LockedError, StorageError
from rlrun.pipeline.parts import LoopProgress
from rlrun.run import record as run_record
from rlrun.run.files import lock_run_dir
from rlrun.run.manifest import run_digest
from rlrun.run.record import RunRecord
from rlrun.run.tensors import write_tensors
from rlrun.types import Counters
from tests.pipeline.make import on_steps


def record(**more):
    return RunRecord(seed=3, device="cpu", threads=1, parameters=42, **more)


def test_a_record_is_written_at_the_start_and_at_the_end(tmp_path):
    run = record()
    run.write(tmp_path)
    start = json.loads((tmp_path / "run.json").read_bytes())
    assert (start["status"], start["exit_code"], start["eval"]) == ("running", None, None)
    assert start["versions"]["torch"] == torch.__version__
    assert start["versions"]["numpy"] == np.__version__
    assert set(start["versions"]) == {"python", "rlrun", "torch", "numpy", "gymnasium", "hydra"}
    assert start["host"]["cpu_count"] == os.cpu_count()
    assert start["host"]["blas"], "its products decide last bits"
    assert start["command"] == sys.argv
    run.status, run.exit_code, run.env_steps = "done", 0, 1000
    run.eval = {"return_mean": 487.5, "episodes": 20}
    run.write(tmp_path)
    assert RunRecord.read(tmp_path) == run
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_run_json_of_a_running_job_has_its_counters(tmp_path, monkeypatch):
    """Within seconds, in a resumed run from its start; also where the job is killed later."""
    seen = []

    def waiting(n):
        here, deadline = RunRecord.read(tmp_path), time.monotonic() + 120
        while n == 100 and here.env_steps <= seen[0][0] and time.monotonic() < deadline:
            time.sleep(0.05)  # for the thread that writes it
            here = RunRecord.read(tmp_path)
        if n in (1, 100):
            seen.append((here.env_steps, here.updates, here.status))

    line = ["policy=dqn", "env=bandit", "debug=smoke", "-q", "run.stop_return=null"]
    monkeypatch.setattr(run_record, "EVERY_SECONDS", 0.0)
    with monkeypatch.context() as patch:
        on_steps(patch, training=waiting)
        assert main([*line, "run.total_steps=1000", f"run.dir={tmp_path}"]) == 0
    assert seen[0] == (0, 0, "running")
    assert 0 < seen[1][0] < 1000
    assert seen[1][2] == "running"
    done = RunRecord.read(tmp_path)
    seen.clear()
    with monkeypatch.context() as patch:
        on_steps(patch, training=waiting)
        assert main(["resume", str(tmp_path), "run.total_steps=1100", "-q"]) == 0
    assert seen[0] == (done.env_steps, done.updates, "running")


def test_a_resumed_run_is_quiet_if_it_is_asked_to_be(tmp_path, capsys, monkeypatch):
    typed = (["-q"], [], ["-q"], ["logger.progress=off"], [])
    line = ["policy=random", "env=bandit", "debug=smoke", f"run.dir={tmp_path}"]
    shown = []
    for n, words in enumerate(typed):
        begin = ["resume", str(tmp_path)] if n else line
        words = [*begin, f"run.total_steps={200 * n + 200}", *words]
        monkeypatch.setattr("sys.argv", ["rlrun", *words])
        assert main(words) == 0
        shown.append(capsys.readouterr().out != "")
    assert shown == [False, True, False, False, False]


def test_a_record_that_cannot_be_written_while_a_run_goes_on_is_left_out(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(run_record, "time", SimpleNamespace(monotonic=lambda: now[0]))
    progress = LoopProgress(Counters(), rollbacks=1)
    own = record()
    report = run_record.RunningRecord(
        own, tmp_path / "gone", progress, SimpleNamespace(wall_seconds=3.5)
    )
    progress.counters.env_steps = 64
    report()
    assert own.env_steps == 0  # not due
    now[0] += run_record.EVERY_SECONDS
    report()
    assert (own.env_steps, own.wall_seconds, own.rollbacks) == (64, 3.5, 1)
    (tmp_path / "gone").mkdir()
    now[0] += run_record.EVERY_SECONDS
    report()
    assert not (tmp_path / "gone/run.json").exists()  # nothing has changed
    progress.counters.updates = 1
    report()
    assert RunRecord.read(tmp_path / "gone").updates == 1


def test_a_directory_that_is_no_run_directory_is_a_config_error(tmp_path):
    with pytest.raises(ConfigError):
        RunRecord.read(tmp_path)
    for content in (b"{", b"[]", b'{"seed": 1}'):
        (tmp_path / "run.json").write_bytes(content)
        with pytest.raises(CheckpointError):
            RunRecord.read(tmp_path)
    with pytest.raises(StorageError):
        record().write(tmp_path / "gone")


def committed(*arguments):
    who = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *who, *arguments], check=True, capture_output=True, timeout=300)


@pytest.fixture
def asked_anew():
    version._package_status.cache_clear()
    yield
    version._package_status.cache_clear()


def test_a_slow_answer_of_git_is_not_kept(tmp_path, monkeypatch, asked_anew):
    monkeypatch.chdir(tmp_path)
    committed("init", "-q")
    committed("commit", "-q", "--allow-empty", "-m", "first")
    monkeypatch.setattr(version, "PACKAGE", tmp_path)
    for seconds in (0.0, 60.0):
        monkeypatch.setattr(version, "GIT_SECONDS", seconds)
        found = version.git_state()
        assert (found is not None) == (seconds > 0)
    version._package_status.cache_clear()
    version.begin_git_state()
    (asked,) = version._begun
    version.end_git_state()
    assert asked.returncode is not None
    assert asked.stdout.closed
    assert version.git_state() == found


def test_git_commit_and_dirty_flag_or_nothing(tmp_path, monkeypatch, asked_anew):
    monkeypatch.setattr(version, "PACKAGE", tmp_path / "elsewhere")
    monkeypatch.setattr(version, "GIT_SECONDS", 60.0)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.chdir(tmp_path)
    assert version.git_state() is None

    committed("init", "-q")
    assert version.git_state() is None  # no commit yet
    committed("commit", "-q", "--allow-empty", "-m", "first")
    found = version.git_state()
    assert len(found["commit"]) == 40
    assert found["dirty"] is False
    (tmp_path / "new.py").touch()
    assert version.git_state()["dirty"] is True
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))  # as in a hook of another one
    assert version.git_state()["commit"] == found["commit"]
    monkeypatch.setattr(version, "GIT_SECONDS", 0.0)
    assert version.git_state() is None
    monkeypatch.setenv("PATH", "")
    assert version.git_state() is None


def test_the_digest_follows_its_docstring(tmp_path):
    metrics, file = tmp_path / "metrics.jsonl", tmp_path / "last.safetensors"
    metrics.write_bytes(b'{"env_steps": 1}\n')

    def digest(tensors):
        file.unlink(missing_ok=True)
        write_tensors(file, tensors, {})
        return run_digest(metrics, file)

    weights = {"b": torch.tensor([[1.0, 2.0]]), "a": torch.tensor(True)}
    expected = hashlib.sha256(
        b'{"env_steps": 1}\n'
        + b"a\0torch.bool\0[]\0\x01"
        + b"b\0torch.float32\0[1, 2]\0"
        + b"\0\0\x80?\0\0\0@"
    ).hexdigest()
    assert digest(weights) == expected
    assert digest(dict(reversed(weights.items()))) == expected
    strided = {**weights, "b": torch.tensor([[1.0, 9.0], [2.0, 9.0]])[:, 0][None]}
    assert digest(strided) == expected
    others = [
        {**weights, "b": torch.tensor([1.0, 2.0])},
        {**weights, "b": torch.tensor([[1.0, 2.0]], dtype=torch.float64)},
        {**weights, "b": torch.tensor([[1.0, 2.0000002]])},
        {"b": weights["b"]},
        {"b": weights["b"], "c": weights["a"]},
    ]
    assert len({expected, *map(digest, others)}) == 6
    metrics.write_bytes(b'{"env_steps": 2}\n')
    assert digest(weights) != expected
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(SafetensorError):
        run_digest(metrics, file)


def test_a_locked_directory_is_refused_and_free_afterwards(tmp_path):
    with (
        lock_run_dir(tmp_path),
        pytest.raises(LockedError, match=f"process {os.getpid()}") as caught,
        lock_run_dir(tmp_path),
    ):
        raise AssertionError
    assert caught.value.exit_code == 8
    with lock_run_dir(tmp_path):
        pass
    with pytest.raises(StorageError), lock_run_dir(tmp_path / "gone"):
        raise AssertionError


def test_the_lock_dies_with_its_process_even_when_a_forked_worker_lives_on(tmp_path):
    code = (
        "import os, sys, time; from pathlib import Path\n"
        "from rlrun.run.files import lock_run_dir\n"
        "with lock_run_dir(Path(sys.argv[1])):\n"
        "    worker = os.fork()\n"
        "    if not worker: print(os.getpid(), flush=True)  # after the hooks of the fork\n"
        "    time.sleep(60)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE)
    worker = int(child.stdout.readline())
    try:
        with pytest.raises(LockedError, match=f"process {child.pid} "), lock_run_dir(tmp_path):
            raise AssertionError
        child.kill()
        child.wait(timeout=300)
        os.kill(worker, 0)  # still there
        with lock_run_dir(tmp_path):
            pass
    finally:
        os.kill(worker, signal.SIGKILL)
        child.stdout.close()


def test_a_file_system_without_locks_is_warned_about(tmp_path, monkeypatch, caplog):
    def unsupported(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with lock_run_dir(tmp_path):
        pass
    assert len(caplog.records) == 1


def test_a_run_lets_go_of_its_log(tmp_path):
    """A process may hold several runs: what the second one logs is not in the first one's file."""
    line = ["policy=random", "env=bandit", "debug=smoke", "-q"]
    assert main([*line, f"run.dir={tmp_path / 'one'}"]) == 0
    files = [h for h in logging.getLogger().handlers if isinstance(h, logging.FileHandler)]
    assert not [h for h in files if Path(h.baseFilename).is_relative_to(tmp_path)]
    before = (tmp_path / "one/rlrun.log").read_bytes()
    logging.getLogger("rlrun").warning("of nobody's run")
    assert (tmp_path / "one/rlrun.log").read_bytes() == before
