"""A run of rlrun, timed by the files it writes: run.json, metrics.jsonl, timings.jsonl."""

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.process import CHECKOUT, PeerFailed, measured

__all__ = ["RLRUN", "PeerFailed", "own_run", "results"]
RLRUN = (sys.executable, "-m", "rlrun")


def own_run(*overrides: str, seed: int, threads: int, env_steps: int) -> dict[str, Any]:
    """The fields ``results`` reads of a run without early stop, and the seconds of its process.

    ``overrides`` come last, so they may set a score that stops it.
    """
    with tempfile.TemporaryDirectory() as directory:
        given = {
            "seed": seed, "learner.threads": threads, "run.total_steps": env_steps,
            "run.stop_value": "null", "run.dir": f"{directory}/run", "logger.progress": "off",
        }  # fmt: skip
        _, process = measured(command(given, overrides), threads, cwd=CHECKOUT)
        return results(Path(directory) / "run") | process


def command(given: Mapping[str, Any], overrides: Sequence[str]) -> list[str]:
    """The command line: ``overrides`` replace what is ``given`` of the same key."""
    words = dict(given) | dict(word.split("=", 1) for word in overrides)
    return [*RLRUN, *(f"{key}={value}" for key, value in words.items())]


def results(run_dir: Path) -> dict[str, Any]:
    """The figures of a finished run, in the words of the peers' scripts.

    ``wall``: seconds from the first line of the log to the last, imports excluded.
    ``eval_seconds``: of them, those in evaluations. ``curve``: for each evaluation env steps, mean
    return, seconds since the start, seconds spent in evaluations. An evaluation takes from its own
    env step's line of timings.jsonl to the next line; the last one, which no line follows, ends
    with the run and includes the last checkpoint.
    """
    record = json.loads((run_dir / "run.json").read_text())
    timings = lines(run_dir / "timings.jsonl")
    scores = {
        line["env_steps"]: line["eval/return_mean"]
        for line in lines(run_dir / "metrics.jsonl")
        if "eval/return_mean" in line
    }
    curve = [(step, score, *_clock(timings, record, step)) for step, score in scores.items()]
    return {
        "wall": record["wall_seconds"],
        "eval_seconds": curve[-1][3] if curve else 0.0,
        "evaluations": len(curve),
        "curve": curve,
        **{k: record[k] for k in ("threads", "parameters", "env_steps", "updates", "digest")},
        **{n: timings[-1][f"time/{n}_seconds"] for n in ("collect", "update")},
    }


def _clock(timings: list[dict[str, Any]], record: dict[str, Any], step: int) -> tuple[float, float]:
    """(seconds since the start, seconds in evaluations) behind the evaluation at an env step."""
    before = [line for line in timings if line["env_steps"] <= step][-1]
    after = [line for line in timings if line["env_steps"] > step]
    wall, spent = before["time/wall_seconds"], before.get("time/eval_seconds", 0.0)
    if after:
        took = after[0].get("time/eval_seconds", 0.0) - spent
    else:
        took = record["wall_seconds"] - wall
    return wall + took, spent + took


def lines(path: Path) -> list[dict[str, Any]]:
    """The records of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
