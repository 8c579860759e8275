"""Jobs on Ray: ends of every kind, lost workers, signals; a sweep by the command line."""

import dataclasses
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from rlrun.errors import Interrupted, ResourceError
from rlrun.schema.studies import RayLauncherConfig
from rlrun.sweeps import ray_pool
from rlrun.sweeps.ray_pool import RayPool, job_environment
from rlrun.sweeps.record import SweepRecord
from tests.in_process import assert_one_error, files_under
from tests.sweeps.jobs import finish, start, statuses
from tests.waiting import is_running, wait_until

if find_spec("ray") is None:  # importing it would fix how it authenticates
    pytest.skip("needs the extra ray", allow_module_level=True)
SETTINGS = RayLauncherConfig(address=None, num_cpus=1, num_gpus=0, resources={}, retries=1)


@pytest.fixture(scope="module")
def pool():
    with RayPool(SETTINGS, 2) as made:
        yield made


def worker_of(job):
    """The worker of Ray above a job and its fork server."""
    assert job.pid is not None
    return psutil.Process(job.pid).parents()[1]


def test_no_end_of_a_job_ends_its_actor(pool, tmp_path):
    calls = [("succeed",), ("exit_with", 3), ("segfault",), ("no_such_function",), ("cores",)]
    jobs, most = [start(pool, tmp_path, *call, threads=3) for call in calls], 0
    while any(job.code is None for job in jobs):
        pool.wait_any(0.05)
        most = max(most, len(pool.running))
    assert [job.code for job in jobs] == [0, 3, -signal.SIGSEGV, 9, 3]
    assert most <= 2, "at a time"
    assert "out\nerr\n" in (tmp_path / "log").read_text()
    assert len({job.pid for job in jobs}) == len(jobs)


def test_stop_asks_once_to_save(pool, tmp_path):
    saved = tmp_path / "saved"
    job = start(pool, tmp_path, "save_slowly", str(saved))
    waiting = [start(pool, tmp_path, "sleep", 300) for _ in range(2)]
    wait_until(saved.exists, pool)
    wait_until(lambda: waiting[0].pid, pool)
    pool.stop(waiting[1])
    pool.stop(waiting[0], signal.SIGKILL)
    pool.stop(job)
    pool.stop(job)
    assert finish(pool, job, waiting[0]) == [75, -signal.SIGKILL], "what was killed is not retried"
    assert saved.read_text() == "begins, done"
    assert waiting[1].code is None


@pytest.mark.parametrize("lost", ["worker", "process"])
def test_a_lost_job_goes_on_from_its_checkpoint(pool, tmp_path, lost):
    """Its second process is ``rlrun resume``, whose error tells that it was called."""
    (tmp_path / "config.yaml").write_text("no_such_key: 1\n")
    job = start(pool, tmp_path, "save_locked", str(tmp_path / "saved"))
    wait_until((tmp_path / "saved").exists, pool)
    wait_until(lambda: job.pid, pool)
    first = job.pid
    assert first is not None
    if lost == "worker":
        worker_of(job).kill()
    else:
        os.kill(first, signal.SIGKILL)
    assert finish(pool, job) == [2]
    assert job.pid != first
    wait_until(lambda: not is_running(first))  # its death may take a while on a busy machine
    log = (tmp_path / "log").read_text()
    assert "rlrun: error: " in log.splitlines()[-1], "of the config that is none"
    if lost == "worker":
        assert (tmp_path / "saved").read_text() == "begins, done", "it was asked to save"


def test_a_job_that_is_lost_too_often_has_failed(pool, tmp_path):
    job = start(pool, tmp_path, "sleep", 300)
    for _ in range(2):
        wait_until(lambda: job.pid, pool)
        worker = worker_of(job)
        worker.kill()
        wait_until(lambda: job.pid is None or job.code is not None, pool)
    assert finish(pool, job) == [-signal.SIGKILL]
    assert "hydra.launcher.retries = 1" in job.why


def test_a_directory_that_the_node_has_not(pool, tmp_path):
    job = start(pool, tmp_path / "nowhere", "succeed")
    assert finish(pool, job) == [6]


def test_environment_of_a_job():
    """Private: only a cluster of several machines has two environments."""
    own = {"PATH": "p", "RAY_JOB_ID": "1", "RAY_AUTH_MODE": "token", "RLRUN_TRUST": "other"}
    own["OMP_NUM_THREADS"] = "1"  # Ray sets it
    assert job_environment(own, {"RLRUN_TRUST": "mypkg"}) == {
        "PATH": "p", "RAY_AUTH_MODE": "token", "RLRUN_TRUST": "mypkg",
    }  # fmt: skip


TINY = [
    "policy=random", "env=bandit", "run.total_steps=64", "logger.tensorboard=false",
    "run.eval_episodes=1", "hydra.sweep.subdir=${seed}", "sweep.dir=s",
]  # fmt: skip


def test_a_sweep_by_the_command_line(pool, tmp_path, monkeypatch, capsys):
    from rlrun.cli.main import main

    monkeypatch.chdir(tmp_path)
    assert main(["-m", *TINY, "seed=0,1", "hydra/launcher=ray"]) == 0
    assert statuses(Path("s")) == ["done", "done"]
    assert {p.name for p in Path("s/0").iterdir()} >= {"console.txt", "run.json", "config.yaml"}
    Path("s/1/run.json").unlink()
    assert main(["resume", "s"]) == 0
    assert statuses(Path("s")) == ["done", "done"]


@pytest.mark.parametrize(
    ("words", "text"),
    [("retries=-1", "hydra.launcher.retries = -1"), ("num_cpus=0", "hydra.launcher.num_cpus = 0"),
     ("address=10.1.2.3:6379", "hydra.launcher.address = 10.1.2.3:6379"),
     ("address=nowhere", "nowhere"), ("resources={GPU:1}", "hydra.launcher.resources.GPU = 1"),
     ("workers=0", "hydra.launcher.workers = 0"), ("retrys=1", "retries")],
)  # fmt: skip
def test_keys_that_are_refused(rlrun, monkeypatch, words, text):
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    assert_one_error(rlrun("-m", "seed=0,1", "hydra/launcher=ray", f"hydra.launcher.{words}"), text)
    assert files_under(Path(".")) == []


def test_a_cluster_that_refuses_names_the_launchers_key(monkeypatch):
    """And a SIGTERM meanwhile, for which Ray exits, asks to be resumed."""
    errors = iter([ConnectionError("no"), SystemExit(15)])

    def init(**options):
        raise next(errors)

    fake = SimpleNamespace(is_initialized=lambda: False, init=init)
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setattr(ray_pool, "require_head", lambda address, key: None)
    pool = RayPool(dataclasses.replace(SETTINGS, address="127.0.0.1:1"), 1)
    with pytest.raises(ResourceError, match=r"hydra\.launcher\.address = 127.0.0.1:1"):
        pool.__enter__()
    with pytest.raises(Interrupted) as stopped:
        pool.__enter__()
    assert stopped.value.exit_code == 75


def test_ray_is_not_installed(rlrun, monkeypatch):
    monkeypatch.setattr("rlrun.config.config_errors.find_spec", lambda name: None)
    assert_one_error(
        rlrun("-m", "seed=0,1", "hydra/launcher=ray"), "hydra/launcher = ray", "[ray]'", code=7
    )
    assert files_under(Path(".")) == []


def test_addresses_are_typed_again(rlrun, monkeypatch):
    """A stranger's sweep.json must not choose to whose Ray or mlflow a resume connects."""
    monkeypatch.setattr("rlrun.cli.sweep.run_tasks", lambda *given, **more: 130)
    address = "hydra.launcher.address=127.0.0.1:6379"
    done = rlrun("-m", "seed=0,1", "hydra/launcher=ray", "sweep.dir=s", address)
    assert done.code == 130
    assert f"rlrun resume {Path('s').absolute()} {address}" in done.err
    assert_one_error(rlrun("resume", "s"))
    assert rlrun("resume", "s", address, "hydra.launcher.workers=3").code == 130
    assert rlrun("resume", "s", "hydra/launcher=local").code == 130
    record = SweepRecord.read(Path("s"))
    record.jobs[0].pending = ["logger.mlflow=http://stranger/"]
    record.write(Path("s"))
    assert_one_error(rlrun("resume", "s"), "logger.mlflow = http://stranger/")
    assert rlrun("resume", "s", "logger.mlflow=null").code == 130


def test_a_killed_sweep_leaves_no_process(tmp_path):
    """Its job is asked to save; Ray's processes and the job are gone."""
    code = (
        "import sys; from pathlib import Path; from rlrun.sweeps.ray_pool import RayPool\n"
        "from tests.sweeps.test_ray_pool import SETTINGS, start; path = Path(sys.argv[1])\n"
        "with RayPool(SETTINGS, 1) as pool:\n"
        "    job = start(pool, path, 'save_slowly', str(path / 'saved'))\n"
        "    while not (path / 'saved').exists() or job.pid is None: pool.wait_any(0.05)\n"
        "    (path / 'pids').write_text(f'{job.pid} {pool._cluster.files}')\n"
        "    pool.wait_any(60)\n"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    env.pop("RAY_AUTH_TOKEN", None)
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], env=env) as process:
        try:
            wait_until(lambda: (tmp_path / "pids").exists() and (tmp_path / "pids").read_text())
        finally:
            process.kill()
    pid, files = (tmp_path / "pids").read_text().split()
    wait_until(lambda: not psutil.pid_exists(int(pid)))
    assert (tmp_path / "saved").read_text() == "begins, done"
    wait_until(lambda: not Path(files).exists())
    found = [p for p in psutil.process_iter(["cmdline"]) if files in str(p.info["cmdline"])]
    assert found == []
