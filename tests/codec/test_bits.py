"""Frames are the same bytes however loops are run: compiled, interpreted, in numpy.

Nothing outside shows an index out of bounds: compiled loops do not look, the interpreter does.
"""

from itertools import product

import numpy as np
import pytest

import rlrun.codec
from rlrun import codec
from rlrun.jit import COMPILED
from tests.codec import samples
from tests.codec.everything import digest, frames
from tests.without_numba import without_numba

pytestmark = pytest.mark.skipif(not COMPILED, reason="numba is not there or switched off")

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
            frame = codec.encode(now[:n], coder=coder, **bases)
            assert samples.same(now[:n], codec.decode(frame, **bases))
            series = now[:n].reshape(n, 1)
            rows = codec.encode_chunk(series, coder=coder)
            assert samples.same(series, codec.decode(rows))
            found += [frame, rows]
    return found


@pytest.mark.parametrize("coder", samples.CODERS)
def test_words_at_their_limits(coder) -> None:
    """Arithmetic wraps however functions are inlined."""
    for loops, stride in ((True, 7), (False, 1)):
        compiled = at_the_limits(coder, stride)
        with without_numba(rlrun.codec, loops=loops):
            assert at_the_limits(coder, stride) == compiled, f"loops={loops}"


def test_every_frame_in_numpy() -> None:
    """Of all coders, kinds and forms, as RLRUN_NUMBA=0 writes and reads them."""
    compiled = digest()
    with without_numba(rlrun.codec, loops=False):
        assert digest() == compiled


def test_short_frames_interpreted() -> None:
    """And frames with wrong bits, which must not be read out of bounds."""
    short = [f for f in frames() if len(f[1]) < 2000 and f[0].split("/")[0] in KINDS]
    rng = np.random.default_rng(0)
    with without_numba(rlrun.codec, loops=True):
        again = {name: frame for name, frame, *_ in frames_of(short)}
        for name, frame, tree, bases in short:
            assert again[name] == frame, name
            assert samples.same(tree, codec.decode(frame, **bases)), name
            for _ in range(3):
                wrong = samples.sealed(frame, int(rng.integers(100, len(frame))), rng)
                try:
                    back = codec.decode(wrong, **bases)
                except codec.CodecError:
                    continue
                assert samples.same(tree, back), name


KINDS = ("bool", "float32", "int64", "uint8", "float64")


def frames_of(chosen):
    """The chosen frames, written again."""
    for name, _, tree, bases in chosen:
        coder = name.split("/")[1]
        write = codec.encode_chunk if name.endswith("/chunk") else codec.encode
        if name.endswith("/one"):
            bases = {"base": bases["base"]}
        yield name, write(tree, coder=coder, **bases), tree, bases
