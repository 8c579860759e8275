"""Frame: a header that is checked before anything is allocated, and the payload.

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

from rlrun.codec.content import MAX_DIMS, array_bytes, check_expansion, check_limit
from rlrun.codec.cursor import damaged_frame
from rlrun.codec.errors import DamagedFrame
from rlrun.codec.words import KIND_BY_CODE

MAGIC, VERSION = b"RLDF", 2
TREE = 255  # codec of a frame with a table
KEY, SECOND, CHUNK = 1, 2, 4  # flags: key frame · two bases · time-major rows

_FIXED_FIELDS = struct.Struct("<4s6BH6Q")
_CHECKSUMS = struct.Struct("<QI")
MIN_HEADER = _FIXED_FIELDS.size + _CHECKSUMS.size


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
        """True for a key frame, which needs no base."""
        return bool(self.flags & KEY)

    @property
    def chunk(self) -> bool:
        """True if the arrays are time-major rows."""
        return bool(self.flags & CHUNK)


def pack(header: Header, parts: list[bytes]) -> bytes:
    """Return the frame of a header and the parts of the payload."""
    state, size = xxhash.xxh3_64(), 0
    for part in parts:
        state.update(part)
        size += len(part)
    length = MIN_HEADER + 8 * len(header.shape)
    fixed = _FIXED_FIELDS.pack(
        MAGIC, VERSION, header.codec, header.flags, header.kind, len(header.shape), 0, length,
        header.stream, header.seq, header.base_seq, header.base_hash, header.content_hash, size,
    )  # fmt: skip
    encoded = fixed + struct.pack(f"<{len(header.shape)}QQ", *header.shape, state.intdigest())
    return b"".join((encoded, struct.pack("<I", zlib.crc32(encoded)), *parts))


def unpack(data: bytes | bytearray | memoryview, limit: int) -> tuple[Header, memoryview, int]:
    """Return (header, payload, payload hash of the header); the payload is not checked.

    Raises: DamagedFrame, LimitExceeded for arrays of more than ``limit`` bytes.
    """
    if not isinstance(data, bytes | bytearray | memoryview):
        raise DamagedFrame(
            f"codec.frame = {type(data).__name__}: not bytes; pass the bytes of one frame"
        )
    view = memoryview(data if not isinstance(data, memoryview) or data.contiguous else bytes(data))
    view = view.cast("B") if view.nbytes else memoryview(b"")
    if len(view) < MIN_HEADER:
        raise damaged_frame(f"{len(view)} bytes are less than a header")
    magic, version, codec, flags, kind, ndim, zero, length, *numbers = _FIXED_FIELDS.unpack_from(
        view
    )
    if magic != MAGIC:
        raise damaged_frame("it does not start with the magic bytes of a frame")
    if version != VERSION:
        raise DamagedFrame(
            f"codec.version = {version}: unknown; {VERSION} is allowed; "
            "encode and decode with the same rlrun"
        )
    if length != MIN_HEADER + 8 * ndim or length > len(view) or ndim > MAX_DIMS:
        raise damaged_frame("its header has an inconsistent length")
    payload_hash, crc = _CHECKSUMS.unpack_from(view, length - _CHECKSUMS.size)
    if zlib.crc32(view[: length - 4]) != crc:
        raise damaged_frame("its header is damaged")
    stream, seq, base_seq, base_hash, content_hash, size = numbers
    shape = struct.unpack_from(f"<{ndim}Q", view, _FIXED_FIELDS.size)
    if size != len(view) - length:
        raise damaged_frame(f"{len(view) - length} bytes of payload in place of {size}")
    header = Header(codec, flags, kind, shape, stream, seq, base_seq, base_hash, content_hash)
    check_header(header, zero, limit, size)
    return header, view[length:], payload_hash


def check_header(header: Header, zero: int, limit: int, payload: int) -> None:
    """Raise DamagedFrame for a header that no encoder writes, and LimitExceeded.

    ``payload``: its bytes.
    """
    flags, tree = header.flags, header.codec == TREE
    has_base = header.base_seq or header.base_hash
    if zero or flags & ~(KEY | SECOND | CHUNK) or tree != (header.kind == 0):
        raise damaged_frame("its header contradicts itself")
    if (header.key and (flags & SECOND or has_base)) or (flags & CHUNK and not header.key):
        raise damaged_frame("its header contradicts itself")
    if tree:
        if header.shape:
            raise damaged_frame("its header contradicts itself")
        return
    kind = KIND_BY_CODE.get(header.kind)
    if kind is None:
        raise damaged_frame(f"kind {header.kind} is unknown")
    spanned, size = array_bytes(header.shape, kind.width)
    check_limit(spanned, limit)
    if header.key:  # a delta has the shapes of a base that is in memory
        check_expansion(size, payload)


def check_payload(payload: memoryview, stated_hash: int) -> None:
    """Raise DamagedFrame unless the payload has the hash of the header."""
    if xxhash.xxh3_64_intdigest(payload) != stated_hash:
        raise damaged_frame("its payload is damaged")
