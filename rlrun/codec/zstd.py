"""zstd at level 1, with the expected size known to the reader: it never allocates more."""

import threading

import zstandard

from rlrun.codec.cursor import damaged

LEVEL = 1
PLANE_HASH = 12  # log2 of the match table: planes hold few matches, a small one costs less time


class _Contexts(threading.local):
    """One pair of contexts a thread: they are costly to make and not safe to share."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=LEVEL)
        plane = zstandard.ZstdCompressionParameters.from_level(LEVEL, hash_log=PLANE_HASH)
        self.plane = zstandard.ZstdCompressor(compression_params=plane)
        self.decompressor = zstandard.ZstdDecompressor()


_contexts = _Contexts()


def compress(data: memoryview | bytes) -> bytes:
    """One zstd frame that states its content size."""
    return _contexts.compressor.compress(data)


def compress_plane(data: memoryview) -> bytes:
    """The same for a byte plane of residuals."""
    return _contexts.plane.compress(data)


def decompress(data: memoryview, size: int) -> bytes:
    """The ``size`` bytes of one zstd frame. Raises: DamagedFrame if it is anything else.

    The library allocates what the frame says whatever limit it is given, so that is asked first.
    """
    try:
        if zstandard.frame_content_size(data) != size:
            raise damaged(f"a zstd part does not hold {size} bytes")
        out = _contexts.decompressor.decompress(data, allow_extra_data=False)
    except zstandard.ZstdError as e:
        raise damaged(f"a zstd part cannot be read ({e})") from e
    if len(out) != size:
        raise damaged(f"a zstd part does not hold {size} bytes")
    return out
