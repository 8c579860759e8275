"""Jobs forked from the server: ends of every kind, order, signals, the death of the server.

Private: the process of the server is killed or replaced; a sweep shows by chance alone when it is.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rlrun.cli import sweep
from rlrun.cli.main import main
from rlrun.errors import ResourceError
from rlrun.run.files import read_record
from rlrun.sweeps import pool as pool_module
from rlrun.sweeps.pool import CORES, MAIN, Pool, begin_server
from tests.sweeps.jobs import finish, start
from tests.waiting import is_running, wait_until

BARE = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from rlrun.sweeps import "
    "fork_server; fork_server.preload = lambda: None; fork_server.main(sys.argv)"
)


@pytest.fixture(scope="module")
def pool():
    with Pool(2) as made:
        yield made


@pytest.fixture
def bare(monkeypatch):
    """Servers that import nothing beforehand, which start at once."""
    monkeypatch.setattr(pool_module, "_SERVER", BARE)


def wait_for_pid(pool, job):
    wait_until(lambda: job.pid is not None, pool)
    return job.pid


def test_no_end_of_a_job_ends_the_pool(pool, tmp_path):
    calls = [("succeed",), ("exit_with", 3), ("exit_with", "text"), ("segfault",)]
    calls += [("out_of_memory",), ("no_such_function",), ("workers",)]
    jobs = [start(pool, tmp_path, *call) for call in calls]
    jobs.append(start(pool, tmp_path, "cores", threads=5))
    assert finish(pool, *jobs) == [0, 3, 1, -signal.SIGSEGV, 9, 9, 0, 5]
    log = (tmp_path / "log").read_text()
    assert log.startswith("out\nerr\n")
    assert "MemoryError: 4 GB wanted" in log
    assert len({job.pid for job in jobs}) == len(jobs)


def test_workers_at_a_time_in_order(pool, tmp_path):
    jobs = [start(pool, tmp_path, "note", str(tmp_path / f"n{i}")) for i in range(5)]
    assert [job.num for job in pool.queue] == [job.num for job in jobs[2:]]
    finish(pool, *jobs)
    spans = [[*map(float, (tmp_path / f"n{i}").read_text().split())] for i in range(5)]
    assert [job.started for job in jobs] == sorted(job.started for job in jobs)
    for begin, _ in spans:
        assert sum(b <= begin < e for b, e in spans) <= 2


def test_signals_reach_one_job(pool, tmp_path):
    jobs = [start(pool, tmp_path, "sleep", 300) for _ in range(3)]
    pid = wait_for_pid(pool, jobs[0])
    assert os.getsid(pid) == pid != os.getsid(0), "Ctrl-C in a terminal does not reach it"
    pool.stop(jobs[2])
    pool.stop(jobs[0], signal.SIGKILL)
    wait_for_pid(pool, jobs[1])
    pool.stop(jobs[1], signal.SIGINT)
    assert finish(pool, *jobs[:2]) == [-signal.SIGKILL, 130]
    early = start(pool, tmp_path, "sleep", 300)  # no run has begun that could save
    wait_for_pid(pool, early)
    pool.stop(early)
    assert finish(pool, early) == [-signal.SIGTERM]
    assert (jobs[2].code, jobs[2].started) == (None, None)
    assert pool.wait_any(0.01) == []


def test_a_killed_server_is_replaced(bare, tmp_path):
    with Pool(2) as pool:
        job = start(pool, tmp_path, "sleep", 300)
        pid = wait_for_pid(pool, job)
        assert pool._server is not None
        pool._server.kill()
        assert finish(pool, job) == [-signal.SIGKILL]
        wait_until(lambda: not is_running(pid))  # no job runs on that nobody knows
        assert finish(pool, start(pool, tmp_path, "succeed")) == [0]


def test_a_server_begun_early_serves_the_first_pool(bare, tmp_path, monkeypatch):
    """Its jobs have variables that were set later; one with others than the pool's is not used."""
    monkeypatch.setattr(pool_module, "_begun", [])
    begin_server()
    server = pool_module._begun[0][1]
    monkeypatch.setenv(CORES, "4")
    with Pool(1) as pool, Pool(1) as second:
        assert pool._server is server
        assert finish(pool, start(pool, tmp_path, "cores")) == [4]
        assert finish(pool, start(pool, tmp_path, "cores", threads=3)) == [3]
        assert finish(second, start(second, tmp_path, "cores")) == [4]
    begin_server()
    begin_server()
    assert len(pool_module._begun) == 1
    unused = pool_module._begun[0][1]
    with Pool(1, env={}) as other:
        assert other._server is not unused
        assert unused.returncode == -signal.SIGKILL
    assert pool_module._begun == []


@pytest.mark.parametrize(
    ("words", "begins"),
    [
        (["-m", "policy=dqn", "seed=0,1"], True),
        (["--multirun", "--config-dir=conf", "policy=dqn"], True),
        (["policy=dqn", "-m", "--cfg", "job"], False),
        (["-m", "hydra/launcher=basic", "policy=dqn"], False),
        (["policy=dqn"], False),
    ],
)
def test_which_command_lines_begin_a_server(words, begins, monkeypatch, capsys):
    begun = []
    monkeypatch.setattr(pool_module, "begin_server", lambda: begun.append(1))
    assert main([*words, "no_such_key=1"]) == 2
    assert begun == [1] * begins


def test_a_server_ends_before_the_jobs_of_another_launcher(bare, tmp_path, monkeypatch):
    monkeypatch.setattr(pool_module, "_begun", [])
    begun = []
    monkeypatch.setattr(sweep, "_run_by_hydra", lambda _: begun.append([*pool_module._begun]))
    begin_server()
    words = ["-m", "hydra/launcher=basic", "policy=random", "seed=0,1", "-q"]
    main([*words, f"sweep.dir={tmp_path / 'sweep'}"])
    assert begun == [[]]


def test_what_a_job_inherits_takes_no_time_at_its_end(pool, tmp_path):
    assert finish(pool, start(pool, tmp_path, "finalizers")) == [0]


def test_a_server_ends_with_the_sweep_that_is_composed(monkeypatch):
    """However that ends, before the server has imported anything."""
    stuck = BARE.replace("lambda: None", "lambda: __import__('time').sleep(300)")
    monkeypatch.setattr(pool_module, "_SERVER", stuck)
    monkeypatch.setattr(pool_module, "_begun", [])
    begin_server()
    server = pool_module._begun[0][1]
    assert main(["-m", "policy=dqn", "no_such_key=1"]) == 2
    assert server.returncode == -signal.SIGKILL
    code = (
        "import os, sys; from rlrun.sweeps import pool; "
        f"pool._SERVER = {stuck!r}; pool.begin_server(); "
        "print(pool._begun[0][1].pid, flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=False)
    pid = int(done.stdout)
    wait_until(lambda: not is_running(pid))


def test_a_server_killed_while_idle_is_replaced(bare, tmp_path):
    with Pool(2) as pool:
        assert finish(pool, start(pool, tmp_path, "succeed")) == [0]
        assert pool._server is not None
        pool._server.kill()
        pool._server.wait()
        jobs = [start(pool, tmp_path, "exit_with", code) for code in (0, 3, 4)]
        assert finish(pool, *jobs) == [0, 3, 4]


@pytest.mark.parametrize(("order", "code"), [("direct first", 130), ("sweep first", 75)])
def test_a_signal_to_all_processes_stops_a_job_once(bare, tmp_path, order, code):
    """The job gets it from the cluster and from the sweep, whose closing asks once more."""
    with Pool(1) as pool:
        job = start(pool, tmp_path, "save_slowly", str(tmp_path / "saved"))
        pid = wait_for_pid(pool, job)
        wait_until((tmp_path / "saved").exists)
        if order == "sweep first":
            pool.stop(job)
        else:
            os.kill(pid, signal.SIGINT)
        wait_until(lambda: (tmp_path / "saved").read_text().startswith("begins"))
        pool.stop(job)
        pool.stop(job)
        pool.wait_any(0.01)
    assert (tmp_path / "saved").read_text() == "begins, done"
    assert (tmp_path / "log").read_text() == f"{code}\n"


def test_a_second_signal_kills_the_jobs(tmp_path):
    """A process whose pool waits for a job that does not end."""
    code = (
        "import sys; from pathlib import Path; from rlrun.sweeps import pool as module; "
        f"module._SERVER = {BARE!r}; path = Path({str(tmp_path)!r}); module.SETTLE_SECONDS = 0\n"
        "with module.Pool(1) as pool:\n"
        "    job = pool.submit('tests.sweeps.jobs:ignore_stops', [str(path / 'ready')],\n"
        "                           ['rlrun'], path, path / 'log', None)\n"
        "    while not (path / 'ready').exists(): pool.wait_any(0.05)\n"
        "    pool.stop_all()\n"
        "    (path / 'stopping').write_text(str(job.pid))\n"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen([sys.executable, "-c", code], env=env) as process:
        try:
            wait_until((tmp_path / "stopping").exists)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 143
        finally:
            process.kill()
    pid = int((tmp_path / "stopping").read_text())
    wait_until(lambda: not is_running(pid))


def test_a_job_is_bit_for_bit_the_single_run(pool, tmp_path, monkeypatch):
    line = ["policy=dqn", "env=bandit", "debug=smoke", "seed=5", "run.total_steps=200"]
    line += ["logger.tensorboard=false", "-q"]
    words = [*line, "run.dir=job"]
    job = pool.submit(MAIN, [words], ["rlrun", *words], tmp_path, tmp_path / "log", None)
    monkeypatch.chdir(tmp_path)
    assert main([*line, "run.dir=single"]) == 0
    assert finish(pool, job) == [0]
    digests = [read_record(tmp_path / name)["digest"] for name in ("job", "single")]
    assert digests[0] == digests[1]


def test_closing_stops_what_runs(bare, tmp_path):
    with Pool(1) as pool:
        job = start(pool, tmp_path, "sleep", 300)
        start(pool, tmp_path, "succeed")
        pid = wait_for_pid(pool, job)
    assert not is_running(pid)
    log = tmp_path / "log"
    assert not log.exists() or not log.read_text(), "the second never started"


def test_a_server_that_cannot_start(tmp_path, monkeypatch):
    monkeypatch.setattr(pool_module, "_SERVER", "import sys; sys.exit(3)")
    with Pool(1) as pool, pytest.raises(ResourceError, match="3"):
        finish(pool, start(pool, tmp_path, "succeed"))
