"""The optional coder: compression with the package, and the error without it."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rlrun import codec
from rlrun.codec import CodecError, DamagedFrame, pco
from tests.codec import samples

HERE = pytest.mark.skipif(not pco.installed(), reason="pcodec is not installed")


def test_without_the_package():
    """Encoding, making a stream and decoding name the missing package and how to install it."""
    code = (
        "import sys; sys.modules['pcodec'] = None\n"
        "import numpy as np\n"
        "from rlrun import codec\n"
        "for act in (lambda: codec.encode(np.arange(99.0), coder='pco'),\n"
        "            lambda: codec.Encoder('x', keep=2, key_seconds=1, coder='pco')):\n"
        "    try: act()\n"
        "    except codec.CodecError as e: print(e)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    for line in lines:
        assert "the package pcodec is missing" in line
        assert "[pco]'" in line


def test_auto_never_chooses_pco():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, 50_000)).astype(np.float32)
    for chosen in (codec.explain(x[0]), codec.explain(x[0], base=x[1], second=x[2])):
        assert {choice.coder for choice in chosen} <= {*codec.CODER_OPTIONS} - {"pco"}


@HERE
def test_small_and_narrow():
    """Weights with few changed elements are smaller than with planes; float64 is narrowed."""
    rng = np.random.default_rng(0)
    base = rng.normal(size=40_000).astype(np.float32)
    now = np.where(rng.random(40_000) < 0.02, base * np.float32(1.001), base).astype(np.float32)
    sizes = {c: len(codec.encode(now, base=base, coder=c)) for c in ("pco", "planes")}
    assert sizes["pco"] < 0.9 * sizes["planes"]
    wide = len(codec.encode(now.astype(np.float64), base=base.astype(np.float64), coder="pco"))
    assert abs(wide - sizes["pco"]) < 20


@HERE
@pytest.mark.parametrize("kind", ["bool", "int8", "uint8"])
def test_single_bytes_go_to_planes(kind):
    (choice,) = codec.explain(samples.array(samples.KIND[kind], (40, 40), 1), coder="pco")
    assert choice.coder in ("planes", "raw")


@HERE
def test_a_different_length_is_a_damaged_frame():
    """pcodec ignores wrong lengths and trailing bytes; the decoder does not."""
    x = np.arange(1000, dtype=np.int64) ** 2
    more = np.arange(1001, dtype=np.int64) ** 2
    frame, longer = codec.encode(x, coder="pco"), codec.encode(more, coder="pco")
    assert np.array_equal(codec.decode(frame), x)
    from tests.codec.test_fuzz import seal

    head = 60 + 8 + 12
    with pytest.raises(DamagedFrame, match="does not hold 1000 words"):
        codec.decode(seal(bytearray(frame[:head] + longer[head:])))
    with pytest.raises(DamagedFrame):
        codec.decode(seal(bytearray(frame[:-9])))
    with pytest.raises(CodecError):
        codec.decode(seal(bytearray(frame[: head + 8] + b"\xff" * 40 + frame[head + 48 :])))
