"""The codec's figures, and costs and savings of its uses: ``codec``, ``codec_uses``.

``codec``: ratio is coded / raw without the frame header; MB/s are of raw bytes, one thread, the
best of a few rounds in which the coders take turns; every result is decoded and compared. Targets
are relative to baselines of the same run. lz4, blosc2 and pcodec are optional: their rows and the
targets that need them say when they are missing.

``codec_uses``: image observations in compressed blocks beside plain arrays, medians; every value
that comes back is compared.
"""

import importlib
import statistics
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import zstandard

from tests.benchmarks import collect, floor, product
from tests.benchmarks.product import CODER_OPTIONS, Chunk, FieldSpec, kind_of, layout, to_words
from tests.benchmarks.rows import Row, make_row, time_calls

REPEATS = 9
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
        words, *bases = (None if x is None else to_words(x, kind) for x in item)
        code = product.encode_field(name, plan, words, tuple(bases))[0]
        return (
            lambda: product.encode_field(name, plan, words, tuple(bases))[1],
            lambda data: product.decode_field(code, plan, memoryview(data), tuple(bases)),
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
    ours = [name for name in CODER_OPTIONS[2:] if name != "pco" or PCO]  # but auto and raw
    return rows | {name: own(name) for name in ours}


def cases(updates: int, *, quick: bool = False) -> list[Case]:
    """All data; ``quick``: a smaller network and fewer arrays of the same kinds."""
    collector = collect.make(8)
    collector.collect()  # 320 rows: the first ones of all columns are alike
    chunks = [collector.collect() for _ in range(2 if quick else 32)]
    shape = floor.DEFAULT if quick else floor.LARGE
    last = learned(shape, updates)[::-1]
    halves = tuple(
        torch.from_numpy(x).bfloat16().view(torch.int16).numpy().view("V2") for x in last
    )
    screen = breakout(64 if quick else 512)
    return [
        Case("obs f32", [(chunk.obs, None, None) for chunk in chunks], True),
        Case("actions", [(chunk.action, None, None) for chunk in chunks], True),
        Case("LSTM f32", [tuple(last)]),
        Case("LSTM f64cast", [tuple(x.astype(np.float64) for x in last)]),
        Case("LSTM bf16", [tuple(halves)]),
        Case("frames one by one", [(b, a, None) for a, b in pairwise(screen)][:200]),
        Case("frames by 32", [(x, None, None) for x in screen.reshape(-1, 32, 84, 84)], True),
    ]


def learned(shape: floor.Shape, updates: int) -> list[np.ndarray]:
    """The weights of R2D2 after each of the last three updates, side by side."""
    policy, replay = floor.make_policy(shape), floor.make_replay(shape, rows=20_000)
    found = []
    for _ in range(updates):
        policy.update(replay.sample(shape.batch, 0))
        flat = [p.detach().reshape(-1) for p in policy.net.parameters()]
        found = [*found[-2:], torch.cat(flat).numpy().copy()]
    return found


def breakout(frames: int = 512, seed: int = 0) -> np.ndarray:
    """uint8 [frames, 84, 84]: a wall that loses bricks, a ball, a paddle; averaged down by two."""
    rng = np.random.default_rng(seed)
    out = np.empty((frames, 84, 84), np.uint8)
    wall = rng.random((6, 18)) < 0.8
    tones = np.array([110, 127, 134, 139, 148, 160], np.float32)
    ball, speed, paddle = np.array([80.0, 60.0]), np.array([2.3, 1.7]), 80.0
    for k in range(frames):
        ball += speed
        speed = np.where((ball < (30, 10)) | (ball > (150, 154)), -speed, speed)
        ball = ball.clip((30, 10), (150, 154))
        brick = int((ball[0] - 46) // 6), int((ball[1] - 10) // 8.2)
        if 0 <= brick[0] < 6 and 0 <= brick[1] < 18 and wall[brick]:
            wall[brick], speed[0] = False, -speed[0]
        paddle += np.clip(ball[1] - paddle, -4, 4) + rng.integers(-1, 2)
        big = np.zeros((168, 168), np.float32)
        big[16:28] = big[28:, :8] = big[28:, -8:] = 142
        bricks = np.repeat(np.repeat(wall * tones[:, None], 6, 0), 8, 1)
        big[46:82, 12:156] = bricks
        left = int(np.clip(paddle, 12, 140))
        big[152:156, left : left + 16] = 200
        big[int(ball[0]) : int(ball[0]) + 4, int(ball[1]) : int(ball[1]) + 2] = 200
        big[4:12, 40 : 52 + 8 * (k // 200)] = 142
        out[k] = big.reshape(84, 2, 84, 2).mean((1, 3))
    return out


Figures = dict[str, dict[str, Coded]]
ZSTD, BLOSC, PCODEC = "zstd-1 raw", "blosc2 shuffle+zstd1", "pcodec 8 SUB2"
WHAT = ("size", "encode", "decode")
TARGETS = [  # case, coder, what of it, over whose ("raw": bytes, "µs": of an item), bound
    ("actions", "planes", "size", "raw", 0.05),
    ("LSTM f32", "planes", "size", BLOSC + " SUB", 1.02),
    ("LSTM f32", "planes", "encode", ZSTD, 0.5),
    ("LSTM f32", "planes", "decode", ZSTD, 1.0),
    ("LSTM f32", "planes_ctx", "size", PCODEC, 0.95),
    ("LSTM f32", "planes_ctx", "encode", PCODEC, 1.7),
    ("LSTM f32", "planes_ctx", "decode", PCODEC, 0.6),
    ("LSTM bf16", "planes", "encode", ZSTD, 0.6),
    ("LSTM bf16", "planes", "decode", ZSTD, 1.0),
    ("frames one by one", "xorz", "size", ZSTD, 0.65),
    ("frames one by one", "xorz", "encode", "µs", 10),
    ("frames one by one", "xorz", "decode", "µs", 10),
    ("obs f32", "planes", "size", BLOSC, 0.96),
]


def target_row(case: Case, figures: Figures, coder: str, what: str, over: str, bound: float) -> Row:
    """A claim as a row; without the other coder it demands nothing."""
    found, num = figures[case.name], WHAT.index(what)
    ours = found[coder][num]
    unit = "µs" if over == "µs" else "s" if num else "bytes"
    if over == "µs":
        ours, other = ours / len(case.items) * 1e6, [1.0]
    else:
        other = [float(case.nbytes)] if over == "raw" else [x[num] for x in [found.get(over)] if x]
    return make_row(
        f"{coder} {what}", {"data": case.name}, over, unit, [ours], other,
        kind="speedup" if num and over != "µs" else "cost", target=bound if other else None,
        missing="" if other else f"{over} not installed",
    )  # fmt: skip


def codec(o: Namespace) -> list[Row]:
    """Sizes and speeds, printed; rows of the targets."""
    figures: Figures = {}
    data = cases(o.updates or (3 if o.quick else 20), quick=o.quick)
    for case in data:
        print(f"\n{case.name}: {len(case.items)} x {case.items[0][0].nbytes} bytes")
        figures[case.name] = measured(case, coders(case), 1 if o.quick else REPEATS)
        for name, (size, spent, read) in figures[case.name].items():
            speeds = f"{case.nbytes / spent / 1e6:8.0f} {case.nbytes / read / 1e6:8.0f} MB/s"
            print(f"  {name:26s} {100 * size / case.nbytes:7.2f} % {speeds}")
    by_name = {case.name: case for case in data}
    return [target_row(by_name[name], figures, *target) for name, *target in TARGETS]


# -- codec_uses ------------------------------------------------------------------------------------


def median(function: Callable[[], Any], count: int) -> float:
    """Seconds."""
    return statistics.median(time_calls(function, 1).wall for _ in range(count))


def chunk_of(obs: np.ndarray) -> Chunk:
    """Rows with observations [T + 1, B, …], nothing of which ends."""
    shape = obs.shape[0] - 1, obs.shape[1]
    none, first = np.zeros(shape, bool), np.zeros((shape[0] + 1, shape[1]), bool)
    return Chunk(
        obs=obs, first=first, action=np.random.default_rng(0).integers(0, 4, shape),
        reward=np.ones(shape, np.float32), terminated=none, truncated=none, valid=~none,
    )  # fmt: skip


def replays(rows: int, columns: int, sizes: Sequence[int]) -> None:
    """Memory and sampling time of a replay of frames, plain and in blocks of so many rows."""
    screens = np.stack([breakout(rows, seed=c) for c in range(columns)], axis=1)
    window, chunk = product.Window(0, 1, 3), chunk_of(screens)
    plain = product.Layout(product.Row.of(chunk), columns, rows - 64, None, {})
    segments: list[torch.Tensor] = []
    shipped = product.blocks.BLOCK_ROWS
    for size in (0, *sizes):
        product.blocks.BLOCK_ROWS = layout.BLOCK_ROWS = size or shipped
        cutter = product.Cutter(window, columns=columns, overlap=0, residual=None, plain=False)
        replay = product.Replay(
            replace(plain, compress=size > 0), window=window, cutter=cutter, close=False,
            sampler=product.Uniform(np.random.default_rng(0)), stack=4,
        )  # fmt: skip
        start = time.perf_counter()
        for at in range(0, rows - 17, 16):
            replay.add(chunk.rows(at, at + 16))
        added = (time.perf_counter() - start) / (rows // 16)
        replay.sample(256, 0)
        times = [median(lambda r=replay, b=b: r.sample(b, 0), 40) for b in (32, 256)]
        segments.append(replay.get(replay.windows.keys(replay.windows.all()[:64]), 0).segment.obs)
        print(
            f"{f'blocks of {size:2d}' if size else 'plain       '}  "
            f"{replay.nbytes / replay.stored_steps():8.1f} bytes a row  add of {16 * columns} rows "
            f"{1e6 * added:6.0f} µs  sample of 32 {1e6 * times[0]:7.0f} µs, of 256 "
            f"{1e6 * times[1]:7.0f} µs"
        )
    product.blocks.BLOCK_ROWS = layout.BLOCK_ROWS = shipped
    assert all(torch.equal(segments[0], other) for other in segments)


def codec_uses(o: Namespace) -> int:
    """A line for plain arrays and for every size of block; the exit code."""
    replays(o.rows or (200 if o.quick else 4000), 8, (8,) if o.quick else (4, 8, 16, 32))
    return 0
