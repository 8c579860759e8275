"""Streams of frames. Each is a delta to the previous one; lost frames are recovered on request.

The encoder assumes that every frame arrives. A decoder that misses the base of a delta raises
``NeedKeyFrame``, keeps its base and rejects deltas. The encoder answers with a delta to the
decoder's last frame, if it still has that content, or with a key frame. Not thread-safe.
"""

import hashlib
import os
import time
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Any

import xxhash

from rlrun.codec import frame, zstd
from rlrun.codec.coders import CODES, CoderChoice, check_coder, decode_field, encode_field
from rlrun.codec.frame import (
    CHUNK,
    KEY,
    MAX_RATIO,
    NO_LIMIT,
    SECOND,
    TREE,
    Content,
    Header,
    check_expansion,
    content_hash,
    content_of,
    field_spec,
    group_leaves,
    leaf_table,
    leaves_of,
    max_expansion,
    tree_of,
)
from rlrun.codec.words import (
    KIND_BY_CODE,
    Array,
    Cursor,
    ForeignFrame,
    NeedKeyFrame,
    StaleFrame,
    damaged_frame,
    encode_varint,
)
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
    fields = [
        encode_field(coder, spec, content.words[i], words_of(bases, i))
        for i, spec in enumerate(content.specs)
    ]
    choices, coded = [choice for *_, choice in fields], [field[:2] for field in fields]
    if bases is None and content.nbytes > max_expansion(sum(len(data) for _, data in coded)):
        coded = [_bounded(words, *field) for words, field in zip(content.words, coded, strict=True)]
    flags = KEY if bases is None else SECOND if bases.second else 0
    flags |= CHUNK if content.chunk else 0
    base_fields = (0, 0) if bases is None else (base_seq, bases.hash)
    if content.table[0] == 0:  # one array
        (leaf,) = leaves_of(content.table, NO_LIMIT)
        code, kind, shape, parts = coded[0][0], leaf.kind.code, leaf.shape, [coded[0][1]]
    else:
        code, kind, shape = TREE, 0, ()
        parts = [encode_varint(0)] if bases else [encode_varint(len(content.table)), content.table]
        for field_code, data in coded:
            parts += [bytes((field_code,)) + encode_varint(len(data)), data]
    header = Header(code, flags, kind, shape, stream, seq, *base_fields, content.hash)
    return frame.pack(header, parts), choices


def words_of(bases: Bases | None, field: int) -> tuple[Array | None, Array | None]:
    """Return the words of a field in both bases."""
    if bases is None:
        return None, None
    return bases.first.words[field], bases.second.words[field] if bases.second else None


def _bounded(words: Array, code: int, payload: bytes) -> tuple[int, bytes]:
    """Return (coder, payload) of a field, at most ``MAX_RATIO`` smaller than its words."""
    if words.nbytes <= MAX_RATIO * len(payload):
        return code, payload
    return CODES["zstd"], zstd.compress_blocks(words.data.cast("B"))


def decode_content(header: Header, payload: memoryview, bases: Bases | None, limit: int) -> Content:
    """Return the content of a frame; the caller has checked the payload hash and the bases.

    Raises: DamagedFrame, LimitExceeded.
    """
    cursor, is_tree = Cursor(payload), header.codec == TREE
    if not is_tree:
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
    leaves = leaves_of(table, limit)
    if bases is None:
        check_expansion(sum(leaf.size * leaf.kind.width for leaf in leaves), len(payload))
    groups = group_leaves(leaves, header.chunk)
    specs, words = [field_spec([leaves[i] for i in g], header.chunk) for g in groups], []
    for i, spec in enumerate(specs):
        code = cursor.read_byte() if is_tree else header.codec
        size = cursor.read_varint() if is_tree else len(payload)
        words.append(decode_field(code, spec, cursor.read_bytes(size), words_of(bases, i)))
    cursor.require_end()
    decoded_hash = content_hash(table, words)
    if decoded_hash != header.content_hash:
        raise damaged_frame("its decoded content differs from the encoded one")
    return Content(table, header.chunk, specs, words, decoded_hash)


MAX_BYTES = 1 << 32  # of the arrays of one frame; a decoder allocates a small multiple of it
RETIRED = 64  # earlier stream ids of a restarted encoder, whose late frames are rejected


def name_hash(name: str) -> int:
    """Return 32 bits of the name of worker and set of tensors."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "little")


class Encoder:
    """Encoder of one stream. Frames are numbered from 0."""

    def __init__(self, name: str, *, keep: int, key_seconds: float, coder: str = "auto") -> None:
        """``keep`` >= 2: past contents in memory. ``key_seconds``: between requested key frames.

        Raises: CodecError for another ``keep`` or an unknown coder.
        """
        check_coder(coder)
        if keep < 2:
            raise CodecError(f"codec.keep = {keep}: is less than 2; 2 or more; raise it")
        self.coder, self.keep = coder, keep
        # The name, and 32 random bits: new in a restarted encoder.
        self.id = name_hash(name) << 32 | int.from_bytes(os.urandom(4), "little")
        self.key_seconds, self.clock = key_seconds, time.monotonic
        self.seq = -1  # of the last frame
        self.choices: list[CoderChoice] = []  # of the fields of the last frame
        self._contents: OrderedDict[int, Content] = OrderedDict()
        self._one_base = False  # the next delta has one base: a recovered decoder has no second
        self._key_time = -float("inf")
        self._answers: dict[int, bytes] = {}  # to the last content, by base seq; −1: key frame

    def encode(self, tree: Any) -> bytes:
        """Encode a snapshot as a delta to the previous one, or as a key frame if that has other
        shapes.

        The arrays are copied. A CodecError leaves the encoder unchanged.
        """
        content = content_of(tree, chunk=False)
        last = self._contents.get(self.seq)
        second = None if self._one_base else self._contents.get(self.seq - 1)
        frame_ = self._next_frame(content, None if last is None else Bases(last, second))
        if last is None or last.table != content.table:
            self._answers[-1], self._key_time = frame_, self.clock()
        self._contents[self.seq] = content
        while len(self._contents) > self.keep:
            self._contents.popitem(last=False)
        self._one_base = False
        return frame_

    def encode_chunk(self, tree: Any) -> bytes:
        """Encode time-major rows [T, …], without a base.

        A stream contains either chunks or snapshots.
        """
        assert not self._contents, "a stream of snapshots"
        return self._next_frame(content_of(tree, chunk=True), None)

    def answer(self, request: NeedKeyFrame) -> bytes | None:
        """Return the last content as a delta to the decoder's last frame, else as a key frame.

        None: the decoder has the last content, nothing was encoded yet, or a key frame was made
        less than ``key_seconds`` ago (repeat the request later). Answers are cached per content.
        """
        if not self._contents:
            return None
        last = self._contents[self.seq]
        base = self._contents.get(request.have_seq) if request.stream == self.id else None
        if base is not None and base.hash != request.have_hash:
            base = None
        if base is last:
            self._one_base = True
            return None
        if base is not None and base.table != last.table:
            base = None
        base_seq = -1 if base is None else request.have_seq
        if base_seq not in self._answers:
            if base is None:
                if self.clock() - self._key_time < self.key_seconds:
                    return None
                self._key_time = self.clock()
            bases = None if base is None else Bases(base)
            self._answers[base_seq] = self._encode(last, bases, self.seq, base_seq)[0]
        self._one_base = True
        return self._answers[base_seq]

    def _next_frame(self, content: Content, bases: Bases | None) -> bytes:
        """Encode the next frame and count it."""
        frame_, choices = self._encode(content, bases, self.seq + 1, self.seq)
        self.seq, self.choices = self.seq + 1, choices
        self._answers.clear()
        return frame_

    def _encode(
        self, content: Content, bases: Bases | None, seq: int, base_seq: int
    ) -> tuple[bytes, list[CoderChoice]]:
        return encode_content(
            content, bases, coder=self.coder, stream=self.id, seq=seq, base_seq=base_seq
        )


class Decoder:
    """Decoder of one stream. Decodes every tree once, in order.

    An error leaves the decoder unchanged.
    """

    def __init__(self, name: str, *, max_bytes: int = MAX_BYTES) -> None:
        """Accept streams of that name, with arrays of at most ``max_bytes`` per frame."""
        self.name_hash, self.max_bytes = name_hash(name), max_bytes
        self.id: int | None = None  # the stream of the last frame
        self.seq = -1  # of the last frame
        self.lost = 0  # missing sequence numbers
        self._first: Content | None = None
        self._second: Content | None = None  # before it
        self._retired: deque[int] = deque(maxlen=RETIRED)

    def decode(self, data: bytes | bytearray | memoryview) -> Any:
        """Return the tree of a frame as read-only numpy arrays.

        Raises: DamagedFrame, LimitExceeded, ForeignFrame, StaleFrame, NeedKeyFrame.
        """
        header, payload, payload_hash = frame.unpack(data, self.max_bytes)
        self._check_order(header)
        bases = self._bases(header)
        frame.check_payload(payload, payload_hash)
        content = decode_content(header, payload, bases, self.max_bytes)
        tree = tree_of(content)
        self._commit(header, content)
        return tree

    def key_frame_request(self, stream: int | None = None) -> NeedKeyFrame:
        """Return the message for the encoder's ``answer``, for a late joiner or after an error."""
        if stream is not None and stream != self.id:
            return NeedKeyFrame(stream, -1, 0)
        if self._first is None or self.id is None:
            return NeedKeyFrame(stream or 0, -1, 0)
        return NeedKeyFrame(self.id, self.seq, self._first.hash)

    def _check_order(self, header: Header) -> None:
        """Raise ForeignFrame or StaleFrame."""
        if header.stream >> 32 != self.name_hash or header.stream in self._retired:
            raise ForeignFrame(
                f"codec.stream = {header.stream:016x}: another stream, or an encoder that was "
                "restarted; frames of this decoder's stream are allowed; drop the frame"
            )
        if header.stream == self.id and header.seq <= self.seq:
            raise StaleFrame(
                f"codec.seq = {header.seq}: not newer than {self.seq}, the last decoded frame; "
                "newer frames are allowed; drop the frame"
            )

    def _bases(self, header: Header) -> Bases | None:
        """Return the bases of a delta frame. Raises: NeedKeyFrame."""
        if header.key:
            return None
        bases = None
        if self._first is not None and (self._second is not None or not header.flags & SECOND):
            bases = Bases(self._first, self._second if header.flags & SECOND else None)
        if bases is None or header.stream != self.id or bases.hash != header.base_hash:
            raise self.key_frame_request(header.stream)
        return bases

    def _commit(self, header: Header, content: Content) -> None:
        """Make a decoded frame the base of the next."""
        if header.stream != self.id:
            if self.id is not None:
                self._retired.append(self.id)
            self.id, self._first, self._second = header.stream, None, None
        else:
            self.lost += header.seq - self.seq - 1
        self.seq = header.seq
        if header.chunk:
            self._first = self._second = None
        else:
            self._first, self._second = content, self._first
