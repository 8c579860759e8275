"""Costs and savings of the codec's uses: ``python -m tests.benchmarks.codec_uses [--quick]``.

Weights and rows through a pipe between two processes, raw and coded (a loopback link, as in
pipeline=overlapped); image observations in compressed blocks beside plain arrays. One thread,
medians; every value that comes back is compared.
"""

import argparse
import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch

from tests.benchmarks import codec_data
from tests.benchmarks.product import (
    Chunk,
    Cutter,
    Layout,
    Row,
    TransportConfig,
    Uniform,
    Window,
    blocks,
    host_replay,
    layout,
    make_collector_side,
    make_learner_side,
)

KINDS = ("raw", "coded")


def setting(kind: str) -> TransportConfig:
    """The config of a link."""
    return TransportConfig(
        kind,
        "auto",
        "auto",
        keep=4,
        key_seconds=1.0,
        link_mbps=None,
        copies="float32",  # type: ignore[arg-type]
    )


def median(function: Callable[[], Any], count: int) -> float:
    """Seconds."""
    spent = []
    for _ in range(count):
        start = time.perf_counter()
        function()
        spent.append(time.perf_counter() - start)
    return statistics.median(spent)


# -- a pipe ----------------------------------------------------------------------------------------


def far(pipe: Connection, kind: str, chunk: Chunk) -> None:
    """The collector's process: weights in, a chunk out."""
    torch.set_num_threads(1)
    end = make_collector_side(setting(kind))
    while (message := pipe.recv()) is not None:
        what, given = message
        if what == "weights":
            end.unpack(given)
            pipe.send(None)
        else:
            pipe.send(end.pack(chunk))


def pipes(snapshots: list[dict[str, torch.Tensor]], chunk: Chunk, calls: int) -> None:
    """A line for every kind of link and thing that travels."""
    context: Any = multiprocessing.get_context("spawn")
    nbytes = sum(w.nbytes for w in snapshots[0].values())
    for kind in KINDS:
        ours, theirs = context.Pipe()
        process = context.Process(target=far, args=(theirs, kind, chunk))
        process.start()
        end, at, sent = make_learner_side(setting(kind)), 0, []

        def send(end: Any = end, ours: Connection = ours, sent: list[int] = sent) -> None:
            nonlocal at
            message = end.pack(snapshots[at % len(snapshots)])
            sent.append(len(message) if isinstance(message, bytes) else nbytes)
            ours.send(("weights", message))
            ours.recv()
            at += 1

        def rows(end: Any = end, ours: Connection = ours) -> None:
            ours.send(("rows", None))
            end.unpack(ours.recv())

        for act in (send, send, send, rows, rows):
            act()
        spent = median(send, calls)
        print(
            f"weights, {nbytes / 1e6:.1f} MB, {kind:6s} {1e3 * spent:8.2f} ms  "
            f"{100 * statistics.median(sent[-calls:]) / nbytes:6.1f} % on the wire"
        )
        size = (
            len(make_collector_side(setting(kind)).pack(chunk)) if kind == "coded" else raw(chunk)
        )
        print(
            f"rows, {raw(chunk) / 1e3:.0f} KB, {kind:6s} {1e6 * median(rows, 5 * calls):8.0f} µs  "
            f"{100 * size / raw(chunk):6.1f} % on the wire"
        )
        ours.send(None)
        process.join()


def raw(chunk: Chunk) -> int:
    """Bytes."""
    parts = (chunk.obs, chunk.action, chunk.reward, chunk.first, chunk.terminated)
    return sum(x.nbytes for x in (*parts, chunk.truncated, chunk.valid))


def chunk_of(obs: np.ndarray) -> Chunk:
    """Rows with observations [T + 1, B, …], nothing of which ends."""
    shape = obs.shape[0] - 1, obs.shape[1]
    rng = np.random.default_rng(0)
    none = np.zeros(shape, bool)
    first = np.zeros((shape[0] + 1, shape[1]), bool)
    return Chunk(
        obs=obs, first=first, action=rng.integers(0, 4, shape), reward=np.ones(shape, np.float32),
        terminated=none, truncated=none, valid=~none,
    )  # fmt: skip


# -- a replay --------------------------------------------------------------------------------------


SIZES = (4, 8, 16, 32)  # rows of a block


def replays(rows: int, columns: int, sizes: Sequence[int] = SIZES) -> None:
    """Memory and sampling time of a replay of frames, plain and compressed."""
    screens = np.stack([codec_data.breakout(rows, seed=c) for c in range(columns)], axis=1)
    window = Window(0, 1, 3)
    chunk = chunk_of(screens)
    plain = Layout(Row.of(chunk), columns, rows - 64, None, {})
    segments: dict[str, Any] = {}
    shipped = blocks.BLOCK_ROWS
    for size in (0, *sizes):
        blocks.BLOCK_ROWS = layout.BLOCK_ROWS = size or shipped
        cutter = Cutter(window, columns=columns, overlap=0, residual=None, plain=False)
        replay = host_replay(
            replace(plain, compress=size > 0), window=window, cutter=cutter, close=False,
            sampler=Uniform(np.random.default_rng(0)), stack=4,
        )  # fmt: skip
        start = time.perf_counter()
        for at in range(0, rows - 17, 16):
            replay.add(chunk.rows(at, at + 16))
        added = (time.perf_counter() - start) / (rows // 16)
        name = f"blocks of {size:2d}" if size else "plain       "
        times = []
        for batch in (32, 256):
            replay.sample(batch, 0)
            times.append(median(lambda r=replay, b=batch: r.sample(b, 0), 40))
        segments[name] = replay.get(replay.windows.keys(replay.windows.all()[:64]), 0).segment.obs
        held = replay.stored_steps()
        print(
            f"{name}  {replay.nbytes / held:8.1f} bytes a row  add of {16 * columns} rows "
            f"{1e6 * added:6.0f} µs  sample of 32 {1e6 * times[0]:7.0f} µs, of 256 "
            f"{1e6 * times[1]:7.0f} µs"
        )
    blocks.BLOCK_ROWS = layout.BLOCK_ROWS = shipped
    first, *others = segments.values()
    assert all(torch.equal(first, other) for other in others)


def main(argv: list[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.codec_uses")
    parser.add_argument("--rows", type=int, help="of each of 8 columns of frames (4000)")
    parser.add_argument("--updates", type=int, help="of the LSTM learner (60)")
    parser.add_argument("--quick", action="store_true", help="200 rows, 3 updates, 2 calls")
    given = parser.parse_args(argv)
    torch.set_num_threads(1)
    if given.quick:
        replays(given.rows or 200, 8, SIZES[1:2])
    else:
        replays(given.rows or 4000, 8)
    run = codec_data.ppo(torch.float32, 1 if given.quick else 24)
    fast, _ = codec_data.lstm(run, 1e-3, given.updates or (3 if given.quick else 60), slow=0)
    snapshots = [{"w": torch.from_numpy(x)} for x in fast]
    pipes(snapshots, chunk_of(run.obs[-129:].astype(np.float32)), 2 if given.quick else 20)
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3:.0f} MB")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
