"""The codec's figures, and costs and savings of its uses: ``codec``, ``codec_uses``.

``codec``: ratio is coded / raw without the frame header; MB/s are of raw bytes, one thread, the
best of a few rounds in which the coders take turns; every result is decoded and compared. Targets
are relative to baselines of the same run. lz4, blosc2 and pcodec are optional: their rows and the
targets that need them say when they are missing.

``codec_uses``: weights and rows through a pipe between two processes, raw and coded (a loopback
link, as in pipeline=overlapped); image observations in compressed blocks beside plain arrays. One
thread, medians; every value that comes back is compared.
"""

import importlib
import math
import multiprocessing
import resource
import statistics
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
import zstandard

from tests.benchmarks import codec_data, product
from tests.benchmarks.product import CODERS, Chunk, FieldSpec, kind_of, layout, to_words
from tests.benchmarks.rows import Row, make_row

REPEATS = 9
SNAPSHOTS = 24  # of the PPO weights, spread over the run
CLIPS = 32  # of 16 KB
QUICK = 2  # of either, with --quick
Coded = tuple[int, float, float]  # bytes, seconds to encode, seconds to decode
Item = tuple[np.ndarray, np.ndarray | None, np.ndarray | None]  # now, base, second
Coder = tuple[Callable[[], bytes], Callable[[bytes], Any]]  # of one item: encode, decode


@dataclass(frozen=True)
class Case:
    """Arrays with the bases they are deltas to; sizes and times are sums over them."""

    name: str
    items: list[Item]
    rows: bool = False  # time-major chunks

    @property
    def nbytes(self) -> int:
        """Raw bytes."""
        return sum(item[0].nbytes for item in self.items)


def optional(name: str) -> Any:
    """The module, or None."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


LZ4, BLOSC2, PCO = (optional(name) for name in ("lz4.block", "blosc2", "pcodec"))


def own(name: str) -> Callable[[Item, bool], Coder]:
    """A coder of ours, below the framing."""

    def prepare(item: Item, rows: bool) -> Coder:
        now, kind = item[0], kind_of(item[0], "")
        plan = FieldSpec("", kind, (now.size,), len(now) if rows else 0)
        words, base, second = (None if x is None else to_words(x, kind) for x in item)
        code = product.encode_field(name, plan, words, base, second)[0]
        return (
            lambda: product.encode_field(name, plan, words, base, second)[1],
            lambda data: product.decode_field(code, plan, memoryview(data), base, second),
        )

    return prepare


def general(encode: Callable[..., bytes], decode: Callable[..., Any]) -> Callable[..., Coder]:
    """Another library on bytes or residuals."""
    return lambda item, rows: (lambda: encode(*item), lambda data: decode(data, *item[1:]))


def measured(
    case: Case, coders: dict[str, Callable[[Item, bool], Coder]], repeats: int
) -> dict[str, Coded]:
    """Sizes and best times of every coder; each round runs them all, so that all meet the same
    machine."""
    total = {name: np.zeros(3) for name in coders}
    for item in case.items:
        ready = {name: prepare(item, case.rows) for name, prepare in coders.items()}
        best = {}
        for name, (encode, decode) in ready.items():
            data = encode()
            back = bytes(memoryview(decode(data)).cast("B"))
            assert back == words_of(item[0]).tobytes(), (case.name, name)
            best[name] = np.array([len(data), np.inf, np.inf])
        for _ in range(repeats):
            for name, (encode, decode) in ready.items():
                start = time.perf_counter()
                data = encode()
                middle = time.perf_counter()
                decode(data)
                spent = (0, middle - start, time.perf_counter() - middle)
                best[name] = np.minimum(best[name], spent + np.array([best[name][0], 0, 0]))
        for name, figures in best.items():
            total[name] += figures
    return {name: (int(x[0]), x[1], x[2]) for name, x in total.items()}


def words_of(x: np.ndarray) -> np.ndarray:
    """Unsigned words."""
    return to_words(x, kind_of(x, ""))


def blosc(now: np.ndarray, base: np.ndarray | None, second: np.ndarray | None) -> bytes:
    """blosc2, shuffle and zstd-1, of first differences where there is a base."""
    data = words_of(now) if base is None else words_of(now) - words_of(base)
    return BLOSC2.compress2(
        data, codec=BLOSC2.Codec.ZSTD, clevel=1, filters=[BLOSC2.Filter.SHUFFLE],
        typesize=data.itemsize, nthreads=1,
    )  # fmt: skip


def unblosc(data: bytes, base: np.ndarray | None, second: np.ndarray | None) -> Any:
    raw = BLOSC2.decompress2(data, nthreads=1)
    if base is None:
        return raw
    words = words_of(base)
    return np.frombuffer(raw, words.dtype) + words


def pco_sub2(now: np.ndarray, base: np.ndarray, second: np.ndarray) -> bytes:
    """pcodec level 8 on second differences."""
    a, b, c = words_of(now), words_of(base), words_of(second)
    delta = (a - b - b + c).view(f"i{a.itemsize}")
    config = PCO.ChunkConfig(compression_level=8, delta_spec=PCO.DeltaSpec.no_op())
    return PCO.standalone.simple_compress(delta, config)


def unpco(data: bytes, base: np.ndarray, second: np.ndarray) -> np.ndarray:
    b, c = words_of(base), words_of(second)
    return PCO.standalone.simple_decompress(data).view(b.dtype) + b + b - c


def coders(case: Case) -> dict[str, Callable[[Item, bool], Coder]]:
    """The rows of one table."""
    pack, unpack = zstandard.ZstdCompressor(level=1), zstandard.ZstdDecompressor()
    rows = {"zstd-1 raw": general(
        lambda now, *_: pack.compress(now.tobytes()), lambda d, *_: unpack.decompress(d)
    )}  # fmt: skip
    if LZ4:
        rows["lz4 raw"] = general(
            lambda now, *_: LZ4.compress(now.tobytes()), lambda d, *_: LZ4.decompress(d)
        )
    if BLOSC2:
        rows["blosc2 shuffle+zstd1" + (" SUB" if case.items[0][1] is not None else "")] = general(
            blosc, unblosc
        )
    if PCO and case.items[0][2] is not None and case.items[0][0].itemsize > 1:
        rows["pcodec 8 SUB2"] = general(pco_sub2, unpco)
    ours = [name for name in CODERS if name != "raw" and (name != "pco" or PCO)]
    return rows | {name: own(name) for name in ours}


def consecutive(weights: list[np.ndarray], count: int) -> list[tuple]:
    """``count`` snapshots over the run, each with the two before it."""
    at = np.linspace(2, len(weights) - 1, count).astype(int)
    return [(weights[k], weights[k - 1], weights[k - 2]) for k in at]


def cases(updates: int, *, quick: bool = False) -> list[Case]:
    """All data; ``quick``: shorter runs and fewer arrays of the same kinds."""
    rollouts, snapshots, frames = (2, QUICK, 64) if quick else (195, SNAPSHOTS, 512)
    wide, narrow = (codec_data.ppo(dtype, rollouts) for dtype in (torch.float64, torch.float32))
    print(f"PPO CartPole: last 50 episodes return {wide.returns:.0f} and {narrow.returns:.0f}")
    obs32 = narrow.obs[-128 * (QUICK if quick else CLIPS) :].astype(np.float32)
    found = [
        Case("obs f64", [(wide.obs[-8192:], None, None)], True),
        Case("action f64", [(wide.action[-8192:].astype(np.float64), None, None)], True),
        Case("obs f32 16 KB", [(x, None, None) for x in obs32.reshape(-1, 128, 8, 4)], True),
        Case("PPO weights f64", consecutive(wide.weights, snapshots)),
        Case("PPO weights f32", consecutive(narrow.weights, snapshots)),
    ]
    for eps in (1e-3,) if quick else (1e-3, 1e-8):
        found += weights(narrow, eps, updates, 64 if quick else 512)
    screen = codec_data.breakout(frames)
    clips = screen.reshape(-1, 32, 84, 84)
    found.append(Case("frames one by one", [(b, a, None) for a, b in pairwise(screen)][:200]))
    found.append(Case("frames by 32", [(x, None, None) for x in clips], True))
    return found


def weights(run: codec_data.PPORun, eps: float, updates: int, units: int) -> list[Case]:
    """Successive weights of an LSTM learner whose Adam has ``eps``."""
    fast, slow = codec_data.lstm(run, eps, updates, units=units)
    halves = [codec_data.bfloat16(x) for x in fast[::-1]]
    found = [Case(f"LSTM f32 {eps:g}", [tuple(fast[::-1])]),
             Case(f"LSTM bf16 {eps:g}", [tuple(halves)])]  # fmt: skip
    if eps == 1e-3:
        found.append(Case("LSTM f64cast", [tuple(x.astype(np.float64) for x in fast[::-1])]))
        halves = [codec_data.bfloat16(x) for x in slow[::-1]]
        same = np.mean(words_of(halves[0]) == words_of(halves[1]))
        print(f"LSTM bf16 slow: {100 * same:.1f} % of the elements unchanged")
        found.append(Case("LSTM bf16 slow", [tuple(halves)]))
    return found


Figures = dict[str, dict[str, Coded]]


@dataclass(frozen=True)
class Target:
    """One claim: value of (case, coder), over that of another coder, within a bound."""

    case: str
    coder: str
    what: int  # 0 size, 1 encode, 2 decode
    over: str  # "raw", a coder, or "µs": per item
    bound: float

    def row(self, figures: Figures, sizes: dict[str, tuple[int, int]]) -> Row:
        """The claim as a row; without the other coder it demands nothing."""
        found = figures[self.case]
        ours, what = found[self.coder][self.what], ("size", "encode", "decode")[self.what]
        kind = "speedup" if self.what and self.over != "µs" else "cost"
        if self.over == "µs":
            ours, other = ours / sizes[self.case][1] * 1e6, 1.0
        elif self.over == "raw":
            other = float(sizes[self.case][0])
        else:
            other = found[self.over][self.what] if self.over in found else math.nan
        return make_row(
            f"{self.coder} {what}", {"data": self.case}, "1 µs" if self.over == "µs" else self.over,
            "µs" if self.over == "µs" else "s" if self.what else "bytes", [ours],
            [] if math.isnan(other) else [other], kind=kind,
            target=None if math.isnan(other) else self.bound,
            missing=f"{self.over} not installed" if math.isnan(other) else "",
        )  # fmt: skip


ZSTD, BLOSC, PCODEC = "zstd-1 raw", "blosc2 shuffle+zstd1", "pcodec 8 SUB2"
TARGETS = [
    Target("obs f64", "xor", 0, "raw", 0.929),
    Target("action f64", "xor", 0, "raw", 0.939),
    Target("PPO weights f64", "xor", 0, "raw", 0.827),
    Target("LSTM f32 0.001", "xor", 1, ZSTD, 0.5),
    Target("LSTM f32 0.001", "xor", 2, ZSTD, 0.25),
    *(
        Target(f"LSTM f32 {eps}", coder, what, over, bound)
        for eps in ("0.001", "1e-08")
        for coder, what, over, bound in (
            ("planes", 0, "xor", 0.90),
            ("planes", 0, ZSTD, 0.48),
            ("planes", 0, BLOSC + " SUB", 1.02),
            ("planes", 1, ZSTD, 0.5),
            ("planes", 2, ZSTD, 1.0),
            ("planes_ctx", 0, "xor", 0.75),
            ("planes_ctx", 0, PCODEC, 0.95),
            ("planes_ctx", 0, ZSTD, 0.40),
            ("planes_ctx", 1, PCODEC, 1.7),
            ("planes_ctx", 2, PCODEC, 0.6),
        )
    ),
    *(
        Target(f"LSTM bf16 {eps}", "planes", what, over, bound)
        for eps in ("0.001", "1e-08")
        for what, over, bound in ((0, "xor", 0.72), (1, ZSTD, 0.6), (2, ZSTD, 1.0))
    ),
    Target("LSTM bf16 slow", "planes", 0, "raw", 0.011),
    Target("frames one by one", "xorz", 0, ZSTD, 0.65),
    Target("frames one by one", "xorz", 1, "µs", 10),
    Target("frames one by one", "xorz", 2, "µs", 10),
    Target("obs f32 16 KB", "planes", 0, "xor", 0.93),
    Target("obs f32 16 KB", "planes", 0, BLOSC, 0.96),
    Target("obs f32 16 KB", "planes", 1, "µs", 150),
]


def codec(o: Namespace) -> list[Row]:
    """Sizes and speeds, printed; rows of the targets."""
    figures: Figures = {}
    data = cases(o.updates or (3 if o.quick else 400), quick=o.quick)
    for case in data:
        print(f"\n{case.name}: {len(case.items)} x {case.items[0][0].nbytes} bytes")
        figures[case.name] = measured(case, coders(case), 1 if o.quick else REPEATS)
        for name, (size, spent, read) in figures[case.name].items():
            speeds = f"{case.nbytes / spent / 1e6:8.0f} {case.nbytes / read / 1e6:8.0f} MB/s"
            print(f"  {name:26s} {100 * size / case.nbytes:7.2f} % {speeds}")
    sizes = {case.name: (case.nbytes, len(case.items)) for case in data}
    return [target.row(figures, sizes) for target in TARGETS if target.case in figures]


# -- codec_uses ------------------------------------------------------------------------------------

KINDS = ("raw", "coded")


def setting(kind: str) -> product.TransportConfig:
    """The config of a link."""
    fields = {"keep": 4, "key_seconds": 1.0, "link_mbps": None, "copies": "float32"}
    return product.TransportConfig(kind, "auto", "auto", **fields)


def median(function: Callable[[], Any], count: int) -> float:
    """Seconds."""
    spent = []
    for _ in range(count):
        start = time.perf_counter()
        function()
        spent.append(time.perf_counter() - start)
    return statistics.median(spent)


def far(pipe: Connection, kind: str, chunk: Chunk) -> None:
    """The collector's process: weights in, a chunk out."""
    torch.set_num_threads(1)
    end = product.make_collector_side(setting(kind))
    while (message := pipe.recv()) is not None:
        what, given = message
        if what == "weights":
            end.unpack(given)
            pipe.send(None)
        else:
            pipe.send(end.pack(chunk))


def pipes(
    kinds: Sequence[str], snapshots: list[dict[str, torch.Tensor]], chunk: Chunk, calls: int
) -> None:
    """A line for every kind of link and thing that travels."""
    context: Any = multiprocessing.get_context("spawn")
    nbytes = sum(w.nbytes for w in snapshots[0].values())
    for kind in kinds:
        ours, theirs = context.Pipe()
        process = context.Process(target=far, args=(theirs, kind, chunk))
        process.start()
        end, at, sent = product.make_learner_side(setting(kind)), 0, []

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
            len(product.make_collector_side(setting(kind)).pack(chunk))
            if kind == "coded"
            else raw(chunk)
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


SIZES = (4, 8, 16, 32)  # rows of a block


def replays(rows: int, columns: int, sizes: Sequence[int] = SIZES) -> None:
    """Memory and sampling time of a replay of frames, plain and compressed."""
    screens = np.stack([codec_data.breakout(rows, seed=c) for c in range(columns)], axis=1)
    window = product.Window(0, 1, 3)
    chunk = chunk_of(screens)
    plain = product.Layout(product.Row.of(chunk), columns, rows - 64, None, {})
    segments: dict[str, Any] = {}
    shipped = product.blocks.BLOCK_ROWS
    for size in (0, *sizes):
        product.blocks.BLOCK_ROWS = layout.BLOCK_ROWS = size or shipped
        cutter = product.Cutter(window, columns=columns, overlap=0, residual=None, plain=False)
        replay = product.host_replay(
            replace(plain, compress=size > 0), window=window, cutter=cutter, close=False,
            sampler=product.Uniform(np.random.default_rng(0)), stack=4,
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
    product.blocks.BLOCK_ROWS = layout.BLOCK_ROWS = shipped
    first, *others = segments.values()
    assert all(torch.equal(first, other) for other in others)


def codec_uses(o: Namespace) -> int:
    """A line for every use and way; the exit code."""
    quick = o.quick
    replays(o.rows or (200 if quick else 4000), 8, SIZES[1:2] if quick else SIZES)
    run = codec_data.ppo(torch.float32, 1 if quick else 24)
    fast, _ = codec_data.lstm(
        run, 1e-3, o.updates or (3 if quick else 60), slow=0, units=64 if quick else 512
    )
    snapshots = [{"w": torch.from_numpy(x)} for x in fast]
    pipes(
        KINDS[1:] if quick else KINDS,
        snapshots,
        chunk_of(run.obs[-129:].astype(np.float32)),
        2 if quick else 20,
    )
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3:.0f} MB")
    return 0
