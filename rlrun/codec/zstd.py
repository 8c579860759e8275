"""zstd at level 1. The decoder is given the expected size and never allocates more."""

import threading

import zstandard

from rlrun.codec.words import damaged_frame

LEVEL = 1
BLOCK = 2048
PLANE_HASH = 12  # log2 of the match table: planes have few matches, and a small table is faster


class _ThreadCoders(threading.local):
    """Compressors and decompressor of a thread: expensive to create and not thread-safe."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=LEVEL)
        plane = zstandard.ZstdCompressionParameters.from_level(LEVEL, hash_log=PLANE_HASH)
        self.plane = zstandard.ZstdCompressor(compression_params=plane)
        self.decompressor = zstandard.ZstdDecompressor()


_coders = _ThreadCoders()


def compress(data: memoryview | bytes) -> bytes:
    """Return one zstd frame, which contains its content size."""
    return _coders.compressor.compress(data)


def compress_plane(data: memoryview) -> bytes:
    """Return one zstd frame of a byte plane of residuals."""
    return _coders.plane.compress(data)


def compress_blocks(data: memoryview) -> bytes:
    """Return one zstd frame of blocks of ``BLOCK`` bytes, each of which takes at least 4 bytes."""
    compressor = _coders.compressor.compressobj(size=len(data))
    parts = []
    for start in range(0, len(data), BLOCK):
        parts.append(compressor.compress(data[start : start + BLOCK]))
        parts.append(compressor.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK))
    return b"".join([*parts, compressor.flush()])


def decompress(data: memoryview, size: int) -> bytes:
    """Return the ``size`` bytes of one zstd frame.

    The size stored in the frame is checked first, because the library allocates it whatever its
    limit.

    Raises: DamagedFrame for anything else.
    """
    try:
        if zstandard.frame_content_size(data) != size:
            raise damaged_frame(f"a zstd part does not hold {size} bytes")
        out = _coders.decompressor.decompress(data, allow_extra_data=False)
    except zstandard.ZstdError as e:
        raise damaged_frame(f"a zstd part cannot be read ({e})") from e
    if len(out) != size:
        raise damaged_frame(f"a zstd part does not hold {size} bytes")
    return out
