"""Lossless differential codec: what changed since the array before, in as few bytes as it needs.

``encode`` and ``decode`` take an array or a tree of arrays (a state dict), alone or as a delta to
a base that both sides hold; ``encode_chunk`` takes time-major rows. ``Encoder`` and ``Decoder``
keep the bases of a stream of frames. Only ``CodecError`` comes out of any of them.
"""

from typing import Any

from rlrun.codec import frame
from rlrun.codec.code import Bases, decode_content, encode_content
from rlrun.codec.coders import CHOICES, Choice, check_coder
from rlrun.codec.content import content_of, tree_of
from rlrun.codec.errors import (
    DamagedFrame,
    ForeignFrame,
    LimitExceeded,
    MissingCoder,
    NeedKeyFrame,
    StaleFrame,
)
from rlrun.codec.frame import SECOND
from rlrun.codec.stream import MAX_BYTES, Decoder, Encoder
from rlrun.codec.words import BFLOAT16, as_array, as_tensors, kind_of, to_words
from rlrun.errors import CodecError

__all__ = [
    "BFLOAT16",
    "CHOICES",
    "Choice",
    "CodecError",
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
    "table",
]


def encode(tree: Any, *, coder: str = "auto", base: Any = None, second: Any = None) -> bytes:
    """One frame of a tree, as a delta to ``base`` (and to ``second``, the tree before that).

    Raises: CodecError for an array without a code.
    """
    return _encode(tree, coder, base, second, chunk=False)[0]


def encode_chunk(tree: Any, *, coder: str = "auto") -> bytes:
    """One frame of time-major rows [T, …], coded along time and by themselves."""
    return _encode(tree, coder, None, None, chunk=True)[0]


def as_bytes(array: Any) -> bytes:
    """The elements of an array or tensor in C order, little-endian. Raises: CodecError."""
    found = as_array(array, "array")
    return to_words(found, kind_of(found, "array")).tobytes()


def table(tree: Any) -> bytes:
    """The names, dtypes and shapes of a tree: equal tables, trees that can be deltas."""
    return content_of(tree, chunk=False).table


def explain(
    tree: Any, *, coder: str = "auto", base: Any = None, second: Any = None, chunk: bool = False
) -> list[Choice]:
    """Coder of each field of the tree, the reason, and the size."""
    return _encode(tree, coder, base, second, chunk=chunk)[1]


def decode(
    data: bytes | bytearray | memoryview,
    *,
    base: Any = None,
    second: Any = None,
    max_bytes: int = MAX_BYTES,
) -> Any:
    """The tree of one frame: read-only numpy arrays.

    Raises: DamagedFrame, LimitExceeded; NeedKeyFrame if it is a delta to other bases.
    """
    header, payload, stated = frame.unpack(data, max_bytes)
    bases = None if header.key else _bases(base, second if header.flags & SECOND else None)
    if not header.key and (bases is None or bases.hash != header.base_hash):
        raise NeedKeyFrame(header.stream, -1, 0)
    frame.check_payload(payload, stated)
    return tree_of(decode_content(header, payload, bases, max_bytes))


def _encode(
    tree: Any, coder: str, base: Any, second: Any, *, chunk: bool
) -> tuple[bytes, list[Choice]]:
    check_coder(coder)
    content = content_of(tree, chunk=chunk)
    return encode_content(content, _bases(base, second), coder=coder, stream=0, seq=0, base_seq=0)


def _bases(base: Any, second: Any) -> Bases | None:
    """The contents of the trees a delta is taken to."""
    if base is None:
        return None
    return Bases(
        content_of(base, chunk=False), None if second is None else content_of(second, chunk=False)
    )
