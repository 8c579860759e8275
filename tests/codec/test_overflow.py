"""Kernels at the limits of 64-bit words: arithmetic wraps however functions are inlined."""

from itertools import product

import numpy as np
import pytest

from rlrun.codec import block_fit, block_prediction, kernels, xor
from rlrun.codec.block_prediction import (
    BLOCK,
    BlockParameters,
    WordLayout,
    block_bounds,
    pack,
    unpack,
    word_layout,
    wrap_signed,
    zigzag_signed,
)
from rlrun.jit import COMPILED
from tests.codec import samples

numba = pytest.importorskip("numba")
pytestmark = pytest.mark.skipif(not COMPILED, reason="numba is switched off")

WIDE = ("int64", "uint64", "float64")
COEFFICIENTS = (64, -128, 127)
# Around 0, the limits of signed and unsigned words, and overflows of coefficients 64 and 127.
EDGES = np.array(
    [0, 1, 2**57 - 1, 2**57, 2**62, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 2**57, 2**64 - 1],
    np.uint64,
)
WORDS, BASE, SECOND = (np.array(x, np.uint64) for x in zip(*product(EDGES, repeat=3), strict=True))
ONE_EACH = np.arange(len(WORDS) + 1)  # the bounds of blocks of one word


def numpy_only(m: pytest.MonkeyPatch) -> None:
    for module in (block_prediction, block_fit, xor, kernels):
        m.setattr(module, "COMPILED", False)


def steps_and_changes(spare: int) -> tuple[np.ndarray, np.ndarray]:
    """Return every pair of limits, int64 of 64 − ``spare`` bits."""
    pairs = np.array(list(product(EDGES.view(np.int64), repeat=2))) >> spare
    return pairs[:, 0].copy(), pairs[:, 1].copy()


def expected_change(steps: np.ndarray, coefficient: int) -> np.ndarray:
    return steps * np.int64(coefficient) + 32 >> 6


def expected_cost(steps: np.ndarray, change: np.ndarray, coefficient: int, spare: int) -> int:
    errors = wrap_signed(change - expected_change(steps, coefficient), 64 - spare)
    return int(kernels.bit_lengths_vectorised(zigzag_signed(errors)).sum())


@pytest.mark.parametrize("spare", [0, 32])
@pytest.mark.parametrize("coefficient", COEFFICIENTS)
def test_cost_of_a_coefficient(coefficient: int, spare: int) -> None:
    """Not inlined, and inlined with constant coefficient and width: 64 / 64 must not cancel."""
    steps, change = steps_and_changes(spare)

    @numba.njit
    def inlined(steps, change):
        return block_fit.cost_compiled(steps, change, coefficient, spare)

    wanted = expected_cost(steps, change, coefficient, spare)
    assert block_fit.cost_compiled(steps, change, coefficient, spare) == wanted
    assert inlined(steps, change) == wanted
    for i in range(len(steps)):
        one = steps[i : i + 1], change[i : i + 1]
        assert inlined(*one) == expected_cost(*one, coefficient, spare), one


@pytest.mark.parametrize("coefficient", COEFFICIENTS)
def test_predicted_change(coefficient: int) -> None:
    steps, _ = steps_and_changes(0)
    constant = np.uint64(np.int64(coefficient))

    @numba.njit
    def alone(steps, coefficient):
        return [block_prediction.predict_change(step, coefficient) for step in steps]

    @numba.njit
    def inlined(steps):
        return [block_prediction.predict_change(step, constant) for step in steps]

    wanted = expected_change(steps, coefficient).view(np.uint64).tolist()
    assert [int(block_prediction.predict_change(step, constant)) for step in steps] == wanted
    assert alone(steps, constant) == wanted
    assert inlined(steps) == wanted


@pytest.mark.parametrize("width", [8, 16, 32, 64])
def test_signed_and_zigzag(width: int) -> None:
    spare = 64 - width

    @numba.njit
    def inlined(words):
        return [kernels.zigzag_word(kernels.sign_extend(word, spare)) for word in words]

    as_signed = wrap_signed(EDGES.view(np.int64), width)
    assert [int(kernels.sign_extend(word, spare)) for word in EDGES] == as_signed.tolist()
    assert [int(kernels.zigzag_word(value)) for value in as_signed] == zigzag_signed(
        as_signed
    ).tolist()
    assert inlined(EDGES) == zigzag_signed(as_signed).tolist()


@pytest.mark.parametrize(
    "bounds", [ONE_EACH, block_bounds((len(WORDS),))], ids=["one each", "whole"]
)
@pytest.mark.parametrize("name", WIDE)
def test_fit_pack_unpack(name: str, bounds: np.ndarray, monkeypatch) -> None:
    """Every triple of limits: parameters, symbols and bits equal numpy's; words are restored."""
    layout, results = word_layout(samples.KIND[name]), []
    for fast in (True, False):
        with monkeypatch.context() as m:
            if not fast:
                numpy_only(m)
            found = block_fit.fit_blocks(WORDS, BASE, SECOND, bounds, layout)
            symbols, bits = pack(WORDS, BASE, SECOND, bounds, layout, found)
            back = unpack(symbols, memoryview(bits), BASE, SECOND, bounds, layout, found)
            assert np.array_equal(back, WORDS)
            results.append(
                (found.coefficients, found.offsets, found.expected_buckets, symbols, bits)
            )
    for a, b in zip(*results, strict=True):
        assert np.array_equal(a, b)


@pytest.mark.parametrize("coefficient", [64, -128])
def test_pack_and_unpack_inlined(coefficient: int, monkeypatch) -> None:
    """One block with constant coefficient and layout."""
    layout = WordLayout(64, 0, 0, 2)
    some = slice(0, len(WORDS), -(-len(WORDS) // BLOCK))
    words, base, second = (x[some].copy() for x in (WORDS, BASE, SECOND))
    bounds, n = np.array([0, len(words)]), len(words)
    block_coefficients, offsets = np.full(1, coefficient, np.int8), np.zeros(1, np.int8)
    expected_buckets = np.zeros(layout.contexts, np.uint8)

    @numba.njit
    def packed(words, base, second, expected_buckets, symbols, bits):
        return block_prediction.pack_compiled(
            words,
            base,
            second,
            bounds,
            block_coefficients,
            offsets,
            expected_buckets,
            0,
            0,
            2,
            symbols,
            bits,
        )

    @numba.njit
    def unpacked(symbols, bits, limit, base, second, expected_buckets, words):
        return block_prediction.unpack_compiled(
            symbols,
            bits,
            limit,
            base,
            second,
            bounds,
            block_coefficients,
            offsets,
            expected_buckets,
            0,
            0,
            2,
            words,
        )

    with monkeypatch.context() as m:
        numpy_only(m)
        given = BlockParameters(block_coefficients, offsets, expected_buckets)
        wanted, wanted_bits = pack(words, base, second, bounds, layout, given)
    symbols, bits = np.empty(n, np.uint8), np.zeros(2 * n + 8, np.uint32)
    count = packed(words, base, second, expected_buckets, symbols, bits)
    assert np.array_equal(symbols, wanted)
    assert bits.view(np.uint8)[: (count + 7) // 8].tobytes() == wanted_bits.tobytes()
    back = np.zeros_like(words)
    assert unpacked(symbols, bits, count, base, second, expected_buckets, back) == count
    assert np.array_equal(back, words)


@pytest.mark.parametrize("predictor", [kernels.SUB, kernels.SUB2])
def test_residuals_inlined(predictor: int) -> None:
    @numba.njit
    def inlined(words, base, second, out):
        return kernels.residuals_compiled(words, base, second, predictor, out)

    @numba.njit
    def restored(out, base, second):
        kernels.restore_compiled(out, base, second, predictor)

    wanted = kernels.residuals_vectorised(WORDS, BASE, SECOND, predictor)
    out = kernels.residuals(WORDS, BASE, SECOND, predictor)
    assert np.array_equal(out, wanted)
    assert np.array_equal(inlined(WORDS, BASE, SECOND, np.empty_like(out)), wanted)
    restored(out, BASE, SECOND)
    assert np.array_equal(out, WORDS)


@pytest.mark.parametrize("exclusive", [True, False])
def test_xor_inlined(exclusive: bool) -> None:
    """Deltas of 64 bits after ones of 64, whose missing first bit would be shifted by 64."""

    @numba.njit
    def inlined(words, base, lengths):
        return xor.encode_compiled(words, base, lengths, exclusive, 6)

    words, lengths = WORDS.reshape(-1, 10), np.full(10, 64, np.uint8)
    wanted, count = xor.encode_vectorised(words, EDGES, lengths, exclusive, 6)
    for encode in (inlined, lambda *x: xor.encode_compiled(*x, exclusive, 6)):
        packed, bits = encode(words, EDGES, lengths)
        assert bits == count
        assert packed.view(np.uint8)[: (bits + 7) // 8].tobytes() == wanted.tobytes()
    back = xor.decode(memoryview(wanted.tobytes()), len(words), EDGES, lengths, exclusive)
    assert np.array_equal(back, words)
