"""Lossless differential compression of arrays and trees of arrays.

``encode`` and ``decode`` take an array or a tree of arrays (a state dict), alone or as a delta to
a base that encoder and decoder share; ``encode_chunk`` takes time-major rows. ``Encoder`` and
``Decoder`` keep the bases of a stream of frames. The only exception raised is ``CodecError``.
"""

from typing import Any

from rlrun.codec import frame
from rlrun.codec.coders import CODER_OPTIONS, CoderChoice, check_coder
from rlrun.codec.frame import SECOND, content_of, tree_of
from rlrun.codec.stream import MAX_BYTES, Bases, Decoder, Encoder, decode_content, encode_content
from rlrun.codec.words import (
    BFLOAT16,
    DamagedFrame,
    ForeignFrame,
    LimitExceeded,
    MissingCoder,
    NeedKeyFrame,
    StaleFrame,
    as_array,
    as_tensors,
    kind_of,
    to_words,
)
from rlrun.errors import CodecError

__all__ = [
    "BFLOAT16",
    "CODER_OPTIONS",
    "CodecError",
    "CoderChoice",
    "DamagedFrame",
    "Decoder",
    "Encoder",
    "ForeignFrame",
    "LimitExceeded",
    "MissingCoder",
    "NeedKeyFrame",
    "StaleFrame",
    "as_bytes",
    "as_tensors",
    "check_coder",
    "decode",
    "encode",
    "encode_chunk",
    "explain",
    "is_key_frame",
    "tree_table",
]


def encode(tree: Any, *, coder: str = "auto", base: Any = None, second: Any = None) -> bytes:
    """Encode a tree as one frame, a delta to ``base`` (and to ``second``, the tree before it).

    Raises: CodecError for a dtype that cannot be coded.
    """
    return _encode(tree, coder, base, second, chunk=False)[0]


def encode_chunk(tree: Any, *, coder: str = "auto") -> bytes:
    """Encode time-major rows [T, …] as one frame, by differences along time, without a base."""
    return _encode(tree, coder, None, None, chunk=True)[0]


def as_bytes(array: Any) -> bytes:
    """Return the elements of an array or tensor in C order, little-endian. Raises: CodecError."""
    values = as_array(array, "array")
    return to_words(values, kind_of(values, "array")).tobytes()


def tree_table(tree: Any) -> bytes:
    """Return the encoded names, dtypes and shapes of a tree.

    A tree can be a delta to another one if their tables are equal.
    """
    return content_of(tree, chunk=False).table


def explain(
    tree: Any, *, coder: str = "auto", base: Any = None, second: Any = None, chunk: bool = False
) -> list[CoderChoice]:
    """Return the chosen coder, the reason and the sizes of every field of a tree."""
    return _encode(tree, coder, base, second, chunk=chunk)[1]


def decode(
    data: bytes | bytearray | memoryview,
    *,
    base: Any = None,
    second: Any = None,
    max_bytes: int = MAX_BYTES,
) -> Any:
    """Return the tree of one frame as read-only numpy arrays.

    Raises: DamagedFrame, LimitExceeded; NeedKeyFrame if the frame is a delta to other bases.
    """
    header, payload, payload_hash = frame.unpack(data, max_bytes)
    bases = None if header.key else _bases(base, second if header.flags & SECOND else None)
    if not header.key and (bases is None or bases.hash != header.base_hash):
        raise NeedKeyFrame(header.stream, -1, 0)
    frame.check_payload(payload, payload_hash)
    return tree_of(decode_content(header, payload, bases, max_bytes))


def is_key_frame(data: bytes) -> bool:
    """Return whether a frame can be decoded without a base. Raises: DamagedFrame."""
    return frame.unpack(data, MAX_BYTES)[0].key


def _encode(
    tree: Any, coder: str, base: Any, second: Any, *, chunk: bool
) -> tuple[bytes, list[CoderChoice]]:
    check_coder(coder)
    content = content_of(tree, chunk=chunk)
    return encode_content(content, _bases(base, second), coder=coder, stream=0, seq=0, base_seq=0)


def _bases(base: Any, second: Any) -> Bases | None:
    """Return the contents of the trees to which a delta refers."""
    if base is None:
        return None
    return Bases(
        content_of(base, chunk=False), None if second is None else content_of(second, chunk=False)
    )
