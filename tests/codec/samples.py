"""Arrays with special bit patterns, and sequences like those of training."""

import struct
import zlib

import numpy as np
import xxhash

from rlrun.codec import BFLOAT16, CODER_OPTIONS, planes
from rlrun.codec.words import KINDS, Kind

NAMES = [kind.name for kind in KINDS]
CODERS = [
    name for name in CODER_OPTIONS if name != "pco" or planes.installed()
]  # that can be used here
KIND = {kind.name: kind for kind in KINDS}

SPECIAL_FLOATS = {  # ±0, denormals, ±inf, quiet and signalling NaN with payloads, extremes
    2: (0, 0x8000, 1, 0x8001, 0x7C00, 0xFC00, 0x7E00, 0x7C01, 0xFE77, 0x7BFF, 0x3C00),
    4: (0, 1 << 31, 1, 0x80000001, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001, 0xFFC12345,
        0x7F7FFFFF, 0x3F800000),
    8: (0, 1 << 63, 1, (1 << 63) + 1, 0x7FF << 52, 0xFFF << 52, 0x7FF8 << 48, (0x7FF << 52) + 1,
        (0xFFF8 << 48) + 77, 0x7FEFFFFFFFFFFFFF, 0x3FF << 52, 0x36A << 52, 0x7FF4000020000000),
}  # fmt: skip


def special_words(kind: Kind) -> np.ndarray:
    """Return the words of a kind that change if numbers are converted instead of copied."""
    if kind.name == "bool":
        return np.array([0, 1], kind.word)
    if kind.floating:
        return np.array(SPECIAL_FLOATS[kind.width], kind.word)
    top = 1 << kind.bits - 1
    return np.array([0, 1, top - 1, top, top + 1, 2 * top - 1, 77], kind.word)


def array(kind: Kind, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Return random bits mixed with special words."""
    rng = np.random.default_rng(seed)
    n = int(np.prod(shape))
    words = rng.choice(special_words(kind), n)
    if kind.name != "bool":
        noise = rng.integers(0, (1 << kind.bits) - 1, n, np.uint64, endpoint=True)
        words = np.where(rng.random(n) < 0.5, words, noise.astype(kind.word))
    return words.astype(kind.word).view(kind.dtype).reshape(shape)


def walk(kind: Kind, shape: tuple[int, ...], seed: int, steps: int = 3) -> list[np.ndarray]:
    """Return a sequence of slightly changing arrays."""
    rng = np.random.default_rng(seed)
    if kind.name == "bool":
        return [rng.random(shape) < 0.1 for _ in range(steps)]
    if not kind.floating:
        start = rng.integers(0, 100, shape)
        return [(start + rng.integers(0, 3, shape) * k).astype(kind.dtype) for k in range(steps)]
    value, drift = rng.normal(0, 0.1, shape), rng.normal(0, 1e-3, shape)
    out = []
    for _ in range(steps):
        value = value + drift + rng.normal(0, 1e-4, shape)
        if kind.name == "bfloat16":
            bits = np.asarray(value, np.float32).view(np.uint32) >> 16
            out.append(bits.astype(np.uint16).view(BFLOAT16).reshape(shape))
        else:
            out.append(np.asarray(value).astype(kind.dtype))
    return out


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Return whether both have the same dtype (in little-endian), shape and bits."""
    little = a.dtype.newbyteorder("<") if a.dtype.kind != "V" else a.dtype
    swapped = a.astype(little) if a.dtype != little else a
    return b.dtype == little and a.shape == b.shape and swapped.tobytes() == b.tobytes()


def mixed_tree(seed: int) -> dict:
    """Return a state dict with every kind of node, whose arrays depend on the seed."""
    f32, i64 = KIND["float32"], KIND["int64"]
    return {
        "torso": {"weight": walk(f32, (17, 9), 1, 6)[seed % 6], "bias": np.zeros(9, np.float32)},
        "steps": np.asarray(seed),
        0: (walk(i64, (5,), 2, 6)[seed % 6], [walk(KIND["bfloat16"], (40,), 3, 6)[seed % 6]]),
        "empty": {},
        "none": np.zeros((0, 3), np.float16),
    }


def seal(frame: bytearray) -> bytes:
    """The frame with payload length, payload hash and header crc that fit what it holds."""
    end = 60 + 8 * frame[8] + 12
    if len(frame) < end:
        return bytes(frame)
    struct.pack_into("<H", frame, 10, end)
    struct.pack_into("<Q", frame, 52, len(frame) - end)
    struct.pack_into("<Q", frame, end - 12, xxhash.xxh3_64_intdigest(bytes(frame[end:])))
    struct.pack_into("<I", frame, end - 4, zlib.crc32(bytes(frame[: end - 4])))
    return bytes(frame)


def sealed(frame: bytes, at: int, rng: np.random.Generator) -> bytes:
    """The frame with another byte at ``at`` and hashes that fit."""
    data = bytearray(frame)
    data[at] ^= int(rng.integers(1, 256))
    return seal(data)
