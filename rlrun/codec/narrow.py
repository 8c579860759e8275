"""Exact narrowing: float64 that holds float32, integers that fit into fewer bytes."""

import numpy as np

from rlrun.codec.words import NAMED, Array, Kind
from rlrun.jit import COMPILED, jit

LOOK = 64  # words tried before all are
BLOCK = 2048

SMALLER = {  # narrowest first
    "float64": ("float32",),
    "int64": ("int8", "int16", "int32"),
    "int32": ("int8", "int16"),
    "uint64": ("uint8", "uint16", "uint32"),
    "uint32": ("uint8", "uint16"),
}


def worth_narrowing(kind: Kind, small: Kind) -> bool:
    """Return whether ``kind`` may be carried by ``small``."""
    return small.name in SMALLER.get(kind.name, ())


def narrowed(words: Array, kind: Kind, into: Kind | None) -> tuple[Kind | None, Array | None]:
    """(the narrowest kind that holds these n > 0 words exactly, the words in it), or (None, None).

    ``into`` asks for that kind only.
    """
    names = SMALLER.get(kind.name, ()) if into is None else (into.name,)
    if not names:
        return None, None
    if kind.floating:
        small = NAMED["float32"]
        thin = as_float32(words[:LOOK])
        if thin is not None and len(words) > LOOK:
            thin = as_float32(words)
        return (small, thin) if thin is not None else (None, None)
    values = words.view(kind.dtype)
    least, most = int(values.min()), int(values.max())
    for name in names:
        small = NAMED[name]
        limits = np.iinfo(small.dtype)
        if limits.min <= least and most <= limits.max:
            return small, words.astype(small.word)  # low bytes: two's complement
    return None, None


def widened(words: Array, small: Kind, kind: Kind) -> Array:
    """The words in ``kind`` again."""
    with np.errstate(all="ignore"):
        wide: Array = words.view(small.dtype).astype(kind.dtype)
    return wide.view(kind.word)


def as_float32(words: Array) -> Array | None:
    """float32 words of float64 words, None unless every bit comes back (NaN payloads, −0.0)."""
    if COMPILED:
        thin = np.empty(len(words), np.uint32)
        return thin if float32_compiled(words, words.view(np.float64), thin) else None
    return float32_vectorised(words)


def float32_vectorised(words: Array) -> Array | None:
    """There and back."""
    with np.errstate(all="ignore"):
        values = words.view(np.float64).astype(np.float32)
        same = np.array_equal(values.astype(np.float64).view(np.uint64), words)
    return values.view(np.uint32) if same else None


@jit
def float32_compiled(words: Array, values: Array, thin: Array) -> bool:
    """The same, block by block until one differs."""
    back = np.empty(BLOCK, np.float64)
    bits = back.view(np.uint64)
    into = thin.view(np.float32)
    for start in range(0, len(words), BLOCK):
        block, out = values[start : start + BLOCK], into[start : start + BLOCK]
        expected = words[start : start + BLOCK]
        differ = np.uint64(0)
        for i in range(len(block)):
            out[i] = np.float32(block[i])
            back[i] = np.float64(out[i])
        for i in range(len(block)):
            differ |= bits[i] ^ expected[i]
        if differ:
            return False
    return True
