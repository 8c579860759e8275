"""Errors of encoding and decoding. Every class is a ``CodecError``; decoding raises no other.

CodecError
├── DamagedFrame    bytes that no encoder writes (truncated, corrupted, another format)
├── LimitExceeded   a frame whose arrays need more memory than the decoder may use
├── ForeignFrame    a valid frame of another stream (another worker or set of tensors)
├── StaleFrame      a valid frame of this stream that is not newer than the last decoded one
├── MissingCoder    a frame or setting whose coder needs a package that is not installed
└── NeedKeyFrame    a valid delta whose base the decoder does not have
"""

from rlrun.errors import CodecError


class DamagedFrame(CodecError):
    """Bytes that no encoder writes."""


class LimitExceeded(CodecError):
    """A frame that needs more memory than the decoder may use; nothing was allocated."""


class ForeignFrame(CodecError):
    """A frame of another stream."""


class StaleFrame(CodecError):
    """A frame that is not newer than the last decoded one: duplicate or out of order."""


class MissingCoder(CodecError):
    """A coder whose optional package is not installed."""


class NeedKeyFrame(CodecError):
    """A delta whose base the decoder does not have; to be passed to the encoder's ``answer``.

    ``stream`` is the stream id of the refused frame; ``have_seq`` and ``have_hash`` are sequence
    number and content hash of the decoder's last frame of it (−1 and 0: none).
    """

    def __init__(self, stream: int, have_seq: int, have_hash: int) -> None:
        last = f"its last is frame {have_seq}" if have_seq >= 0 else "it has none"
        super().__init__(
            f"codec.base: the decoder does not have the base of this delta ({last}); a key frame "
            "or a delta to its last frame is needed; pass this error to the encoder's answer()"
        )
        self.stream, self.have_seq, self.have_hash = stream, have_seq, have_hash

    def __reduce__(self) -> tuple[type["NeedKeyFrame"], tuple[int, int, int]]:
        return NeedKeyFrame, (self.stream, self.have_seq, self.have_hash)
