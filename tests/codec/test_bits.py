"""Compiled kernels against themselves in the interpreter.

Nothing outside shows an index out of bounds: compiled loops do not look, the interpreter does.
"""

from itertools import product

import numpy as np
import pytest

import rlrun.codec
from rlrun import codec
from rlrun.codec import planes
from rlrun.jit import COMPILED
from tests.codec import samples
from tests.codec.everything import frames
from tests.without_numba import without_numba

# Around 0, the limits of signed and unsigned words, and overflows of coefficients 64 and 127.
EDGES = np.array(
    [0, 1, 2**57 - 1, 2**57, 2**62, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 2**57, 2**64 - 1],
    np.uint64,
)
TRIPLES = [np.array(x, np.uint64) for x in zip(*product(EDGES, repeat=3), strict=True)]


def at_the_limits(coder: str, stride: int) -> list[bytes]:
    """Frames of triples of limits of 64-bit words, in one piece and a few at a time."""
    found = []
    for dtype in (np.int64, np.uint64, np.float64):
        now, base, second = (x[::stride].view(dtype) for x in TRIPLES)
        for n in (len(now), 37):
            bases = {"base": base[:n], "second": second[:n]}
            data = codec.encode(now[:n], coder=coder, **bases)
            assert samples.same(now[:n], codec.decode(data, **bases))
            series = now[:n].reshape(n, 1)
            rows = codec.encode_chunk(series, coder=coder)
            assert samples.same(series, codec.decode(rows))
            found += [data, rows]
    return found


@pytest.mark.skipif(not COMPILED, reason="numba is switched off")
@pytest.mark.parametrize("coder", samples.CODERS)
def test_words_at_their_limits(coder) -> None:
    """Arithmetic wraps however functions are inlined."""
    at_the_limits(coder, 1)
    compiled = at_the_limits(coder, 7)
    with without_numba(rlrun.codec):
        assert at_the_limits(coder, 7) == compiled


@pytest.mark.skipif(not COMPILED, reason="numba is switched off")
def test_short_frames_interpreted() -> None:
    """The same bytes; frames with wrong bits are not read out of bounds."""
    kinds = ("bool", "float32", "int64", "uint8", "float64")
    short = {f[0]: f for f in frames() if len(f[1]) < 2000 and f[0].split("/")[0] in kinds}
    rng = np.random.default_rng(0)
    with without_numba(rlrun.codec):
        for name, data, *_ in frames(kinds):
            assert name not in short or short[name][1] == data, name
        for name, data, tree, bases in short.values():
            assert samples.same(tree, codec.decode(data, **bases)), name
            for _ in range(3):
                wrong = samples.sealed(data, int(rng.integers(100, len(data))), rng)
                try:
                    back = codec.decode(wrong, **bases)
                except codec.CodecError:
                    continue
                assert samples.same(tree, back), name


@pytest.mark.skipif(not COMPILED, reason="numba is switched off")
def test_bits_that_are_missing_are_not_read() -> None:
    second, base, now = samples.walk(samples.KIND["float32"], (600,), 0)
    data = codec.encode(now, coder="planes_ctx", base=base, second=second)
    with without_numba(rlrun.codec):
        for missing in (1, 40, 200):
            cut = samples.seal(bytearray(data[:-missing]))
            with pytest.raises(codec.DamagedFrame):
                codec.decode(cut, base=base, second=second)


@pytest.mark.skipif(not COMPILED, reason="numba is switched off")
def test_bits_beyond_a_plane_are_not_written() -> None:
    """Of the kernel itself: outside nothing shows such a write."""
    with without_numba(rlrun.codec):
        bitmap, values = np.array([255], np.uint8), np.ones(8, np.uint8)
        assert planes.join_nonzero(bitmap, values, np.empty(5, np.uint8)) == -1
