"""A run that no longer moves says what it waits for, and ends."""

import itertools
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from rlrun.cli.main import main
from rlrun.env.rows import Env
from rlrun.errors import EnvError, Interrupted, StorageError
from rlrun.jit import COMPILED
from rlrun.pipeline.process import CollectorProcess
from rlrun.pipeline.stop import StopRequest, stop_on_signals
from rlrun.pipeline.watchdog import Watchdog
from rlrun.run import train
from rlrun.rundir.checkpoint import load_newest
from rlrun.rundir.lock import lock_run_dir, require_in_place
from rlrun.schema import WatchdogConfig
from tests.compose import config
from tests.exact import QUIET, differences

LINE = ("policy=dqn", "env=bandit", "debug=smoke", "run.stop_value=null", "run.total_steps=300",
        "run.checkpoint_every=100")  # fmt: skip


class Ended(Exception):
    """The process would have ended."""


def watching(pulse, *, warn=5.0, limit=10.0, in_place=lambda: None):
    """A watchdog without its thread."""

    def end(code, text):
        raise Ended(code, text)

    given = WatchdogConfig(warn, limit), pulse, StopRequest(), end
    return Watchdog(*given, env_id="own/Env-v0", in_place=in_place)


def until_ended(dog: Watchdog) -> tuple[int, str, float]:
    """(exit code, text, seconds) of the end that ``dog`` brings about."""
    for looks in range(100):
        try:
            dog.look(0.5)
        except Ended as e:
            return *e.args, (looks + 1) * 0.5
    raise AssertionError("it has not ended")


def lines(caplog, seconds_of_updates, *, before=0) -> list[tuple[int, str]]:
    """(level, text) of what a watchdog says while updates take so long; ``before``: seconds ago."""
    caplog.set_level(logging.INFO)
    pulse = [0]
    dog = watching(lambda: ("learn", pulse[0]), limit=None)
    dog.watched = before
    for seconds in seconds_of_updates:
        for _ in range(round(2 * seconds)):
            dog.look(0.5)
        pulse[0] += 1
    dog.look(0.5)
    return [(r.levelno, r.getMessage()) for r in caplog.records]


def test_a_wait_and_its_end_are_said_once(caplog):
    told = lines(caplog, [20], before=100)
    assert told == [
        (logging.WARNING, "no update for 5 s"),
        (logging.WARNING, "the next update came after 20 s"),
    ]


def test_many_long_waits_are_few_lines(caplog):
    """A hundred updates of 6 s, then one of 9 and one of 13: only what is new is said."""
    texts = [text for _, text in lines(caplog, [6] * 100 + [9, 13], before=100)]
    assert texts == [
        "no update for 5 s",
        "the next update came after 6 s",
        "no update for 12 s",
        "the next update came after 13 s",
    ]


@pytest.mark.skipif(not COMPILED, reason="nothing is compiled without numba")
def test_waits_while_kernels_may_compile_are_no_warnings(caplog):
    told = lines(caplog, [20])
    assert [level for level, _ in told] == [logging.INFO] * 2
    assert "compiles kernels" in told[0][1]


def test_a_wait_for_an_environment_names_it(caplog):
    caplog.set_level(logging.INFO)
    dog = watching(lambda: ("collect", 3), limit=1000)
    for _ in range(40):
        dog.look(0.5)
    (line,) = caplog.messages
    assert "no step of the environment (env.id = own/Env-v0) for 5 s" in line
    assert "watchdog.max_seconds = 1000" in line


def test_progress_restarts_the_clock(caplog):
    steps = iter(range(100))
    dog = watching(lambda: ("collect", next(steps)), warn=1.0, limit=1.5)
    for _ in range(40):
        dog.look(0.9)
    assert not caplog.messages


@pytest.mark.parametrize("phase", ["collect", "evaluate"])
def test_an_environment_that_hangs_ends_the_run(phase):
    dog = watching(lambda: (phase, 3))
    code, text, waited = until_ended(dog)
    assert (code, 10 <= waited <= 12) == (3, True)
    assert text.startswith("watchdog.max_seconds = 10: no step of ")
    assert "own/Env-v0" in text


@pytest.mark.parametrize("phase", ["save", "learn"])
def test_a_slow_save_or_update_does_not(phase, caplog):
    """A replay of many gigabytes takes minutes to write, also after a signal."""
    dog = watching(lambda: (phase, 3))
    caplog.set_level(logging.INFO)
    dog.signalled = 1e-9
    for _ in range(1000):
        dog.look(0.5)
    assert len(caplog.messages) == 1


def test_a_signal_ends_a_hang_within_seconds():
    dog = watching(lambda: ("collect", 3), limit=None)
    dog.look(0.5)
    dog.signalled = 1e-9
    code, _, waited = until_ended(dog)
    assert (code, waited < 5) == (143, True)


def test_a_signal_lets_an_environment_that_moves_go_on():
    """The loop asks for the end itself between two steps."""
    steps = itertools.count()
    dog = watching(lambda: ("collect", next(steps)), limit=None)
    dog.signalled = 1e-9
    for _ in range(100):
        dog.look(0.5)
    assert dog.signalled > dog.grace


def test_a_signal_wakes_the_thread():
    """Its number arrives although the main thread runs no handler of Python's."""
    ended = threading.Event()
    with stop_on_signals() as stop:
        dog = Watchdog(
            WatchdogConfig(5.0, None), lambda: ("collect", 3), stop, lambda *_: ended.set(),
            env_id="x", poll=0.01, grace=0.05,
        )  # fmt: skip
        with dog:
            os.kill(os.getpid(), signal.SIGTERM)
            assert ended.wait(5)
    assert stop.code == 75


def hanging(run_dir: Path) -> subprocess.Popen:
    """A run whose environment never returns."""
    code = (
        "import sys, time, rlrun.env.rows as rows\n"
        "from rlrun.cli.main import main\n"
        "step, calls = rows.Env.step, []\n"
        "def hang(self, action):\n"
        "    calls.append(1)\n"
        "    if len(calls) == 60: print('hangs', flush=True)\n"
        "    while len(calls) == 60: time.sleep(1)\n"
        "    return step(self, action)\n"
        "rows.Env.step = hang\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    line = [sys.executable, "-c", code, *LINE, "-q", f"run.dir={run_dir}"]
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_hang_ends_on_sigterm(tmp_path):
    process = hanging(tmp_path / "run")
    assert process.stdout.readline() == "hangs\n"
    sent = time.monotonic()
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=30)
    assert time.monotonic() - sent < 5.5
    assert process.returncode == 143
    assert err.count("\n") == 1
    assert "stopped by a signal while waiting for the next step of the environment" in err
    assert "go on: rlrun resume" in err
    assert json.loads((tmp_path / "run" / "run.json").read_text())["exit_code"] == 143


class Silent:
    """A pipe and a process that never answer."""

    def __init__(self):
        self.killed, self.exitcode = False, None

    def poll(self, seconds):
        time.sleep(0)
        return False

    def kill(self):
        self.killed = True


def silent(limit: float | None, *, stop: bool) -> CollectorProcess:
    process = object.__new__(CollectorProcess)
    process.pipe = process.process = Silent()
    process.max_seconds, process.stop = limit, lambda: stop
    return process


def test_a_collector_that_does_not_answer():
    from rlrun.pipeline.collector import ChunkInterrupted

    process = silent(2.0, stop=False)
    with pytest.raises(EnvError, match=r"watchdog.max_seconds = 2: no answer"):
        process._wait()
    assert process.process.killed
    process = silent(None, stop=True)
    with pytest.raises(ChunkInterrupted):
        process._wait()
    assert process.process.killed


# -- stopping ------------------------------------------------------------------------------------


def stopped_at(patch: pytest.MonkeyPatch, number: int, signals: list[int]) -> None:
    """Send ``signals`` before the ``number``-th step of the environments."""
    step, calls = Env.step, []

    def signalled(self, action):
        calls.append(1)
        if len(calls) == number:
            for sent in signals:
                os.kill(os.getpid(), sent)
        return step(self, action)

    patch.setattr(Env, "step", signalled)


def run(run_dir: Path, *words: str) -> int:
    run_dir.mkdir()
    return train.run(config(*words), run_dir, raw_yaml="", overrides=[])


def resume(run_dir: Path, *words: str) -> int:
    return train.resume(run_dir, config(*words), raw_yaml="", overrides=[])


@pytest.mark.parametrize(
    "words",
    [
        ("collector.n_sample=40",),
        ("policy=ppo", "env=cartpole"),
        ("policy=r2d2", "env=tmaze", "transport=coded", "bonus=rnd", "env.frame_stack=2"),
    ],
)
def test_a_chunk_that_a_signal_interrupts_is_continued(tmp_path, monkeypatch, words):
    """Bit for bit; its rows so far are not collected again."""
    words = (*LINE, *QUIET, *words, "run.total_steps=400")
    whole, cut, partial = tmp_path / "whole", tmp_path / "cut", 0
    assert run(whole, *words) == 0
    for number in (6, 7, 9):
        with monkeypatch.context() as m:
            stopped_at(m, number, [signal.SIGHUP])
            with pytest.raises(Interrupted) as caught:
                (resume if cut.exists() else run)(cut, *words)
        assert caught.value.exit_code == 75
        partial += load_newest(cut / "checkpoints")[0]["collector"]["rows"] is not None
    assert partial
    assert resume(cut, *words) == 0
    assert not list(differences(*(load_newest(d / "checkpoints")[0] for d in (whole, cut))))
    assert (cut / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()


def test_a_time_limit_saves_and_asks_to_be_resumed(tmp_path, monkeypatch):
    now = time.monotonic()
    step = Env.step

    def passes(self, action):
        monkeypatch.setattr(time, "monotonic", lambda: now + 7200.0)
        return step(self, action)

    monkeypatch.setattr(Env, "step", passes)
    with pytest.raises(Interrupted) as caught:
        run(tmp_path / "run", *LINE, *QUIET, "run.max_time=1.5h")
    monkeypatch.undo()
    assert caught.value.exit_code == 75
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (record["status"], record["exit_code"]) == ("interrupted", 75)
    state, _ = load_newest(tmp_path / "run" / "checkpoints")
    assert state["counters"]["env_steps"] == record["env_steps"] < 300


@pytest.mark.parametrize(("text", "seconds"), [("90m", 5400), ("3.5h", 12600), ("2d", 172800)])
def test_durations(text, seconds):
    assert config(f"run.max_time={text}").run.max_time == seconds


def test_an_ignored_hangup_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_on_signals() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop()
    finally:
        signal.signal(signal.SIGHUP, before)


# -- the run directory ---------------------------------------------------------------------------


@pytest.mark.parametrize("act", ["rename", "remove", "replace"])
def test_a_run_directory_that_is_gone(tmp_path, monkeypatch, act, capsys):
    """Exit 6, and nothing is made at its place."""
    run_dir, moved = tmp_path / "run", tmp_path / "moved"
    step, calls = Env.step, []

    def go(self, action):
        calls.append(1)
        if len(calls) == 30:
            shutil.rmtree(run_dir) if act == "remove" else run_dir.rename(moved)
            if act == "replace":
                run_dir.mkdir()
        return step(self, action)

    monkeypatch.setattr(Env, "step", go)
    assert main([*LINE, "-q", f"run.dir={run_dir}", "logger.tensorboard=false"]) == 6
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "removed" in err
    assert not run_dir.exists() or not list(run_dir.iterdir())


def test_the_watchdog_notices_it(tmp_path):
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    with lock_run_dir(run_dir):
        dog = watching(lambda: ("collect", 0), in_place=lambda: require_in_place(run_dir))
        dog.look(0.5)
        assert not dog.stop()
        run_dir.rename(tmp_path / "moved")
        with suppress(Ended):
            dog.look(0.5)
        with pytest.raises(StorageError, match="renamed or removed"):
            dog.stop()
