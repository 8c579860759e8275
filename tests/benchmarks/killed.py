"""Trainings that are killed and resumed: rlrun and other libraries, each by its documented means.

DQN with replay on CartPole, 512 env steps, a checkpoint every 64. ``--out FILE`` makes the
trainings that FILE lacks, ``--peers DIR`` those of other libraries too, ``--only WORD ...`` some
libraries, ``--repeats N`` that many kills of each (20); without it the table of
results/killed.jsonl is printed.

A library is trained twice without a kill. Then each trial trains in an empty directory, gets
SIGKILL at a random time between its first checkpoint and its end, and is started again, each time
as a process forked from one that has imported the library:

* equal: all compared parts at the end (weights, optimiser, replay, generators, environment,
  counters; of rlrun metrics and weights) are those of the training that was not killed;
* near: they are not, but the training went on from a checkpoint. The parts that differ between the
  checkpoint and the start of the resumed training are named;
* lost: the second start failed, or began at the first env step.
"""

import hashlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks import runs
from tests.benchmarks.rows import PeerFailed
from tests.benchmarks.rows import table as markdown

STEPS, EVERY, SEED = 512, 64, 0
OWN, OWN_SCRIPT = "rlrun", "killed_rlrun.py"
PEERS = {  # environment, script
    "SB3": ("sb3", "killed_baselines.py"),
    "Tianshou": ("tianshou", "killed_tianshou.py"),
    "TorchRL": ("torchrl", "killed_torchrl.py"),
    "DI-engine": ("diengine", "killed_diengine.py"),
}
Event = dict[str, Any]  # event, step, parts: as ``note`` of peers/common.py writes it


@dataclass(frozen=True)
class Side:
    """Starts a training in a directory, new or to be resumed, and waits for its exit code."""

    version: str
    start: Callable[[Path], int]  # the process's id
    wait: Callable[[], int]
    events: Callable[[Path], list[Event]]


def own_events(folder: Path) -> list[Event]:
    """The events of a directory of rlrun."""
    run = folder / "run"
    steps = sorted(int(p.name.split("_")[1]) for p in run.glob("checkpoints/step_*"))
    made: list[Event] = [{"event": "saved", "step": step, "parts": {}} for step in steps]
    if not (run / "run.json").exists():
        return made
    record = json.loads((run / "run.json").read_text())
    made += [{"event": "resumed", "step": 0, "parts": {}} for _ in record["resumes"]]
    if record["status"] == "done":
        names = ("metrics.jsonl", "checkpoints/last.safetensors")
        parts = {n: hashlib.sha256((run / n).read_bytes()).hexdigest() for n in names}
        made.append({"event": "done", "step": record["env_steps"], "parts": parts})
    return made


def peer_events(folder: Path) -> list[Event]:
    """The events that a script noted."""
    return runs.json_lines(folder / "events")


@contextmanager
def serving(python: Path, script: str, env_steps: int, every: int) -> Iterator[Side]:
    """A library's script, which has imported what its trainings need."""
    own = script == OWN_SCRIPT
    with runs.asked(python, script, SEED, env_steps, every) as (facts, ask):
        yield Side(
            runs.commit() if own else facts["version"],
            lambda folder: ask(folder)["pid"],
            lambda: ask("wait")["code"],
            own_events if own else peer_events,
        )


def last(events: list[Event], name: str) -> Event | None:
    """The newest event of a name."""
    return next((e for e in reversed(events) if e["event"] == name), None)


def end(side: Side, folder: Path) -> list[Event]:
    """The events of a training that ends by itself. Raises: PeerFailed."""
    if code := side.wait():
        raise PeerFailed(runs.failure(code, (folder / "log").read_text(errors="replace")))
    return side.events(folder)


def begin(side: Side, folder: Path) -> tuple[int, float]:
    """(process, time) of a new training that has saved its first checkpoint."""
    folder.mkdir()
    process, began = side.start(folder), time.perf_counter()
    while not last(side.events(folder), "saved"):
        time.sleep(0.02)
        if time.perf_counter() - began > 600:
            raise PeerFailed((folder / "log").read_text(errors="replace")[-1000:])
    return process, time.perf_counter()


def whole(side: Side) -> tuple[dict[str, Any], float]:
    """(parts at the end of an uninterrupted training, seconds from its first checkpoint on)."""
    with tempfile.TemporaryDirectory() as directory:
        _, first = begin(side, Path(directory, "whole"))
        events = end(side, Path(directory, "whole"))
        return last(events, "done")["parts"], time.perf_counter() - first


def trial(side: Side, final: dict[str, Any], seconds: float, kill: int) -> dict[str, Any]:
    """A training that is killed and resumed: when, and how its end compares with ``final``."""
    after = random.Random(kill).random() * seconds
    with tempfile.TemporaryDirectory() as directory:
        while True:
            folder = Path(directory, str(after))
            process, _ = begin(side, folder)
            time.sleep(after)
            os.kill(process, signal.SIGKILL)
            side.wait()
            before = side.events(folder)
            if not last(before, "done"):
                break
            after *= 0.8  # it ended before the kill
        row = {"kill": kill, "seconds": round(after, 2), "saved": last(before, "saved")["step"]}
        try:
            side.start(folder)
            return row | compare(before, end(side, folder), final)
        except PeerFailed as e:
            return row | {"verdict": "lost", "differs": [str(e)]}


def compare(before: list[Event], events: list[Event], final: dict[str, Any]) -> dict[str, Any]:
    """The verdict of a resumed training from its events, and what did not come back."""
    resumed = last(events, "resumed")
    if last(events, "done")["parts"] == final:
        return {"verdict": "equal", "differs": []}
    if resumed is None:
        return {"verdict": "lost", "differs": ["begins again"]}
    differs = ["newest checkpoint unreadable"] if last(events, "unreadable") else []
    saved = [e["parts"] for e in before if e["step"] == resumed["step"] and e["event"] == "saved"]
    if saved:  # not if the kill came between a checkpoint and its note
        differs += [n for n, part in resumed["parts"].items() if saved[-1][n] != part]
    return {"verdict": "near", "resumed": resumed["step"], "differs": differs}


def missing(library: str, side: Side, wanted: list[int], out: Path) -> None:
    """Append the rows of two whole trainings and of the ``wanted`` kills."""

    def keep(row: dict[str, Any]) -> None:
        row = {"library": library, "version": side.version} | row | {"machine": runs.machine()}
        runs.keep(row, out)

    (final, seconds), (again, _) = whole(side), whole(side)
    if 0 in wanted:
        differs = [name for name in final if final[name] != again[name]]
        keep({"kill": None, "seconds": round(seconds, 2), "differs": differs})
    for kill in wanted:
        keep(trial(side, final, seconds, kill))


def table(rows: list[dict[str, Any]]) -> str:
    """Libraries by verdicts, as markdown."""
    head = ["library", "equal", "near", "lost", "what did not come back (kills)"]
    lines = []
    for library in dict.fromkeys(row["library"] for row in rows):
        mine = [row for row in rows if row["library"] == library]
        kills = [row for row in mine if row["kill"] is not None]
        counts = [str(sum(row["verdict"] == v for row in kills)) for v in head[1:4]]
        parts: dict[str, int] = {}
        for row in kills:
            parts |= {name: parts.get(name, 0) + 1 for name in row["differs"]}
        why = [f"{name} ({count})" for name, count in parts.items()]
        lines.append([f"{library} {mine[0]['version']}", *counts, ", ".join(why)])
    return markdown(head, lines)


def main(o: Namespace) -> int:
    """``--quick``: rlrun is killed once. The exit code is 1 if a run of rlrun is not equal."""
    if o.quick:
        with serving(Path(sys.executable), OWN_SCRIPT, 384, 64) as side:
            row = trial(side, *whole(side), 0)
        print(f"killed after {row['seconds']} s: {row['verdict']}")
        return int(row["verdict"] != "equal")
    if o.out is not None:
        sides = {OWN: serving(Path(sys.executable), OWN_SCRIPT, STEPS, EVERY)}
        for library, (folder, script) in PEERS.items():
            if python := runs.interpreter(o.peers, folder):
                sides[library] = serving(python, script, STEPS, EVERY)
        for library, side in sides.items():
            done = {row["kill"] for row in runs.json_lines(o.out) if row["library"] == library}
            wanted = [kill for kill in range(o.repeats or 20) if kill not in done]
            if wanted and (not o.only or library in o.only):
                with side as given:
                    missing(library, given, wanted, o.out)
    rows = runs.json_lines(o.out or runs.RESULTS / "killed.jsonl")
    print(table(rows))
    return int(
        any(row["library"] == OWN and row.get("verdict", "equal") != "equal" for row in rows)
    )
