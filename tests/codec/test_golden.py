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
NOW = {name: rest for name, *rest in frames()}


def test_golden_file_is_complete() -> None:
    assert len(GOLDEN) > 250
    assert set(GOLDEN) <= set(NOW)


def test_golden_frames_are_read() -> None:
    for name, text in GOLDEN.items():
        _, tree, bases = NOW[name]
        back = codec.decode(bytes.fromhex(text), **bases)
        if isinstance(tree, np.ndarray):
            assert samples.same(tree, back), name
        else:
            assert codec.encode(back, coder="raw") == codec.encode(tree, coder="raw"), name


@pytest.mark.parametrize("coder", ["raw", "xor"])
def test_golden_frames_are_written(coder: str) -> None:
    for name, text in GOLDEN.items():
        if coder in name.split("/"):
            assert NOW[name][0].hex() == text, name
