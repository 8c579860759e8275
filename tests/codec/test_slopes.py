"""``planes_ctx``: hand-worked numbers, twins with the same numbers, and bits that do not fit."""

import numpy as np
import pytest

from rlrun import codec
from rlrun.codec import fit as fitting
from rlrun.codec import slopes
from rlrun.codec.slopes import Fit, bounds_of, form_of, pack, unpack
from rlrun.jit import COMPILED
from tests.codec import samples

compiled = pytest.mark.skipif(not COMPILED, reason="numba is not installed")
FLAT = samples.KIND["uint32"]  # no exponent: contexts are lengths of steps alone


def numpy_only(m: pytest.MonkeyPatch) -> None:
    m.setattr(slopes, "COMPILED", False)
    m.setattr(fitting, "COMPILED", False)


def said(blocks: int, kind=FLAT, slope: int = 0) -> Fit:
    zeros = np.zeros(blocks, np.int8)
    return Fit(zeros + np.int8(slope), zeros, np.zeros(form_of(kind).contexts, np.uint8))


def triple(kind, n: int, seed: int) -> list[np.ndarray]:
    """Words, base and second: a walk with traps and unrelated words in it."""
    walk = [x.view(kind.word).copy() for x in samples.walk(kind, (n,), seed)]
    wild = [samples.array(kind, (n,), seed + k).view(kind.word) for k in range(3)]
    at = np.random.default_rng(seed).random(n) < 0.1
    return [np.where(at, b, a) for a, b in zip(walk[::-1], wild, strict=True)]


@pytest.mark.parametrize("fast", [True, False])
def test_by_hand(fast: bool, monkeypatch) -> None:
    """Step 100 at slope 1/2 expects a change of 50; 50 − 57 = −7 is folded to 13, 57 − 50 to 14.

    Change 84: 34 above, folded to 68 = 0b1000100, 7 bits: 3 extra, bucket 3 · 8 + 0b1000, rest
    0b100. Change −250: 300 below, folded to 599 = 0b1001010111: 6 extra, bucket 6 · 8 + 0b1001,
    rest 0b010111. The bits, lowest first: 100 of the first from its lowest, then those of the last.
    """
    if not fast:
        numpy_only(monkeypatch)
    second = np.full(4, 1000, np.uint32)
    base, change = second + np.uint32(100), np.array([43, 57, 84, -250])
    words = (base + change).astype(np.uint32)
    bounds, form = bounds_of((4,)), form_of(FLAT)
    symbols, bits = pack(words, base, second, bounds, form, said(1, slope=32))
    assert symbols.tolist() == [13, 14, 32, 57]
    assert bits.tolist() == [0b10111100, 0]
    back = unpack(symbols, memoryview(bits), base, second, bounds, form, said(1, slope=32))
    assert np.array_equal(back, words)


@pytest.mark.parametrize("fast", [True, False])
def test_shifts_by_hand(fast: bool, monkeypatch) -> None:
    """Bucket 13, usual 40, level 5: 13 − (40 + 5 − 16) = −16; 10 − (10 + 5 − 16 → 0) = 10.

    A step of 100 is folded to 200, 8 bits; none to none.
    """
    if not fast:
        numpy_only(monkeypatch)
    usual = np.zeros((33, 256), np.uint8)
    usual[8], usual[0] = 40, 10
    given = Fit(np.zeros(1, np.int8), np.full(1, 5, np.int8), usual.reshape(-1))
    second = np.array([1000, 1100], np.uint32)
    base = np.array([1100, 1100], np.uint32)
    words = base + np.array([-7, 5]).astype(np.uint32)
    symbols, bits = pack(words, base, second, bounds_of((2,)), form_of(FLAT), given)
    assert symbols.tolist() == [256 - 16, 10]
    assert len(bits) == 0


def test_blocks_end_with_tensors() -> None:
    assert bounds_of((3, 0, 1025, 1)).tolist() == [0, 3, 515, 1027, 1028, 1029]
    assert bounds_of((512, 512)).tolist() == [0, 512, 1024]


@compiled
@pytest.mark.parametrize("sizes", [(1,), (16, 1, 0, 700), (5000, 64, 40000)])
@pytest.mark.parametrize("kind", samples.KINDS, ids=samples.NAMES)
def test_twins(kind, sizes, monkeypatch) -> None:
    """Fit, symbols, bits and words, with numba and without."""
    words, base, second = triple(kind, sum(sizes), 3)
    bounds, form = bounds_of(sizes), form_of(kind)
    results = []
    for fast in (True, False):
        with monkeypatch.context() as m:
            if not fast:
                numpy_only(m)
            found = fitting.fit(words, base, second, bounds, form)
            symbols, bits = pack(words, base, second, bounds, form, found)
            back = unpack(symbols, memoryview(bits), base, second, bounds, form, found)
            assert np.array_equal(back, words)
            results.append([found.slopes, found.levels, found.usual, symbols, bits])
    for a, b in zip(*results, strict=True):
        assert a.dtype == b.dtype
        assert np.array_equal(a, b)


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("name", ["float32", "float64"])
def test_bits_that_do_not_fit(name, fast, monkeypatch) -> None:
    """Too few, too many, none, and spare ones that are set: no words, and nothing read outside."""
    if not fast:
        numpy_only(monkeypatch)
    kind = samples.KIND[name]
    words, base, second = triple(kind, 2000, 5)
    base[-1] = second[-1]
    bounds, form = bounds_of((2000,)), form_of(kind)
    found = fitting.fit(words, base, second, bounds, form)
    symbols, bits = pack(words, base, second, bounds, form, found)
    data = bits.tobytes()
    spared = False
    for wrong in (b"", data[:-1], data + b"\0", data[: len(data) // 2]):
        assert unpack(symbols, memoryview(wrong), base, second, bounds, form, found) is None
    for seed in range(8):  # some end within a byte
        words[-1] = base[-1] + words.dtype.type(1 << 3 * seed)
        symbols, bits = pack(words, base, second, bounds, form, found)
        data = bits.tobytes()
        wrong = data[:-1] + bytes((data[-1] | 128,))
        back = unpack(symbols, memoryview(wrong), base, second, bounds, form, found)
        spared |= back is None
        assert back is None or wrong == data or not np.array_equal(back, words)
    assert spared
    worst = np.full(2000, 255, np.uint8)
    plain = said(len(bounds) - 1, kind)
    assert unpack(worst, memoryview(data), base, second, bounds, form, plain) is None
    enough = bytes(8 * len(worst))  # as many as the longest rests of 32-bit words
    unpack(worst, memoryview(enough), base, second, bounds, form, plain)


def test_every_row_has_its_slope() -> None:
    """Rows that repeat shares of their step of their own: found, and worth a third of the size."""
    rng = np.random.default_rng(0)
    rows = 128
    second = rng.normal(0, 0.05, (rows, 512)).astype(np.float32)
    step = rng.normal(0, 3e-5, (rows, 512))
    share = rng.uniform(-0.4, 1.4, (rows, 1))
    base = (second + step).astype(np.float32)
    now = (base + share * step * rng.normal(1, 0.01, step.shape)).astype(np.float32)
    bases = {"base": base, "second": second}
    flat = [x.reshape(-1).view(np.uint32) for x in (now, base, second)]
    found = fitting.fit(*flat, bounds_of((rows * 512,)), form_of(samples.KIND["float32"]))
    np.testing.assert_allclose(found.slopes / 64, share[:, 0], atol=0.06)
    sizes = {
        coder: codec.explain(now, coder=coder, **bases)[0].coded_bytes
        for coder in ("planes", "planes_ctx")
    }
    assert sizes["planes_ctx"] < 0.67 * sizes["planes"]


def test_unrelated_bases_cost_no_more_than_the_words() -> None:
    rng = np.random.default_rng(0)
    arrays = rng.integers(0, 1 << 32, (3, 40000), np.uint32)
    (choice,) = codec.explain(arrays[0], base=arrays[1], second=arrays[2], coder="planes_ctx")
    assert choice.coded_bytes <= arrays[0].nbytes
