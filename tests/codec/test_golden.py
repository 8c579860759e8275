"""Frames written when this format version was fixed are read today, and written alike.

Bytes of coders with a zstd stage may change with the zstd import_pcodec; they are only read.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from rlrun import codec
from rlrun.codec.frame import VERSION
from tests.codec import samples
from tests.codec.everything import frames

FILE = Path(__file__).parent / f"golden_v{VERSION}.json"
GOLDEN = json.loads(FILE.read_text("utf-8"))
Frames = dict[str, tuple[bytes, object, dict]]


@pytest.fixture(scope="module")
def now() -> Frames:
    return {name: (frame, tree, bases) for name, frame, tree, bases in frames()}


def test_golden_file_is_complete(now: Frames) -> None:
    assert len(GOLDEN) > 250
    assert set(GOLDEN) <= set(now)


def test_golden_frames_are_read(now: Frames) -> None:
    for name, text in GOLDEN.items():
        _, tree, bases = now[name]
        back = codec.decode(bytes.fromhex(text), **bases)
        if isinstance(tree, np.ndarray):
            assert samples.same(tree, back), name
        else:
            assert codec.encode(back, coder="raw") == codec.encode(tree, coder="raw"), name


@pytest.mark.parametrize("coder", ["raw", "xor"])
def test_golden_frames_are_written(coder: str, now: Frames) -> None:
    for name, text in GOLDEN.items():
        if coder in name.split("/"):
            assert now[name][0].hex() == text, name
