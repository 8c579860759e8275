"""Kernels at the ends of 64-bit words: sums and products wrap, whatever the compiler inlines."""

from itertools import product

import numpy as np
import pytest

from rlrun.codec import fit as fitting
from rlrun.codec import kernels, slopes, xor
from rlrun.codec.slopes import BLOCK, Fit, Form, bounds_of, folded, form_of, pack, unpack, wrapped
from rlrun.jit import COMPILED
from tests.codec import samples

numba = pytest.importorskip("numba")
pytestmark = pytest.mark.skipif(not COMPILED, reason="numba is switched off")

WIDE = ("int64", "uint64", "float64")
SLOPES = (64, -128, 127)
# Around 0 and the ends of signed and unsigned words, and where a slope of 64 or 127 overflows.
EDGES = np.array(
    [0, 1, 2**57 - 1, 2**57, 2**62, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 2**57, 2**64 - 1],
    np.uint64,
)
WORDS, BASE, SECOND = (np.array(x, np.uint64) for x in zip(*product(EDGES, repeat=3), strict=True))
ONE_EACH = np.arange(len(WORDS) + 1)  # the bounds of blocks of one word


def numpy_only(m: pytest.MonkeyPatch) -> None:
    for module in (slopes, fitting, xor, kernels):
        m.setattr(module, "COMPILED", False)


def steps_and_changes(spare: int) -> tuple[np.ndarray, np.ndarray]:
    """Every pair of ends, int64 of 64 − ``spare`` bits."""
    pairs = np.array(list(product(EDGES.view(np.int64), repeat=2))) >> spare
    return pairs[:, 0].copy(), pairs[:, 1].copy()


def expected_change(steps: np.ndarray, slope: int) -> np.ndarray:
    return steps * np.int64(slope) + 32 >> 6


def expected_cost(steps: np.ndarray, change: np.ndarray, slope: int, spare: int) -> int:
    errors = wrapped(change - expected_change(steps, slope), 64 - spare)
    return int(kernels.lengths_vectorised(folded(errors)).sum())


@pytest.mark.parametrize("spare", [0, 32])
@pytest.mark.parametrize("slope", SLOPES)
def test_cost_of_a_slope(slope: int, spare: int) -> None:
    """Alone, and inlined where slope and width are constants: 64 / 64 must not be cancelled."""
    steps, change = steps_and_changes(spare)

    @numba.njit
    def inlined(steps, change):
        return fitting.cost_compiled(steps, change, slope, spare)

    wanted = expected_cost(steps, change, slope, spare)
    assert fitting.cost_compiled(steps, change, slope, spare) == wanted
    assert inlined(steps, change) == wanted
    for i in range(len(steps)):
        one = steps[i : i + 1], change[i : i + 1]
        assert inlined(*one) == expected_cost(*one, slope, spare), one


@pytest.mark.parametrize("slope", SLOPES)
def test_predicted_change(slope: int) -> None:
    steps, _ = steps_and_changes(0)
    constant = np.uint64(np.int64(slope))

    @numba.njit
    def alone(steps, slope):
        return [slopes.predicted(step, slope) for step in steps]

    @numba.njit
    def inlined(steps):
        return [slopes.predicted(step, constant) for step in steps]

    wanted = expected_change(steps, slope).view(np.uint64).tolist()
    assert [int(slopes.predicted(step, constant)) for step in steps] == wanted
    assert alone(steps, constant) == wanted
    assert inlined(steps) == wanted


@pytest.mark.parametrize("width", [8, 16, 32, 64])
def test_signed_and_zigzag(width: int) -> None:
    spare = 64 - width

    @numba.njit
    def inlined(words):
        return [kernels.zigzag_of(kernels.signed_of(word, spare)) for word in words]

    signed = wrapped(EDGES.view(np.int64), width)
    assert [int(kernels.signed_of(word, spare)) for word in EDGES] == signed.tolist()
    assert [int(kernels.zigzag_of(value)) for value in signed] == folded(signed).tolist()
    assert inlined(EDGES) == folded(signed).tolist()


@pytest.mark.parametrize("bounds", [ONE_EACH, bounds_of((len(WORDS),))], ids=["one each", "whole"])
@pytest.mark.parametrize("name", WIDE)
def test_fit_pack_unpack(name: str, bounds: np.ndarray, monkeypatch) -> None:
    """Every triple of ends: the same slopes, symbols and bits as numpy's, and the words back."""
    form, results = form_of(samples.KIND[name]), []
    for fast in (True, False):
        with monkeypatch.context() as m:
            if not fast:
                numpy_only(m)
            found = fitting.fit(WORDS, BASE, SECOND, bounds, form)
            symbols, bits = pack(WORDS, BASE, SECOND, bounds, form, found)
            back = unpack(symbols, memoryview(bits), BASE, SECOND, bounds, form, found)
            assert np.array_equal(back, WORDS)
            results.append((found.slopes, found.levels, found.usual, symbols, bits))
    for a, b in zip(*results, strict=True):
        assert np.array_equal(a, b)


@pytest.mark.parametrize("slope", [64, -128])
def test_pack_and_unpack_inlined(slope: int, monkeypatch) -> None:
    """One block whose slope and form are constants of the caller."""
    form = Form(64, 0, 0, 2)
    some = slice(0, len(WORDS), -(-len(WORDS) // BLOCK))
    words, base, second = (x[some].copy() for x in (WORDS, BASE, SECOND))
    bounds, n = np.array([0, len(words)]), len(words)
    shares, levels = np.full(1, slope, np.int8), np.zeros(1, np.int8)
    usual = np.zeros(form.contexts, np.uint8)

    @numba.njit
    def packed(words, base, second, usual, symbols, bits):
        return slopes.pack_compiled(
            words, base, second, bounds, shares, levels, usual, 0, 0, 2, symbols, bits
        )

    @numba.njit
    def unpacked(symbols, bits, limit, base, second, usual, words):
        return slopes.unpack_compiled(
            symbols, bits, limit, base, second, bounds, shares, levels, usual, 0, 0, 2, words
        )

    with monkeypatch.context() as m:
        numpy_only(m)
        given = Fit(shares, levels, usual)
        wanted, wanted_bits = pack(words, base, second, bounds, form, given)
    symbols, bits = np.empty(n, np.uint8), np.zeros(2 * n + 8, np.uint32)
    count = packed(words, base, second, usual, symbols, bits)
    assert np.array_equal(symbols, wanted)
    assert bits.view(np.uint8)[: (count + 7) // 8].tobytes() == wanted_bits.tobytes()
    back = np.zeros_like(words)
    assert unpacked(symbols, bits, count, base, second, usual, back) == count
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
