"""Benchmarks: ``python -m tests.benchmarks [NAME ...] [options]``, from the checkout.

{names}

tests/benchmarks/README.md says what each measures. Without a name the first {speed} are run; with
``--quick`` alone all of them, shortly and side by side: no targets, one line each, rows of missing
peers left out. The exit code is 1 when a target is missed or a comparison with a
target could not be made; of a quick run, when a benchmark failed.

``--old DIR`` compares with the benchmarks' own figures in an older checkout: both run in turns.
"""

import argparse
import io
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
import traceback
from argparse import Namespace
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.benchmarks import rows as tables
from tests.benchmarks import runs
from tests.benchmarks.rows import Row, make_row

BENCHMARKS = {  # name -> (where it is, what it measures); the first give the table of speeds
    "update": ("update:main", "one R2D2 update beside a hand-written one"),
    "products": ("products:main", "one update of DQN, SAC, TD3 beside its products and Adam"),
    "cells": ("cells:main", "every recurrent memory over a window beside nn.LSTM"),
    "collect": ("collect:main", "collecting beside DI-engine"),
    "startup": ("whole:startup", "--help, a config error, the first rows of a run"),
    "overlap": ("whole:overlap", "pipeline=overlapped beside pipeline=serial"),
    "diengine": ("whole:diengine", "updates and runs of DI-engine's settings beside DI-engine"),
    "endtoend": ("whole:endtoend", "DQN runs beside SB3"),
    "ppo": ("whole:ppo", "PPO runs beside SB3"),
    "replay": ("replay:main", "the replay beside others"),
    "scores": ("scores:main", "scores of trained policies; --only ROW ... --out FILE"),
    "ablation": ("pictures:ablation", "R2D2 without its parts, drawn; --runs DIR makes the runs"),
    "curve": ("pictures:curve", "learning curves, drawn; --peers DIR makes the runs"),
    "minatar": ("pictures:minatar", "MinAtar's learning curves, drawn; --out FILE makes the runs"),
    "popgym": ("popgym:popgym", "POPGym's levels, tabulated; --runs DIR makes the runs"),
    "autoreset": ("autoreset:main", "certificate: no rows are joined across episodes"),
    "conformance": ("conformance:main", "probes of recurrent learners; --out FILE makes the runs"),
    "killed": ("killed:main", "trainings killed and resumed; --out FILE makes them"),
    "gpu": ("gpu:main", "R2D2 of the paper's sizes on a GPU"),
    "jax": ("jax:jax", "PPO and PQN runs, and ten seeds at once, beside rejax and Memorax"),
    "ray_scaling": ("ray:ray_scaling", "collectors whose environments sleep, beside the ideal"),
}
SPEED = [*BENCHMARKS][:10]
LONG = "killed", "ray_scaling", "jax", "update"  # quick forms of 20 s and more; begun first


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code."""
    parser = _parser()
    o = parser.parse_args(argv)
    if o.table is not None and o.names != ["scores"]:
        print(tables.markdown(tables.read_rows(o.table)))
        return 0
    if unknown := [n for n in o.names if n not in BENCHMARKS]:
        parser.error(f"unknown benchmark {unknown[0]}; there are: {', '.join(BENCHMARKS)}")
    o.threads = o.threads or ([1] if o.quick else [1, 2])
    o.rounds = o.repeats or (2 if o.quick else 9)
    o.runs, o.seconds = (1, 0.02) if o.quick else (min(o.rounds, 3), 0.5)
    if o.old is not None:
        return beside(o.old, o)
    return quick(o) if o.quick and not o.names else plain(o)


def run(name: str, o: Namespace) -> list[Row] | int:
    """A benchmark's rows, or the exit code of one that prints figures of its own.

    It computes in one thread, unless it says otherwise.
    """
    import torch

    module, function = BENCHMARKS[name][0].split(":")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found: Any = getattr(import_module(f"tests.benchmarks.{module}"), function)(o)
        return found
    finally:
        torch.set_num_threads(before)


def plain(o: Namespace) -> int:
    """Run, print a table, write the rows."""
    print(tables.machine(), flush=True)
    rows, code = list[Row](), 0
    for name in o.names or SPEED:
        found = run(name, o)
        rows += [] if isinstance(found, int) else found
        code |= found if isinstance(found, int) else 0
    if o.quick:
        shown, left_out = tables.quick_rows(rows)
        print(tables.markdown(shown), *left_out, sep="\n")
        return code
    if rows:
        print(tables.markdown(rows))
        if o.out is not None:
            tables.write_rows(rows, o.out)
    return 1 if any(row.met is False for row in rows) else code


def quick(o: Namespace) -> int:
    """Every benchmark in its quick form, a line each: seconds, and how many figures it has.

    As many at once as there are cores: their seconds are not figures.
    """
    fork, failed = multiprocessing.get_context("fork"), list[str]()
    names = sorted(BENCHMARKS, key=LONG.__contains__, reverse=True)
    with ProcessPoolExecutor(os.cpu_count(), mp_context=fork) as pool:
        for name, good, line in pool.map(quick_one, names, [o] * len(names)):
            print(line, flush=True)
            failed += [] if good else [name]
    print(f"failed: {', '.join(failed)}" if failed else f"{len(BENCHMARKS)} benchmarks ok")
    return int(bool(failed))


def quick_one(name: str, o: Namespace) -> tuple[str, bool, str]:
    """(name, whether it ended well, what is printed about it) of a benchmark's quick form."""
    runs.in_process = True
    cpu, wall, out = _cpu(), time.perf_counter(), io.StringIO()
    try:
        with redirect_stdout(out):
            found = run(name, o)
        count = found if isinstance(found, int) else len(tables.quick_rows(found)[0])
        good = found == 0 if isinstance(found, int) else count > 0
        said = f"{count} rows" if count else f"{len(out.getvalue().splitlines())} lines"
    except Exception:
        good, said = False, traceback.format_exc()
    wall = time.perf_counter() - wall
    verdict = "ok" if good else "FAILED"
    line = f"{name:16}{verdict:8}{wall:6.1f} s {_cpu() - cpu:6.1f} CPU s  {said}"
    return name, good, line if good else f"{line}\n{out.getvalue()}"


def _cpu() -> float:
    """CPU seconds of this process and of those that it waited for."""
    return sum(os.times()[:4])


VOLATILE = ("params", "peer_params", "updates", "collect_share", "limit", "seeds", "reached")


def beside(old: Path, o: Namespace) -> int:
    """The named benchmarks here and in an older checkout, in turns, each in its own process.

    Every round measures both sides once, the other one first each time. A row compares what both
    call by the same name and setting; ratio: how many times as good the new figure is.
    """
    found: dict[tuple[str, ...], dict[str, list[Row]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        words = ["--repeats", "1", "--threads", *map(str, o.threads), "--out", f"{folder}/rows"]
        words += ["--env-steps", str(o.env_steps)] if o.env_steps else []
        words += ["--peers", str(o.peers.absolute())] if o.peers else []
        line = [sys.executable, "-m", "tests.benchmarks", *(o.names or SPEED), *words]
        sides = {"old": old.absolute(), "new": runs.CHECKOUT}
        for i in range(o.repeats or 5):
            for name in [*sides][:: 1 if i % 2 else -1]:
                done = subprocess.run(line, cwd=sides[name], stdout=subprocess.DEVNULL)
                assert done.returncode in (0, 1), f"{name}: exit code {done.returncode}"
                once = {_key(row): row for row in tables.read_rows(Path(folder, "rows"))}
                for key, row in once.items():  # rows beside several peers have one figure of ours
                    found.setdefault(key, {"old": [], "new": []})[name].append(row)
    compared = []
    for both in found.values():
        row = (both["new"] or both["old"])[0]
        figures = [[r.ours for r in both[name]] for name in ("new", "old")]
        if row.kind != "fact" and all(figures):
            higher = row.unit.endswith("/s")
            compared.append(make_row(
                row.name, row.setting, "old", row.unit, *figures, kind="speedup", higher=higher
            ))  # fmt: skip
    print(tables.markdown(compared))
    return 0


def _key(row: Row) -> tuple[str, ...]:
    return row.name, row.unit, *(f"{k}={v}" for k, v in row.setting.items() if k not in VOLATILE)


def _parser() -> argparse.ArgumentParser:
    width = max(map(len, BENCHMARKS)) + 2
    names = "\n".join(f"{name:{width}}{what}" for name, (_, what) in BENCHMARKS.items())
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks",
        description=(__doc__ or "").format(names=names, speed=len(SPEED)),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help="of benchmarks")
    add("--quick", action="store_true", help="short and noisy, without targets")
    add("--old", type=Path, metavar="DIR", help="another checkout to compare with")
    add("--peers", type=Path, help="folder of environments: ding, rejax, sb3, ...")
    add("--out", type=Path, help="file for the rows, one JSON object a line")
    add("--table", type=Path, metavar="FILE", help="print such rows as markdown")
    add(
        "--repeats",
        type=int,
        help="rounds (9), runs (<= 3; jax: any), rounds of --old (5), kills (20)",
    )
    add("--threads", type=int, nargs="+", help="thread counts (1 2; quick: 1)")
    add("--env-steps", type=int, help="length of the runs")
    add("--only", nargs="+", default=[], help="of scores, replay, autoreset, jax: some rows")
    add("--seeds", type=int, help="of scores (5)")
    add("--first-seed", type=int, default=0, help="of scores")
    add("--jobs", type=int, default=1, help="of scores, side by side; 1: it has all cores")
    add("--runs", type=Path, metavar="DIR", dest="runs_in", help="of ablation and popgym")
    add("--rows", type=int, help="of autoreset (1 000 000)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
