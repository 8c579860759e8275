"""Rows and commands of the benchmarks: nothing that was asked for is silently left out."""

import json

import pytest

from tests.benchmarks import __main__ as command
from tests.benchmarks import diengine
from tests.benchmarks.floor import Shape
from tests.benchmarks.timing import Timing, interleaved, make_row, table, timing_row, write_rows

TINY = Shape("tiny", 4, (8,), 8, (), 4, 2, 8, 3)


def test_cost_and_speedup_are_medians_of_pairs():
    pairs = [(Timing(2.0, 1.0), Timing(1.0, 1.0)), (Timing(3.0, 1.0), Timing(1.0, 1.0))]
    pairs += [(Timing(4.0, 1.0), Timing(8.0, 1.0))]
    cost = timing_row("x", {}, "floor", pairs, kind="cost", target=1.25)
    assert (cost.ratio, cost.spread, cost.met) == (2.0, [0.5, 3.0], False)
    speedup = timing_row("x", {}, "peer", pairs, kind="speedup", target=0.4)
    assert (speedup.ratio, speedup.met) == (0.5, True)
    rate = make_row("x", {}, "peer", "steps/s", [10.0], [5.0], kind="speedup", higher=True)
    assert rate.ratio == 2.0


def test_who_goes_first_alternates():
    order = []

    def side(name):
        return lambda: order.append(name) or Timing(1.0, 1.0)

    interleaved(side("ours"), side("other"), 3)
    assert order == ["ours", "other", "other", "ours", "ours", "other"]


def test_a_peer_that_is_not_there_is_a_row_that_says_so(tmp_path):
    assert diengine.interpreter(tmp_path) is None
    row = diengine._update_row(None, TINY, "pytorch", 1, 2, 0.01)
    assert row.missing == "not installed"
    assert row.ratio is None
    assert "not installed" in table([row])
    row.target = 4.0
    assert row.met is False
    assert "not measured" in table([row])
    write_rows([row], tmp_path / "rows.json")
    assert json.loads((tmp_path / "rows.json").read_text())["missing"] == "not installed"


def test_a_peer_that_fails_is_a_row_that_says_why(tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho no such module >&2\nexit 3\n")
    python.chmod(0o755)
    row = diengine._update_row(python, TINY, "pytorch", 1, 2, 0.01)
    assert row.missing == "failed (exit 3): no such module"


def test_an_unknown_benchmark_is_refused(capsys):
    with pytest.raises(SystemExit) as e:
        command.main(["updates"])
    assert e.value.code == 2
    assert "unknown benchmark updates" in capsys.readouterr().err
