"""Coders by name. ``auto`` chooses one per field; ``raw`` replaces a coder that saves nothing."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rlrun.codec import context, planes, xor, zstd
from rlrun.codec.frame import FieldSpec
from rlrun.codec.planes import Bases
from rlrun.codec.words import Array, damaged_frame
from rlrun.errors import CodecError

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


class Coder(NamedTuple):
    """Functions of a coder: payload of n > 0 words, and words of a payload, given the bases."""

    name: str
    encode: Callable[[FieldSpec, Array, Bases], bytes] | None  # None: only read
    decode: Callable[[FieldSpec, memoryview, Bases], Array]


def _decode_raw(spec: FieldSpec, data: memoryview, bases: Bases) -> Array:
    if len(data) != spec.size * spec.kind.width:
        raise damaged_frame(f"{spec.path or 'the array'} has {len(data)} bytes")
    return np.frombuffer(data, spec.kind.word).copy()


def _decode_zstd(spec: FieldSpec, data: memoryview, bases: Bases) -> Array:
    return np.frombuffer(zstd.decompress(data, spec.size * spec.kind.width), spec.kind.word).copy()


def _encode_xorz(spec: FieldSpec, words: Array, bases: Bases) -> bytes:
    changed = words.copy() if bases[0] is None else words ^ bases[0]
    if spec.rows:
        changed.reshape(spec.rows, -1)[1:] ^= words.reshape(spec.rows, -1)[:-1]
    return zstd.compress(changed.data.cast("B"))


def _decode_xorz(spec: FieldSpec, data: memoryview, bases: Bases) -> Array:
    words = _decode_zstd(spec, data, bases)
    if bases[0] is not None:
        words ^= bases[0]
    if spec.rows:
        steps = words.reshape(spec.rows, -1)
        np.bitwise_xor.accumulate(steps, axis=0, out=steps)
    return words


CODERS = (  # position: part of the format
    Coder("raw", lambda spec, words, bases: words.tobytes(), _decode_raw),
    Coder("xor", None, xor.decode),
    Coder("planes", planes.encode, planes.decode),
    Coder("planes_ctx", context.encode, context.decode),  # needs two bases
    Coder("xorz", _encode_xorz, _decode_xorz),  # XOR with the base or the row before, zstd
    Coder("zstd", lambda spec, words, bases: zstd.compress(words.data.cast("B")), _decode_zstd),
    Coder("pco", planes.encode_pco, planes.decode_pco),  # an optional package, never by ``auto``
)
CODES = {coder.name: code for code, coder in enumerate(CODERS)}
CODER_OPTIONS = ("auto", *(coder.name for coder in CODERS if coder.encode is not None))


def check_coder(name: str) -> None:
    """Raise CodecError for a name not in ``CODER_OPTIONS`` or a missing package."""
    if name not in CODER_OPTIONS:
        raise CodecError(f"codec.coder = {name!r}: no such coder; {', '.join(CODER_OPTIONS)}")
    if name == "pco":
        planes.import_pcodec()


def choose_coder(spec: FieldSpec, bases: Bases) -> tuple[str, str]:
    """Return (coder, reason), which depend on kind, shape and bases, not on the words."""
    kind, n = spec.kind, spec.size
    base, second = bases
    if n * kind.width < MIN_CODED_BYTES:
        return "raw", f"below {MIN_CODED_BYTES} bytes"
    if kind.name in ("uint8", "int8") and n // max(spec.rows, 1) >= IMAGE_ROW_BYTES:
        if spec.rows >= MIN_ZSTD_ROWS or (base is None and not spec.rows):
            return "zstd", "bytes in many rows: zstd matches the previous row"
        return "xorz", "bytes of one frame: XOR with the previous frame"
    if spec.rows:
        return "planes", "time chunk: differences along time, series by series"
    if kind.floating and kind.width >= 4 and second is not None and n >= MIN_CONTEXT_WORDS:
        return "planes_ctx", "many floats with two bases: the length of a delta predicts the next"
    return "planes", "byte planes" if base is None else "differences to the base in byte planes"


def encode_field(
    name: str, spec: FieldSpec, words: Array, bases: Bases
) -> tuple[int, bytes, CoderChoice]:
    """Return (coder number, payload, choice). The coder is ``raw`` if ``name`` saves nothing."""
    chosen, reason = choose_coder(spec, bases) if name == "auto" else (name, "requested")
    if chosen == "planes_ctx" and (bases[0] is None or bases[1] is None):
        chosen, reason = "planes", f"{reason}; no two bases: planes"
    if chosen == "pco" and spec.kind.width < 2:
        chosen, reason = "planes", f"{reason}; words of one byte: planes"
    if not len(words):
        chosen = "raw"
    encode = CODERS[CODES[chosen]].encode
    assert encode is not None
    payload = encode(spec, words, bases)
    if chosen != "raw" and len(payload) >= words.nbytes:
        reason = f"{chosen} ({reason}) saves nothing"
        chosen, payload = "raw", words.tobytes()
    choice = CoderChoice(spec.path, chosen, reason, words.nbytes, len(payload))
    return CODES[chosen], payload, choice


def decode_field(code: int, spec: FieldSpec, data: memoryview, bases: Bases) -> Array:
    """Return the words [n] of a payload as a new array.

    Raises: DamagedFrame.
    """
    if code >= len(CODERS):
        raise damaged_frame(f"coder {code} is unknown")
    if code != 0 and spec.size == 0:
        raise damaged_frame(f"an empty field coded by {code}")
    return CODERS[code].decode(spec, data, bases)
