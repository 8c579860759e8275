"""Exact narrowing: float64 words that are float32 values, integers that fit into fewer bytes."""

import numpy as np

from rlrun.codec.words import KIND_BY_NAME, Array, Kind
from rlrun.jit import COMPILED, jit

SAMPLE = 64  # words tested before the whole array
BLOCK = 2048

NARROWER_KINDS = {  # narrowest first
    "float64": ("float32",),
    "int64": ("int8", "int16", "int32"),
    "int32": ("int8", "int16"),
    "uint64": ("uint8", "uint16", "uint32"),
    "uint32": ("uint8", "uint16"),
}


def can_narrow(kind: Kind, narrow_kind: Kind) -> bool:
    """Return whether ``kind`` may be narrowed to ``narrow_kind``."""
    return narrow_kind.name in NARROWER_KINDS.get(kind.name, ())


def narrow(words: Array, kind: Kind, target: Kind | None) -> tuple[Kind | None, Array | None]:
    """Return (narrowest kind that represents n > 0 words exactly, narrowed words); else Nones.

    ``target``: the only kind to try; None: all narrower kinds.
    """
    names = NARROWER_KINDS.get(kind.name, ()) if target is None else (target.name,)
    if not names:
        return None, None
    if kind.floating:
        narrow_kind = KIND_BY_NAME["float32"]
        narrow_words = as_float32(words[:SAMPLE])
        if narrow_words is not None and len(words) > SAMPLE:
            narrow_words = as_float32(words)
        return (narrow_kind, narrow_words) if narrow_words is not None else (None, None)
    values = words.view(kind.dtype)
    lowest, highest = int(values.min()), int(values.max())
    for name in names:
        narrow_kind = KIND_BY_NAME[name]
        limits = np.iinfo(narrow_kind.dtype)
        if limits.min <= lowest and highest <= limits.max:
            return narrow_kind, words.astype(narrow_kind.word)  # low bytes: two's complement
    return None, None


def widen(words: Array, narrow_kind: Kind, kind: Kind) -> Array:
    """Convert narrowed words back to ``kind``."""
    with np.errstate(all="ignore"):
        wide: Array = words.view(narrow_kind.dtype).astype(kind.dtype)
    return wide.view(kind.word)


def as_float32(words: Array) -> Array | None:
    """Return float32 words of float64 words; None unless exact, NaN payloads and −0.0 included."""
    if COMPILED:
        narrow_words = np.empty(len(words), np.uint32)
        return (
            narrow_words if float32_compiled(words, words.view(np.float64), narrow_words) else None
        )
    return float32_vectorised(words)


def float32_vectorised(words: Array) -> Array | None:
    """Convert in numpy and compare with the converse conversion."""
    with np.errstate(all="ignore"):
        values = words.view(np.float64).astype(np.float32)
        same = np.array_equal(values.astype(np.float64).view(np.uint64), words)
    return values.view(np.uint32) if same else None


@jit
def float32_compiled(words: Array, values: Array, narrow_words: Array) -> bool:
    """Convert block by block into ``narrow_words``; False at the first block that differs."""
    widened = np.empty(BLOCK, np.float64)
    bits = widened.view(np.uint64)
    target = narrow_words.view(np.float32)
    for start in range(0, len(words), BLOCK):
        block, out = values[start : start + BLOCK], target[start : start + BLOCK]
        expected = words[start : start + BLOCK]
        differ = np.uint64(0)
        for i in range(len(block)):
            out[i] = np.float32(block[i])
            widened[i] = np.float64(out[i])
        for i in range(len(block)):
            differ |= bits[i] ^ expected[i]
        if differ:
            return False
    return True
