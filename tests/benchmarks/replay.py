"""Prioritized replay: sampling, adding, memory of a row, beside peers.

``--only SECTION ...``: vectors, images, sequences. Everything runs on one thread. Our side ends in
torch tensors, conversion included; peers return what they return. Samples of ours hold obs, next
obs, action, reward, three flags, validity and the previous action and reward; peers store and
return obs, next obs, action, reward and done (Tianshou: three flags).

``python -m tests.benchmarks.replay KIND ROWS`` prints what memory our replay takes, measured in a
process of its own: bytes of resident memory and of all arrays a row.
"""

import gc
import json
import os
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks import runs
from tests.benchmarks.peers.common import resident
from tests.benchmarks.product import Chunk, Replay, Sample, Window
from tests.benchmarks.rows import (
    PeerFailed,
    Row,
    Side,
    Timing,
    calls_for,
    machine,
    make_row,
    rounds,
    time_calls,
    timing_row,
)
from tests.buffer.make import constant, make_replay

BATCHES = {32: 1.5, 256: 1.5, 1024: 1.2}  # of vectors -> how many times as fast as the fastest peer
IMAGE_TARGET, ADD_TARGET, SEQUENCE_TARGET = 1.2, 2.0, 1.2
WINDOWS = 64  # sequences of a batch
PEERS = {"cpprb": "torchrl", "tianshou": "tianshou"}  # the fastest ones
SIZES = {"vectors": 1_000_000, "images": 100_000, "sequences": 1_000_000}  # rows stored
QUICK = {"vectors": 10_000, "images": 1_000, "sequences": 10_000}
Effort = tuple[int, float]  # rounds in which every side is measured once, seconds of a measurement


def main(o: Namespace) -> list[Row]:
    """The rows of the sections, and first one that says where they were measured."""
    sizes, effort = (QUICK, (o.rounds, 0.003)) if o.quick else (SIZES, (o.rounds, 0.2))
    note = f"{machine()}; commit {runs.commit()}; one thread a side, medians of {o.rounds} rounds "
    rows = [Row("machine", {}, "", "cores", "fact", os.cpu_count() or 0, None, None)]
    rows[0].note = note + "(range)"
    unknown = set(o.only) - set(SECTIONS)
    assert not unknown, f"unknown section {unknown}; there are: {', '.join(SECTIONS)}"
    for name in o.only or SECTIONS:
        rows += SECTIONS[name](o.peers, sizes[name], effort)
    return rows


# -- our side: filled replays, batches to add ------------------------------------------------------

COLUMNS = 16  # environments side by side
EPISODE = 200  # steps; the row behind them is the end row
STEPS = 16  # of a batch that is added: 16 x 16 = 256 rows
PERIOD = EPISODE + 1
NOISE = 61  # different random observations
PIECE = 1 << 20  # bytes of observations made at a time while filling


@dataclass(frozen=True)
class Kind:
    """The stored rows and the window they are read by."""

    shape: tuple[int, ...]
    dtype: Any
    window: Window


TRANSITION = Window(burnin=0, learned=1, nstep=1)  # obs and next obs
KINDS = {
    "vectors": Kind((4,), np.float32, TRANSITION),
    "images": Kind((84, 84), np.uint8, TRANSITION),
    "sequences": Kind((4,), np.float32, Window(burnin=20, learned=20, nstep=5)),  # 45 rows
}


class Stream:
    """Endless rows of COLUMNS environments, out of step with one another."""

    def __init__(self, kind: Kind) -> None:
        g, size = np.random.default_rng(0), (NOISE, *kind.shape)
        self.phase = (13 * np.arange(COLUMNS)) % PERIOD
        floats = g.standard_normal(size, np.float32)
        self.noise = floats if kind.dtype is np.float32 else g.integers(256, size=size, dtype="u1")
        self.reward = g.random(NOISE, np.float32)

    def chunk(self, start: int, steps: int) -> Chunk:
        """Rows start..start+steps-1 of every column, as a collector hands them on."""
        row = np.arange(start, start + steps + 1)[:, None]
        clock = row + self.phase
        t, episode = clock % PERIOD, clock // PERIOD
        step, even = t[:steps], episode[:steps] % 2 == 0
        last = step == EPISODE - 1
        return Chunk(
            obs=self.noise[clock % NOISE], first=(t == 0) | (row == 0), action=clock[:steps] % 2,
            reward=self.reward[clock[:steps] % NOISE], terminated=last & even,
            truncated=last & ~even, valid=step != EPISODE,
        )  # fmt: skip


@dataclass(frozen=True)
class Filled:
    """A full replay of ``rows`` rows in all, random priorities written."""

    replay: Replay
    stream: Stream
    rows: int

    def sample(self, batch: int) -> Sample:
        return self.replay.sample(batch, 0)

    def update(self, batch: int, priority: np.ndarray) -> None:
        """Sample, then new priorities for what was drawn."""
        drawn = self.replay.sample(batch, 0)
        self.replay.prioritize(drawn.key, priority)

    def batches(self) -> Iterator[Chunk]:
        """Batches of 256 rows that follow the stored ones, prepared, for ever."""
        start = self.rows // COLUMNS
        return cycle([self.stream.chunk(start + i * STEPS, STEPS) for i in range(PERIOD)])


def filled(name: str, rows: int) -> Filled:
    """A replay of the named kind whose ring is full."""
    kind, per_column, g = KINDS[name], rows // COLUMNS, np.random.default_rng(0)
    stream = Stream(kind)
    capacity = rows // kind.window.learned + rows // EPISODE + 4 * COLUMNS  # of the window table
    replay = make_replay(
        stream.chunk(0, 1), rows=per_column + 1, window=kind.window, kind="prioritized",
        capacity=None if kind.window == TRANSITION else capacity, alpha=constant(0.6),
        beta=constant(0.4),
    )  # fmt: skip
    size = COLUMNS * int(np.prod(kind.shape)) * np.dtype(kind.dtype).itemsize
    most = min(max(PIECE // size, 1), 1024)
    for start in range(0, per_column, most):
        keys = replay.add(stream.chunk(start, min(most, per_column - start)))
        replay.prioritize(keys, g.random(len(keys), np.float32) + 1e-3)
    return Filled(replay, stream, rows)


# -- peers -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Peer:
    """A replay that is there: its facts, and ``time(op, batch, calls)``."""

    version: str
    bytes_per_row: float
    time: Callable[[str, int, int], Timing]


Peers = dict[str, Peer | str]  # by name; a text says why there is none


@contextmanager
def open_peers(names: dict[str, str], folder: Path | None, kind: str, rows: int) -> Iterator[Peers]:
    """The named replays, each filled with ``rows`` rows in a process of its own."""
    with ExitStack() as stack:
        peers: Peers = {}
        for name, venv in names.items():
            python = runs.interpreter(folder, venv)
            served = runs.asked(python, "replay_peers.py", name, kind, rows)
            try:
                facts, ask = stack.enter_context(served)
            except PeerFailed as e:
                peers[name] = str(e)
            else:
                time = partial(_time, ask)
                peers[name] = Peer(facts["version"], facts["bytes_per_row"], time)
        yield peers


def _time(ask: Callable[[object], Any], op: str, batch: int, calls: int) -> Timing:
    return Timing(**ask(f"{op} {batch} {calls}"))


def compare(
    name: str, setting: dict[str, Any], ours: Callable[[], object], peers: Peers, op: str,
    batch: int, effort: Effort, *, target: float | None = None, note: str = "",
) -> list[Row]:  # fmt: skip
    """A row for each of ``peers``: how many times faster ``ours`` is than its ``op``.

    The target is one for every peer, so it is met where the fastest one's row meets it.
    """
    repeats, seconds = effort
    calls = calls_for(ours, seconds)
    sides: dict[str, Side] = {"rlrun": lambda: time_calls(ours, calls)}
    missing = {who: peer for who, peer in peers.items() if isinstance(peer, str)}
    for who, peer in peers.items():
        if isinstance(peer, Peer):
            try:
                peer.time(op, batch, 3)
                once = peer.time(op, batch, 3).wall
            except PeerFailed as e:
                missing[who] = str(e)
                continue
            count = max(2, round(seconds / max(once, 1e-9)))
            sides[who] = lambda p=peer, n=count: p.time(op, batch, n)
    found, failed = rounds(sides, repeats)
    missing |= failed
    rows = []
    for who, peer in peers.items():
        fields: dict[str, Any] = {"kind": "speedup", "target": target, "note": note}
        fields["missing"] = missing.get(who, "")
        theirs = [] if who in missing else found[who]
        label = f"{who} {peer.version}" if theirs else who
        rows.append(timing_row(name, setting, label, found["rlrun"], theirs, **fields))
    return rows


def priorities(batch: int) -> np.ndarray:
    return np.random.default_rng(batch).random(batch, np.float32) + np.float32(1e-3)


# -- sections --------------------------------------------------------------------------------------

RETURNED = "ours ends in torch tensors; peers as they return: arrays"


def updates(
    kind: str, full: Filled, peers: Peers, batch: int, effort: Effort, target: float
) -> list[Row]:
    """sample + update of one batch size beside every peer."""
    new = priorities(batch)
    return compare(
        f"{kind}, sample + update", {"rows": full.rows, "batch": batch},
        lambda: full.update(batch, new), peers, "update", batch, effort, target=target,
        note=RETURNED,
    )  # fmt: skip


def vectors(folder: Path | None, rows: int, effort: Effort) -> list[Row]:
    """Rows of 4 float32: sample + update, batched add, memory of a row."""
    own = own_memory("vectors", rows)
    note = f"full and wrapping; ours {STEPS} steps of {COLUMNS} environments, windows cut and "
    note += "priorities set"
    with open_peers(PEERS, folder, "vectors", rows) as peers:
        full = filled("vectors", rows)
        batches, size = full.batches(), STEPS * COLUMNS
        found = [
            row for batch, target in BATCHES.items()
            for row in updates("vectors", full, peers, batch, effort, target)
        ]  # fmt: skip
        found += compare(
            "vectors, add", {"rows": rows, "batch": size}, lambda: full.replay.add(next(batches)),
            peers, "add", size, effort, target=ADD_TARGET, note=note,
        )  # fmt: skip
        return found + memory_rows("vectors", own, peers, rows)


def images(folder: Path | None, rows: int, effort: Effort) -> list[Row]:
    """Rows of 84 x 84 bytes: sample + update, memory of a row."""
    own = own_memory("images", rows)
    with open_peers(PEERS, folder, "images", rows) as peers:
        full = filled("images", rows)
        found = [
            row for batch in BATCHES
            for row in updates("images", full, peers, batch, effort, IMAGE_TARGET)
        ]  # fmt: skip
        return found + memory_rows("images", own, peers, rows)


def sequences(folder: Path | None, rows: int, effort: Effort) -> list[Row]:
    """64 windows of 45 rows beside the peers' sequences."""
    setting = {"rows": rows, "windows": WINDOWS, "steps": KINDS["sequences"].window.rows}
    note = f"episodes of {EPISODE}; cpprb holds whole sequences as items, Tianshou stacks the "
    note += "observations of the 45 rows before the drawn ones"
    with open_peers(PEERS, folder, "sequences", rows) as peers:
        full, new = filled("sequences", rows), priorities(WINDOWS)
        calls: dict[str, Callable[[], object]] = {
            "sample": lambda: full.sample(WINDOWS), "update": lambda: full.update(WINDOWS, new),
        }  # fmt: skip
        return [
            row for op, ours in calls.items()
            for row in compare(
                "sequences, sample" + (" + update" if op == "update" else ""), setting, ours, peers,
                op, WINDOWS, effort, target=SEQUENCE_TARGET, note=note,
            )
        ]  # fmt: skip


# -- memory ----------------------------------------------------------------------------------------


def own_memory(kind: str, rows: int) -> dict[str, float]:
    """What ``memory_of`` finds in a process of its own, in which what is freed is given back."""
    if runs.in_process:
        return memory_of(kind, rows)
    command = [sys.executable, "-m", "tests.benchmarks.replay", kind, str(rows)]
    env = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(1 << 20)}
    done = subprocess.run(command, cwd=runs.CHECKOUT, env=env, check=True, stdout=subprocess.PIPE)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def memory_of(kind: str, rows: int) -> dict[str, float]:
    """Bytes a row of a full replay: resident, and of its arrays."""
    warm = filled(kind, 4096)  # imports and compilation are no part of the memory of a row
    warm.sample(64)
    del warm
    gc.collect()
    before = resident()
    full = filled(kind, rows)
    gc.collect()
    return {"resident": (resident() - before) / rows, "arrays": full.replay.layout.nbytes / rows}


def memory_rows(kind: str, own: dict[str, float], peers: Peers, rows: int) -> list[Row]:
    """Resident memory a row, ours and every peer's."""
    note = "growth of resident memory from before the replay is made until it is full; our arrays "
    note += f"are {own['arrays']:.1f} bytes a row in all"
    found = []
    for who, peer in peers.items():
        there = isinstance(peer, Peer)
        found.append(make_row(
            f"{kind}, memory of a row", {"rows": rows}, f"{who} {peer.version}" if there else who,
            "bytes", [own["resident"]], [peer.bytes_per_row] if there else [], kind="cost",
            missing="" if there else peer, note=note,
        ))  # fmt: skip
    return found


SECTIONS: dict[str, Callable[[Path | None, int, Effort], list[Row]]] = {
    "vectors": vectors, "images": images, "sequences": sequences,
}  # fmt: skip

if __name__ == "__main__":
    print(json.dumps(memory_of(sys.argv[1], int(sys.argv[2]))))
