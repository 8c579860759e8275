"""Records of TensorBoard's event files (TFRecord): a length and bytes, each with its checksum.

tensorboard's own writer computes checksums byte by byte in Python, 60 us for a kilobyte, and takes
40 ms to import.

Source: https://www.tensorflow.org/tutorials/load_data/tfrecord; RFC 3720, B.4 (CRC-32C).
"""

import struct
from functools import cache

import numpy as np

_POLYNOMIAL = np.uint32(0x82F63B78)  # of Castagnoli, lowest bit first
_PART = 512  # bytes whose contributions are looked up together
_ONES = 0xFFFFFFFF


def encode(data: bytes) -> bytes:
    """Return a record with ``data``."""
    length = struct.pack("<Q", len(data))
    ends = (struct.pack("<I", _masked(crc32c(x))) for x in (length, data))
    return b"".join((length, next(ends), data, next(ends)))


def _masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & _ONES


def crc32c(data: bytes) -> int:
    """Return the CRC-32C of ``data``.

    A checksum is linear: that of a part is the exclusive or of what each byte contributes at its
    place, after the checksum so far was added to the first four bytes.
    """
    tables, places = _tables()
    crc = _ONES
    for start in range(0, len(data), _PART):
        part = np.frombuffer(data[start : start + _PART], np.uint8).astype(np.intp)
        count = min(4, len(part))
        part[:count] ^= np.frombuffer(struct.pack("<I", crc), np.uint8)[:count]
        contributions = tables[places[-len(part) :] + part]
        crc = int(np.bitwise_xor.reduce(contributions)) ^ crc >> 8 * count
    return crc ^ _ONES


@cache
def _tables() -> tuple[np.ndarray, np.ndarray]:
    """Return the contributions of bytes at every place of a part, and where each place's begin."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table[:] = table >> 1 ^ np.where(table & 1, _POLYNOMIAL, 0)
    tables = np.empty((_PART, 256), np.uint32)
    tables[-1] = table
    for i in reversed(range(_PART - 1)):  # followed by one more byte
        tables[i] = table[tables[i + 1] & 255] ^ tables[i + 1] >> 8
    return tables.reshape(-1), np.arange(_PART) * 256
