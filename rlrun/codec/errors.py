"""Errors of coded bytes: every class is a ``CodecError``, and decoding raises nothing else.

CodecError
├── DamagedFrame    the bytes are not what an encoder wrote (truncated, flipped, foreign format)
├── LimitExceeded   the header asks for more memory than this decoder may use
├── ForeignFrame    a whole frame, but of another stream (another worker or tensor set)
├── StaleFrame      a whole frame of this stream that was already passed (duplicate, reordered)
├── MissingCoder    the coder's package is not installed here
└── NeedKeyFrame    a whole delta whose base is not held here; what the sender must be told
"""

from rlrun.errors import CodecError


class DamagedFrame(CodecError):
    """The bytes are not what an encoder wrote."""


class LimitExceeded(CodecError):
    """The frame asks for more memory than the decoder may use; nothing was allocated."""


class ForeignFrame(CodecError):
    """The frame belongs to another stream."""


class StaleFrame(CodecError):
    """The frame is not newer than what was decoded: a duplicate, or out of order."""


class MissingCoder(CodecError):
    """The package of an optional coder is not installed."""


class NeedKeyFrame(CodecError):
    """A delta whose base is not held: send this to the encoder's ``answer``.

    ``stream`` is the stream id of the refused frame, ``have_seq`` and ``have_hash`` the sequence
    number and content hash of what the decoder holds of it (−1 and 0: nothing).
    """

    def __init__(self, stream: int, have_seq: int, have_hash: int) -> None:
        held = f"frame {have_seq}" if have_seq >= 0 else "nothing"
        super().__init__(
            f"codec.base: the delta's base is not held ({held} is); a key frame or a delta to "
            "what is held; pass this error to the encoder's answer()"
        )
        self.stream, self.have_seq, self.have_hash = stream, have_seq, have_hash
