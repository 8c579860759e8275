"""Streams of frames: each is a delta to the previous one; lost frames are recovered on request.

The encoder assumes that every frame arrives. A decoder that misses the base of a delta raises
``NeedKeyFrame``, keeps its base and refuses deltas; the encoder answers with a delta to the
decoder's last frame, if it still has that content, or with a key frame. Not thread-safe.
"""

import hashlib
import os
import time
from collections import OrderedDict, deque
from typing import Any

from rlrun.codec import frame
from rlrun.codec.coders import CoderChoice, check_coder
from rlrun.codec.content import Content, content_of, tree_of
from rlrun.codec.errors import ForeignFrame, NeedKeyFrame, StaleFrame
from rlrun.codec.frame import SECOND, Header
from rlrun.codec.frame_coding import Bases, decode_content, encode_content

MAX_BYTES = 1 << 32  # of the arrays of one frame; a decoder allocates a small multiple of it
RETIRED = 64  # earlier stream ids of a restarted encoder, whose late frames are refused


def stream_id(name: str) -> int:
    """Return 64 bits: a hash of the name and 32 random bits, new in a restarted encoder."""
    return name_hash(name) << 32 | int.from_bytes(os.urandom(4), "little")


def name_hash(name: str) -> int:
    """Return 32 bits of the name of worker and set of tensors."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "little")


class Encoder:
    """Encoder of one stream; frames are numbered from 0."""

    def __init__(
        self,
        name: str,
        *,
        keep: int,
        key_seconds: float,
        coder: str = "auto",
    ) -> None:
        """``keep`` >= 2: number of past contents in memory. Requested key frames are at least
        ``key_seconds`` apart.
        """
        check_coder(coder)
        assert keep >= 2
        self.id, self.coder, self.keep = stream_id(name), coder, keep
        self.key_seconds, self.clock = key_seconds, time.monotonic
        self.seq = -1  # of the last frame
        self.choices: list[CoderChoice] = []  # of the fields of the last frame
        self._contents: OrderedDict[int, Content] = OrderedDict()
        self._one_base = False  # the next delta has one base: a recovered decoder has no second
        self._key_time = -float("inf")
        self._answer_frames: dict[
            int, bytes
        ] = {}  # to the last content, by base seq; −1: key frame

    def encode(self, tree: Any) -> bytes:
        """Encode a snapshot: a delta to the previous one, a key frame if that has other shapes.

        The arrays are copied. A CodecError leaves the encoder unchanged.
        """
        content = content_of(tree, chunk=False)
        frame_, choices = self._encode(content, self._bases(), self.seq + 1)
        is_key = self._needs_key_frame(content)
        self._advance(choices)
        if is_key:
            self._answer_frames[-1], self._key_time = frame_, self.clock()
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
        content = content_of(tree, chunk=True)
        frame_, choices = self._encode(content, None, self.seq + 1)
        self._advance(choices)
        return frame_

    def answer(self, request: NeedKeyFrame) -> bytes | None:
        """Return the last content as a delta to the decoder's last frame, else as a key frame.

        None: the decoder has the last content, nothing was encoded yet, or a key frame was made
        less than ``key_seconds`` ago (repeat the request later). Answers are cached per content.
        """
        if not self._contents:
            return None
        base = self._contents.get(request.have_seq) if request.stream == self.id else None
        if base is not None and base.hash != request.have_hash:
            base = None
        if base is not None and request.have_seq == self.seq:
            self._one_base = True
            return None
        last = self._contents[self.seq]
        base_seq = request.have_seq if base is not None and base.table == last.table else -1
        if base_seq not in self._answer_frames:
            if base_seq < 0 and self.clock() - self._key_time < self.key_seconds:
                return None
            bases = None if base_seq < 0 or base is None else Bases(base)
            self._answer_frames[base_seq], _ = self._encode(last, bases, self.seq, base_seq)
            if base_seq < 0:
                self._key_time = self.clock()
        self._one_base = True
        return self._answer_frames[base_seq]

    def _bases(self) -> Bases | None:
        """Return the last content and, unless a decoder may lack it, the one before."""
        if self.seq not in self._contents:
            return None
        second = None if self._one_base else self._contents.get(self.seq - 1)
        return Bases(self._contents[self.seq], second)

    def _needs_key_frame(self, content: Content) -> bool:
        """Return whether the next frame of that content is a key frame."""
        last = self._contents.get(self.seq)
        return last is None or last.table != content.table

    def _encode(
        self, content: Content, bases: Bases | None, seq: int, base_seq: int | None = None
    ) -> tuple[bytes, list[CoderChoice]]:
        base_seq = self.seq if base_seq is None else base_seq
        return encode_content(
            content, bases, coder=self.coder, stream=self.id, seq=seq, base_seq=base_seq
        )

    def _advance(self, choices: list[CoderChoice]) -> None:
        """Count a frame."""
        self.seq += 1
        self.choices = choices
        self._answer_frames.clear()


class Decoder:
    """Decoder of one stream: every tree once, in order.

    An error leaves the decoder unchanged.
    """

    def __init__(self, name: str, *, max_bytes: int = MAX_BYTES) -> None:
        """Accept streams of that name, with arrays of at most ``max_bytes`` per frame."""
        self.name_hash, self.max_bytes = name_hash(name), max_bytes
        self.id: int | None = None  # the stream of the last frame
        self.seq = -1  # of the last frame
        self.lost = 0  # missing sequence numbers
        self._first: Content | None = None
        self._second: tuple[int, Content] | None = None  # with its seq
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
        """Return the message for the encoder's ``answer``, of a late joiner or after an error."""
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
        base = self._first
        if base is None or header.stream != self.id or header.base_seq != self.seq:
            raise self.key_frame_request(header.stream)
        bases = Bases(base)
        if header.flags & SECOND:
            if self._second is None or self._second[0] != self.seq - 1:
                raise self.key_frame_request(header.stream)
            bases = Bases(base, self._second[1])
        if bases.hash != header.base_hash:
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
        previous = None if self._first is None else (self.seq, self._first)
        self.seq = header.seq
        if header.chunk:
            self._first = self._second = None
        else:
            self._first, self._second = content, previous
