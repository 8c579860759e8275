"""A run that no longer moves, that is told to stop, or whose directory is gone."""

import itertools
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from rlrun.cli.main import main
from rlrun.errors import Interrupted, StorageError
from rlrun.jit import COMPILED
from rlrun.pipeline.stop import GRACE_SECONDS, StopRequest, Watchdog, stop_on_signals
from rlrun.run.diff import differences
from rlrun.run.files import lock_run_dir, require_in_place
from rlrun.schema import WatchdogConfig
from tests.compose import config
from tests.in_process import assert_one_line
from tests.pipeline.make import (
    STEPWISE,
    TINY,
    fails,
    go,
    on_steps,
    record_of,
    resumed,
    state_of,
)

# -- the watchdog, without its thread --------------------------------------------------------------


class Ended(Exception):
    """The process would have ended."""


def watching(pulse, *, warn=5.0, limit=10.0, in_place=lambda: None, **more):
    """A watchdog without its thread."""

    def end(code, text):
        raise Ended(code, text)

    given = WatchdogConfig(warn, limit), pulse, StopRequest(), end
    return Watchdog(*given, env_id="own/Env-v0", in_place=in_place, **more)


def until_ended(dog: Watchdog) -> tuple[int, str, float]:
    """(exit code, text, seconds) of the end that ``dog`` brings about."""
    for looks in range(100):
        try:
            dog.look(0.5)
        except Ended as e:
            return *e.args, (looks + 1) * 0.5
    raise AssertionError("it has not ended")


def lines(caplog, seconds_of_updates, during=lambda: None, **more) -> list[tuple[int, str]]:
    """(level, text) of what a watchdog says while updates, and ``during``, take so long."""
    caplog.set_level(logging.INFO)
    pulse = [0]
    dog = watching(lambda: ("learn", pulse[0]), limit=None, **more)
    for seconds in seconds_of_updates:
        for half_seconds in range(round(2 * seconds)):
            dog.look(0.5)
            if half_seconds == 0:
                during()
        pulse[0] += 1
    dog.look(0.5)
    return [(r.levelno, r.getMessage()) for r in caplog.records]


def seconds_in(text: str) -> int:
    return int(re.findall(r"(\d+) s", text)[-1])


def test_of_long_waits_only_what_is_new_is_said(caplog):
    """A hundred updates of 6 s, then one of 9 and one of 13."""
    told = lines(caplog, [6] * 100 + [9, 13])
    assert [seconds_in(text) for _, text in told] == [5, 6, 12, 13]
    assert {level for level, _ in told} == {logging.WARNING}


@pytest.mark.skipif(not COMPILED, reason="nothing is compiled without numba")
def test_waits_for_kernels_that_are_compiled_are_no_warnings(caplog):
    import numba

    shown = []
    told = lines(caplog, [20], lambda: numba.njit(lambda x: x + 1)(1), tell=shown.append)
    assert [level for level, _ in told] == [logging.INFO] * 2
    assert "kernels" in told[0][1]
    assert len(shown) == 1


def test_progress_restarts_the_clock(caplog):
    steps = iter(range(100))
    dog = watching(lambda: ("collect", next(steps)), warn=1.0, limit=1.5)
    for _ in range(40):
        dog.look(0.9)
    assert not caplog.messages


@pytest.mark.parametrize("phase", ["collect", "evaluate", "chunk"])
def test_an_environment_that_hangs_ends_the_run(phase, caplog):
    """It is named, before and at the end."""
    caplog.set_level(logging.INFO)
    code, text, waited = until_ended(watching(lambda: (phase, 3)))
    assert (code, 10 <= waited <= 12) == (3, True)
    (line,) = caplog.messages
    for told in (text, line):
        assert "watchdog.max_seconds = 10" in told
        assert "own/Env-v0" in told


@pytest.mark.parametrize("phase", ["save", "learn"])
def test_a_slow_save_or_update_does_not(phase, caplog):
    """A replay of many gigabytes takes minutes to write, also after a signal."""
    dog = watching(lambda: (phase, 3))
    caplog.set_level(logging.INFO)
    dog.signalled = 1e-9
    for _ in range(1000):
        dog.look(0.5)
    assert len(caplog.messages) == 1


def test_a_signal_ends_a_hang_within_seconds_and_lets_what_moves_go_on():
    """The loop asks for the end itself between two steps."""
    steps = itertools.count()
    hangs, moves = (
        watching(lambda: ("collect", 3), limit=None),
        watching(lambda: ("collect", next(steps)), limit=None),
    )
    hangs.look(0.5)
    hangs.signalled = moves.signalled = 1e-9
    code, _, waited = until_ended(hangs)
    assert (code, waited < 5) == (143, True)
    for _ in range(100):
        moves.look(0.5)
    assert moves.signalled > GRACE_SECONDS


def test_the_watchdog_notices_a_directory_that_is_gone(tmp_path):
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    with lock_run_dir(run_dir):
        dog = watching(lambda: ("collect", 0), in_place=lambda: require_in_place(run_dir))
        dog.look(0.5)
        assert not dog.stop()
        run_dir.rename(tmp_path / "moved")
        with suppress(Ended):
            dog.look(0.5)
        with pytest.raises(StorageError):
            dog.stop()


HANGS = """
import sys, time, rlrun.env.rows as rows
from rlrun.cli.main import main
step, calls = rows.Env.step, []
def hang(self, action):
    calls.append(1)
    if len(calls) == 30: print("hangs", flush=True)
    while len(calls) == 30: time.sleep(1)
    return step(self, action)
rows.Env.step = hang
sys.exit(main(sys.argv[1:]))
"""


def test_a_hang_ends_on_sigterm(tmp_path):
    line = [sys.executable, "-c", HANGS, *STEPWISE, "debug=smoke", "-q", f"run.dir={tmp_path}/run"]
    line.append("run.checkpoint_every=5")
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "hangs\n"
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 143
    assert err.count("\n") == 1
    assert "rlrun resume" in err
    assert record_of(tmp_path / "run")["exit_code"] == 143


# -- requests to stop ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ("policy=dqn", "env=bandit", "collector.n_sample=40"),
        ("policy=ppo", "env=tmaze"),
        ("policy=r2d2", "env=tmaze", "transport=coded", "bonus=rnd", "env.frame_stack=2"),
    ],
)
def test_a_chunk_that_a_signal_interrupts_is_continued(tmp_path, monkeypatch, words):
    """Bit for bit; its rows so far are not collected again."""
    words = (*words, *TINY, "run.stop_return=null", "run.total_steps=320")
    whole, cut, partial = tmp_path / "whole", tmp_path / "cut", 0
    go(whole, *words)

    def hang_up(number):
        return lambda n: os.kill(os.getpid(), signal.SIGHUP) if n == number else None

    for number in (6, 7, 9):
        with monkeypatch.context() as patch:
            on_steps(patch, training=hang_up(number))
            error, _ = fails(Interrupted, cut, *words)
        assert error.exit_code == 75
        partial += state_of(cut)["collector"]["interrupted"] is not None
    assert partial
    assert resumed(cut, *words)["digest"] == record_of(whole)["digest"]
    assert not list(differences(state_of(whole), state_of(cut)))


def test_a_time_limit_saves_and_asks_to_be_resumed(tmp_path, monkeypatch):
    now = time.monotonic()

    def passes(n):
        monkeypatch.setattr(time, "monotonic", lambda: now + 7200.0)

    with monkeypatch.context() as patch:
        on_steps(patch, training=passes)
        error, record = fails(Interrupted, tmp_path / "run", *STEPWISE, "run.max_time=1.5h")
    monkeypatch.undo()
    assert error.exit_code == 75
    assert (record["status"], record["exit_code"]) == ("interrupted", 75)
    steps = state_of(tmp_path / "run")["counters"]["env_steps"]
    assert steps == record["env_steps"] < 300


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


# -- the run directory -----------------------------------------------------------------------------


@pytest.mark.parametrize("act", ["rename", "remove", "replace"])
def test_a_run_directory_that_is_gone(tmp_path, monkeypatch, act, capsys):
    """Exit 6, and nothing is made at its place."""
    run_dir, moved = tmp_path / "run", tmp_path / "moved"

    def go_away(n):
        if n == 30:
            shutil.rmtree(run_dir) if act == "remove" else run_dir.rename(moved)
            if act == "replace":
                run_dir.mkdir()

    on_steps(monkeypatch, training=go_away)
    line = [*STEPWISE, "debug=smoke", "-q", "logger.tensorboard=false", f"run.dir={run_dir}"]
    assert main(line) == 6
    assert_one_line(capsys, str(run_dir))
    assert not run_dir.exists() or not list(run_dir.iterdir())
