"""Coders by name. ``auto`` chooses one per field; ``raw`` is used where a coder saves nothing.

raw        words, uncompressed
xor        significant bits of XOR or integer differences (``codec.xor``)
planes     residuals in byte planes or palette indices in bit planes, zstd
planes_ctx linear prediction per block, context-coded residuals; needs two bases
xorz       XOR with the base (in a chunk: with the previous row), zstd: single image frames
zstd       zstd alone: chunks of images
pco        residuals coded by pcodec: an optional package, never chosen by ``auto``
"""

from dataclasses import dataclass

import numpy as np

from rlrun.codec import pco, planes, planes_context, xor, zstd
from rlrun.codec.frame import FieldSpec
from rlrun.codec.words import Array, damaged_frame
from rlrun.errors import CodecError

RAW, XOR, PLANES, PLANES_CTX, XORZ, ZSTD, PCO = range(7)  # part of the format
CODER_NAMES = ("raw", "xor", "planes", "planes_ctx", "xorz", "zstd", "pco")
CODER_OPTIONS = ("auto", *CODER_NAMES)

MIN_CODED_BYTES = 64  # smaller fields are stored raw
IMAGE_ROW_BYTES = 64  # rows of at least as many bytes are treated as images
MIN_ZSTD_ROWS = 8  # with as many rows zstd matches the previous row without XOR
MIN_CONTEXT_WORDS = 1 << 13  # smaller fields do not recover the size of the context table


@dataclass(frozen=True, slots=True)
class CoderChoice:
    """Coder of a field, the reason for it, and the sizes before and after coding."""

    path: str
    coder: str
    reason: str
    raw_bytes: int
    coded_bytes: int


def check_coder(name: str) -> None:
    """Raise CodecError for a name not in ``CODER_OPTIONS`` or a missing package."""
    if name not in CODER_OPTIONS:
        raise CodecError(f"codec.coder = {name!r}: no such coder; {', '.join(CODER_OPTIONS)}")
    if name == "pco":
        pco.import_pcodec()


def choose_coder(spec: FieldSpec, base: Array | None, second: Array | None) -> tuple[int, str]:
    """Return (coder, reason), which depend on kind, shape and bases, not on the words."""
    kind, n = spec.kind, spec.size
    if n * kind.width < MIN_CODED_BYTES:
        return RAW, f"below {MIN_CODED_BYTES} bytes"
    if kind.name in ("uint8", "int8") and n // max(spec.rows, 1) >= IMAGE_ROW_BYTES:
        if spec.rows >= MIN_ZSTD_ROWS or (base is None and not spec.rows):
            return ZSTD, "bytes in many rows: zstd matches the previous row"
        return XORZ, "bytes of one frame: XOR with the previous frame"
    if spec.rows:
        return PLANES, "time chunk: differences along time, series by series"
    if kind.floating and kind.width >= 4 and second is not None and n >= MIN_CONTEXT_WORDS:
        return (
            PLANES_CTX,
            "many floats with two bases: the length of a delta predicts the next",
        )
    return PLANES, "differences to the base in byte planes" if base is not None else "byte planes"


def encode_field(
    name: str, spec: FieldSpec, words: Array, base: Array | None, second: Array | None
) -> tuple[int, bytes, CoderChoice]:
    """Return (coder number, payload, choice); the coder is ``raw`` where ``name`` saves nothing."""
    if name == "auto":
        code, reason = choose_coder(spec, base, second)
    else:
        code, reason = CODER_NAMES.index(name), "requested"
    if code == PLANES_CTX and (base is None or second is None):
        code, reason = PLANES, f"{reason}; no two bases: planes"
    if code == PCO and spec.kind.width < 2:
        code, reason = PLANES, f"{reason}; words of one byte: planes"
    payload = b""
    if code != RAW and len(words):
        payload = _encode(code, spec, words, base, second)
        if len(payload) >= words.nbytes:
            code, reason = RAW, f"{CODER_NAMES[code]} ({reason}) saves nothing"
    if code == RAW or not len(words):
        code, payload = RAW, words.tobytes()
    return (
        code,
        payload,
        CoderChoice(spec.path, CODER_NAMES[code], reason, words.nbytes, len(payload)),
    )


def _encode(
    code: int, spec: FieldSpec, words: Array, base: Array | None, second: Array | None
) -> bytes:
    """Return the payload of n > 0 words."""
    if code == XOR:
        start, lengths, use_xor = _xor_bases(spec, base, second)
        return xor.encode(words.reshape(max(spec.rows, 1), -1), start, lengths, use_xor)
    if code == ZSTD:
        return zstd.compress(words.data.cast("B"))
    if code == XORZ:
        changed = words ^ base if base is not None else words.copy()
        if spec.rows:
            rows, word_rows = changed.reshape(spec.rows, -1), words.reshape(spec.rows, -1)
            rows[1:] ^= word_rows[:-1]
        return zstd.compress(changed.data.cast("B"))
    if code == PCO:
        return pco.encode(words, spec.kind, spec.sizes, spec.rows, base, second)
    if code == PLANES_CTX and base is not None and second is not None:
        return planes_context.encode(words, spec.kind, spec.sizes, base, second)
    return planes.encode(words, spec.kind, spec.sizes, spec.rows, base, second)


def decode_field(
    code: int, spec: FieldSpec, data: memoryview, base: Array | None, second: Array | None
) -> Array:
    """Return the words [n] of a payload as a new array. Raises: DamagedFrame."""
    n, word = spec.size, spec.kind.word
    if code == RAW:
        if len(data) != n * spec.kind.width:
            raise damaged_frame(f"{spec.path or 'the array'} has {len(data)} bytes")
        return np.frombuffer(data, word).copy()
    if n == 0:
        raise damaged_frame(f"an empty field coded by {code}")
    if code == XOR:
        start, lengths, use_xor = _xor_bases(spec, base, second)
        return xor.decode(data, max(spec.rows, 1), start, lengths, use_xor).reshape(-1)
    if code in (ZSTD, XORZ):
        words = np.frombuffer(zstd.decompress(data, n * spec.kind.width), word).copy()
        if code == XORZ and base is not None:
            words ^= base
        if code == XORZ and spec.rows:
            steps = words.reshape(spec.rows, -1)
            np.bitwise_xor.accumulate(steps, axis=0, out=steps)
        return words
    if code == PCO:
        return pco.decode(data, spec.kind, spec.sizes, spec.rows, base, second)
    if code == PLANES_CTX:
        return planes_context.decode(data, spec.kind, spec.sizes, base, second)
    if code != PLANES:
        raise damaged_frame(f"coder {code} is unknown")
    return planes.decode(data, spec.kind, spec.sizes, spec.rows, base, second)


def _xor_bases(
    spec: FieldSpec, base: Array | None, second: Array | None
) -> tuple[Array, Array, bool]:
    """Return (words before the first row, lengths of the previous deltas, XOR or subtraction)."""
    columns = spec.size // max(spec.rows, 1)
    use_xor = spec.kind.floating or spec.kind.name == "bool"
    start = np.zeros(columns, spec.kind.word) if base is None else base
    return start, xor.initial_lengths(base, second, use_xor, columns), use_xor
