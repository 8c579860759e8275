"""The terminal: live, plain or off, never two at once, and never a reason to stop."""

import io
import logging
import re
import sys
from types import SimpleNamespace

import pytest
from rich.cells import cell_len

from rlrun.log import progress as module
from rlrun.log.progress import Progress, resolve_mode


class Stream(io.StringIO):
    def __init__(self, terminal=False):
        super().__init__()
        self.terminal = terminal

    def isatty(self):
        return self.terminal


@pytest.fixture
def clock(monkeypatch):
    """``now``: the seconds that the display reads."""
    made = SimpleNamespace(now=100.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: made.now))
    return made


def progress(mode, stream, *, start_steps=0):
    return Progress(
        mode, title="r2d2 cartpole s0", total_steps=1000, start_steps=start_steps, seconds=5.0,
        stream=stream,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def terminal_kind(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")


@pytest.mark.parametrize(
    ("wish", "terminal", "term", "mode"),
    [("auto", True, "xterm", "live"), ("auto", True, "dumb", "plain"),
     ("live", False, "xterm", "plain"), ("plain", True, "xterm", "plain"),
     ("off", True, "xterm", "off")],
)  # fmt: skip
def test_the_mode_follows_the_wish_and_the_terminal(monkeypatch, wish, terminal, term, mode):
    monkeypatch.setenv("TERM", term)
    assert resolve_mode(wish, Stream(terminal)) == mode


def test_plain_lines_come_every_few_seconds_and_hold_everything(clock):
    stream = Stream()
    shown = progress("plain", stream)
    for tick in range(1, 121):  # 12 s in steps of 0.1 s, 5 env steps each
        clock.now = 100 + tick / 10
        shown.update(5 * tick, tick, {"return": tick / 7} if tick % 2 else {"epsilon": 0.1})
    lines = stream.getvalue().splitlines()
    assert lines == [
        "r2d2 cartpole s0:  25%  steps 250/1000  updates 50  fps 50  return 7  epsilon 0.1",
        "r2d2 cartpole s0:  50%  steps 500/1000  updates 100  fps 50  return 14.14  epsilon 0.1  "
        "eta 0:10",
    ]
    shown.close()
    shown.close()
    assert stream.getvalue().splitlines() == lines


def test_fps_is_of_the_last_interval_and_of_this_process(clock):
    stream = Stream()
    shown = progress("plain", stream, start_steps=500)
    clock.now += 60  # processes that start do not count as slow
    shown.begin()
    for steps in (600, 900):
        clock.now += 5
        shown.update(steps, 0, {})
    fps = [line.split("fps ")[1].split()[0] for line in stream.getvalue().splitlines()]
    assert fps == ["20", "60"]


def test_the_eta_is_that_of_learning(clock):
    """Acting before the first update, and compiling, have other speeds. A policy may not learn."""
    stream = Stream()
    shown = progress("plain", stream)
    for steps, updates in ((20, 0), (40, 1), (60, 10), (110, 20)):
        clock.now += 6
        shown.update(steps, updates, {})
    lines = stream.getvalue().splitlines()
    assert ["eta" in line for line in lines] == [False, False, True, True]
    assert lines[2].endswith("eta 4:42"), "940 steps at 20 in 6 s"
    assert lines[1].endswith("fps 3"), "of all steps so far"
    stream = Stream()
    shown = progress("plain", stream)
    for steps in (90, 110):
        clock.now += 6
        shown.update(steps, 0, {})
    assert ["eta" in line for line in stream.getvalue().splitlines()] == [False, True]


@pytest.mark.parametrize("mode", ["plain", "live", "off"])
def test_the_last_line_goes_to_stdout(clock, capsys, mode):
    stream = Stream(terminal=mode == "live")
    shown = progress(mode, stream)
    if mode == "off":
        clock.now += 100
        shown.update(1, 1, {"return": 1.0})
    shown.finish("the end")
    assert capsys.readouterr() == ("" if mode == "off" else "the end\n", "")
    assert "the end" not in stream.getvalue()
    assert mode != "off" or stream.getvalue() == ""


def test_live_draws_values_and_restores_the_terminal(clock, monkeypatch):
    stream = Stream(terminal=True)
    monkeypatch.setattr(sys, "stderr", stream)
    shown = progress("live", stream)
    for tick in range(1, 41):
        clock.now = 100 + tick / 10
        shown.update(10 * tick, tick, {"return": 12.5, "epsilon": 0.25})
    shown.update(1000, 99, {"return": 499.5})
    shown.close()
    text = stream.getvalue()
    for part in ("r2d2 cartpole s0", "fps", "return", "499.5", "epsilon", "100%"):
        assert part in text
    assert "updates 99" in text
    assert text.count("r2d2 cartpole s0") <= 4 / 0.25 + 2  # frames are rationed
    assert text.index("\x1b[?25l") < text.rindex("\x1b[?25h")  # cursor hidden, shown again
    assert sys.stderr is stream


@pytest.mark.parametrize("width", [10, 80, 200])
def test_the_live_display_shows_the_whole_line_at_any_width(clock, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    stream = Stream(terminal=True)
    shown = progress("live", stream)
    clock.now += 9
    shown.update(500, 99, {f"日本 {i}": i / 7 for i in range(9)})
    shown.close()
    frame = re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]", "", stream.getvalue()).splitlines()
    assert all(cell_len(line) <= width for line in frame)
    words = "".join(frame).replace(" ", "")
    assert all(word in words for word in ("500/1000", "updates99", "日本81.143"))


def test_log_lines_stand_whole_above_a_live_display(clock, monkeypatch):
    stream, other = Stream(terminal=True), Stream()
    monkeypatch.setattr(sys, "stderr", stream)
    logger = logging.getLogger("rlrun.test_progress")
    handlers = [logging.StreamHandler(stream), logging.StreamHandler(other)]
    monkeypatch.setattr(logger, "handlers", handlers)
    shown = progress("live", stream)
    clock.now += 1
    shown.update(10, 1, {})
    logger.warning("something happened")
    print("a print to stderr", file=sys.stderr)
    shown.close()
    assert handlers[0].stream is stream
    for message in ("something happened", "a print to stderr"):
        before, after = stream.getvalue().split(message)
        assert before.endswith(("\x1b[2K", "\n"))  # on a line that was cleared first
        assert after.startswith("\n")
        assert "r2d2 cartpole s0" in after  # and the display drawn again below it
    assert other.getvalue() == "something happened\n"


class Broken(Stream):
    def write(self, text):
        raise BrokenPipeError


def test_a_broken_terminal_or_stdout_does_not_stop_a_run(clock, monkeypatch):
    shown = progress("plain", Broken())
    for _ in range(3):
        clock.now += 10
        shown.update(1, 1, {})
    monkeypatch.setattr(sys, "stdout", Broken())
    shown.finish("the end")


def test_a_notebook_shows_one_output_that_replaces_itself(clock, monkeypatch):
    """A cell's output with an id, updated, instead of more lines."""
    shown, updated = [], []

    class Handle:
        def update(self, output, *, raw):
            updated.append(output["text/plain"])

    def display(output, *, raw, display_id):
        assert display_id is True
        shown.append(output["text/plain"])
        return Handle()

    shell = SimpleNamespace(kernel=object())  # as ipykernel's
    ipython = SimpleNamespace(get_ipython=lambda: shell, display=SimpleNamespace(display=display))
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    stream = Stream()
    assert resolve_mode("auto", stream) == "live"
    bar = progress("live", stream)
    for step in (0, 500, 1000):
        clock.now += 1.0
        bar.update(step, step // 10, {"eval/return_mean": 1.5})
    bar.close()
    assert (len(shown), len(updated)) == (1, 3)
    assert "steps 1000/1000  updates 100" in updated[-1]
    assert "eval/return_mean 1.5" in updated[-1]
    assert stream.getvalue() == ""
    monkeypatch.setattr(ipython, "get_ipython", lambda: SimpleNamespace())  # IPython in a terminal
    assert resolve_mode("auto", stream) == "plain"
