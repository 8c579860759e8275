"""``planes`` on its target data: narrowing, palettes, predictors, contexts."""

import numpy as np
import pytest

from rlrun import codec
from rlrun.codec import planes, sparse
from rlrun.codec.cursor import Cursor, encode_varint
from rlrun.errors import CodecError
from tests.codec import samples


def size(tree, **kw) -> int:
    return sum(c.coded_bytes for c in codec.explain(tree, **kw))


def test_float64_that_holds_float32_costs_no_more() -> None:
    second, base, now = samples.walk(samples.KIND["float32"], (9000,), 0)
    wide = [x.astype(np.float64) for x in (now, base, second)]
    for coder in ("planes", "planes_ctx"):
        thin = size(now, base=base, second=second, coder=coder)
        assert size(wide[0], base=wide[1], second=wide[2], coder=coder) == thin
    assert size(wide[0], coder="planes") == size(now, coder="planes")


def test_one_inexact_word_prevents_narrowing() -> None:
    """In the array or in a base; the round trip is exact."""
    arrays = [x.astype(np.float64) for x in samples.walk(samples.KIND["float32"], (900,), 0)]
    for spoiled in range(3):
        second, base, now = (x.copy() for x in arrays)
        (second, base, now)[spoiled][800] = 0.1
        bases = {"base": base, "second": second}
        frame = codec.encode(now, coder="planes_ctx", **bases)
        assert samples.same(now, codec.decode(frame, **bases))


def test_integers_are_narrowed_to_their_range() -> None:
    value = np.arange(3000) % 100 - 50
    assert size(value, coder="planes") == size(value.astype(np.int8), coder="planes")


@pytest.mark.parametrize(("values", "planes_of_bits"), [(1, 0), (2, 1), (3, 2), (32, 5)])
def test_palette_size_is_the_bits_of_the_indices(values: int, planes_of_bits: int) -> None:
    rng = np.random.default_rng(0)
    array = np.float64(rng.normal(size=values))[rng.integers(0, values, 8000)]
    assert size(array, coder="planes") <= 1000 * planes_of_bits + 8 * values + 40


def test_a_value_after_the_sample_extends_or_rejects_the_palette() -> None:
    array = np.zeros(5000, np.int32)
    array[4999] = 1 << 30
    assert planes.find_palette(array.view(np.uint32)).tolist() == [0, 1 << 30]
    array[1000:1100] = np.arange(100)
    assert planes.find_palette(array.view(np.uint32)) is None
    assert samples.same(array, codec.decode(codec.encode(array, coder="planes")))


def test_each_run_of_tensors_has_its_predictor() -> None:
    """Steady drift (SUB2), independent noise (NONE), constant (SUB)."""
    rng = np.random.default_rng(0)
    start, drift = rng.normal(0, 1, (2, 5000))
    steady = [(start + k * 1e-4 * drift).astype(np.float32) for k in range(3)]
    noise = [rng.normal(0, 1, 5000).astype(np.float32) for _ in range(3)]
    trees = [
        {"s": s, "n": n, "k": start.astype(np.float32)} for s, n in zip(steady, noise, strict=True)
    ]
    words = [np.concatenate([t["s"], t["n"], t["k"]]).view(np.uint32) for t in trees]
    chosen, _ = planes.tensor_residuals(words[2], (5000,) * 3, words[1], words[0])
    assert chosen == [2, 0, 1]
    bases = {"base": trees[1], "second": trees[0]}
    back = codec.decode(codec.encode(trees[2], coder="planes", **bases), **bases)
    assert all(samples.same(trees[2][k], back[k]) for k in "snk")


def test_small_tensors_share_a_run() -> None:
    assert planes.predictor_runs((10, 4000, 90, 5000, 0, 3)) == [4100, 5000, 3]
    assert planes.predictor_runs((0, 0)) == []


def test_contexts_help_where_lengths_persist() -> None:
    """Elements with step sizes of their own: the length of a delta predicts the next."""
    rng = np.random.default_rng(0)
    n = 1 << 16
    scale = np.exp(rng.normal(-9, 2, n))
    second = rng.normal(0, 0.1, n).astype(np.float32)
    base = (second + scale * rng.normal(size=n)).astype(np.float32)
    now = (base + scale * rng.normal(size=n)).astype(np.float32)
    bases = {"base": base, "second": second}
    assert size(now, coder="planes_ctx", **bases) < 0.985 * size(now, coder="planes", **bases)


def test_chunks_are_coded_series_by_series() -> None:
    rng = np.random.default_rng(0)
    scale = np.array([1e-6, 1.0, 1e3, 1e6], np.float32)
    obs = np.cumsum(rng.normal(0, 1, (128, 8, 4)), 0).astype(np.float32) * scale
    assert size(obs, chunk=True, coder="planes") < 0.95 * size(obs, coder="planes")


@pytest.mark.parametrize("size", [4096, 4097, 4103, 70_000])
@pytest.mark.parametrize("share", [0.5, 0.8, 0.92])
def test_bitmap_parts(size, share):
    """Planes with many zeros: split, restored, and no larger than with zstd."""
    rng = np.random.default_rng(size)
    plane = np.where(rng.random(size) < share, 0, rng.integers(1, 40, size)).astype(np.uint8)
    plane[0], plane[-1] = 1, 2
    found = planes.encode_part(plane)
    assert found[0] == 3 or share == 0.5
    assert len(found) < 1.02 * len(planes.encode_part(plane, no_bitmap=True))
    back = planes.decode_part(Cursor(memoryview(found)), size)
    np.testing.assert_array_equal(back, plane)
    assert not back.flags.writeable


@pytest.mark.parametrize("size", [1, 7, 8, 9, 64, 1001])
def test_bitmap_kernels_are_equal(size):
    """Compiled and vectorised: bitmap, bytes and inconsistent input."""
    rng = np.random.default_rng(size)
    for share in (0.0, 0.3, 1.0):
        plane = np.where(rng.random(size) < share, 0, rng.integers(1, 256, size)).astype(np.uint8)
        results = []
        for compiled in (True, False):
            with pytest.MonkeyPatch.context() as m:
                m.setattr(sparse, "COMPILED", compiled and sparse.COMPILED)
                bits, others = sparse.split_nonzero(plane)
                out, wrong = np.empty(size, np.uint8), np.empty(size, np.uint8)
                if len(others):
                    assert sparse.join_nonzero(bits, others, out) == len(others)
                    np.testing.assert_array_equal(out, plane)
                    assert sparse.join_nonzero(bits, others[:-1], wrong) != len(others) or size == 1
                results.append((bits.tobytes(), others.tobytes()))
        assert results[0] == results[1]


def test_bits_beyond_the_end_are_refused():
    bits, others = np.full(2, 255, np.uint8), np.ones(16, np.uint8)
    for compiled in (True, False):
        with pytest.MonkeyPatch.context() as m:
            m.setattr(sparse, "COMPILED", compiled and sparse.COMPILED)
            assert sparse.join_nonzero(bits, others, np.empty(9, np.uint8)) == -1
            assert sparse.join_nonzero(bits, others, np.empty(16, np.uint8)) == 16
            assert sparse.join_nonzero(bits, others[:9], np.empty(16, np.uint8)) == -1


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("wrong", [-1, 1])
def test_a_bitmap_that_does_not_match_its_bytes_is_refused(wrong, compiled, monkeypatch):
    """Also with more bytes than bits, which no encoder writes."""
    monkeypatch.setattr(sparse, "COMPILED", compiled and sparse.COMPILED)
    plane = np.zeros(4096, np.uint8)
    plane[::3] = np.arange(1366) % 40 + 1

    def payload(count):
        bits, others = sparse.split_nonzero(plane)
        kept = (planes.encode_part(x, no_bitmap=True) for x in (bits, np.resize(others, count)))
        return Cursor(memoryview(b"".join((b"\x03", encode_varint(count), *kept))))

    np.testing.assert_array_equal(planes.decode_part(payload(1366), 4096), plane)
    with pytest.raises(CodecError, match="its bitmap does not match its nonzero bytes"):
        planes.decode_part(payload(1366 + wrong), 4096)
