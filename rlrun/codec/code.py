"""Contents to frames and back, given the bases; no state is kept here."""

from dataclasses import dataclass

import xxhash

from rlrun.codec import frame
from rlrun.codec.coders import Choice, decode_field, encode_field
from rlrun.codec.content import NO_LIMIT, Content, content_hash, leaf_table, parse, plan
from rlrun.codec.cursor import Cursor, damaged, varint
from rlrun.codec.frame import CHUNK, KEY, SECOND, TREE, Header
from rlrun.codec.words import CODED
from rlrun.errors import CodecError

MAX_TABLE = 1 << 20  # bytes: some 20 000 named tensors


@dataclass(frozen=True, slots=True)
class Bases:
    """Base of a delta: the content before, and the one before that."""

    first: Content
    second: Content | None = None

    @property
    def hash(self) -> int:
        """Hash that both sides must agree on: of the content, or of both."""
        if self.second is None:
            return self.first.hash
        pair = self.first.hash.to_bytes(8, "little") + self.second.hash.to_bytes(8, "little")
        return xxhash.xxh3_64_intdigest(pair)


def encode_content(
    content: Content, bases: Bases | None, *, coder: str, stream: int, seq: int, base_seq: int
) -> tuple[bytes, list[Choice]]:
    """(frame, what each field got). Bases of another table are not used: a key frame."""
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
    for i, each in enumerate(content.plans):
        first = bases.first.words[i] if bases else None
        second = bases.second.words[i] if bases and bases.second else None
        code, payload, choice = encode_field(coder, each, content.words[i], first, second)
        fields.append((code, payload))
        choices.append(choice)
    flags = (CHUNK if content.chunk else 0) | (
        KEY if bases is None else SECOND if bases.second else 0
    )
    based = (0, 0) if bases is None else (base_seq, bases.hash)
    if content.table[0] == 0:  # one array
        code, payload = fields[0]
        kind = content.plans[0].kind
        _, (leaf,) = parse(content.table, NO_LIMIT)
        header = Header(code, flags, kind.code, leaf.shape, stream, seq, *based, content.hash)
        return frame.pack(header, [payload]), choices
    parts = [varint(0)] if bases else [varint(len(content.table)), content.table]
    for code, payload in fields:
        parts += [bytes((code,)) + varint(len(payload)), payload]
    header = Header(TREE, flags, 0, (), stream, seq, *based, content.hash)
    return frame.pack(header, parts), choices


def decode_content(header: Header, payload: memoryview, bases: Bases | None, limit: int) -> Content:
    """The content of a frame whose payload hash was checked and whose bases are these.

    Raises: DamagedFrame, LimitExceeded.
    """
    cursor = Cursor(payload)
    if header.codec != TREE:
        table = leaf_table(CODED[header.kind], header.shape)
    else:
        size = cursor.varint()
        if size > MAX_TABLE or (size == 0) == (bases is None):
            raise damaged("its table is missing or misplaced")
        table = bytes(cursor.take(size)) if bases is None else bases.first.table
        if table[0] == 0:
            raise damaged("a tree of one array")
    if bases is not None and bases.first.table != table:
        raise damaged("its base has other shapes")
    _, leaves = parse(table, limit)
    plans, words = plan(leaves, chunk=header.chunk), []
    for i, each in enumerate(plans):
        code = cursor.byte() if header.codec == TREE else header.codec
        size = cursor.varint() if header.codec == TREE else len(payload)
        first = bases.first.words[i] if bases else None
        second = bases.second.words[i] if bases and bases.second else None
        words.append(decode_field(code, each, cursor.take(size), first, second))
    cursor.done()
    found = content_hash(table, words)
    if found != header.content_hash:
        raise damaged("what it decodes to is not what was encoded")
    return Content(table, header.chunk, plans, tuple(words), found)
