"""Coders by name. ``auto`` chooses one per field; ``raw`` replaces a coder that saves nothing."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rlrun.codec import context, planes, zstd
from rlrun.codec.frame import FieldSpec
from rlrun.codec.planes import Bases, bit_length
from rlrun.codec.words import Array, damaged_frame
from rlrun.errors import CodecError
from rlrun.jit import jit

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


# -- xor, which is only decoded --------------------------------------------------------------------

# Unsigned constants: numba turns uint64 with a signed literal into a float.
_0, _1, _5, _31, _32, _64 = (np.uint64(n) for n in (0, 1, 5, 31, 32, 64))
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)


def _decode_xor(spec: FieldSpec, data: memoryview, bases: Bases) -> Array:
    """Return the words [n]: significant bits of the difference to the previous word.

    Per element, with L the length (significant bits) of this element's previous delta, initially 0:
    a delta of at most L bits is written as ``0`` and L bits. A longer one is written as ``1``, its
    count of leading zeros (6, 5, 4 or 3 bits for words of 64, 32, 16 or 8) and its bits without the
    leading one. L becomes the length of the delta just written. Floats use XOR, integers
    subtraction modulo 2^width. Words are [T, D]: D series of T steps, written series by series. A
    frame has T = 1; its previous delta is that of its two bases. Bits fill bytes from the top;
    spare bits are 0.

    Raises: DamagedFrame for bits that no encoder writes.
    """
    rows = max(spec.rows, 1)
    base, second = bases
    use_xor = spec.kind.floating or spec.kind.name == "bool"
    before = np.zeros(spec.size // rows, spec.kind.word) if base is None else base
    delta = np.zeros_like(before)
    if base is not None and second is not None:
        delta = base ^ second if use_xor else base - second
    words = np.empty((rows, len(before)), spec.kind.word)
    packed = np.zeros(len(data) // 4 + 3, ">u4")  # two spare words: reads extend beyond the end
    packed.view(np.uint8)[: len(data)] = data
    bits = unpack(packed.astype("<u4"), words, before, delta, use_xor, 8 * len(data))
    if bits < 0 or (bits + 7) // 8 != len(data) or (bits % 8 and data[-1] << bits % 8 & 255):
        raise damaged_frame("its bits are not those of an xor payload")
    return words.reshape(-1)


@jit
def read_bits(packed: Array, at: np.uint64, size: np.uint64) -> np.uint64:
    """Return the ``size`` <= 32 bits at bit ``at``, which the caller checks."""
    word = at >> _5
    window = (np.uint64(packed[word]) << _32) | np.uint64(packed[word + _1])
    if size == _0:
        return _0
    return (window << (at & _31)) >> (_64 - size)


@jit
def unpack(
    packed: Array, words: Array, base: Array, delta_before: Array, use_xor: bool, limit: int
) -> int:
    """Fill words [T, D] and return the number of bits read; −1 if they are not canonical."""
    rows, columns = words.shape
    width, end, at = np.uint64(8 * words.itemsize), np.uint64(limit), _0
    mask, count = _ALL >> (_64 - width), bit_length(width - _1)
    for d in range(columns):
        last, previous = np.uint64(base[d]), bit_length(np.uint64(delta_before[d]))
        for t in range(rows):
            if at >= end:
                return -1
            is_longer = read_bits(packed, at, _1) == _1
            at += _1
            bits = previous
            if is_longer:
                if at + count > end:
                    return -1
                bits = width - read_bits(packed, at, count) - _1
                at += count
                if bits < previous:
                    return -1
            if at + bits > end:
                return -1
            high = bits - _32 if bits > _32 else _0
            low = bits - high
            delta = read_bits(packed, at, high) << _32
            delta |= read_bits(packed, at + high, low)
            at += bits
            if is_longer:
                delta |= _1 << bits
            previous = bit_length(delta)
            last = last ^ delta if use_xor else (last + delta) & mask
            words[t, d] = last
    return int(np.int64(at))  # signed, as −1 is


CODERS = (  # position: part of the format
    Coder("raw", lambda spec, words, bases: words.tobytes(), _decode_raw),
    Coder("xor", None, _decode_xor),
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
    """Return the words [n] of a payload as a new array. Raises: DamagedFrame."""
    if code >= len(CODERS):
        raise damaged_frame(f"coder {code} is unknown")
    if code != 0 and spec.size == 0:
        raise damaged_frame(f"an empty field coded by {code}")
    return CODERS[code].decode(spec, data, bases)
