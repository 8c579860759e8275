"""Compiled, interpreted and vectorised kernels give the same bits; so a replay without numba."""

import hashlib
import importlib
import os
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlrun.buffer
from rlrun.jit import COMPILED
from rlrun.rundir.segments import Rows
from rlrun.types import Window, tree_leaves
from tests.buffer.pair import Pair, Setup
from tests.reference.replay_model import OBSERVATIONS, Tiling

ROOT = Path(__file__).parents[2]
CASES = 200
INTERPRETED = 12  # cases of loops without a compiler
FAR = 1 << 55  # rings filled: keys beyond what floats and 32-bit numbers hold exactly
rng_of = np.random.default_rng


# -- random arguments, by kernel -------------------------------------------------------------------


def ring(rng):
    """(columns, rows, flags, head) of a ring that was written to, perhaps round and round."""
    columns, rows = int(rng.integers(1, 4)), int(rng.integers(3, 30))
    flags = rng.integers(0, 128, columns * rows).astype(np.uint8)
    head = int(rng.integers(1, 3 * rows)) + int(rng.choice([0, 0, FAR])) * rows
    flags.reshape(columns, rows)[:, head % rows] = 0
    return columns, rows, flags, head


def note(rng):
    columns, rows, flags, head = ring(rng)
    steps = int(rng.integers(1, rows))
    first, *bits = rng.random((4, steps + 1, columns)) < 0.4
    rewards = np.full(columns * rows, np.nan, np.float32)
    reward = rng.normal(size=(steps, columns)).astype(np.float32)
    bits = [x[:steps] for x in bits]
    return flags, rewards, head, rows, first, *bits, reward, bool(rng.integers(2))


def put(rng):
    columns, rows, _, head = ring(rng)
    steps, words = int(rng.integers(1, rows)), int(rng.integers(0, 5))
    kind = (np.uint8, np.uint32, np.uint64)[rng.integers(3)]
    store = np.full((columns * rows, words), 171, kind)
    source = rng.integers(0, 256, (steps * columns, words)).astype(kind)
    return store, source, head % rows, rows, columns


def spans(rng):
    columns, rows, flags, head = ring(rng)
    written = np.arange(max(0, head - rows + 1), head)
    batch = int(rng.integers(0, 9))
    row, column = rng.choice(written, batch), rng.integers(columns, size=batch)
    return flags, column * rows + row % rows, head, rows, columns, int(rng.integers(1, rows))


def windows(rng):
    """``Spans.lines`` of windows, positions before learned ones, rows, S."""
    columns, rows, _, _ = ring(rng)
    batch, size = int(rng.integers(0, 9)), int(rng.integers(2, rows + 2))
    before = int(rng.integers(0, size))
    first, column = rng.integers(0, 99, batch), rng.integers(columns, size=batch)
    learn = first + rng.integers(0, before + 1, batch)
    last = first + rng.integers(0, size, batch)
    stop = np.maximum(last - rng.integers(0, 2, batch), first)
    at = np.stack([column * rows + first % rows, column, first, learn, stop, last, first])
    return at, before, rows, size


def reach(rng):
    cells, width = int(rng.integers(1, 60)), int(rng.integers(1, 40))
    kind = (np.uint8, np.uint32, np.uint64)[rng.integers(3)]
    store = np.iinfo(kind).max - rng.integers(0, 9, (cells, width), kind)  # sums wrap
    return store, rng.integers(cells, size=rng.integers(0, 9)), int(rng.integers(1, 30))


def touch(rng):
    store, cell, count = reach(rng)
    rewards = rng.normal(size=len(store)).astype(np.float32)
    return store, rewards, rng.integers(0, 128, len(store), np.uint8), cell, count


def lines(rng):
    table = rng.integers(0, 60, (20, 7))
    slots = rng.integers(20, size=rng.integers(0, 9))
    return table, slots, int(rng.integers(3, 30)), int(rng.integers(0, 90)), 20


def place(rng):
    at, before, rows, size = windows(rng)
    batch = at.shape[1]
    out = (np.full(shape, -9) for shape in (batch, batch, (size, batch), (size - 1, batch), batch))
    return at, before, rows, *out


def read(rng):
    (_, _, first, learn, stop, _, _), before, _, size = windows(rng)
    batch, cells = len(first), 30
    flags = rng.integers(0, 128, cells).astype(np.uint8)
    rewards = np.where(rng.random(cells) < 0.3, np.nan, rng.random(cells)).astype(np.float32)
    at, ahead = rng.integers(cells, size=(7, batch)), rng.integers(cells, size=batch)
    step = rng.integers(cells, size=(size - 1, batch))
    out = rng.random((size, batch)) < 0.5, *(rng.random((3, size - 1, batch)) < 0.5)
    reward = np.full((size - 1, batch), np.nan, np.float32)
    where = flags, rewards, at, ahead, step, first - learn + before, stop - first
    return *where, rng.random(batch) < 0.5, *out, reward, np.full(batch, np.nan, np.float32)


def fetch(rng):
    at, before, rows, *out = place(rng)
    size, batch = out[2].shape
    cells = 3 * rows
    store = rng.integers(0, 9, (cells, 2), np.uint64)
    rewards = np.where(rng.random(cells) < 0.3, np.nan, rng.random(cells)).astype(np.float32)
    flags = rng.integers(0, 128, cells).astype(np.uint8)
    bits = rng.random(batch) < 0.5, rng.random((size, batch)) < 0.5
    bits += tuple(rng.random((3, size - 1, batch)) < 0.5)
    reward = np.full((size - 1, batch), np.nan, np.float32)
    before_reward = np.full(batch, np.nan, np.float32)
    return store, rewards, flags, at, before, rows, *out, *bits, reward, before_reward


def tree(rng, minimum=False):
    size = int(rng.integers(1, 40))
    leaves = 1 << (size - 1).bit_length()
    nodes = np.full(2 * leaves, np.inf if minimum else 0.0)
    values = 10.0 ** rng.uniform(-6, 6, size) * (rng.random(size) < 0.7)
    nodes[leaves : leaves + size] = values
    for i in range(leaves - 1, 0, -1):
        a, b = nodes[2 * i], nodes[2 * i + 1]
        nodes[i] = min(a, b) if minimum else a + b
    return nodes, leaves, leaves.bit_length() - 1, size


def set_(rng):
    least = bool(rng.integers(2))
    nodes, leaves, depth, size = tree(rng, least)
    index = rng.integers(size, size=rng.integers(0, 30))
    return nodes, leaves, depth, index, 10.0 ** rng.uniform(-6, 6, len(index)), least


def draw(rng):
    nodes, leaves, depth, _ = tree(rng)
    batch = int(rng.integers(1, 30))
    return nodes, leaves, depth, rng.random(batch)


def exchange(rng):
    least = bool(rng.integers(2))
    nodes, leaves, depth, size = tree(rng, least)
    raw = rng.random(size).astype(np.float32)
    dead, new = (rng.permutation(size)[: rng.integers(0, size + 1)] for _ in range(2))
    return nodes, leaves, depth, dead, new, 0.7, least, raw, 3.0, np.inf if least else 0.0


def raise_(rng):
    kind = (np.float32, np.float64)[rng.integers(2)]
    values = rng.choice([0.0, 1e-30, 0.5, 7.0, 1e30], rng.integers(0, 9))
    if len(values) and rng.integers(4) == 0:
        values[rng.integers(len(values))] = rng.choice([np.nan, np.inf, -1.0])
    slots = rng.integers(6, size=len(values))
    raw = np.full(6, 0.25, np.float32)
    return values.astype(kind), 1e-6, slots, raw, np.full(len(values), -9.0)


def find(rng):
    nodes, leaves, depth, _ = tree(rng)
    edges = [0.0, np.nextafter(nodes[1], 0), nodes[1], 2 * nodes[1]]
    mass = np.concatenate([edges, nodes[1] * rng.random(20)])
    return nodes, leaves, depth, mass


def expire(rng):
    columns, rows, flags, head = ring(rng)
    start = max(0, head - rows + 1)
    return flags, rows, columns, start, start + int(rng.integers(0, head - start + 1))


def release(rng):
    columns, rows, flags, head = ring(rng)
    oldest, nstep = max(0, head - rows + 1), int(rng.integers(1, 6))
    start = int(rng.integers(oldest, head))
    pending = rng.integers(max(oldest, start - nstep), start + 1, columns)
    return flags, rows, columns, pending, nstep, start, head - start


def append(rng):
    columns, rows, flags, head = ring(rng)
    nstep, steps = int(rng.integers(1, rows)), int(rng.integers(1, rows))
    tail = max(0, head - rows + 1)
    until = max(tail, head + steps + 2 - rows)
    first, *bits = rng.random((4, steps + 1, columns)) < 0.4
    bits = [x[:steps] for x in bits]
    rewards = np.full(columns * rows, np.nan, np.float32)
    reward = rng.normal(size=(steps, columns)).astype(np.float32)
    pending = rng.integers(max(tail, head - nstep), head + 1, columns)
    leaves = 1 << (columns * rows - 1).bit_length()
    nodes, raw = rng.random(2 * leaves), rng.random(columns * rows).astype(np.float32)
    fixed = flags, rewards, rows, nstep, nodes, leaves, leaves.bit_length() - 1, raw
    added = pending, head, first, *bits, reward, bool(rng.integers(2)), tail, until
    return *fixed, *added, 0.7, 3.0


def append_pair(rng):
    fixed_and_added = append(rng)
    rows, reward = fixed_and_added[2], fixed_and_added[13]
    steps, columns = reward.shape
    wide = int(rng.integers(1, 4))
    obs = np.zeros((columns * rows, wide), np.uint64)
    new_obs = rng.integers(0, 2**63, ((steps + 1) * columns, wide), np.uint64)
    action = np.zeros((columns * rows, 1), np.uint8)
    new_action = rng.integers(0, 256, (steps * columns, 1), np.uint8)
    return obs, new_obs, action, new_action, *fixed_and_added


def heap(rng):
    """(heap, position, priority, count), some slots dead."""
    capacity = int(rng.integers(2, 30))
    count = int(rng.integers(1, capacity))
    slots = np.full(capacity, -1, np.int32)
    slots[:count] = rng.permutation(capacity)[:count]
    position = np.full(capacity, -1, np.int32)
    position[slots[:count]] = np.arange(count)
    priority = np.full(capacity, np.nan, np.float32)
    priority[slots[:count]] = -np.sort(-rng.integers(0, 9, count))
    return slots, position, priority, count


def rise(rng):
    slots, position, priority, count = heap(rng)
    at = int(rng.integers(count))
    priority[slots[at]] += rng.integers(0, 9)
    return slots, position, priority, at


def sink(rng):
    slots, position, priority, count = heap(rng)
    at = int(rng.integers(count))
    priority[slots[at]] -= rng.integers(0, 9)
    return slots, position, priority, at, count


def push(rng):
    arrays = heap(rng)
    dead = np.flatnonzero(arrays[1] < 0)
    return *arrays, rng.permutation(dead)[: rng.integers(0, 9)], float(rng.integers(0, 20))


def remove(rng):
    arrays = heap(rng)
    live = np.flatnonzero(arrays[1] >= 0)
    return *arrays, rng.permutation(live)[: rng.integers(0, 9)]


def update(rng):
    arrays = heap(rng)
    slots = rng.choice(np.flatnonzero(arrays[1] >= 0), rng.integers(0, 9))
    values = rng.choice([-0.0, 0.0, 0.5, 3.0, 1e300], len(slots))
    return *arrays, slots, values, 1.0


def first_bad(rng):
    kind = (np.float32, np.float64)[rng.integers(2)]
    values = rng.choice([0.0, -0.0, 1.0, 1e30, np.nan, np.inf, -1.0], rng.integers(0, 5))
    return (values.astype(kind),)


def by_least(rng):
    return (10.0 ** rng.uniform(-30, 30, int(rng.integers(1, 9))),)


def mend(rng):
    nodes, leaves, depth, least = tree(rng)
    node = leaves + rng.integers(0, leaves, int(rng.integers(0, 9)))
    nodes[node] = rng.random(len(node))
    return nodes, depth, node, least


TWINS = {
    "storage.ring.write_flags": note,
    "storage.ring.write_rows": put,
    "windows.single_row.spans": spans,
    "windows.table.spans": lines,
    "windows.gather.window_cells": place,
    "windows.gather.read_flags": read,
    "samplers.sumtree.set": set_,
    "samplers.sumtree.replace_leaves": exchange,
    "samplers.priority.store_priorities": raise_,
    "samplers.priority.divide_by_min": by_least,
    "samplers.sumtree.find": find,
    "samplers.sumtree.draw": draw,
}
NO_RESULT = (
    "windows.gather.prefetch_fields",
)  # interpreted, it adds Python's integers, which do not wrap
USED_UP = {
    "samplers.sumtree.find": 3,
    "samplers.sumtree.draw": 3,
}  # an argument that holds anything in the end
SINGLE = {
    "fused_append.fused_append": append,
    "fused_append.fused_append_pair": append_pair,
    "windows.single_row.expire": expire,
    "windows.single_row.release": release,
    "windows.gather.prefetch": reach,
    "windows.gather.prefetch_fields": touch,
    "windows.gather.read_rows": fetch,
    "samplers.heap.sift_up": rise,
    "samplers.heap.sift_down": sink,
    "samplers.heap.push": push,
    "samplers.heap.remove": remove,
    "samplers.heap.update": update,
    "samplers.priority.first_bad": first_bad,
    "samplers.sumtree.propagate": mend,
}


def kernels() -> Iterator[tuple[str, Any]]:
    """Every function under ``@jit`` in rlrun.buffer, by module and name."""
    for module in pkgutil.walk_packages(rlrun.buffer.__path__, "rlrun.buffer."):
        loaded = importlib.import_module(module.name)
        for name, value in vars(loaded).items():
            function = getattr(value, "py_func", None)
            if function is not None and function.__module__ == loaded.__name__:
                yield f"{module.name.removeprefix('rlrun.buffer.')}.{name}", value


@pytest.mark.skipif(not COMPILED, reason="numba is not there or switched off")
def test_every_kernel_is_tested():
    found = dict(kernels())
    twins = {name.removesuffix("_compiled") for name in found if name.endswith("_compiled")}
    assert twins == set(TWINS)
    compiled = {id(kernel) for name, kernel in found.items() if name.endswith("_compiled")}
    assert {name for name, kernel in found.items() if id(kernel) not in compiled} == set(SINGLE)


def ran(name, function, arguments) -> list[str]:
    """The bits of the result and of the arguments after the call."""
    arguments = [x.copy() if isinstance(x, np.ndarray) else x for x in arguments]
    with np.errstate(over="ignore"):  # unsigned sums wrap
        result = function(*arguments)
    result = result if isinstance(result, tuple) else (result,)
    copies = [np.array(x) for x in result if x is not None and name not in NO_RESULT]
    copies += [np.array(x) for i, x in enumerate(arguments) if i != USED_UP.get(name)]
    return [f"{x.shape} {x.tobytes().hex()}" for x in copies]


def named(name, suffix=""):
    module, _, function = name.rpartition(".")
    return getattr(importlib.import_module(f"rlrun.buffer.{module}"), function + suffix)


@pytest.mark.parametrize("name", TWINS)
def test_twins_are_alike(name):
    compiled, vectorised = named(name, "_compiled"), named(name, "_vectorised")
    interpreted = getattr(compiled, "py_func", compiled)
    for case in range(CASES):
        arguments = TWINS[name](rng_of(case))
        expected = ran(name, vectorised, arguments)
        assert ran(name, compiled, arguments) == expected, f"case {case}"
        assert case >= INTERPRETED or ran(name, interpreted, arguments) == expected, f"case {case}"


@pytest.mark.skipif(not COMPILED, reason="numba is not there or switched off")
@pytest.mark.parametrize("name", SINGLE)
def test_compiled_is_interpreted(name):
    """Which also shows that no index is out of bounds: only the interpreter looks."""
    kernel = named(name)
    for case in range(CASES // 2):
        arguments = SINGLE[name](rng_of(case))
        assert ran(name, kernel, arguments) == ran(name, kernel.py_func, arguments), f"case {case}"


# -- a replay without numba ------------------------------------------------------------------------


def digest(setup: Setup) -> str:
    """Of every key, weight and segment byte and of the state that a seeded sequence gives."""
    pair, rng = Pair(setup), rng_of(setup.seed)
    seen = hashlib.sha256()

    def look(*arrays):
        for x in arrays:
            some = isinstance(x, Rows) and x.first < x.stop
            array = np.ascontiguousarray(x.read(x.first, x.stop) if some else x)
            seen.update(f"{array.dtype} {array.shape}".encode() + array.tobytes())

    def look_at_state(state):
        for name, value in state.items():
            if isinstance(value, dict):
                look_at_state(value)
            elif isinstance(value, np.ndarray | tuple | Rows):
                look(*tree_leaves(value))
            else:
                seen.update(f"{name} {value}".encode())

    replay = pair.replay
    for i in range(40):
        look(replay.add(pair.world.chunk(int(rng.integers(1, 12)))))
        replay.check()
        if not len(replay):
            continue
        sample = replay.sample(8, 100 * i)
        s = sample.segment
        flags = (s.first, s.terminated, s.truncated, s.valid)
        look(sample.key, sample.weight, *flags, s.action, s.reward)
        look(*tree_leaves((s.obs, s.extras, s.state)))
        priority = rng.exponential(size=8).astype(np.float32)
        replay.prioritize(sample.key, priority)
        replay.prioritize(sample.key[::-1].copy(), priority)
    look_at_state(replay.state_dict())
    return seen.hexdigest()


def digests() -> list[str]:
    setups = []
    for kind in ("uniform", "prioritized", "rank"):
        for close in (False, True):
            lengths = (5, 9, 1, 30), (2, 3)
            base = Setup(kind=kind, close=close, slack=23, lengths=lengths, weight_norm="buffer")
            plain = Tiling(plain=True, overlap=2, residual="last")
            setups += [
                Setup(**(vars(base) | {"window": Window(0, 1, 3), "stack": 3})),
                Setup(**(vars(base) | {"window": Window(0, 1, 2), "weight_norm": "batch"})),
                Setup(**(vars(base) | {"window": Window(3, 2, 2), "table": 9})),
                Setup(**(vars(base) | {"window": Window(1, 3, 1), "table": 99, "tiling": plain})),
            ]
    varied = [Setup(**(vars(s) | {"obs": OBSERVATIONS[i % 4]})) for i, s in enumerate(setups)]
    return [digest(s) for s in varied]


@pytest.mark.skipif(not COMPILED, reason="numba is not there or switched off")
def test_a_replay_without_numba_is_the_same():
    """RLRUN_NUMBA=0 gives the same keys, weights, segments and state, to the last bit."""
    code = (
        "from rlrun.jit import COMPILED; assert not COMPILED;"
        "from tests.buffer.test_kernels import digests; print(*digests())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | {"RLRUN_NUMBA": "0", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == digests()
