"""Prioritized and uniform replay: sampling, adding, memory, scaling, beside peers.

``--only SECTION ...``: vectors, images, sequences, lists, size, memory, cliffwalk. Everything runs
on one thread. Our side ends in torch tensors, conversion included; peers return what they return.
Samples of ours hold obs, next obs, action, reward, three flags, validity and the previous action
and reward; peers store and return obs, next obs, action, reward and done (Tianshou: three flags).

``python -m tests.benchmarks.replay KIND ROWS MORE`` prints what memory our replay takes, measured
in a process of its own: bytes of resident memory and of all arrays a row (ROWS rows of KIND stored,
random priorities written), and how much resident memory grew for every million rows that were added
behind the first fill (MORE rows, in batches of 256; 0: not measured).
"""

import gc
import json
import math
import os
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks import cliffwalk, runs
from tests.benchmarks.peers.common import resident
from tests.benchmarks.product import Chunk, Replay, Sample, SumTree, Window
from tests.benchmarks.rows import (
    PeerFailed,
    Row,
    Side,
    Timing,
    beside,
    calls_for,
    machine,
    make_row,
    rounds,
    time_calls,
    timing_row,
)
from tests.buffer.make import constant, make_replay

VECTOR_TARGETS = {32: 1.5, 256: 1.5, 1024: 1.2}
IMAGE_TARGET, ADD_TARGET, SEQUENCE_TARGET = 1.2, 2.0, 1.2
GATHER_TARGET, SIZE_TARGET, GROWTH_TARGET = 1.3, 4.0, 1.0
WINDOWS = 64  # sequences of a batch
PEERS = {"cpprb": "torchrl", "torchrl": "torchrl", "tianshou": "tianshou", "di-engine": "ding"}
PYTHON = {"list": "", "namedtuple": ""}  # run by this interpreter
Effort = tuple[int, float]  # rounds in which every side is measured once, seconds of a measurement


@dataclass(frozen=True)
class Sizes:
    """Rows stored in each section, transitions and seeds of the cliffwalk."""

    vectors: int = 1_000_000
    images: int = 100_000
    sequences: int = 1_000_000
    lists: int = 1_000_000
    small: int = 100_000
    large: int = 10_000_000
    growth: int = 2_000_000  # rows added while memory is watched
    states: int = 16
    seeds: int = 10


QUICK = Sizes(10_000, 1_000, 10_000, 10_000, 1_000, 20_000, 10_000, 5, 3)


def main(o: Namespace) -> list[Row]:
    """The rows of the sections, and first one that says where they were measured."""
    repeats, sizes = o.rounds, QUICK if o.quick else Sizes()
    note = f"{machine()}; commit {runs.commit()}; one thread a side, medians of {repeats} rounds "
    rows = [Row("machine", {}, "", "cores", "fact", os.cpu_count() or 0, None, None)]
    rows[0].note = note + "(range)"
    unknown = set(o.only) - set(SECTIONS)
    assert not unknown, f"unknown section {unknown}; there are: {', '.join(SECTIONS)}"
    for name in o.only or SECTIONS:
        rows += SECTIONS[name](o.peers, sizes, (repeats, 0.003 if o.quick else 0.2))
    return rows


# -- our side: filled replays, batches to add, bare gathers ----------------------------------------

COLUMNS = 16  # environments side by side
EPISODE = 200  # steps; the row behind them is the end row
STEPS = 16  # of a batch that is added: 16 x 16 = 256 rows
PERIOD = EPISODE + 1
NOISE = 61  # different random observations
COLD = 1 << 16  # windows that a gather takes before it begins again, at most
FLAGS = ("first", "terminated", "truncated", "valid")
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
    "scalars": Kind((1,), np.float32, TRANSITION),
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


def filled(name: str, rows: int, *, sampler: str = "prioritized") -> Filled:
    """A replay of the named kind whose ring is full."""
    kind, per_column, g = KINDS[name], rows // COLUMNS, np.random.default_rng(0)
    stream, uniform = Stream(kind), sampler == "uniform"
    changes = {} if uniform else {"alpha": constant(0.6), "beta": constant(0.4)}
    capacity = rows // kind.window.learned + rows // EPISODE + 4 * COLUMNS  # of the window table
    replay = make_replay(
        stream.chunk(0, 1), rows=per_column + 1, window=kind.window, kind=sampler,
        capacity=None if kind.window == TRANSITION else capacity, **changes,
    )  # fmt: skip
    size = COLUMNS * int(np.prod(kind.shape)) * np.dtype(kind.dtype).itemsize
    most = min(max(PIECE // size, 1), 1024)
    for start in range(0, per_column, most):
        keys = replay.add(stream.chunk(start, min(most, per_column - start)))
        replay.prioritize(keys, g.random(len(keys), np.float32) + 1e-3)
    return Filled(replay, stream, rows)


class Bare:
    """Bare gathers of as many rows as samples hold, at random windows: numpy's ``take`` into reused
    output, time-major.

    The rows of a column lie one behind the other and where the rows of a batch are was worked out
    before: what a replay cannot go below. All flags of a row are one byte, or ``apart``: four bytes
    as in a ``Segment`` (first, terminated, truncated, valid).
    """

    def __init__(self, source: Filled, name: str, batch: int, *, apart: bool = False) -> None:
        """So many different samples of ``batch`` windows that caches stay cold."""
        kind, rows, g = KINDS[name], source.rows, np.random.default_rng(0)
        types = {"action": np.int64, "reward": np.float32}
        types |= dict.fromkeys(FLAGS if apart else ["flags"], np.uint8)
        self.store = {"obs": np.ones((rows, *kind.shape), kind.dtype)}
        self.store |= {field: np.ones(rows, dtype) for field, dtype in types.items()}
        seen = len(source.sample(batch).segment.obs)
        count = max(1, min(COLD, 4 * rows) // batch)
        starts = g.integers(rows - seen, size=(count, batch))
        self.places = cycle([start + np.arange(seen)[:, None] for start in starts])
        self.out = {
            n: np.empty((seen - (n != "obs"), batch, *x.shape[1:]), x.dtype)
            for n, x in self.store.items()
        }

    def gather(self) -> dict[str, np.ndarray]:
        """The next batch; overwritten by the one after it."""
        seen = next(self.places)
        for name, store in self.store.items():
            store.take(seen if name == "obs" else seen[:-1], 0, self.out[name], "clip")
        return self.out


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


def updates(
    name: str, full: Filled, peers: Peers, setting: dict[str, Any], batch: int, effort: Effort,
    target: float | None,
) -> list[Row]:  # fmt: skip
    """sample + update of one batch size beside every peer."""
    new = priorities(batch)
    return compare(
        name, {**setting, "batch": batch}, lambda: full.update(batch, new), peers, "update", batch,
        effort, target=target, note=_NOTE,
    )  # fmt: skip


_NOTE = "ours ends in torch tensors; peers as they return: arrays (cpprb, Tianshou), a TensorDict"
_NOTE += " (torchrl), a list of dicts that nothing has collated (DI-engine)"


# -- vectors and images ----------------------------------------------------------------------------


def vectors(folder: Path | None, sizes: Sizes, effort: Effort) -> list[Row]:
    """Rows of 4 float32: sample + update, batched add, memory of a row."""
    setting = {"rows": sizes.vectors}
    own = own_memory("vectors", sizes.vectors)
    with open_peers(PEERS, folder, "vectors", sizes.vectors) as peers:
        full = filled("vectors", sizes.vectors)
        rows = []
        for batch, target in VECTOR_TARGETS.items():
            name = "vectors, sample + update"
            rows += updates(name, full, peers, setting, batch, effort, target)
        rows += _add(full, peers, setting, effort)
        rows += _memory("vectors", own, peers, setting)
    return rows


def _add(full: Filled, peers: Peers, setting: dict[str, Any], effort: Effort) -> list[Row]:
    batches, size = full.batches(), STEPS * COLUMNS
    note = f"full and wrapping; ours {STEPS} steps of {COLUMNS} environments, windows cut and "
    note += "priorities set; DI-engine's items are its list of dicts"
    return compare(
        "vectors, add", {**setting, "batch": size}, lambda: full.replay.add(next(batches)), peers,
        "add", size, effort, target=ADD_TARGET, note=note,
    )  # fmt: skip


def images(folder: Path | None, sizes: Sizes, effort: Effort) -> list[Row]:
    """Rows of 84 x 84 bytes: sample + update, the share of the gather limit, memory of a row."""
    setting = {"rows": sizes.images}
    own = own_memory("images", sizes.images)
    with open_peers(PEERS, folder, "images", sizes.images) as peers:
        full = filled("images", sizes.images)
        rows = []
        for batch in VECTOR_TARGETS:
            name = "images, sample + update"
            rows += updates(name, full, peers, setting, batch, effort, IMAGE_TARGET)
        rows += _memory("images", own, peers, setting)
    for batch in VECTOR_TARGETS:
        rows.append(gather_limit(full, {**setting, "batch": batch}, batch, effort))
    return rows


def gather_limit(full: Filled, setting: dict[str, Any], batch: int, effort: Effort) -> Row:
    """The share of the bare gather's speed that ``sample`` reaches (1: nothing else is paid)."""
    bare = Bare(full, "images", batch)
    row = beside(
        "images, sample", setting, "bare gather", lambda: full.sample(batch), bare.gather, effort,
        kind="speedup", note="the gather is numpy take of as many rows into reused output, "
        "at places known before",
    )  # fmt: skip
    moved = 2 * sum(x.nbytes for x in bare.out.values())  # read and written
    row.setting["limit"] = f"{moved / (row.other or math.nan) / 1e6:.1f} GB/s"
    return row


# -- sequences -------------------------------------------------------------------------------------


def sequences(folder: Path | None, sizes: Sizes, effort: Effort) -> list[Row]:
    """64 windows of 45 rows: beside the peers' sequences and beside the bare gather."""
    setting = {"rows": sizes.sequences, "windows": WINDOWS, "steps": KINDS["sequences"].window.rows}
    note = f"episodes of {EPISODE}; cpprb and DI-engine hold whole sequences as items (collated by "
    note += "DI-engine's timestep_collate), torchrl cuts slices (a priority for every row), "
    note += "Tianshou stacks the observations of the 45 rows before the drawn ones"
    with open_peers(PEERS, folder, "sequences", sizes.sequences) as peers:
        full = filled("sequences", sizes.sequences)
        new, rows = priorities(WINDOWS), []
        calls: dict[str, Callable[[], object]] = {
            "sample": lambda: full.sample(WINDOWS), "update": lambda: full.update(WINDOWS, new),
        }  # fmt: skip
        for op, ours in calls.items():
            name = "sequences, sample" + (" + update" if op == "update" else "")
            rows += compare(
                name, setting, ours, peers, op, WINDOWS, effort, target=SEQUENCE_TARGET, note=note
            )
    rows.append(_beside_gather(full, setting, effort, apart=False))
    rows.append(_beside_gather(full, setting, effort, apart=True))
    return rows


def _beside_gather(full: Filled, setting: dict[str, Any], effort: Effort, *, apart: bool) -> Row:
    """``sample`` over the bare gather; the target is that of the smaller gather."""
    bare = Bare(full, "sequences", WINDOWS, apart=apart)
    name = "sequences, sample and its gather" + (", four flags" if apart else "")
    note = "numpy take of obs, action, reward and flags (one byte a row, or four flags as samples "
    note += "have them) of as many windows into reused output, at places known before"
    return beside(
        name, setting, "bare gather", lambda: full.sample(WINDOWS), bare.gather, effort,
        kind="cost", target=None if apart else GATHER_TARGET, note=note,
    )  # fmt: skip


def lists(folder: Path | None, sizes: Sizes, effort: Effort) -> list[Row]:
    """Uniform sampling beside Python lists of tuples (ElegantRL's comparison)."""
    note = "random.sample and np.array of every field, no priorities"
    with open_peers(PYTHON, folder, "vectors", sizes.lists) as peers:
        full = filled("vectors", sizes.lists, sampler="uniform")
        rows = []
        for batch in VECTOR_TARGETS:
            rows += compare(
                "vectors, uniform sample", {"rows": sizes.lists, "batch": batch},
                lambda b=batch: full.sample(b), peers, "sample", batch, effort, note=note,
            )  # fmt: skip
    return rows


# -- size and memory -------------------------------------------------------------------------------


def size(folder: Path | None, sizes: Sizes, effort: Effort) -> list[Row]:
    """sample + update of 256 in a large replay beside a small one; nodes a search visits."""
    batch, new = 256, priorities(256)
    small, large = filled("scalars", sizes.small), filled("scalars", sizes.large)
    cost = beside(
        "scalars, sample + update", {"rows": sizes.large, "batch": batch}, f"{sizes.small} rows",
        lambda: large.update(batch, new), lambda: small.update(batch, new), effort, kind="cost",
        target=SIZE_TARGET,
    )  # fmt: skip
    visits = make_row(
        "nodes a search visits", {"rows": sizes.large}, "ceil(log2 N)", "nodes",
        [float(SumTree(sizes.large).depth)], [float(math.ceil(math.log2(sizes.large)))],
        kind="cost", target=1.0,
        note="counted by a naive descent in tests/benchmarks/test_replay.py",
    )  # fmt: skip
    return [cost, visits]


def memory(folder: Path | None, sizes: Sizes, effort: Effort) -> list[Row]:
    """Growth of resident memory behind the first fill."""
    own = own_memory("vectors", sizes.vectors, more=sizes.growth)
    grown = own["growth_per_million"] / 1e6
    return [
        make_row(
            "vectors, memory behind the first fill", {"rows": sizes.vectors, "added": sizes.growth},
            "the limit", "MB per 1e6 rows", [grown], [1.0], kind="cost", target=GROWTH_TARGET,
        )
    ]  # fmt: skip


def own_memory(kind: str, rows: int, more: int = 0) -> dict[str, float]:
    """What ``memory_of`` finds in a process of its own, in which what is freed is given back."""
    if runs.in_process:
        return memory_of(kind, rows, more)
    command = [sys.executable, "-m", "tests.benchmarks.replay", kind, str(rows), str(more)]
    env = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(1 << 20)}
    done = subprocess.run(command, cwd=runs.CHECKOUT, env=env, check=True, stdout=subprocess.PIPE)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def memory_of(kind: str, rows: int, more: int) -> dict[str, float]:
    """See the head of this file."""
    warm = filled(kind, 4096)  # imports and compilation are no part of the memory of a row
    warm.sample(64)
    del warm
    gc.collect()
    before = resident()
    full = filled(kind, rows)
    gc.collect()
    facts = {"bytes_per_row": (resident() - before) / rows, "nbytes": full.replay.nbytes / rows}
    if more:
        batches = full.batches()
        for chunk in islice(batches, PERIOD):
            full.replay.add(chunk)
        before = resident()
        for chunk in islice(batches, -(-more // (STEPS * COLUMNS))):
            full.replay.add(chunk)
        facts["growth_per_million"] = (resident() - before) / more * 1e6
    return facts


def _memory(kind: str, own: dict[str, float], peers: Peers, setting: dict[str, Any]) -> list[Row]:
    """Resident memory a row, ours and every peer's."""
    note = "growth of resident memory from before the replay is made until it is full; our arrays "
    note += f"are {own['nbytes']:.1f} bytes a row in all"
    rows = []
    for who, peer in peers.items():
        there = isinstance(peer, Peer)
        rows.append(make_row(
            f"{kind}, memory of a row", setting, f"{who} {peer.version}" if there else who, "bytes",
            [own["bytes_per_row"]], [peer.bytes_per_row] if there else [], kind="cost",
            missing="" if there else peer, note=note,
        ))  # fmt: skip
    return rows


# -- does it help ----------------------------------------------------------------------------------


def walk(folder: Path | None, sizes: Sizes, effort: Effort) -> list[Row]:
    """Blind Cliffwalk: updates until Q is right, prioritized beside uniform."""
    return cliffwalk.measure(sizes.states, sizes.seeds)


Section = Callable[[Path | None, Sizes, Effort], list[Row]]
SECTIONS: dict[str, Section] = {
    "vectors": vectors, "images": images, "sequences": sequences, "lists": lists, "size": size,
    "memory": memory, "cliffwalk": walk,
}  # fmt: skip

if __name__ == "__main__":
    print(json.dumps(memory_of(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
