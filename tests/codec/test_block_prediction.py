"""``planes_ctx``: worked examples, equal compiled and numpy versions, inconsistent bits."""

import numpy as np
import pytest

from rlrun import codec
from rlrun.codec import block_fit, block_prediction
from rlrun.codec.block_prediction import BlockParameters, block_bounds, pack, unpack, word_layout
from rlrun.jit import COMPILED
from tests.codec import samples

compiled = pytest.mark.skipif(not COMPILED, reason="numba is not installed")
NO_EXPONENT = samples.KIND["uint32"]  # contexts are the lengths of steps only


def numpy_only(m: pytest.MonkeyPatch) -> None:
    m.setattr(block_prediction, "COMPILED", False)
    m.setattr(block_fit, "COMPILED", False)


def zero_parameters(blocks: int, kind=NO_EXPONENT, coefficient: int = 0) -> BlockParameters:
    zeros = np.zeros(blocks, np.int8)
    return BlockParameters(
        zeros + np.int8(coefficient), zeros, np.zeros(word_layout(kind).contexts, np.uint8)
    )


def words_and_bases(kind, n: int, seed: int) -> list[np.ndarray]:
    """Return words, base and second: a random walk with special and unrelated words."""
    walk = [x.view(kind.word).copy() for x in samples.walk(kind, (n,), seed)]
    wild = [samples.array(kind, (n,), seed + k).view(kind.word) for k in range(3)]
    at = np.random.default_rng(seed).random(n) < 0.1
    return [np.where(at, b, a) for a, b in zip(walk[::-1], wild, strict=True)]


@pytest.mark.parametrize("fast", [True, False])
def test_worked_example_of_symbols(fast: bool, monkeypatch) -> None:
    """Step 100 with coefficient 1/2 predicts a change of 50.

    Change 43: residual −7, zigzag code 13; change 57: 7, code 14. Change 84: 34, code 68 =
    0b1000100, 7 bits: 3 extra, bucket 3 · 8 + 0b1000, low bits 0b100. Change −250: −300, code
    599 = 0b1001010111: 6 extra, bucket 6 · 8 + 0b1001, low bits 0b010111. Extra bits are
    stored lowest first.
    """
    if not fast:
        numpy_only(monkeypatch)
    second = np.full(4, 1000, np.uint32)
    base, change = second + np.uint32(100), np.array([43, 57, 84, -250])
    words = (base + change).astype(np.uint32)
    bounds, layout = block_bounds((4,)), word_layout(NO_EXPONENT)
    symbols, bits = pack(words, base, second, bounds, layout, zero_parameters(1, coefficient=32))
    assert symbols.tolist() == [13, 14, 32, 57]
    assert bits.tolist() == [0b10111100, 0]
    back = unpack(
        symbols, memoryview(bits), base, second, bounds, layout, zero_parameters(1, coefficient=32)
    )
    assert np.array_equal(back, words)


@pytest.mark.parametrize("fast", [True, False])
def test_worked_example_of_expected_buckets(fast: bool, monkeypatch) -> None:
    """Bucket 13, expected 40, offset 5: 13 − (40 + 5 − 16) = −16; 10 − max(10 + 5 − 16, 0) = 10.

    The zigzag code of step 100 is 200, 8 bits; step 0 has 0 bits.
    """
    if not fast:
        numpy_only(monkeypatch)
    expected_buckets = np.zeros((33, 256), np.uint8)
    expected_buckets[8], expected_buckets[0] = 40, 10
    given = BlockParameters(
        np.zeros(1, np.int8), np.full(1, 5, np.int8), expected_buckets.reshape(-1)
    )
    second = np.array([1000, 1100], np.uint32)
    base = np.array([1100, 1100], np.uint32)
    words = base + np.array([-7, 5]).astype(np.uint32)
    symbols, bits = pack(words, base, second, block_bounds((2,)), word_layout(NO_EXPONENT), given)
    assert symbols.tolist() == [256 - 16, 10]
    assert len(bits) == 0


def test_no_block_spans_two_tensors() -> None:
    assert block_bounds((3, 0, 1025, 1)).tolist() == [0, 3, 515, 1027, 1028, 1029]
    assert block_bounds((512, 512)).tolist() == [0, 512, 1024]


@compiled
@pytest.mark.parametrize("sizes", [(1,), (16, 1, 0, 700), (5000, 64, 40000)])
@pytest.mark.parametrize("kind", samples.KINDS, ids=samples.NAMES)
def test_compiled_and_vectorised_are_equal(kind, sizes, monkeypatch) -> None:
    """Parameters, symbols, bits and words."""
    words, base, second = words_and_bases(kind, sum(sizes), 3)
    bounds, layout = block_bounds(sizes), word_layout(kind)
    results = []
    for fast in (True, False):
        with monkeypatch.context() as m:
            if not fast:
                numpy_only(m)
            found = block_fit.fit_blocks(words, base, second, bounds, layout)
            symbols, bits = pack(words, base, second, bounds, layout, found)
            back = unpack(symbols, memoryview(bits), base, second, bounds, layout, found)
            assert np.array_equal(back, words)
            results.append(
                [found.coefficients, found.offsets, found.expected_buckets, symbols, bits]
            )
    for a, b in zip(*results, strict=True):
        assert a.dtype == b.dtype
        assert np.array_equal(a, b)


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("name", ["float32", "float64"])
def test_inconsistent_bits_are_refused(name, fast, monkeypatch) -> None:
    """Too few, too many, none, spare bits set: no words, and no read out of bounds."""
    if not fast:
        numpy_only(monkeypatch)
    kind = samples.KIND[name]
    words, base, second = words_and_bases(kind, 2000, 5)
    base[-1] = second[-1]
    bounds, layout = block_bounds((2000,)), word_layout(kind)
    found = block_fit.fit_blocks(words, base, second, bounds, layout)
    symbols, bits = pack(words, base, second, bounds, layout, found)
    data = bits.tobytes()
    refused_spare_bits = False
    for wrong in (b"", data[:-1], data + b"\0", data[: len(data) // 2]):
        assert unpack(symbols, memoryview(wrong), base, second, bounds, layout, found) is None
    for seed in range(8):  # some end within a byte
        words[-1] = base[-1] + words.dtype.type(1 << 3 * seed)
        symbols, bits = pack(words, base, second, bounds, layout, found)
        data = bits.tobytes()
        wrong = data[:-1] + bytes((data[-1] | 128,))
        back = unpack(symbols, memoryview(wrong), base, second, bounds, layout, found)
        refused_spare_bits |= back is None
        assert back is None or wrong == data or not np.array_equal(back, words)
    assert refused_spare_bits
    worst = np.full(2000, 255, np.uint8)
    plain = zero_parameters(len(bounds) - 1, kind)
    assert unpack(worst, memoryview(data), base, second, bounds, layout, plain) is None
    enough = bytes(8 * len(worst))  # the most extra bits of 32-bit words
    unpack(worst, memoryview(enough), base, second, bounds, layout, plain)


def test_every_row_has_its_coefficient() -> None:
    """Rows that repeat their own fraction of the step: fitted, and a third smaller."""
    rng = np.random.default_rng(0)
    rows = 128
    second = rng.normal(0, 0.05, (rows, 512)).astype(np.float32)
    step = rng.normal(0, 3e-5, (rows, 512))
    share = rng.uniform(-0.4, 1.4, (rows, 1))
    base = (second + step).astype(np.float32)
    now = (base + share * step * rng.normal(1, 0.01, step.shape)).astype(np.float32)
    bases = {"base": base, "second": second}
    flat = [x.reshape(-1).view(np.uint32) for x in (now, base, second)]
    found = block_fit.fit_blocks(
        *flat, block_bounds((rows * 512,)), word_layout(samples.KIND["float32"])
    )
    np.testing.assert_allclose(found.coefficients / 64, share[:, 0], atol=0.06)
    sizes = {
        coder: codec.explain(now, coder=coder, **bases)[0].coded_bytes
        for coder in ("planes", "planes_ctx")
    }
    assert sizes["planes_ctx"] < 0.67 * sizes["planes"]


def test_unrelated_bases_are_no_larger_than_raw() -> None:
    rng = np.random.default_rng(0)
    arrays = rng.integers(0, 1 << 32, (3, 40000), np.uint32)
    (choice,) = codec.explain(arrays[0], base=arrays[1], second=arrays[2], coder="planes_ctx")
    assert choice.coded_bytes <= arrays[0].nbytes
