"""A run on Ray as a process: signals, a lost head, nothing left behind."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

RUN = ("policy=r2d2", "env=cartpole", "pipeline=ray", "pipeline.num_actors=1",
       "run.stop_return=null",
       "run.total_steps=1000000", "run.checkpoint_every=300", "learner.replay_ratio=2",
       "memory.hidden=8", "torso.hidden=[8]", "logger.progress=off")  # fmt: skip


def start(run_dir: Path, *words: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "rlrun", *words]
    return subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, start_new_session=True, cwd=run_dir.parent
    )


def wait_for_checkpoint(run: "subprocess.Popen[str]", run_dir: Path, known: set[str]) -> set[str]:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        assert run.poll() is None, run.communicate()
        found = {p.name for p in (run_dir / "checkpoints").glob("step_*")}
        if found - known:
            return found
        time.sleep(0.1)
    run.kill()
    raise AssertionError(f"no checkpoint came: {run.communicate()}")


def children_of(run: "subprocess.Popen[str]", name: str = "") -> list[psutil.Process]:
    """The processes whose name has ``name`` in it, without those that end meanwhile."""
    found = []
    for process in psutil.Process(run.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            found += [process] * (name in process.name())
    return found


def ray_processes(run: "subprocess.Popen[str]") -> tuple[str, list[psutil.Process]]:
    """The directory of the run's own Ray, and its processes."""
    words: list[str] = []
    while not words:  # a process that has just been started has no command line
        head = children_of(run, "gcs_server")[0]
        words = [word for word in head.cmdline() if "rlrun-ray-" in word]
    files = next(part for part in words[0].split("/") if part.startswith("rlrun-ray-"))
    return files, children_of(run)


def runs(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def assert_nothing_is_left(files: str, processes: list[psutil.Process]) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        left = [*filter(runs, processes)]
        if not left and not Path("/tmp", files).exists():
            return
        time.sleep(0.1)
    raise AssertionError(f"left: {left or files}")


def test_signals_a_lost_head_and_a_killed_driver(tmp_path):
    """SIGTERM saves and ends (75); without a head a resumed run ends (7); so does SIGKILL all."""
    run_dir = tmp_path / "run"
    run = start(run_dir, *RUN, f"run.dir={run_dir}")
    known = wait_for_checkpoint(run, run_dir, set())
    files, processes = ray_processes(run)
    daemons = [*children_of(run, "gcs_server"), *children_of(run, "raylet")]
    assert len({os.getpgid(p.pid) for p in daemons} - {run.pid}) == 2, "groups of their own"
    os.killpg(run.pid, signal.SIGTERM)  # as a terminal or a job scheduler does: to all of them
    _, err = run.communicate(timeout=300)
    assert run.returncode == 75, err
    assert f"rlrun resume {run_dir}" in err
    assert_nothing_is_left(files, processes)
    steps = json.loads((run_dir / "run.json").read_text())["env_steps"]
    known |= {p.name for p in (run_dir / "checkpoints").glob("step_*")}

    resumed = start(run_dir, "resume", str(run_dir))
    wait_for_checkpoint(resumed, run_dir, known)
    files, processes = ray_processes(resumed)
    children_of(resumed, "gcs_server")[0].kill()
    _, err = resumed.communicate(timeout=300)
    assert resumed.returncode == 7, err
    assert [line for line in err.splitlines() if "rlrun: error" in line]
    assert "Traceback" not in err
    assert_nothing_is_left(files, processes)
    record = json.loads((run_dir / "run.json").read_text())
    assert record["status"] == "failed"
    assert record["env_steps"] > steps

    killed = start(run_dir, "resume", str(run_dir))
    while not children_of(killed, "gcs_server"):
        time.sleep(0.05)
    files, processes = ray_processes(killed)
    killed.kill()
    killed.communicate()
    assert_nothing_is_left(files, processes)


def test_a_ray_that_was_imported_before_the_run_is_refused():
    """Ray reads when it is imported whether it asks for a token."""
    code = "import ray; from rlrun.pipeline.ray.cluster import Cluster; " \
        "Cluster(None, cpus=1, gpus=0, custom={})"  # fmt: skip
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert "ResourceError" in done.stderr
    assert "RAY_AUTH_MODE=token" in done.stderr
