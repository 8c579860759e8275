"""A line of the score table: its command, what is wanted of it, and one run of one seed."""

import json
import os
import platform
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.benchmarks import process

RLRUN = [sys.executable, "-m", "rlrun"]
EXTRAS = {  # extra of pyproject.toml -> a module that comes with it
    "atari": "ale_py", "box2d": "Box2D", "mujoco": "mujoco", "minigrid": "minigrid",
    "popgym": "popgym", "pettingzoo": "pettingzoo", "envpool": "envpool",
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """``overrides`` are what one would type behind ``rlrun``; ``{work}`` is the seed's own folder.

    ``threshold`` begins with ">= 475", ">= 0.9 x ROW" or ">= behaviour - 20" (also <=, ==), or is
    a remark that demands nothing. ``prepare``: commands that come before; what they train in
    ``{work}/behaviour`` is scored as the behaviour. ``peer``: ``overrides`` are a script of
    tests/benchmarks/peers and its arguments, run in that environment of --peers.
    """

    overrides: str
    threshold: str
    metric: str = "return_mean"
    episodes: int = 50
    seeds: int = 5
    steps: int | None = None  # run.total_steps; None: the preset's
    needs: str = ""  # extra of pyproject.toml
    prepare: tuple[str, ...] = ()
    peer: str = ""

    @property
    def command(self) -> str:
        """The key of the row's results; a result of another command is not used."""
        if self.peer:
            return f"{self.peer}: {self.overrides}"
        total = [] if self.steps is None else [f"run.total_steps={self.steps}"]
        return " ".join(["rlrun", self.overrides, *total])


@dataclass(frozen=True)
class Bound:
    """Target of a score: ``value``, or factor * other + offset of the score of ``other``."""

    sign: str  # >=, <= or ==
    value: float | None = None
    other: str = ""
    factor: float = 1.0
    offset: float = 0.0

    def met(self, score: float, score_of: Callable[[str], float | None]) -> bool | None:
        """Return whether ``score`` keeps it; None when the other's score is not known."""
        limit = self.value
        if limit is None:
            theirs = score_of(self.other)
            if theirs is None:
                return None
            limit = self.factor * theirs + self.offset
        kept = {">=": score >= limit, "<=": score <= limit, "==": abs(score - limit) < 1e-6}
        return kept[self.sign]


def bound_of(threshold: str) -> Bound | None:
    """The bound a threshold begins with; None: a remark."""
    number = r"(-?[\d.]+)"
    if found := re.match(rf"(>=|<=|==) {number} x (\w+)", threshold):
        return Bound(found[1], other=found[3], factor=float(found[2]))
    if found := re.match(rf"(>=|<=|==) {number}", threshold):
        return Bound(found[1], value=float(found[2].rstrip(".")))
    if found := re.match(r"(>=|<=|==) (\w+)(?: ([+-]) ([\d.]+))?", threshold):
        offset = float(found[4] or 0) * (-1 if found[3] == "-" else 1)
        return Bound(found[1], other=found[2], offset=offset)
    return None


def missing(row: Row, peers: Path | None) -> str:
    """Why the row cannot be run here and what to do; "" when it can."""
    if row.needs and find_spec(EXTRAS[row.needs]) is None:
        return f"needs {EXTRAS[row.needs]}: pip install '.[{row.needs}]'"
    if row.peer and process.interpreter(peers, row.peer) is None:
        what = {"sb3": "stable-baselines3"}.get(row.peer, row.peer)
        return f"needs --peers DIR with an environment {row.peer} (pip install {what})"
    return ""


def run_seed(
    row: Row, seed: int, work: Path, peers: Path | None, *, alone: bool = False
) -> dict[str, Any]:
    """Result of one seed for the table: trained and scored, or the reason of its failure.

    ``alone``: it may use the threads it would use by itself, else one.
    """
    facts = {"seed": seed, "command": row.command, "commit": commit(), "machine": machine()}
    try:
        found = _peer(row, seed, peers) if row.peer else _own(row, seed, work, alone)
    except (Failed, process.PeerFailed) as e:
        return {**facts, "status": "failed", "why": str(e)}
    return {**facts, "status": "done", **found}


class Failed(Exception):
    """A command that did not exit with 0."""


def _own(row: Row, seed: int, work: Path, alone: bool) -> dict[str, Any]:
    work.mkdir(parents=True)
    for line in row.prepare:
        _call(shlex.split(line.format(work=work, seed=seed)))
    words = row.command.format(work=work, seed=seed).split()[1:]
    start = time.perf_counter()
    run = [*words, f"seed={seed}", f"run.dir={work}/run", "-q"]
    _call(["rlrun", *run] if alone else ["rlrun", *run, "learner.threads=1"])
    wall = time.perf_counter() - start
    scores = score(work / "run", row.episodes)
    record = json.loads((work / "run/run.json").read_text())
    found = {"score": scores[row.metric], "env_steps": record["env_steps"]}
    found |= {"wall_seconds": round(wall, 1), "digest": record["digest"], "alone": alone}
    if (work / "behaviour").exists():
        found["behaviour"] = score(work / "behaviour", row.episodes)[row.metric]
    return found | _delta_q(work / "run")


def score(run_dir: Path, episodes: int) -> dict[str, float]:
    """Result of ``rlrun eval`` for the final weights, on seeds that training never used."""
    lines = _call(["rlrun", "eval", str(run_dir), "--episodes", str(episodes)]).splitlines()
    return {name: float(value) for name, value in (line.split() for line in lines)}


def _delta_q(run_dir: Path) -> dict[str, float]:
    last: dict[str, float] = {}
    for line in (run_dir / "metrics.jsonl").read_text().splitlines():
        last |= {k: v for k, v in json.loads(line).items() if "delta_q" in k}
    return {k.removeprefix("train/"): round(v, 4) for k, v in last.items()}


def _call(words: list[str]) -> str:
    """The standard output of a command; ``rlrun`` is this checkout's.

    Raises: Failed with the last line it said.
    """
    command = [*RLRUN, *words[1:]] if words[0] == "rlrun" else words
    done = subprocess.run(
        command, cwd=process.CHECKOUT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["no output"]
        raise Failed(f"exit {done.returncode}: {said[-1][:300]}")
    return done.stdout


def _peer(row: Row, seed: int, peers: Path | None) -> dict[str, Any]:
    script, *arguments = row.overrides.format(seed=seed).split()
    python = process.interpreter(peers, row.peer)
    found = process.peer_run(python, script, *arguments, threads=1)
    return {
        "score": found["score"],
        "env_steps": found["env_steps"],
        "wall_seconds": round(found["process"], 1),
    }


@cache
def commit() -> str:
    """The checkout's commit, with + where files differ from it."""
    git = ["git", "-C", str(process.CHECKOUT)]
    name = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True,
                          check=False).stdout.strip()  # fmt: skip
    dirty = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True, text=True,
                           check=False).stdout.strip()  # fmt: skip
    return f"{name or 'unknown'}{'+' if dirty else ''}"


@cache
def machine() -> str:
    """The machine of the runs."""
    from importlib.metadata import version

    python = platform.python_version()
    return (
        f"{platform.machine()}, {os.cpu_count()} cores, Python {python}, torch {version('torch')}"
    )
