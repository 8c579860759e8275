"""Decoding restores the bits of every dtype, shape, layout and coder."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun import codec
from rlrun.codec.frame import content_of
from tests.codec import samples

CODERS = st.sampled_from(samples.CODERS)
KINDS = st.sampled_from(samples.KINDS)
SHAPES = st.one_of(
    st.just(()),
    st.lists(st.integers(0, 6), min_size=1, max_size=4).map(tuple),
    st.tuples(st.integers(0, 700)),
)
SEEDS = st.integers(0, 1 << 30)


def layouts(array: np.ndarray) -> list[np.ndarray]:
    """The array as others may hold it: reversed, Fortran, strided, big-endian."""
    found = [array, np.asfortranarray(array)]
    if array.ndim:
        found += [array[::-1], np.repeat(array, 2, axis=0)[::2]]
    if array.dtype.kind in "iuf":
        found.append(array.astype(array.dtype.newbyteorder(">")))
    return found


@settings(max_examples=100)
@given(KINDS, SHAPES, SEEDS, CODERS, st.integers(0, 4), st.integers(0, 4))
def test_arrays(kind, shape, seed, coder, layout, bases) -> None:
    """Alone, and as a delta to related, unrelated or equal bases."""
    choices = layouts(samples.array(kind, shape, seed))
    array = choices[layout % len(choices)]
    second, base, _ = samples.walk(kind, shape, seed)
    given_bases = [
        {},
        {"base": base},
        {"base": base, "second": second},
        {"base": array, "second": array},
        {"base": samples.array(kind, shape, seed + 1), "second": base},
    ][bases]
    frame = codec.encode(array, coder=coder, **given_bases)
    back = codec.decode(frame, **given_bases)
    assert samples.same(array, back)
    assert not back.flags.writeable
    assert len(frame) <= 72 + 8 * array.ndim + array.nbytes


@settings(max_examples=50)
@given(KINDS, SHAPES, SEEDS, CODERS, st.booleans())
def test_chunks(kind, shape, seed, coder, smooth) -> None:
    array = samples.walk(kind, shape, seed)[0] if smooth else samples.array(kind, shape, seed)
    frame = codec.encode_chunk(array, coder=coder)
    assert samples.same(array, codec.decode(frame))
    assert len(frame) <= 72 + 8 * array.ndim + array.nbytes


@settings(max_examples=20)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=5), CODERS)
def test_trees(seeds, coder) -> None:
    """Names, nesting and node types are restored; a delta refers to the whole previous tree."""
    trees = [samples.mixed_tree(seed) for seed in seeds]
    for k, tree in enumerate(trees):
        bases = dict(zip(("base", "second"), reversed(trees[max(0, k - 2) : k]), strict=False))
        back = codec.decode(codec.encode(tree, coder=coder, **bases), **bases)
        assert content_of(back, chunk=False).hash == content_of(tree, chunk=False).hash
        assert list(back) == list(tree)
        assert isinstance(back[0], tuple)
        assert isinstance(back[0][1], list)
        assert back["empty"] == {}


def test_tensors() -> None:
    """Tensors, bfloat16 included, are restored with their own memory."""
    value = torch.randn(5, 3)
    tree = {"a": value, "b": value.bfloat16().T, "c": torch.tensor(True), "d": value.half()}
    back = codec.as_tensors(codec.decode(codec.encode(tree)))
    for name, tensor in tree.items():
        assert torch.equal(back[name], tensor), name
        back[name].zero_()


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"a": {"b": 3.0}}, "a.b = float"),
        (np.zeros(3, np.complex64), "complex64"),
        (np.array(["x"]), "<U1"),
        (np.zeros(2, np.dtype([("x", "i1", 2)])), "i1"),
        (np.array([None]), "object"),
        ({"a": None}, "a = NoneType"),
        ({(1, 2): np.zeros(1)}, "key"),
        ({True: np.zeros(1)}, "key"),
        ({"x" * 70000: np.zeros(1)}, "key"),
        ({1 << 64: np.zeros(1)}, "key"),
        ({"q": torch.zeros(2, dtype=torch.complex64)}, "complex64"),
        ({"q": torch.zeros(2, device="meta")}, "q = torch.float32"),
        (np.ma.array([1, 2], mask=[0, 1]), "MaskedArray"),  # its mask would be lost
    ],
)
def test_an_error_names_the_array_at_fault(tree, message) -> None:
    with pytest.raises(codec.CodecError, match=message):
        codec.encode(tree)


def test_too_deep_or_a_wrong_option() -> None:
    tree = np.zeros(1)
    for _ in range(100):
        tree = [tree]
    with pytest.raises(codec.CodecError):
        codec.encode(tree)
    with pytest.raises(codec.CodecError, match=r"'lz'.*planes_ctx"):
        codec.encode(np.zeros(3), coder="lz")
    with pytest.raises(codec.CodecError, match=r"codec\.keep = 1"):
        codec.Encoder("x", keep=1, key_seconds=1.0)


def test_reasons_of_auto() -> None:
    """Every field by its own rule."""
    rng = np.random.default_rng(0)
    chunk = {
        "obs": np.cumsum(rng.normal(0, 1e-3, (128, 8, 4)), 0).astype(np.float32),
        "frame": rng.integers(0, 2, (32, 8, 84, 84)).astype(np.uint8),
        "action": rng.integers(0, 4, (128, 8)),
        "done": rng.random((128, 8)) < 0.01,
        "noise": rng.integers(0, 256, (4, 16), np.uint8),
        "tiny": np.zeros(3),
    }
    found = {c.path: c for c in codec.explain(chunk, chunk=True)}
    coders = {path: c.coder for path, c in found.items()}
    expected = dict.fromkeys(("obs", "action", "done"), "planes")
    assert coders == expected | {"frame": "zstd", "noise": "raw", "tiny": "raw"}
    assert found["obs"].coded_bytes < 0.8 * found["obs"].raw_bytes  # along time, not by itself
    assert all(c.reason for c in found.values())
    assert found["action"].coded_bytes < 0.04 * found["action"].raw_bytes  # 2 of 64 bits
    second, base, now = samples.walk(samples.KIND["float32"], (40000,), 0)
    (choice,) = codec.explain(now, base=base, second=second)
    assert choice.coder == "planes_ctx"
    (choice,) = codec.explain(now, base=base)
    assert choice.coder == "planes"
    one = chunk["frame"][0]
    assert codec.explain(one[1], base=one[0])[0].coder == "xorz"
