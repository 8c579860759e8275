"""Programs as processes: runs of rlrun timed by the files they write, and peers' scripts.

Whole runs call the command line and import nothing of rlrun. ``in_process`` (quick forms) runs it
in this process: the import of torch is most of a short run.
"""

import io
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, chdir, contextmanager, redirect_stderr, redirect_stdout, suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.benchmarks.rows import NOT_INSTALLED, PeerFailed

HERE = Path(__file__).parent
SCRIPTS, RESULTS, CHECKOUT = HERE / "peers", HERE / "results", HERE.parents[1]
RLRUN = (sys.executable, "-m", "rlrun")
in_process = False  # rlrun's command lines; set by the quick forms
Answer = dict[str, Any]
Answers = list[Answer]


class Failed(PeerFailed):
    """A command of rlrun that did not exit with 0."""


def environment(threads: int | None = 1) -> dict[str, str]:
    """This process's environment variables with the thread counts set (None: as they are)."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
    found = os.environ | ({} if threads is None else dict.fromkeys(names, str(threads)))
    found.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package is compiled
    return found


def measured(
    command: Sequence[Any], threads: int | None = 1, *, cwd: Path = CHECKOUT
) -> tuple[str, dict[str, float]]:
    """(standard output, seconds of the whole process: ``process`` by the clock, ``process_cpu``).

    Raises: PeerFailed with the last line the program wrote to its standard error.
    """
    words = [str(c) for c in command]
    if in_process and tuple(words[:3]) == RLRUN:
        return _here(words[3:])
    cpu, start = _cpu_of_children(), time.perf_counter()
    done = subprocess.run(
        words, cwd=cwd, env=environment(threads), text=True, capture_output=True, errors="replace"
    )
    wall = time.perf_counter() - start
    if done.returncode:
        raise Failed(failure(done.returncode, done.stderr))
    return done.stdout, {"process": wall, "process_cpu": _cpu_of_children() - cpu}


def _here(words: list[str]) -> tuple[str, dict[str, float]]:
    from rlrun.cli.main import main

    out, err = io.StringIO(), io.StringIO()
    cpu, start = time.process_time(), time.perf_counter()
    with chdir(CHECKOUT), redirect_stdout(out), redirect_stderr(err):
        code = main(words)
    if code:
        raise Failed(failure(code, err.getvalue()))
    wall = time.perf_counter() - start
    return out.getvalue(), {"process": wall, "process_cpu": time.process_time() - cpu}


def rlrun(*words: str, threads: int | None = 1) -> str:
    """The standard output of a command line of this checkout. Raises: Failed."""
    return measured([*RLRUN, *words], threads)[0]


def _cpu_of_children() -> float:
    """User and system seconds of the processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def failure(code: int, log: str) -> str:
    """The last output line of a failed program."""
    lines = log.strip().splitlines()
    return f"failed (exit {code}): {lines[-1][:300] if lines else 'no output'}"


# -- runs of rlrun ---------------------------------------------------------------------------------


def own_run(*overrides: str, seed: int, threads: int, env_steps: int) -> Answer:
    """The fields ``results`` reads of a run without early stop, and the seconds of its process.

    ``overrides`` come last, so they may set a score that stops it.
    """
    with tempfile.TemporaryDirectory() as directory:
        given = {
            "seed": seed, "learner.threads": threads, "run.total_steps": env_steps,
            "run.stop_return": "null", "run.dir": f"{directory}/run", "logger.progress": "off",
        }  # fmt: skip
        _, process = measured(command(given, overrides), threads)
        return results(Path(directory) / "run") | process


def command(given: Mapping[str, Any], overrides: Sequence[str]) -> list[str]:
    """The command line: ``overrides`` replace what is ``given`` of the same key."""
    words = dict(given) | dict(word.split("=", 1) for word in overrides)
    return [*RLRUN, *(f"{key}={value}" for key, value in words.items())]


def results(run_dir: Path) -> Answer:
    """The figures of a finished run, in the words of the peers' scripts.

    ``wall``: seconds from the first line of the log to the last, imports excluded.
    ``eval_seconds``: of them, those in evaluations. ``curve``: for each evaluation env steps, mean
    return, seconds since the start, seconds spent in evaluations. An evaluation takes from its own
    env step's line of timings.jsonl to the next line; the last one, which no line follows, ends
    with the run and includes the last checkpoint.
    """
    record = json.loads((run_dir / "run.json").read_text())
    timings = json_lines(run_dir / "timings.jsonl")
    curve = [(step, score, *_clock(timings, record, step)) for step, score in scores_of(run_dir)]
    return {
        "wall": record["wall_seconds"],
        "eval_seconds": curve[-1][3] if curve else 0.0,
        "curve": curve,
        **{k: record[k] for k in ("threads", "parameters", "env_steps", "updates", "digest")},
        **{n: timings[-1][f"time/{n}_seconds"] for n in ("collect", "update")},
    }


def scores_of(run_dir: Path) -> list[tuple[int, float]]:
    """(env steps, mean return) of a run's evaluations."""
    lines = json_lines(run_dir / "metrics.jsonl")
    key = "eval/return_mean"
    return [*{line["env_steps"]: line[key] for line in lines if key in line}.items()]


def _clock(timings: list[Answer], record: Answer, step: int) -> tuple[float, float]:
    """(seconds since the start, seconds in evaluations) behind the evaluation at an env step."""
    before = [line for line in timings if line["env_steps"] <= step][-1]
    after = [line for line in timings if line["env_steps"] > step]
    wall, spent = before["time/wall_seconds"], before.get("time/eval_seconds", 0.0)
    if after:
        took = after[0].get("time/eval_seconds", 0.0) - spent
    else:
        took = record["wall_seconds"] - wall
    return wall + took, spent + took


def json_lines(path: Path) -> list[Answer]:
    """The records of a file of JSON lines; none when it is not there."""
    text = path.read_text("utf-8") if path.exists() else ""
    return [json.loads(line) for line in text.splitlines()]


def keep(record: Answer, path: Path) -> None:
    """Print a record and add it to a file of JSON lines."""
    line = json.dumps(record)
    print(line, flush=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(line + "\n")


@cache
def commit() -> str:
    """The checkout's commit, with + where files differ from it."""

    def git(*words: str) -> str:
        line = ["git", "-C", str(CHECKOUT), *words]
        return subprocess.run(line, capture_output=True, text=True, check=False).stdout.strip()

    name = git("rev-parse", "--short", "HEAD") or "unknown"
    return f"{name}{'+' if git('status', '--porcelain', '-uno') else ''}"


@cache
def machine() -> str:
    """The machine of a run."""
    where = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    return f"{where}, torch {version('torch')}"


# -- peers, each in an environment of its own ------------------------------------------------------


def interpreter(peers: Path | None, name: str) -> Path | None:
    """The Python of the environment ``name`` below the folder of peers, None: not installed."""
    path = None if peers is None else peers.absolute() / name / "bin" / "python"
    return path if path is not None and path.exists() else None


def peer_run(python: Path | None, script: str, *arguments: Any, threads: int) -> Answer:
    """The one JSON line that a script of ``peers`` prints, and the seconds of its process.

    Raises:
        PeerFailed: there is no ``python``, or the script failed.
    """
    if python is None:
        raise PeerFailed(NOT_INSTALLED)
    with tempfile.TemporaryDirectory() as directory:
        line = [python, *script_of(script), *arguments]
        output, process = measured(line, threads, cwd=Path(directory))
    lines = [line for line in output.splitlines() if line.startswith("{")]
    if not lines:
        raise PeerFailed("failed: it printed no answer")
    return json.loads(lines[-1]) | process


def script_of(script: str) -> list[str]:
    """Words of a script: "sb3.py dqn" is the file and its first arguments.

    Committed results name it dqn_sb3.py.
    """
    name, *words = script.split()
    if name.endswith("_sb3.py"):
        name, words = "sb3.py", [name.removesuffix("_sb3.py"), *words]
    return [str(SCRIPTS / name), *words]


@contextmanager
def asked(
    python: Path | None, script: str, *given: object, threads: int = 1
) -> Iterator[tuple[Answer, Callable[[object], Answer]]]:
    """(the facts it begins with, ask): every question is a line, every answer a JSON line.

    Raises: PeerFailed.
    """
    if python is None:
        raise PeerFailed(NOT_INSTALLED)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        log = stack.enter_context(open(directory / "log", "w"))
        process = stack.enter_context(subprocess.Popen(
            [str(python), *script_of(script), *map(str, given)], cwd=directory, text=True,
            env=environment(threads), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
        ))  # fmt: skip
        to, of = process.stdin, process.stdout

        def answer() -> Answer:
            line = of.readline()
            if not line:
                code, text = process.wait(), (directory / "log").read_text(errors="replace")
                raise PeerFailed(failure(code, text))
            return dict(json.loads(line))

        def ask(question: object) -> Answer:
            with suppress(BrokenPipeError):  # it died: ``answer`` says of what
                to.write(f"{question}\n")
                to.flush()
            return answer()

        try:
            yield answer(), ask
        finally:
            with suppress(BrokenPipeError):
                to.close()
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()


def in_turn(
    ours: Mapping[str, Callable[[int], Answer]], peers: Mapping[str, Callable[[int], Answer]],
    seeds: int,
) -> tuple[dict[str, Answers], dict[str, str]]:  # fmt: skip
    """(the answers of every side to seeds 0, 1, ..., why a peer has none).

    Sides take turns. A peer that failed once is not asked again, and its answers are left out.
    """
    found: dict[str, Answers] = {name: [] for name in (*ours, *peers)}
    missing: dict[str, str] = {}
    for seed in range(seeds):
        for name, run in ours.items():
            found[name].append(run(seed))
        for name, run in peers.items():
            if name not in missing:
                try:
                    found[name].append(run(seed))
                except PeerFailed as e:
                    missing[name], found[name] = str(e), []
    return found, missing
