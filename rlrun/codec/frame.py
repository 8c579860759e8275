"""The frame: a header that can be judged before anything is allocated, then the payload.

Little-endian. Header: magic ``RLDF`` · version u8 · codec u8 (of the only field; 255: a tree) ·
flags u8 · kind u8 (0: a tree) · ndim u8 · 0 u8 · header length u16 · stream u64 · seq u64 · base
seq u64 · base hash u64 · content hash u64 · payload length u64 · shape u64 each · payload hash
u64 · crc32 of all before it u32. Hashes are xxh3 (64 bits).

Payload of one array: its field. Of a tree: table length varint (0: the base's table) · table ·
for each field coder u8, length varint, bytes.
"""

import struct
import zlib
from dataclasses import dataclass

import xxhash

from rlrun.codec.content import DIMS, check_limit, extent
from rlrun.codec.cursor import damaged
from rlrun.codec.errors import DamagedFrame
from rlrun.codec.words import CODED

MAGIC, VERSION = b"RLDF", 2
TREE = 255  # codec of a frame with a table
KEY, SECOND, CHUNK = 1, 2, 4  # flags: needs no base · two bases · time-major rows

_FIXED = struct.Struct("<4s6BH6Q")
_TAIL = struct.Struct("<QI")
SMALLEST = _FIXED.size + _TAIL.size


@dataclass(frozen=True, slots=True)
class Header:
    """Header of a frame."""

    codec: int
    flags: int
    kind: int
    shape: tuple[int, ...]
    stream: int
    seq: int
    base_seq: int
    base_hash: int
    content_hash: int

    @property
    def key(self) -> bool:
        """Return whether the frame needs no base."""
        return bool(self.flags & KEY)

    @property
    def chunk(self) -> bool:
        """Return whether its arrays are time-major rows."""
        return bool(self.flags & CHUNK)


def pack(header: Header, parts: list[bytes]) -> bytes:
    """The frame of that header and the payload's parts."""
    state, size = xxhash.xxh3_64(), 0
    for one in parts:
        state.update(one)
        size += len(one)
    h = header
    length = SMALLEST + 8 * len(h.shape)
    fixed = _FIXED.pack(
        MAGIC, VERSION, h.codec, h.flags, h.kind, len(h.shape), 0, length,
        h.stream, h.seq, h.base_seq, h.base_hash, h.content_hash, size,
    )  # fmt: skip
    head = fixed + struct.pack(f"<{len(h.shape)}QQ", *h.shape, state.intdigest())
    return b"".join((head, struct.pack("<I", zlib.crc32(head)), *parts))


def unpack(data: bytes | bytearray | memoryview, limit: int) -> tuple[Header, memoryview, int]:
    """(header, payload, payload hash as stated); the payload is not looked at.

    Raises: DamagedFrame, LimitExceeded for arrays of more than ``limit`` bytes.
    """
    if not isinstance(data, bytes | bytearray | memoryview):
        raise DamagedFrame(f"codec.frame = {type(data).__name__}: not bytes; bytes of one frame")
    view = memoryview(data if not isinstance(data, memoryview) or data.contiguous else bytes(data))
    view = view.cast("B") if view.nbytes else memoryview(b"")
    if len(view) < SMALLEST:
        raise damaged(f"{len(view)} bytes are no header")
    magic, version, codec, flags, kind, ndim, zero, length, *numbers = _FIXED.unpack_from(view)
    if magic != MAGIC:
        raise damaged("does not begin as a frame")
    if version != VERSION:
        raise DamagedFrame(
            f"codec.version = {version}: not known; {VERSION}; use the same rlrun on both sides"
        )
    if length != SMALLEST + 8 * ndim or length > len(view) or ndim > DIMS:
        raise damaged("its header has another length")
    payload_hash, crc = _TAIL.unpack_from(view, length - _TAIL.size)
    if zlib.crc32(view[: length - 4]) != crc:
        raise damaged("its header is damaged")
    stream, seq, base_seq, base_hash, content_hash, size = numbers
    shape = struct.unpack_from(f"<{ndim}Q", view, _FIXED.size)
    if size != len(view) - length:
        raise damaged(f"{len(view) - length} bytes of payload in place of {size}")
    header = Header(codec, flags, kind, shape, stream, seq, base_seq, base_hash, content_hash)
    check(header, zero, limit)
    return header, view[length:], payload_hash


def check(header: Header, zero: int, limit: int) -> None:
    """Raises: DamagedFrame for a header no encoder writes, LimitExceeded."""
    flags, tree = header.flags, header.codec == TREE
    based = header.base_seq or header.base_hash
    if zero or flags & ~(KEY | SECOND | CHUNK) or tree != (header.kind == 0):
        raise damaged("its header contradicts itself")
    if (header.key and (flags & SECOND or based)) or (flags & CHUNK and not header.key):
        raise damaged("its header contradicts itself")
    if tree:
        if header.shape:
            raise damaged("its header contradicts itself")
        return
    kind = CODED.get(header.kind)
    if kind is None:
        raise damaged(f"kind {header.kind} is not known")
    check_limit(extent(header.shape, kind.width)[0], limit)


def check_payload(payload: memoryview, stated: int) -> None:
    """Raises: DamagedFrame unless the payload has the stated hash."""
    if xxhash.xxh3_64_intdigest(payload) != stated:
        raise damaged("its payload is damaged")
