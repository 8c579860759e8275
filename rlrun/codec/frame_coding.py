"""Conversion between contents and frames, given the bases; no state."""

from dataclasses import dataclass

import xxhash

from rlrun.codec import frame, zstd
from rlrun.codec.coders import ZSTD, CoderChoice, decode_field, encode_field
from rlrun.codec.content import (
    MAX_RATIO,
    NO_LIMIT,
    Content,
    check_expansion,
    content_hash,
    field_specs,
    leaf_table,
    max_expansion,
    parse,
)
from rlrun.codec.cursor import Cursor, damaged_frame, encode_varint
from rlrun.codec.frame import CHUNK, KEY, SECOND, TREE, Header
from rlrun.codec.words import KIND_BY_CODE, Array
from rlrun.errors import CodecError

MAX_TABLE = 1 << 20  # bytes: about 20 000 named tensors


@dataclass(frozen=True, slots=True)
class Bases:
    """Bases of a delta: the previous content and, optionally, the one before it."""

    first: Content
    second: Content | None = None

    @property
    def hash(self) -> int:
        """Hash that identifies the bases: that of the content, or of both contents."""
        if self.second is None:
            return self.first.hash
        hashes = self.first.hash.to_bytes(8, "little") + self.second.hash.to_bytes(8, "little")
        return xxhash.xxh3_64_intdigest(hashes)


def encode_content(
    content: Content, bases: Bases | None, *, coder: str, stream: int, seq: int, base_seq: int
) -> tuple[bytes, list[CoderChoice]]:
    """Return (frame, coder choice of every field).

    Bases with another table are not used: the frame is a key frame.
    """
    if len(content.table) > MAX_TABLE:
        raise CodecError(
            f"codec.tree: its table of names and shapes has {len(content.table)} bytes; "
            f"at most {MAX_TABLE}; send it in parts"
        )
    if bases is not None and (content.chunk or bases.first.table != content.table):
        bases = None
    if bases is not None and bases.second and bases.second.table != content.table:
        bases = Bases(bases.first)
    fields, choices = [], []
    for i, spec in enumerate(content.specs):
        first = bases.first.words[i] if bases else None
        second = bases.second.words[i] if bases and bases.second else None
        code, payload, choice = encode_field(coder, spec, content.words[i], first, second)
        fields.append((code, payload))
        choices.append(choice)
    if bases is None and content.nbytes > max_expansion(sum(len(data) for _, data in fields)):
        fields = [
            _bounded(words, *field) for words, field in zip(content.words, fields, strict=True)
        ]
    flags = (CHUNK if content.chunk else 0) | (
        KEY if bases is None else SECOND if bases.second else 0
    )
    base_fields = (0, 0) if bases is None else (base_seq, bases.hash)
    if content.table[0] == 0:  # one array
        code, payload = fields[0]
        kind = content.specs[0].kind
        _, (leaf,) = parse(content.table, NO_LIMIT)
        header = Header(code, flags, kind.code, leaf.shape, stream, seq, *base_fields, content.hash)
        return frame.pack(header, [payload]), choices
    parts = [encode_varint(0)] if bases else [encode_varint(len(content.table)), content.table]
    for code, payload in fields:
        parts += [bytes((code,)) + encode_varint(len(payload)), payload]
    header = Header(TREE, flags, 0, (), stream, seq, *base_fields, content.hash)
    return frame.pack(header, parts), choices


def _bounded(words: Array, code: int, payload: bytes) -> tuple[int, bytes]:
    """Return (coder, payload) of a field, at most ``MAX_RATIO`` smaller than its words."""
    if words.nbytes <= MAX_RATIO * len(payload):
        return code, payload
    return ZSTD, zstd.compress_blocks(words.data.cast("B"))


def decode_content(header: Header, payload: memoryview, bases: Bases | None, limit: int) -> Content:
    """Return the content of a frame; the caller has checked the payload hash and the bases.

    Raises: DamagedFrame, LimitExceeded.
    """
    cursor = Cursor(payload)
    if header.codec != TREE:
        table = leaf_table(KIND_BY_CODE[header.kind], header.shape)
    else:
        size = cursor.read_varint()
        if size > MAX_TABLE or (size == 0) == (bases is None):
            raise damaged_frame("its table is missing or misplaced")
        table = bytes(cursor.read_bytes(size)) if bases is None else bases.first.table
        if table[0] == 0:
            raise damaged_frame("a tree of one array")
    shapes = [] if bases is None else [x.table for x in (bases.first, bases.second) if x]
    if any(shape != table for shape in shapes):  # kernels read both bases without a test
        raise damaged_frame("its base has other shapes")
    _, leaves = parse(table, limit)
    if bases is None:
        check_expansion(sum(leaf.size * leaf.kind.width for leaf in leaves), len(payload))
    specs, words = field_specs(leaves, chunk=header.chunk), []
    for i, spec in enumerate(specs):
        code = cursor.read_byte() if header.codec == TREE else header.codec
        size = cursor.read_varint() if header.codec == TREE else len(payload)
        first = bases.first.words[i] if bases else None
        second = bases.second.words[i] if bases and bases.second else None
        words.append(decode_field(code, spec, cursor.read_bytes(size), first, second))
    cursor.require_end()
    decoded_hash = content_hash(table, words)
    if decoded_hash != header.content_hash:
        raise damaged_frame("its decoded content differs from the encoded one")
    return Content(table, header.chunk, specs, tuple(words), decoded_hash)
