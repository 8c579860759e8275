"""The codec's figures: ``python -m tests.benchmarks.codec [--quick]``; exit 1 for a miss.

Ratio is coded / raw without the frame header; MB/s are of raw bytes, one thread, the best of a few
rounds in which the coders take turns; every result is decoded and compared. Targets are relative
to baselines of the same run. lz4, blosc2 and pcodec are optional: their rows and the targets that
need them say when they are missing.
"""

import argparse
import importlib
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import zstandard

from tests.benchmarks import codec_data
from tests.benchmarks.product import (
    CODERS,
    FieldSpec,
    decode_field,
    encode_field,
    kind_of,
    to_words,
)

REPEATS = 9
SNAPSHOTS = 24  # of the PPO weights, spread over the run
CLIPS = 32  # of 16 KB
QUICK = 2  # of either, with --quick
QUICK_SIZE = 1 << 16  # elements of the LSTM's weights, with --quick
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
        code = encode_field(name, plan, words, base, second)[0]
        return (
            lambda: encode_field(name, plan, words, base, second)[1],
            lambda data: decode_field(code, plan, memoryview(data), base, second),
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


def sub(now: np.ndarray, base: np.ndarray | None, second: np.ndarray | None) -> np.ndarray:
    """First differences, where there is a base."""
    return words_of(now) if base is None else words_of(now) - words_of(base)


def blosc(data: np.ndarray) -> bytes:
    """blosc2: shuffle and zstd-1."""
    return BLOSC2.compress2(
        data, codec=BLOSC2.Codec.ZSTD, clevel=1, filters=[BLOSC2.Filter.SHUFFLE],
        typesize=data.itemsize, nthreads=1,
    )  # fmt: skip


def unsub(data: np.ndarray, base: np.ndarray | None) -> np.ndarray:
    """Words again."""
    return data if base is None else data + words_of(base)


def unblosc(data: bytes, base: np.ndarray | None, second: np.ndarray | None) -> Any:
    """Decode ``blosc`` of ``sub``."""
    raw = BLOSC2.decompress2(data, nthreads=1)
    return raw if base is None else unsub(np.frombuffer(raw, words_of(base).dtype), base)


def pco_sub2(now: np.ndarray, base: np.ndarray, second: np.ndarray) -> bytes:
    """pcodec level 8 on second differences."""
    a, b, c = words_of(now), words_of(base), words_of(second)
    delta = (a - b - b + c).view(f"i{a.itemsize}")
    config = PCO.ChunkConfig(compression_level=8, delta_spec=PCO.DeltaSpec.no_op())
    return PCO.standalone.simple_compress(delta, config)


def unpco(data: bytes, base: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Decode ``pco_sub2``."""
    b, c = words_of(base), words_of(second)
    delta = PCO.standalone.simple_decompress(data).view(b.dtype)
    return delta + b + b - c


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
            lambda *item: blosc(sub(*item)), unblosc
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
        found += weights(narrow, eps, updates, QUICK_SIZE if quick else None)
    screen = codec_data.breakout(frames)
    clips = screen.reshape(-1, 32, 84, 84)
    found.append(Case("frames one by one", [(b, a, None) for a, b in pairwise(screen)][:200]))
    found.append(Case("frames by 32", [(x, None, None) for x in clips], True))
    return found


def weights(run: codec_data.PPORun, eps: float, updates: int, size: int | None) -> list[Case]:
    """The first ``size`` successive weights of an LSTM learner whose Adam has ``eps``."""
    fast, slow = ([x[:size] for x in part] for part in codec_data.lstm(run, eps, updates))
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
    low: float = 0.0

    def judge(self, figures: Figures, sizes: dict[str, tuple[int, int]]) -> tuple[str, bool]:
        """(the line to print, whether the claim holds or cannot be checked)."""
        found = figures[self.case]
        name = f"{self.case}: {self.coder} {('size', 'encode', 'decode')[self.what]}"
        if self.over not in (*found, "raw", "µs"):
            return f"  ?    {name} over {self.over}: not installed", True
        own_value = found[self.coder][self.what]
        if self.over == "µs":
            value = own_value / sizes[self.case][1] * 1e6
        elif self.over == "raw":
            value = own_value / sizes[self.case][0]
        else:
            value = own_value / found[self.over][self.what]
            value = 1 / value if self.what else value  # speed is the inverse of time
        fast = self.what > 0 and self.over != "µs"
        good = value >= self.bound if fast else self.low <= value <= self.bound
        sign = ">=" if fast else "<="
        over = self.over if self.over != "µs" else "one, µs"
        verdict = "  ok " if good else "  MISS"
        line = f"{verdict}  {name} / {over} = {value:.3f} ({sign} {self.bound:g})"
        return line, good


ZSTD, BLOSC, PCODEC = "zstd-1 raw", "blosc2 shuffle+zstd1", "pcodec 8 SUB2"
TARGETS = [
    Target("obs f64", "xor", 0, "raw", 0.929, 0.869),
    Target("action f64", "xor", 0, "raw", 0.939, 0.879),
    Target("PPO weights f64", "xor", 0, "raw", 0.827, 0.767),
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


def main(argv: list[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.codec", description=__doc__)
    parser.add_argument("--updates", type=int, help="of each LSTM learner (400; quick: 3)")
    parser.add_argument("--quick", action="store_true", help="little data, one round, no targets")
    given = parser.parse_args(argv)
    torch.set_num_threads(1)
    figures: Figures = {}
    data = cases(given.updates or (3 if given.quick else 400), quick=given.quick)
    for case in data:
        print(f"\n{case.name}: {len(case.items)} x {case.items[0][0].nbytes} bytes")
        figures[case.name] = measured(case, coders(case), 1 if given.quick else REPEATS)
        for name, (size, spent, read) in figures[case.name].items():
            speeds = f"{case.nbytes / spent / 1e6:8.0f} {case.nbytes / read / 1e6:8.0f} MB/s"
            print(f"  {name:26s} {100 * size / case.nbytes:7.2f} % {speeds}")
    for name, module in {"lz4": LZ4, "blosc2": BLOSC2, "pcodec": PCO}.items():
        if module is None:
            print(f"left out: {name} (not installed)")
    if given.quick:
        return 0
    sizes = {case.name: (case.nbytes, len(case.items)) for case in data}
    judged = [target.judge(figures, sizes) for target in TARGETS]
    print("\ntargets", *(line for line, _ in judged), sep="\n")
    return 0 if all(good for _, good in judged) else 1


if __name__ == "__main__":
    sys.exit(main())
