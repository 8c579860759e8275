"""A sequence of frames: each a delta to the one before, and a way back when one is missing.

The encoder takes for granted that what it sent arrived. A decoder that finds otherwise raises
``NeedKeyFrame``, keeps its base and refuses deltas; the encoder answers with a delta to what the
decoder holds, if it still keeps that, or with a key frame. Not safe to share between threads.
"""

import hashlib
import os
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

from rlrun.codec import frame
from rlrun.codec.code import Bases, decode_content, encode_content
from rlrun.codec.coders import Choice, check_coder
from rlrun.codec.content import Content, content_of, tree_of
from rlrun.codec.errors import ForeignFrame, NeedKeyFrame, StaleFrame
from rlrun.codec.frame import SECOND, Header

MAX_BYTES = 1 << 32  # of the arrays in one frame; a decoder allocates no more than a few times it
RETIRED = 64  # earlier lives of a sender whose late frames are still known


def stream_id(name: str) -> int:
    """64 bits: a hash of the name above 32 random bits that tell a restarted sender."""
    return name_hash(name) << 32 | int.from_bytes(os.urandom(4), "little")


def name_hash(name: str) -> int:
    """32 bits of the name of worker and tensor set."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "little")


class Encoder:
    """Frames of one stream, numbered from 0."""

    def __init__(
        self,
        name: str,
        *,
        keep: int,
        key_seconds: float,
        coder: str = "auto",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``keep`` >= 2 past contents in memory; key frames on request ``key_seconds`` apart."""
        check_coder(coder)
        assert keep >= 2
        self.id, self.coder, self.keep = stream_id(name), coder, keep
        self.key_seconds, self.clock = key_seconds, clock
        self.seq = -1  # of the last frame
        self.choices: list[Choice] = []  # what the fields of the last frame got, and why
        self._kept: OrderedDict[int, Content] = OrderedDict()
        self._single = False  # the next delta has one base: a decoder came back with only that
        self._key_time = -float("inf")
        self._answers: dict[int, bytes] = {}  # to the last content, by base seq; −1: key frame

    def encode(self, tree: Any) -> bytes:
        """The frame of a snapshot: a delta to the last, or a key frame without one of its shape.

        The arrays are copied; nothing changes here if it raises CodecError.
        """
        content = content_of(tree, chunk=False)
        frame_, choices = self._encode(content, self._bases(), self.seq + 1)
        keyed = self._keyed(content)
        self._advance(choices)
        if keyed:
            self._answers[-1], self._key_time = frame_, self.clock()
        self._kept[self.seq] = content
        while len(self._kept) > self.keep:
            self._kept.popitem(last=False)
        self._single = False
        return frame_

    def encode_chunk(self, tree: Any) -> bytes:
        """The frame of time-major rows [T, …]: needs no base and becomes none.

        A stream carries either chunks or snapshots.
        """
        assert not self._kept, "a stream of snapshots"
        content = content_of(tree, chunk=True)
        frame_, choices = self._encode(content, None, self.seq + 1)
        self._advance(choices)
        return frame_

    def answer(self, need: NeedKeyFrame) -> bytes | None:
        """The last content as a delta to what that decoder holds, else as a key frame.

        None: the decoder holds the last content, nothing was encoded, or a key frame was made
        less than ``key_seconds`` ago (ask again later). Answers are made once a content.
        """
        if not self._kept:
            return None
        held = self._kept.get(need.have_seq) if need.stream == self.id else None
        if held is not None and held.hash != need.have_hash:
            held = None
        if held is not None and need.have_seq == self.seq:
            self._single = True
            return None
        last = self._kept[self.seq]
        base_seq = need.have_seq if held is not None and held.table == last.table else -1
        if base_seq not in self._answers:
            if base_seq < 0 and self.clock() - self._key_time < self.key_seconds:
                return None
            bases = None if base_seq < 0 or held is None else Bases(held)
            self._answers[base_seq], _ = self._encode(last, bases, self.seq, base_seq)
            if base_seq < 0:
                self._key_time = self.clock()
        self._single = True
        return self._answers[base_seq]

    def _bases(self) -> Bases | None:
        """The last content and, unless a decoder may lack it, the one before."""
        if self.seq not in self._kept:
            return None
        second = None if self._single else self._kept.get(self.seq - 1)
        return Bases(self._kept[self.seq], second)

    def _keyed(self, content: Content) -> bool:
        """Return whether the next frame of that content is a key frame."""
        last = self._kept.get(self.seq)
        return last is None or last.table != content.table

    def _encode(
        self, content: Content, bases: Bases | None, seq: int, base_seq: int | None = None
    ) -> tuple[bytes, list[Choice]]:
        base_seq = self.seq if base_seq is None else base_seq
        return encode_content(
            content, bases, coder=self.coder, stream=self.id, seq=seq, base_seq=base_seq
        )

    def _advance(self, choices: list[Choice]) -> None:
        """A frame is out."""
        self.seq += 1
        self.choices = choices
        self._answers.clear()


class Decoder:
    """The trees of one stream, in order, each once; whatever is wrong with a frame is an error.

    After any error but a returned tree everything is as before the frame.
    """

    def __init__(self, name: str, *, max_bytes: int = MAX_BYTES) -> None:
        """Frames of streams with that name, of arrays up to ``max_bytes`` together."""
        self.name_hash, self.max_bytes = name_hash(name), max_bytes
        self.id: int | None = None  # the stream of the last frame
        self.seq = -1  # of the last frame
        self.lost = 0  # frames that were numbered and never came
        self._first: Content | None = None
        self._second: tuple[int, Content] | None = None  # with its seq
        self._retired: deque[int] = deque(maxlen=RETIRED)

    def decode(self, data: bytes | bytearray | memoryview) -> Any:
        """The tree of a frame: read-only numpy arrays.

        Raises: DamagedFrame, LimitExceeded, ForeignFrame, StaleFrame, NeedKeyFrame.
        """
        header, payload, stated = frame.unpack(data, self.max_bytes)
        self._check_order(header)
        bases = self._bases(header)
        frame.check_payload(payload, stated)
        content = decode_content(header, payload, bases, self.max_bytes)
        tree = tree_of(content)
        self._accept(header, content)
        return tree

    def need(self, stream: int | None = None) -> NeedKeyFrame:
        """Message for the encoder's ``answer``: of a late joiner, or after an error."""
        if stream is not None and stream != self.id:
            return NeedKeyFrame(stream, -1, 0)
        if self._first is None or self.id is None:
            return NeedKeyFrame(stream or 0, -1, 0)
        return NeedKeyFrame(self.id, self.seq, self._first.hash)

    def _check_order(self, header: Header) -> None:
        """Raises: ForeignFrame, StaleFrame."""
        if header.stream >> 32 != self.name_hash or header.stream in self._retired:
            raise ForeignFrame(
                f"codec.stream = {header.stream:016x}: another stream, or a sender that was "
                "replaced; frames of the stream this decoder was made for; drop the frame"
            )
        if header.stream == self.id and header.seq <= self.seq:
            raise StaleFrame(
                f"codec.seq = {header.seq}: passed already, {self.seq} was decoded; newer frames; "
                "drop the frame"
            )

    def _bases(self, header: Header) -> Bases | None:
        """Return the base of a delta frame. Raises: NeedKeyFrame."""
        if header.key:
            return None
        held = self._first
        if held is None or header.stream != self.id or header.base_seq != self.seq:
            raise self.need(header.stream)
        bases = Bases(held)
        if header.flags & SECOND:
            if self._second is None or self._second[0] != self.seq - 1:
                raise self.need(header.stream)
            bases = Bases(held, self._second[1])
        if bases.hash != header.base_hash:
            raise self.need(header.stream)
        return bases

    def _accept(self, header: Header, content: Content) -> None:
        """The frame was right in every respect."""
        if header.stream != self.id:
            if self.id is not None:
                self._retired.append(self.id)
            self.id, self._first, self._second = header.stream, None, None
        else:
            self.lost += header.seq - self.seq - 1
        held = None if self._first is None else (self.seq, self._first)
        self.seq = header.seq
        if header.chunk:
            self._first = self._second = None
        else:
            self._first, self._second = content, held
