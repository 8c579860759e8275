"""Frames: a header that is checked before anything is allocated, and the payload.

Little-endian. Header: magic ``RLDF`` · version u8 · codec u8 (of the only field; 255: a tree) ·
flags u8 · kind u8 (0: a tree) · ndim u8 · 0 u8 · header length u16 · stream u64 · seq u64 · base
seq u64 · base hash u64 · content hash u64 · payload length u64 · shape u64 each · payload hash u64
· crc32 of all before it u32. Hashes are xxh3 (64 bits).

Payload of one array: its field. Of a tree: table length varint (0: the base's table) · table · for
each field coder u8, length varint, bytes.
"""

import math
import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash

from rlrun.codec.words import (
    KIND_BY_CODE,
    Array,
    Cursor,
    DamagedFrame,
    Kind,
    LimitExceeded,
    as_array,
    damaged_frame,
    from_words,
    kind_of,
    to_words,
)
from rlrun.errors import CodecError

MAX_DEPTH = 64  # of a tree
MAX_DIMS = 64  # numpy's own limit
MAX_PATH = 200  # characters of a path in messages
FREE_BYTES = 1 << 24  # size to which any frame may decode
MAX_RATIO = 1024  # of larger key frames, decoded to payload
NO_LIMIT = 1 << 128  # for arrays that are in memory already
_LEAF, _DICT, _TUPLE, _LIST = 0, 1, 2, 3
_U16, _U32, _I64 = struct.Struct("<H"), struct.Struct("<I"), struct.Struct("<q")


@dataclass(frozen=True, slots=True)
class LeafSpec:
    """Path, kind and shape of one array of a tree."""

    path: str
    kind: Kind
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """Path, kind and sizes of a field. The decoder has it before the words."""

    path: str  # of the leaf, or of the first of several
    kind: Kind
    sizes: tuple[int, ...]  # elements of its tensors
    rows: int  # T of a time chunk [T, D]; 0: no time

    @property
    def size(self) -> int:
        """Number of words."""
        return sum(self.sizes)


@dataclass(frozen=True, slots=True)
class Content:
    """A tree in canonical form; its words are immutable."""

    table: bytes
    chunk: bool
    specs: list[FieldSpec]
    words: list[Array]
    hash: int  # xxh3 of the table and all words

    @property
    def nbytes(self) -> int:
        """Bytes of all words."""
        return sum(w.nbytes for w in self.words)


def content_of(tree: Any, *, chunk: bool) -> Content:
    """Return the content of a tree of arrays. Raises: CodecError naming the leaf at fault."""
    table, leaves, arrays = bytearray(), list[LeafSpec](), list[Array]()
    _append_node(tree, "", table, leaves, arrays, MAX_DEPTH)
    groups, words = group_leaves(leaves, chunk), []
    for group in groups:
        parts = [to_words(arrays[i], leaves[i].kind) for i in group]
        words.append(np.concatenate(parts) if len(parts) > 1 else parts[0].copy())
    specs = [field_spec([leaves[i] for i in group], chunk) for group in groups]
    return Content(bytes(table), chunk, specs, words, content_hash(table, words))


def content_hash(table: bytes | bytearray, words: list[Array]) -> int:
    """Return xxh3 (64 bits) of the table and the words."""
    state = xxhash.xxh3_64(table)
    for field in words:
        state.update(field.data)
    return state.intdigest()


def group_leaves(leaves: list[LeafSpec], chunk: bool) -> list[list[int]]:
    """Return the indices of the leaves of every field: one, or without time all of a kind."""
    groups: dict[int, list[int]] = {}
    for i, leaf in enumerate(leaves):
        groups.setdefault(i if chunk else leaf.kind.code, []).append(i)
    return list(groups.values())


def field_spec(leaves: list[LeafSpec], chunk: bool) -> FieldSpec:
    """Return the field of these leaves."""
    first, sizes = leaves[0], tuple(leaf.size for leaf in leaves)
    rows = first.shape[0] if chunk and first.shape and first.size else 0
    return FieldSpec(first.path, first.kind, sizes, rows)


def tree_of(content: Content) -> Any:
    """Return the tree, of read-only views into the words."""
    order: dict[int, int] = {}  # numbers of the fields; of their leaves the first is met first
    starts = [0] * len(content.words)

    def take(leaf: LeafSpec) -> Array:
        number = order.setdefault(len(order) if content.chunk else leaf.kind.code, len(order))
        words, start = content.words[number], starts[number]
        words.flags.writeable = False
        starts[number] += leaf.size
        return from_words(words[start : starts[number]], leaf.kind, leaf.shape)

    return _read_node(Cursor(memoryview(content.table)), "", take, MAX_DEPTH)


def leaf_table(kind: Kind, shape: tuple[int, ...]) -> bytes:
    """Return the table of a tree that is one array."""
    return bytes((_LEAF, kind.code, len(shape))) + struct.pack(f"<{len(shape)}Q", *shape)


def leaves_of(table: bytes, limit: int) -> list[LeafSpec]:
    """Return the leaves of a table in order, arrays of at most ``limit`` bytes in total.

    Raises: DamagedFrame, LimitExceeded.
    """
    leaves, cursor = list[LeafSpec](), Cursor(memoryview(table))
    _read_node(cursor, "", leaves.append, MAX_DEPTH)
    cursor.require_end()
    sizes = [array_bytes(leaf.shape, leaf.kind.width) for leaf in leaves]
    check_limit(max([sum(size for _, size in sizes), *(spanned for spanned, _ in sizes)]), limit)
    return leaves


def array_bytes(shape: tuple[int, ...], width: int) -> tuple[int, int]:
    """Return (bytes with empty dimensions counted as one, which numpy limits as well, bytes)."""
    return math.prod(max(n, 1) for n in shape) * width, math.prod(shape) * width


def check_limit(size: int, limit: int) -> None:
    """Raise LimitExceeded for more than ``limit`` bytes."""
    if size > limit:
        raise LimitExceeded(
            f"codec.frame: decodes to {size} bytes; at most {limit} are allowed; raise max_bytes "
            "if the sender is trusted"
        )


def check_expansion(size: int, payload: int) -> None:
    """Raise LimitExceeded for ``size`` bytes out of a key frame of ``payload`` bytes.

    Encoders keep within ``max_expansion``, so such a frame is not theirs.
    """
    if size > max_expansion(payload):
        raise LimitExceeded(
            f"codec.frame: {payload} bytes decode to {size}; at most {FREE_BYTES}, or "
            f"{MAX_RATIO} times the payload, are allowed; encode it again"
        )


def max_expansion(payload: int) -> int:
    """Return the most bytes that a key frame of ``payload`` bytes decodes to."""
    return max(FREE_BYTES, MAX_RATIO * payload)


def child_path(path: str, key: object) -> str:
    """Return the path of a child, at most ``MAX_PATH`` characters: keys can be long and shared."""
    full = f"{path}.{key}" if path else str(key)
    return full if len(full) <= MAX_PATH else f"…{full[1 - MAX_PATH :]}"


def _append_node(
    tree: Any, path: str, table: bytearray, leaves: list[LeafSpec], arrays: list[Array], depth: int
) -> None:
    """Append a node and its descendants to ``table``, ``leaves`` and ``arrays``."""
    if depth == 0:
        raise CodecError(f"codec.{path}: deeper than {MAX_DEPTH} levels; flatten the tree")
    if isinstance(tree, Mapping):
        table += bytes((_DICT,)) + _U32.pack(len(tree))
        for key, value in tree.items():
            table += _encode_key(key, path)
            _append_node(value, child_path(path, key), table, leaves, arrays, depth - 1)
    elif isinstance(tree, tuple | list):
        table += bytes((_TUPLE if isinstance(tree, tuple) else _LIST,)) + _U32.pack(len(tree))
        for i, value in enumerate(tree):
            _append_node(value, child_path(path, i), table, leaves, arrays, depth - 1)
    else:
        array = as_array(tree, path or "array")
        kind = kind_of(array, path or "array")
        table += leaf_table(kind, array.shape)
        leaves.append(LeafSpec(path, kind, array.shape))
        arrays.append(array)


def _encode_key(key: Any, path: str) -> bytes:
    """Encode a dict key. Raises: CodecError unless it is a string or a 64-bit integer."""
    if isinstance(key, str):
        text = key.encode("utf-8", "surrogatepass")
        if len(text) < 1 << 16:
            return b"\x00" + _U16.pack(len(text)) + text
    elif type(key) is int and -(1 << 63) <= key < 1 << 63:
        return b"\x01" + _I64.pack(key)
    raise CodecError(
        f"codec.{path}: key {str(key)[:40]!r} ({type(key).__name__}) cannot be coded; strings "
        "below 64 KB and 64-bit integers"
    )


def _read_node(cursor: Cursor, path: str, make_leaf: Callable[[LeafSpec], Any], depth: int) -> Any:
    """Return the tree of the next node, with ``make_leaf(spec)`` at its leaves."""
    if depth == 0:
        raise damaged_frame(f"its tree is deeper than {MAX_DEPTH} levels")
    node_type = cursor.read_byte()
    if node_type == _LEAF:
        kind, ndim = KIND_BY_CODE.get(cursor.read_byte()), cursor.read_byte()
        if kind is None or ndim > MAX_DIMS:
            raise damaged_frame(f"array {path or '()'} has an unknown kind or {ndim} dimensions")
        return make_leaf(LeafSpec(path, kind, cursor.read_struct(struct.Struct(f"<{ndim}Q"))))
    if node_type not in (_DICT, _TUPLE, _LIST):
        raise damaged_frame(f"its table has a node of unknown type {node_type}")
    (count,) = cursor.read_struct(_U32)
    if count > len(cursor.data) - cursor.position:  # a node takes a byte at least
        raise damaged_frame(f"its table has no room for {count} nodes")
    if node_type == _DICT:
        tree: dict[str | int, Any] = {}
        for _ in range(count):
            key = _read_key(cursor)
            if key in tree:
                raise damaged_frame(f"key {child_path(path, key)} appears twice")
            tree[key] = _read_node(cursor, child_path(path, key), make_leaf, depth - 1)
        return tree
    nodes = [_read_node(cursor, child_path(path, i), make_leaf, depth - 1) for i in range(count)]
    return tuple(nodes) if node_type == _TUPLE else nodes


def _read_key(cursor: Cursor) -> str | int:
    node_type = cursor.read_byte()
    if node_type == 1:
        return cursor.read_struct(_I64)[0]
    if node_type != 0:
        raise damaged_frame(f"its table has a key of unknown type {node_type}")
    text = bytes(cursor.read_bytes(cursor.read_struct(_U16)[0]))
    try:
        return text.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as e:
        raise damaged_frame("a key is not UTF-8") from e


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
    """Return (header, payload, payload hash of the header). The payload is not checked.

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
    with_base = flags & SECOND or header.base_seq or header.base_hash
    if (
        zero
        or flags & ~(KEY | SECOND | CHUNK)
        or tree != (header.kind == 0)
        or (tree and header.shape)
        or (with_base if header.key else header.chunk)
    ):
        raise damaged_frame("its header contradicts itself")
    if tree:
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
