"""Runs from Python: what they return, what they raise, and what they leave as it was."""

import logging
import os
import random
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control import CartPoleEnv
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from threadpoolctl import ThreadpoolController, threadpool_limits

import rlrun
from rlrun.cli.main import main
from rlrun.errors import NO_GUARD, EnvError, Interrupted, NumericError
from rlrun.pipeline.overlapped import CollectorProcess
from rlrun.pipeline.stop import SIGNALS, stop_on_signals
from rlrun.run.record import raise_in_main_thread
from rlrun.sweeps.pool import Pool

QUICK = ("policy=random", "env=bandit", "run.total_steps=100", "logger.tensorboard=false")


def test_every_name_is_there():
    assert {*rlrun.__all__} <= {*dir(rlrun)}
    assert all(getattr(rlrun, name) for name in rlrun.__all__)
    with pytest.raises(AttributeError, match="'trane'"):
        rlrun.trane  # noqa: B018


# -- runs ------------------------------------------------------------------------------------------


def messages(log):
    """The messages of a log without those of the watchdog, which come when kernels compile."""
    said = [line.partition("] - ")[2] for line in log.read_text().splitlines()]
    late = "no update for|no step of|the next (update|step) came"
    return [text for text in said if not re.match(late, text)]


def test_a_run_is_that_of_the_command_line(tmp_path, trained):
    from tests.api.conftest import RUNS, SMOKE

    run = trained("dqn")
    assert main([*RUNS["dqn"], *SMOKE, "-q", f"run.dir={tmp_path}/r"]) == 0
    other = rlrun.Run(tmp_path / "r")
    assert run.record["digest"] == other.record["digest"]
    assert {p.name for p in run.directory.iterdir()} == {p.name for p in (tmp_path / "r").iterdir()}
    said, said_there = (messages(path / "rlrun.log") for path in (run, other))
    late = "came after"  # of a step, while others compile on the same cores
    assert [m for m in said if late not in m] == [m for m in said_there if late not in m]
    assert run.record["command"] == ["rlrun", *RUNS["dqn"], *SMOKE, run.record["command"][-2], "-q"]


def test_what_a_run_says(trained, monkeypatch):
    run = trained("dqn")
    assert (run.status, run.record["env_steps"] >= 200) == ("done", True)
    assert run.summary is not None
    assert run.score == run.summary["return_mean"]
    assert repr(run).startswith(f"Run(dqn on CartPole-v1, done, score {run.score:.4g}, ")
    assert run.config["run"]["total_steps"] == 200
    assert run.config["policy"]["name"] == "dqn"
    assert run.config["env"]["frame_stack"] == 3
    assert os.fspath(run) == str(run.directory)
    steps, values = run.metric("eval/return_mean")
    assert (steps.dtype, values.dtype, values[-1]) == (np.int64, np.float64, run.score)
    assert run.metric("time/wall_seconds")[0][-1] == steps[-1]
    with pytest.raises(rlrun.ConfigError, match=r"eval/returns_mean.* eval/return_mean"):
        run.metric("eval/returns_mean")
    monkeypatch.setitem(sys.modules, "pandas", None)  # as if it were not installed
    assert run.metrics["eval/return_mean"][1].tolist() == values.tolist()
    assert all(name.startswith(("time/", "codec/")) for name in run.timings)


# -- errors ----------------------------------------------------------------------------------------

LINES = [["policy.lrr=1"], ["seed=0,1"], ["env.id=CartPole-v9"], ["run.dir=/proc/x"]]


@pytest.mark.parametrize("line", LINES, ids=lambda line: line[-1][:20])
def test_errors_are_those_of_the_command_line(line, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    code = main(line)
    printed = capsys.readouterr().err
    with pytest.raises(rlrun.RlrunError) as error:
        rlrun.train(*line)
    assert f"rlrun: error: {error.value}\n" == printed
    assert error.value.exit_code == code
    assert capsys.readouterr() == ("", "")
    assert [*tmp_path.iterdir()] == []
    assert len(error.traceback) == 2, "this line, and where all errors are raised"
    assert error.value.__suppress_context__
    assert error.value.__cause__ is None or code != 2


FAULTS = [
    NumericError("loss = nan: it\nis bad"),
    ZeroDivisionError("division by zero"),
    ModuleNotFoundError("No module named 'torch._inductor'"),  # pip install beside the run
    OSError(28, "No space left on device"),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
def test_errors_of_a_run_that_goes_on(fault, build, tmp_path, capsys):
    build.codes = {0: fault}
    code = main(["seed=0", f"run.dir={tmp_path}/r"])
    printed = capsys.readouterr().err.replace("/r/", "/p/").replace("/r:", "/p:")
    with pytest.raises(rlrun.RlrunError) as error:
        rlrun.train("seed=0", f"run.dir={tmp_path}/p")
    assert f"rlrun: error: {error.value}\n" == printed
    assert error.value.exit_code == code
    assert error.value is fault or error.value.__cause__ is fault
    assert capsys.readouterr() == ("", "")
    assert f"exit {code}: {error.value}" in (tmp_path / "p/rlrun.log").read_text()
    assert (tmp_path / "p/crash.txt").exists() == (code == 9)


def test_misuse_is_one_line(tmp_path, trained):
    (tmp_path / "s").mkdir()
    (tmp_path / "s/sweep.json").write_text("{}")
    calls: dict[str, Callable[[], Any]] = {
        "rlrun.train: policy .*KEY=VALUE": lambda: rlrun.train("policy"),
        "rlrun.train: -q ": lambda: rlrun.train("-q"),
        "rlrun.train: {'seed': 1} ": lambda: rlrun.train({"seed": 1}),
        "RUN_DIR = .*s: .*sweep": lambda: rlrun.resume(tmp_path / "s"),
        "hydra.mode: ": lambda: rlrun.train("hydra.mode=MULTIRUN", "seed=0,1"),
        "weights = worst: .*final, best": lambda: rlrun.load(trained("dqn"), "worst"),
        "RUN_DIR = .*nowhere: ": lambda: rlrun.load(tmp_path / "nowhere"),
        "metric = 3: ": lambda: trained("dqn").metric(3),
        "run.json": lambda: rlrun.Run(tmp_path),
        'rlrun.train."policy=r2d2", "seed=3".': lambda: rlrun.train(policy="r2d2", seed=3),
        'rlrun.train."env.max_episode_steps=9", "policy.lr=1".': lambda: rlrun.train(
            max_episode_steps=9, learning_rate=1
        ),
        'rlrun.sweep.."policy=r2d2"..': lambda: rlrun.sweep(policy="r2d2"),
        'rlrun.train."policy=r2d2", "env=bandit".': lambda: rlrun.train("policy=r2d2 env=bandit"),
        "--trust a-b: ": lambda: rlrun.train(*QUICK, trust=["a-b"]),
    }
    for text, wrong in calls.items():
        with pytest.raises(rlrun.ConfigError, match=text) as error:
            wrong()
        assert "\n" not in str(error.value)
    with pytest.raises(rlrun.CheckpointError, match="7"):
        rlrun.load(trained("dqn"), 7)


def test_a_sweep_of_an_environment_that_a_notebook_registered(tmp_path, monkeypatch):
    """Its jobs are processes that know nothing of it."""
    monkeypatch.setattr(gym.envs.registration, "registry", registry := dict(gym.registry))
    monkeypatch.setattr(gym, "registry", registry)
    gym.register("Note-v0", entry_point=CartPoleEnv)
    monkeypatch.setattr(CartPoleEnv, "__module__", "__main__")
    words = ["policy=dqn", "env=gym", "env.id=Note-v0", f"sweep.dir={tmp_path}/s"]
    with pytest.raises(rlrun.ConfigError, match=r"set env\.id=mymodule:Note-v0") as error:
        rlrun.sweep(words, quiet=True)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "s").exists()


def test_a_worker_that_imports_the_script_starts_nothing(tmp_path, monkeypatch):
    """It ends first of all; the one that waits for it says why.

    Private: a script without a guard would start itself until the machine is full.
    """

    def end():
        raise ProcessLookupError

    monkeypatch.setattr("rlrun.api.calls.end_if_importing_main", end)
    monkeypatch.chdir(tmp_path)
    for call in (lambda: rlrun.train(*QUICK), lambda: rlrun.sweep(QUICK)):
        with pytest.raises(rlrun.RlrunError) as error:
            call()
        assert isinstance(error.value.__cause__, ProcessLookupError)
    assert [*tmp_path.iterdir()] == []
    collector = object.__new__(CollectorProcess)
    ended: Any = SimpleNamespace(join=lambda seconds: None, exitcode=NO_GUARD)
    collector.process = ended
    assert "pipeline = overlapped: " in str(collector._ended())
    ended.exitcode = 1
    assert "exit code 1" in str(collector._ended())


# -- the process -----------------------------------------------------------------------------------


def state_of_the_process():
    handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)]
    numpy_state = np.random.get_state()[1].tobytes()
    generators = random.getstate(), numpy_state, torch.get_rng_state().numpy().tobytes()
    root = logging.getLogger()
    log = list(root.handlers), root.level, logging.getLogger("rlrun").level, logging.raiseExceptions
    hydra = GlobalHydra.instance().hydra, HydraConfig.instance().cfg
    threads = torch.get_num_threads(), threading.active_count()
    return handlers, generators, log, hydra, threads, dict(os.environ), os.getcwd(), sys.argv


def test_the_process_is_left_as_it_was(tmp_path, trained, monkeypatch):
    """Runs that end well and that do not, and agents; a log of the user's is still written."""
    monkeypatch.setattr(GlobalHydra.instance(), "hydra", object())  # of the user's application
    monkeypatch.setattr(HydraConfig.instance(), "cfg", object())
    torch.set_num_threads(2)
    own = logging.FileHandler(tmp_path / "own.log", mode="w")
    logging.getLogger().addHandler(own)
    try:
        before = state_of_the_process()
        rlrun.train(*QUICK, "learner.threads=1", f"run.dir={tmp_path}/r", quiet=True)
        with pytest.raises(rlrun.ConfigError):
            rlrun.train("policy=r2d3")
        with pytest.raises(rlrun.ConfigError):
            rlrun.sweep(["policy=r2d3"])
        rlrun.load(trained("dqn")).act(np.zeros(4, np.float32))
        assert state_of_the_process() == before
        logging.getLogger().warning("still here")
    finally:
        logging.getLogger().removeHandler(own)
        own.close()
    assert (tmp_path / "own.log").read_text() == "still here\n"
    assert not (tmp_path / "r/rlrun.log").read_text()


def blas():
    return list(ThreadpoolController().select(user_api="blas").lib_controllers)


def test_blas_has_one_thread_while_a_run_trains_and_an_agent_acts(trained, tmp_path, monkeypatch):
    """Those of a BLAS that the user's process has loaded are given back, also after an error.

    Private: the number of threads shows in seconds alone.
    """
    monkeypatch.delenv("OPENBLAS_NUM_THREADS")
    agent, seen = rlrun.load(trained("dqn")), []
    agent.reset()

    def look():
        seen.append([library.get_num_threads() for library in blas()])

    def train(*given, **named):
        assert os.environ["OPENBLAS_NUM_THREADS"] == "1", "of the processes that a run starts"
        look()
        raise EnvError("env 3: broken")

    def act(*given, act=agent._actor.act, **named):
        look()
        return act(*given, **named)

    monkeypatch.setattr("rlrun.run.start.start", train)
    monkeypatch.setattr(agent._actor, "act", act)
    with threadpool_limits(2, user_api="blas"):
        with pytest.raises(EnvError):
            rlrun.train(*QUICK, f"run.dir={tmp_path}/r")
        agent.act(np.zeros(4, np.float32))
        look()
    assert "OPENBLAS_NUM_THREADS" not in os.environ
    assert seen == [[1] * len(blas())] * 2 + [[2] * len(blas())]


def test_a_run_in_another_thread(tmp_path, monkeypatch):
    """It trains there, and one at a time."""
    from rlrun.run import start

    runs: list[rlrun.Run] = []
    started, refused, real = threading.Event(), threading.Event(), start.start

    def run(*given, **named):
        started.set()
        refused.wait(120)
        return real(*given, **named)

    monkeypatch.setattr("rlrun.run.start.start", run)
    line = (*QUICK, f"run.dir={tmp_path}/r")
    thread = threading.Thread(target=lambda: runs.append(rlrun.train(*line, quiet=True)))
    thread.start()
    assert started.wait(120)
    with pytest.raises(rlrun.ConfigError):
        rlrun.train(*QUICK)
    refused.set()
    thread.join()
    assert [run.status for run in runs] == ["done"]


def test_a_signal_saves_and_raises(tmp_path):
    line = ("policy=dqn", "env=bandit", "run.total_steps=1000000", "run.stop_return=null")

    def interrupt_the_run():
        metrics = tmp_path / "r/metrics.jsonl"
        while not (metrics.exists() and metrics.stat().st_size):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt_the_run).start()
    with pytest.raises(rlrun.Interrupted, match=f"rlrun resume {tmp_path}/r") as error:
        rlrun.train(*line, "logger.tensorboard=false", f"run.dir={tmp_path}/r", quiet=True)
    assert error.value.exit_code == 130
    run = rlrun.Run(tmp_path / "r")
    assert run.status == "interrupted"
    at = run.record["env_steps"]
    assert rlrun.resume(run, f"run.total_steps={at + 50}", quiet=True).status == "done"


def test_a_second_signal_does_not_end_the_process():
    with stop_on_signals(own_process=False) as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize(("code", "kind"), [(3, EnvError), (143, Interrupted)])
def test_the_watchdog_does_not_end_the_process(code, kind, tmp_path):
    """It interrupts the main thread wherever that waits, once; its error is what is raised."""

    def hang():
        with stop_on_signals(own_process=False) as stop:
            given = (stop, tmp_path, code, "no end")
            threads = [threading.Timer(0.1, raise_in_main_thread, given) for _ in range(2)]
            for thread in threads:
                thread.start()
            try:
                threading.Event().wait(10)
            finally:
                for thread in threads:
                    thread.join()

    with pytest.raises(kind, match="no end") as error:
        hang()
    assert error.value.exit_code == code


def test_a_second_signal_ends_the_jobs_of_a_sweep_alone():
    pool = Pool(1, own_process=False)
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        pool.stop_all()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_who_trains_what_does_not_learn_is_told(tmp_path, capsys):
    line = ("policy=a2c", "env=bandit", "run.total_steps=0", "run.eval_episodes=1")
    for i, (words, expected) in enumerate([
        (("env.not_learned_by=[a2c]",), True), ((), False),
        (("env.not_learned_by=[a2c]", "bonus=rnd"), False),
    ]):  # fmt: skip
        rlrun.train(*line, *words, f"run.dir={tmp_path}/{i}")
        assert ("did not learn" in capsys.readouterr().out) == expected


def test_who_trains_without_a_memory_where_one_is_needed_is_told(tmp_path, capsys):
    ppo = ("policy=ppo", "collector.num_envs=2", "collector.n_sample=32", "learner.batch_size=32")
    for i, (words, expected) in enumerate([
        (ppo, "memory=lstm"), (("policy=dqn",), "policy=r2d2"),
        ((*ppo, "memory=gru"), None), (("policy=r2d2",), None), (("policy=random",), None),
        ((*ppo, "env.frame_stack=4"), None), ((*ppo, "env.full_state=true"), None),
        ((*ppo, "env=bandit"), None),
    ]):  # fmt: skip
        few = "env=tmaze", "run.total_steps=0", "run.eval_episodes=1", f"run.dir={tmp_path}/{i}"
        rlrun.train(*few, *words)
        out = capsys.readouterr().out
        assert ("needs a memory" in out) == (expected is not None), words
        assert expected is None or expected in out
