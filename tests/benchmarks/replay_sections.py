"""Sections of the replay benchmark: one function each, which returns its rows.

Everything runs on one thread. Our side ends in torch tensors, conversion included; peers return
what they return. Samples of ours hold obs, next obs, action, reward, three flags, validity and the
previous action and reward; peers store and return obs, next obs, action, reward and done
(Tianshou: three flags).
"""

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE
from typing import Any

import numpy as np

from tests.benchmarks import cliffwalk
from tests.benchmarks.product import SumTree
from tests.benchmarks.replay_client import PEERS, PYTHON, Effort, Peer, Peers, compare, open_peers
from tests.benchmarks.replay_ours import COLUMNS, EPISODE, KINDS, STEPS, Bare, Filled, filled
from tests.benchmarks.timing import Row, calls_for, interleaved, make_row, time_calls, timing_row

CHECKOUT = Path(__file__).parents[2]
VECTOR_TARGETS = {32: 1.5, 256: 1.5, 1024: 1.2}
IMAGE_TARGET, ADD_TARGET, SEQUENCE_TARGET = 1.2, 2.0, 1.2
GATHER_TARGET, SIZE_TARGET, GROWTH_TARGET = 1.3, 4.0, 1.0
WINDOWS = 64  # sequences of a batch


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
    own = _own_memory("vectors", sizes.vectors)
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
    own = _own_memory("images", sizes.images)
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
    bare = Bare(full, batch)
    pairs = _pairs(lambda: full.sample(batch), bare.gather, effort)
    note = "numpy take of the same rows into reused output, at places known before"
    row = timing_row(
        "images, sample",
        setting,
        "bare gather",
        pairs,
        kind="speedup",
        note=f"the gather is {note}",
    )
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
    bare = Bare(full, WINDOWS, apart=apart)
    pairs = _pairs(lambda: full.sample(WINDOWS), bare.gather, effort)
    name = "sequences, sample and its gather" + (", four flags" if apart else "")
    note = "numpy take of obs, action, reward and flags (one byte a row, or four flags as samples "
    note += "have them) of the same windows into reused output, at places known before"
    return timing_row(
        name, setting, "bare gather", pairs, kind="cost", target=None if apart else GATHER_TARGET,
        note=note,
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
    pairs = _pairs(lambda: large.update(batch, new), lambda: small.update(batch, new), effort)
    setting = {"rows": sizes.large, "batch": batch}
    against = f"{sizes.small} rows"
    cost = timing_row(
        "scalars, sample + update", setting, against, pairs, kind="cost", target=SIZE_TARGET
    )
    visits = make_row(
        "nodes a search visits", {"rows": sizes.large}, "ceil(log2 N)", "nodes",
        [float(SumTree(sizes.large).depth)], [float(math.ceil(math.log2(sizes.large)))],
        kind="cost", target=1.0,
        note="counted by a naive descent in tests/benchmarks/test_replay_bench.py",
    )  # fmt: skip
    return [cost, visits]


def memory(folder: Path | None, sizes: Sizes, effort: Effort) -> list[Row]:
    """Growth of resident memory behind the first fill."""
    own = _own_memory("vectors", sizes.vectors, more=sizes.growth)
    grown = own["growth_per_million"] / 1e6
    return [
        make_row(
            "vectors, memory behind the first fill", {"rows": sizes.vectors, "added": sizes.growth},
            "the limit", "MB per 1e6 rows", [grown], [1.0], kind="cost", target=GROWTH_TARGET,
        )
    ]  # fmt: skip


def _own_memory(kind: str, rows: int, more: int = 0) -> dict[str, float]:
    command = [sys.executable, "-m", "tests.benchmarks.replay_own", kind, str(rows), str(more)]
    env = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(1 << 20)}  # what is freed is given back
    done = subprocess.run(command, cwd=CHECKOUT, env=env, check=True, stdout=PIPE, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


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


def _pairs(ours: Callable[[], object], other: Callable[[], object], effort: Effort) -> list[Any]:
    """Interleaved timings of two of our own functions."""
    first, second = calls_for(ours, effort.seconds), calls_for(other, effort.seconds)
    return interleaved(
        lambda: time_calls(ours, first), lambda: time_calls(other, second), effort.repeats
    )


Section = Callable[[Path | None, Sizes, Effort], list[Row]]
SECTIONS: dict[str, Section] = {
    "vectors": vectors, "images": images, "sequences": sequences, "lists": lists, "size": size,
    "memory": memory, "cliffwalk": walk,
}  # fmt: skip
