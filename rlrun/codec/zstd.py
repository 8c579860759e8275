"""zstd at level 1, with the expected size known to the reader: it never allocates more."""

import threading

import zstandard

from rlrun.codec.cursor import damaged

LEVEL = 1


class _Contexts(threading.local):
    """One pair of contexts a thread: they are costly to make and not safe to share."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=LEVEL)
        self.decompressor = zstandard.ZstdDecompressor()


_contexts = _Contexts()


def compress(data: memoryview | bytes) -> bytes:
    """One zstd frame that states its content size."""
    return _contexts.compressor.compress(data)


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
