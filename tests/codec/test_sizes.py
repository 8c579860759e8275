"""What coders save on the data they are for; the optional coder, with its package and without."""

import sys

import numpy as np
import pytest

from rlrun import codec
from rlrun.codec import planes
from tests.codec import samples

PCO = pytest.mark.skipif(not planes.installed(), reason="pcodec is not installed")


def size(tree, **kw) -> int:
    return sum(c.coded_bytes for c in codec.explain(tree, **kw))


def test_float64_that_holds_float32_costs_no_more() -> None:
    """Unless one word is inexact, in the array or in a base: the round trip is exact."""
    second, base, now = samples.walk(samples.KIND["float32"], (9000,), 0)
    wide = [x.astype(np.float64) for x in (now, base, second)]
    for coder in ("planes", "planes_ctx"):
        thin = size(now, base=base, second=second, coder=coder)
        assert size(wide[0], base=wide[1], second=wide[2], coder=coder) == thin
    assert size(wide[0], coder="planes") == size(now, coder="planes")
    for spoiled in range(3):
        arrays = [x.copy() for x in wide]
        arrays[spoiled][800] = 0.1
        bases = {"base": arrays[1], "second": arrays[2]}
        frame = codec.encode(arrays[0], coder="planes_ctx", **bases)
        assert samples.same(arrays[0], codec.decode(frame, **bases))


def test_integers_are_narrowed_to_their_range() -> None:
    value = np.arange(3000) % 256 - 128
    assert size(value, coder="planes") == size(value.astype(np.int8), coder="planes")
    for beyond in (-129, 128):
        value[7] = beyond
        assert size(value, coder="planes") > size(value.astype(np.int8), coder="planes")
        assert samples.same(value, codec.decode(codec.encode(value, coder="planes")))


def test_palette_size_is_the_bits_of_the_indices() -> None:
    rng = np.random.default_rng(0)
    for values, bits in ((1, 0), (2, 1), (3, 2), (32, 5)):
        array = np.float64(rng.normal(size=values))[rng.integers(0, values, 8000)]
        assert size(array, coder="planes") <= 1000 * bits + 8 * values + 40
    late = np.zeros(5000, np.int32)  # values behind the sample extend or reject the palette
    for change in (slice(4999, 5000), slice(1000, 1100)):
        late[change] = np.arange(change.stop - change.start) + (1 << 30)
        assert samples.same(late, codec.decode(codec.encode(late, coder="planes")))


def test_each_run_of_tensors_has_its_predictor() -> None:
    """Steady drift is a line through two bases, noise is coded alone, a constant costs nothing."""
    rng = np.random.default_rng(0)
    start, drift = rng.normal(0, 1, (2, 5000))
    trees = [
        {"s": (start + k * 1e-4 * drift).astype(np.float32),
         "n": rng.normal(0, 1, 5000).astype(np.float32), "k": start.astype(np.float32)}
        for k in range(3)
    ]  # fmt: skip
    bases = {"base": trees[1], "second": trees[0]}
    back = codec.decode(codec.encode(trees[2], coder="planes", **bases), **bases)
    assert all(samples.same(trees[2][k], back[k]) for k in "snk")
    both = size(trees[2], coder="planes", **bases)
    noise = size({"n": trees[2]["n"]}, coder="planes")
    assert both < noise + 0.35 * 20_000
    assert both < 0.9 * size(trees[2], coder="planes", base=trees[1])


def test_contexts_help_where_lengths_persist() -> None:
    """Elements with step sizes of their own: the length of a delta predicts the next."""
    rng, n = np.random.default_rng(0), 1 << 16
    scale = np.exp(rng.normal(-9, 2, n))
    second = rng.normal(0, 0.1, n).astype(np.float32)
    base = (second + scale * rng.normal(size=n)).astype(np.float32)
    now = (base + scale * rng.normal(size=n)).astype(np.float32)
    bases = {"base": base, "second": second}
    assert size(now, coder="planes_ctx", **bases) < 0.985 * size(now, coder="planes", **bases)


def test_every_row_has_its_coefficient() -> None:
    """Rows that repeat their own fraction of the step: fitted, and a third smaller."""
    rng, rows = np.random.default_rng(0), 128
    second = rng.normal(0, 0.05, (rows, 512)).astype(np.float32)
    step = rng.normal(0, 3e-5, (rows, 512))
    base = (second + step).astype(np.float32)
    share = rng.uniform(-0.4, 1.4, (rows, 1))
    now = (base + share * step * rng.normal(1, 0.01, step.shape)).astype(np.float32)
    bases = {"base": base, "second": second}
    assert size(now, coder="planes_ctx", **bases) < 0.67 * size(now, coder="planes", **bases)


def test_unrelated_bases_are_no_larger_than_raw() -> None:
    arrays = np.random.default_rng(0).integers(0, 1 << 32, (3, 40000), np.uint32)
    assert size(arrays[0], base=arrays[1], second=arrays[2], coder="planes_ctx") <= 160_000


def test_chunks_are_coded_series_by_series() -> None:
    rng = np.random.default_rng(0)
    scale = np.array([1e-6, 1.0, 1e3, 1e6], np.float32)
    obs = np.cumsum(rng.normal(0, 1, (128, 8, 4)), 0).astype(np.float32) * scale
    assert size(obs, chunk=True, coder="planes") < 0.95 * size(obs, coder="planes")
    start, slope = rng.integers(0, 1 << 30, (2, 1, 300), np.uint32)
    for rows in (1, 2, 3, 4):  # lines: after two rows second differences are 0
        line = start + slope * np.arange(rows, dtype=np.uint32)[:, None]
        assert samples.same(line, codec.decode(codec.encode_chunk(line, coder="planes")))
        assert rows < 3 or size(line, chunk=True, coder="planes") < 0.95 * line.nbytes


@pytest.mark.parametrize("n", [4096, 4103, 70_000])
def test_planes_of_many_zeros(n) -> None:
    """A bitmap of the nonzero bytes: a bit a byte, and those."""
    rng = np.random.default_rng(n)
    base = rng.integers(0, 1 << 16, n).astype(np.uint16)
    for share in (0.8, 0.92):
        step = np.where(rng.random(n) < share, 0, rng.integers(1, 40, n)).astype(np.uint16)
        now = base + step
        assert samples.same(now, codec.decode(codec.encode(now, base=base), base=base))
        assert size(now, base=base, coder="planes") < n / 8 + 0.95 * n * (1 - share) + 200


# -- pco -------------------------------------------------------------------------------------------


def test_auto_never_chooses_pco_and_a_missing_package_is_named(monkeypatch):
    x = np.random.default_rng(0).normal(size=(3, 50_000)).astype(np.float32)
    for chosen in (codec.explain(x[0]), codec.explain(x[0], base=x[1], second=x[2])):
        assert {choice.coder for choice in chosen} <= {*codec.CODER_OPTIONS} - {"pco"}
    monkeypatch.setitem(sys.modules, "pcodec", None)
    for act in (
        lambda: codec.encode(np.arange(99.0), coder="pco"),
        lambda: codec.Encoder("x", keep=2, key_seconds=1, coder="pco"),
    ):
        with pytest.raises(codec.MissingCoder, match=r"pcodec.*\[pco\]'"):
            act()


@PCO
def test_pco_is_small_narrow_and_for_words_of_several_bytes():
    rng = np.random.default_rng(0)
    base = rng.normal(size=40_000).astype(np.float32)
    now = np.where(rng.random(40_000) < 0.02, base * np.float32(1.001), base).astype(np.float32)
    sizes = {c: len(codec.encode(now, base=base, coder=c)) for c in ("pco", "planes")}
    assert sizes["pco"] < 0.9 * sizes["planes"]
    wide = len(codec.encode(now.astype(np.float64), base=base.astype(np.float64), coder="pco"))
    assert abs(wide - sizes["pco"]) < 20
    for kind in ("bool", "int8", "uint8"):
        (choice,) = codec.explain(samples.array(samples.KIND[kind], (40, 40), 1), coder="pco")
        assert choice.coder in ("planes", "raw")


@PCO
def test_a_different_length_is_a_damaged_frame():
    """pcodec ignores wrong lengths and trailing bytes; the decoder does not."""
    x, more = (np.arange(n, dtype=np.int64) ** 2 for n in (1000, 1001))
    frame, longer = codec.encode(x, coder="pco"), codec.encode(more, coder="pco")
    assert np.array_equal(codec.decode(frame), x)
    head = 60 + 8 + 12
    for wrong in (
        frame[:head] + longer[head:],
        frame[:-9],
        frame[: head + 8] + b"\xff" * 40 + frame[head + 48 :],
    ):
        with pytest.raises(codec.DamagedFrame):
            codec.decode(samples.seal(bytearray(wrong)))
