"""Coders by name; ``auto`` picks one for each field and says why; ``raw`` when none gains.

raw        the words as they are
xor        the scheme of ``codec.xor``
planes     predicted, byte planes or palette bits, zstd
planes_ctx every block predicted along its own slope, residuals in context; needs two bases
xorz       XOR with the base (in a chunk: the row before), zstd: single image frames
zstd       zstd alone: chunks of images
pco        predicted, then pcodec: an optional package, never chosen by ``auto``
"""

from dataclasses import dataclass

import numpy as np

from rlrun.codec import context, pco, planes, xor, zstd
from rlrun.codec.content import FieldSpec
from rlrun.codec.cursor import damaged
from rlrun.codec.words import Array
from rlrun.errors import CodecError

RAW, XOR, PLANES, PLANES_CTX, XORZ, ZSTD, PCO = range(7)  # part of the format
NAMES = ("raw", "xor", "planes", "planes_ctx", "xorz", "zstd", "pco")
CHOICES = ("auto", *NAMES)

TINY = 64  # bytes below which nothing is tried
IMAGE = 64  # bytes a row, from which bytes are taken for pixels
MANY_ROWS = 8  # rows from which zstd finds the row before by itself
CONTEXT = 1 << 13  # elements from which contexts pay for their table


@dataclass(frozen=True, slots=True)
class Choice:
    """Which coder a field got, why, and what came of it."""

    path: str
    coder: str
    why: str
    raw_bytes: int
    coded_bytes: int


def check_coder(name: str) -> None:
    """Raises: CodecError for a name that is none of ``CHOICES``, or whose package is missing."""
    if name not in CHOICES:
        raise CodecError(f"codec.coder = {name!r}: no such coder; {', '.join(CHOICES)}")
    if name == "pco":
        pco.library()


def choose(plan: FieldSpec, base: Array | None, second: Array | None) -> tuple[int, str]:
    """(coder, why) from what is known without the words: kind, shape and bases."""
    kind, n = plan.kind, plan.size
    if n * kind.width < TINY:
        return RAW, f"below {TINY} bytes"
    if kind.name in ("uint8", "int8") and n // max(plan.rows, 1) >= IMAGE:
        if plan.rows >= MANY_ROWS or (base is None and not plan.rows):
            return ZSTD, "bytes in many rows: zstd finds the row before by itself"
        return XORZ, "bytes of one frame: what changed since the frame before"
    if plan.rows:
        return PLANES, "time chunk: differences along time, series by series"
    if kind.floating and kind.width >= 4 and second is not None and n >= CONTEXT:
        return (
            PLANES_CTX,
            "many floats with two bases: a delta is as long as the last",
        )
    return PLANES, "differences to the base in byte planes" if base is not None else "byte planes"


def encode_field(
    name: str, plan: FieldSpec, words: Array, base: Array | None, second: Array | None
) -> tuple[int, bytes, Choice]:
    """(coder code, payload, choice): coder ``name``, or ``raw`` where it does not gain."""
    if name == "auto":
        code, why = choose(plan, base, second)
    else:
        code, why = NAMES.index(name), "asked for"
    if code == PLANES_CTX and (base is None or second is None):
        code, why = PLANES, f"{why}; no two bases: planes"
    if code == PCO and plan.kind.width < 2:
        code, why = PLANES, f"{why}; words of one byte: planes"
    payload = b""
    if code != RAW and len(words):
        payload = _encode(code, plan, words, base, second)
        if len(payload) >= words.nbytes:
            code, why = RAW, f"{NAMES[code]} ({why}) does not gain"
    if code == RAW or not len(words):
        code, payload = RAW, words.tobytes()
    return code, payload, Choice(plan.path, NAMES[code], why, words.nbytes, len(payload))


def _encode(
    code: int, plan: FieldSpec, words: Array, base: Array | None, second: Array | None
) -> bytes:
    """The payload of n > 0 words."""
    if code == XOR:
        start, lengths, exclusive = _xor_start(plan, base, second)
        return xor.encode(words.reshape(max(plan.rows, 1), -1), start, lengths, exclusive)
    if code == ZSTD:
        return zstd.compress(words.data.cast("B"))
    if code == XORZ:
        changed = words ^ base if base is not None else words.copy()
        if plan.rows:
            rows, now = changed.reshape(plan.rows, -1), words.reshape(plan.rows, -1)
            rows[1:] ^= now[:-1]
        return zstd.compress(changed.data.cast("B"))
    if code == PCO:
        return pco.encode(words, plan.kind, plan.sizes, plan.rows, base, second)
    if code == PLANES_CTX and base is not None and second is not None:
        return context.encode(words, plan.kind, plan.sizes, base, second)
    return planes.encode(words, plan.kind, plan.sizes, plan.rows, base, second)


def decode_field(
    code: int, plan: FieldSpec, data: memoryview, base: Array | None, second: Array | None
) -> Array:
    """The words [n] of a payload, in memory of their own. Raises: DamagedFrame."""
    n, word = plan.size, plan.kind.word
    if code == RAW:
        if len(data) != n * plan.kind.width:
            raise damaged(f"{plan.path or 'the array'} has {len(data)} bytes")
        return np.frombuffer(data, word).copy()
    if n == 0:
        raise damaged(f"an empty field coded by {code}")
    if code == XOR:
        start, lengths, exclusive = _xor_start(plan, base, second)
        return xor.decode(data, max(plan.rows, 1), start, lengths, exclusive).reshape(-1)
    if code in (ZSTD, XORZ):
        words = np.frombuffer(zstd.decompress(data, n * plan.kind.width), word).copy()
        if code == XORZ and base is not None:
            words ^= base
        if code == XORZ and plan.rows:
            steps = words.reshape(plan.rows, -1)
            np.bitwise_xor.accumulate(steps, axis=0, out=steps)
        return words
    if code == PCO:
        return pco.decode(data, plan.kind, plan.sizes, plan.rows, base, second)
    if code == PLANES_CTX:
        return context.decode(data, plan.kind, plan.sizes, base, second)
    if code != PLANES:
        raise damaged(f"there is no coder {code}")
    return planes.decode(data, plan.kind, plan.sizes, plan.rows, base, second)


def _xor_start(
    plan: FieldSpec, base: Array | None, second: Array | None
) -> tuple[Array, Array, bool]:
    """(words before the first row, lengths of the deltas before, XOR or minus)."""
    columns = plan.size // max(plan.rows, 1)
    exclusive = plan.kind.floating or plan.kind.name == "bool"
    start = np.zeros(columns, plan.kind.word) if base is None else base
    return start, xor.first_lengths(base, second, exclusive, columns), exclusive
