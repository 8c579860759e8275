"""Every benchmark in its quick form: it runs to its end and prints a table of finite figures."""

import json
import math
import os
import re
import subprocess
import sys
import time

import pytest

from tests.benchmarks import __main__ as command
from tests.benchmarks import (
    ablation,
    cliffwalk,
    codec,
    codec_uses,
    memory_probe,
    own_run,
    ray_link,
    ray_model,
    scores,
)
from tests.benchmarks.own_run import RLRUN
from tests.benchmarks.process import CHECKOUT, PeerFailed, failure
from tests.benchmarks.timing import Row, make_row, quick_table
from tests.faults.forks import Forks

ROWS = {  # benchmarks of python -m tests.benchmarks -> measures that their quick form prints
    "update": ["update", "update+replay", "update, kernel"],
    "cells": ["scan, complex", "unroll, lru", "unroll, gtrxl"],
    "collect": ["act", "collect"],
    "startup": ["start-up, rlrun --help", "start-up, a config error", "start-up, first rows"],
    "overlap": ["overlapped run", "the machine's ceiling"],
    "diengine": ["learner update", "run", "run, no evaluation", "run, updates"],
    "solve": ["to 195", "to 195, steps"],
    "endtoend": ["dqn run", "dqn run, process", "dqn last evaluation"],
    "ppo": ["ppo run", "ppo run, process", "ppo last evaluation"],
    "replay": [
        "vectors, sample + update", "vectors, add", "images, sample", "sequences, sample",
        "vectors, uniform sample", "scalars, sample + update", "cliffwalk, rank",
    ],
}  # fmt: skip


def as_process(name):
    """The command in a process of its own: a process starts Ray once."""

    def main(arguments):
        done = subprocess.run(
            [sys.executable, "-m", f"tests.benchmarks.{name}", *arguments], cwd=CHECKOUT,
            env=os.environ, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        print(done.stdout)
        return done.returncode

    return main


PRINTED = {  # commands of their own -> what their quick form prints
    "ablation": (
        ablation.main, [r"stored state \| [+-][\d.]+", r"with \| with \| without \| -?[\d.]+"],
    ),
    "codec": (codec.main, [r"LSTM f32 0.001: 1 x", r"planes_ctx +[\d.]+ % +\d+ +\d+ MB/s"]),
    "codec_uses": (
        codec_uses.main, [r"plain +[\d.]+ bytes a row", r"blocks of  8", r"weights, .* coded",
                          r"rows, .* % on the wire"],
    ),
    "cliffwalk": (cliffwalk.main, [r"cliffwalk, proportional", r"cliffwalk, rank"]),
    "memory_probe": (memory_probe.main, [r"bandit .*memory"]),
    "ray_costs": (as_process("ray_costs"), [r"driver +16 +[\d.]+", r"shard_add +8 +[\d.]+",
                                       r"in_run_learner +[\d.]+"]),
    "ray_link": (ray_link.main, [r'"auto", "env_steps_per_s": [\d.]+']),
    "ray_model": (ray_model.main, [r"driver, chunks/s.* \| [\d.,e+]+ / [\d.,]+ \|", r"verdict"]),
    "ray_simulation": (as_process("ray_simulation"), [r"\| 4 \| updates/s \| [\d.]+ \|"]),
    "scores": (scores.main, [r"run.total_steps=2000` \| quick \| [\d.]+ \("]),
}  # fmt: skip


AS_USERS_START_THEM = {"startup", "ppo"}  # their runs import torch, as every command line does


@pytest.fixture(scope="module")
def forks():
    forks = Forks()
    yield forks
    forks.close()


@pytest.fixture
def forked_runs(request, forks, tmp_path, monkeypatch):
    """Runs of rlrun are forked from a process that has imported torch: most of a quick run."""
    if request.getfixturevalue("name") in AS_USERS_START_THEM:
        return

    def measured(line, threads, *, cwd):
        *program, word = (str(word) for word in line[: len(RLRUN) + 1])
        assert (tuple(program), threads) == (RLRUN, 1)
        words = [word, *map(str, line[len(RLRUN) + 1 :])]
        log, start = tmp_path / f"{time.monotonic_ns()}.log", time.perf_counter()
        if code := forks.run(words, cwd, log):
            raise PeerFailed(failure(code, log))
        spent = time.perf_counter() - start
        return log.read_text(), {"process": spent, "process_cpu": spent}

    monkeypatch.setattr(own_run, "measured", measured)


@pytest.mark.usefixtures("forked_runs")
@pytest.mark.parametrize("name", command.BENCHMARKS)
def test_rows(name, tmp_path, capsys):
    out = tmp_path / "rows.jsonl"
    assert command.main([name, "--quick", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    lines = [line for line in printed.splitlines() if "left out" not in line]
    assert lines[1].split()[:3] == ["name", "setting", "ours"] or name == "replay"
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    table = printed[printed.index("\nname ") :]
    for measure in ROWS[name]:
        assert any(r["name"] == measure and 0 < r["ours"] < math.inf for r in rows), measure
        assert re.search(rf"^{re.escape(measure)} .* \d", table, re.M), measure
    assert_finite(table)


@pytest.mark.parametrize("name", PRINTED)
def test_printed(name, capsys):
    main, patterns = PRINTED[name]
    assert main(["--quick"]) == 0
    printed = capsys.readouterr().out
    for pattern in patterns:
        assert re.search(pattern, printed), pattern
    assert_finite(printed)


def assert_finite(text):
    assert not re.search(r"\b(nan|inf)\b", text), text


def test_every_benchmark_has_a_quick_form_in_the_readme():
    text = (CHECKOUT / "tests/benchmarks/README.md").read_text("utf-8")
    assert set(ROWS) == set(command.BENCHMARKS)
    assert [n for n in ROWS if f"`python -m tests.benchmarks {n}`" not in text] == []
    own = [p for p in PRINTED if f"`python -m tests.benchmarks.{p}`" not in text]
    assert own == []
    modules = (CHECKOUT / "tests/benchmarks").glob("*.py")
    modules = (p for p in modules if not p.name.startswith("test_"))
    commands = {p.stem for p in modules if "argparse.ArgumentParser(" in p.read_text("utf-8")}
    certificates = {"autoreset", "masks"}  # run by tests/env and tests/policy
    assert commands == {"__main__", "replay", *certificates, *PRINTED}


def test_whole_runs_import_nothing_of_rlrun():
    """Micro-benchmarks import it in one place, certificates where they look."""
    found = {
        path.name
        for path in (CHECKOUT / "tests/benchmarks").glob("**/*.py")
        if not path.name.startswith("test_")
        and re.search(r"^\s*(from|import) rlrun\b", path.read_text("utf-8"), re.M)
    }
    assert found == {"product.py", "autoreset.py", "masks.py", "memory_probe.py"}


def test_the_module_runs_as_a_command():
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks", "--help"], cwd=CHECKOUT, env=os.environ,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "diengine" in done.stdout


# -- figures of a run ------------------------------------------------------------------------------


def _write(run_dir, timings, scores, wall):
    record = {"wall_seconds": wall, "threads": 1, "parameters": 7, "env_steps": 4000,
              "updates": 9, "digest": "d"}  # fmt: skip
    (run_dir / "run.json").write_text(json.dumps(record))
    keys = ("time/wall_seconds", "time/eval_seconds")
    spent = {"time/collect_seconds": 1.0, "time/update_seconds": 2.0}
    lines = [{"env_steps": n, **spent, **dict(zip(keys, t, strict=False))} for n, *t in timings]
    (run_dir / "timings.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    lines = [{"env_steps": n, "train/loss": 1.0} for n in (1000, 2000)]
    lines += [{"env_steps": n, "eval/return_mean": r} for n, r in scores]
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))


def test_results_of_a_run_by_hand(tmp_path):
    """Evaluations of 2 s after 2000 env steps and of 3 s at the end; 1 s per 1000 env steps."""
    timings = [(1000, 1.0), (2000, 2.0), (3000, 5.0, 2.0), (4000, 6.0, 2.0)]
    _write(tmp_path, timings, [(2000, 50.0), (4000, 80.0)], wall=9.0)
    found = own_run.results(tmp_path)
    assert found["curve"] == [(2000, 50.0, 4.0, 2.0), (4000, 80.0, 9.0, 5.0)]
    assert (found["wall"], found["eval_seconds"], found["evaluations"]) == (9.0, 5.0, 2)
    assert (found["collect"], found["update"], found["digest"]) == (1.0, 2.0, "d")


def test_results_without_evaluations(tmp_path):
    _write(tmp_path, [(1000, 1.0)], [], wall=2.0)
    found = own_run.results(tmp_path)
    assert (found["curve"], found["eval_seconds"], found["evaluations"]) == ([], 0.0, 0)


def test_last_override_wins_and_a_failure_gives_its_reason():
    with pytest.raises(own_run.PeerFailed, match=r"exit 2.*policy.gama"):
        own_run.own_run("policy=dqn", "policy.gama=1", seed=0, threads=1, env_steps=10)
    given = own_run.command({"a": 1, "b": 2}, ("b=3", "c=4"))
    assert given[3:] == ["a=1", "b=3", "c=4"]


# -- the table of a quick form ---------------------------------------------------------------------


def _row(against: str, **fields) -> Row:
    other = [] if fields.get("missing") else [2.0]
    return make_row("run", {"n": 1}, against, "ms", [1.0], other, kind="speedup", **fields)


def test_quick_tables_leave_out_peers_that_are_missing():
    rows = [_row("a"), _row("b", missing="not installed", target=4.0)]
    lines = quick_table(rows).splitlines()
    assert len(lines) == 3
    assert lines[1].split() == ["run", "n=1", "1", "2", "a", "ms", "2.00x", "2.00..2.00"]
    assert lines[2] == "left out: b (not installed)"


def test_quick_tables_show_ours_alone_once_when_every_peer_is_missing():
    rows = [_row("a", missing="not installed"), _row("b", missing="failed (exit 3): x")]
    lines = quick_table(rows).splitlines()
    assert [line.split() for line in lines[1:2]] == [["run", "n=1", "1", "ms"]]
    assert lines[2:] == ["left out: a (not installed)", "left out: b (failed (exit 3): x)"]


def test_quick_tables_have_no_targets_and_no_infinite_figures():
    unsolved = make_row("solved", {}, "a", "s", [math.inf], [1.0], kind="fact")
    text = quick_table([_row("a", target=4.0), unsolved])
    assert "4 missed" not in text
    assert text.splitlines()[-1] == "left out: solved (not reached in a quick run)"
    assert_finite(text.splitlines()[1])
