"""Errors, reads of untrusted bytes, and arrays as flat little-endian unsigned words.

Bits are never interpreted.
"""

import struct
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

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
    """A delta whose base the decoder does not have. Pass it to the encoder's ``answer``.

    ``stream`` is the stream id of the rejected frame. ``have_seq`` and ``have_hash`` are sequence
    number and content hash of the decoder's last frame of it (−1 and 0: none).
    """

    def __init__(self, stream: int, have_seq: int, have_hash: int) -> None:
        last = f"its last is frame {have_seq}" if have_seq >= 0 else "it has none"
        super().__init__(
            f"codec.base: the decoder does not have the base of this delta ({last}); a key frame "
            "or a delta to its last frame is needed; pass this error to the encoder's answer(), or "
            "give decode() the base and second of encode()"
        )
        self.stream, self.have_seq, self.have_hash = stream, have_seq, have_hash

    def __reduce__(self) -> tuple[type["NeedKeyFrame"], tuple[int, int, int]]:
        return NeedKeyFrame, (self.stream, self.have_seq, self.have_hash)


MAX_VARINT = 9  # bytes; values are below 2**63


def damaged_frame(fault: str) -> DamagedFrame:
    """Return the error for bytes that no encoder writes."""
    return DamagedFrame(
        f"codec.frame: {fault}; bytes as an encoder writes them are needed; request the frame again"
    )


def encode_varint(value: int) -> bytes:
    """Encode with 7 bits per byte, low bits first; the top bit is set in all bytes but the last."""
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


class Cursor:
    """A read position in bytes; reading beyond the end is an error."""

    def __init__(self, data: memoryview) -> None:
        self.data, self.position = data, 0

    def read_bytes(self, count: int) -> memoryview:
        """Return the next ``count`` bytes. Raises: DamagedFrame if there are fewer."""
        end = self.position + count
        if end > len(self.data):
            raise damaged_frame(f"is {end - len(self.data)} bytes too short")
        part = self.data[self.position : end]
        self.position = end
        return part

    def read_byte(self) -> int:
        return self.read_bytes(1)[0]

    def read_varint(self) -> int:
        """Return the next variable-length integer; only its shortest form is valid."""
        value = 0
        for k in range(MAX_VARINT):
            byte = self.read_byte()
            value |= (byte & 127) << 7 * k
            if byte < 128:
                if byte == 0 and k > 0:
                    break
                return value
        raise damaged_frame("an integer is not in its shortest form")

    def read_struct(self, layout: struct.Struct) -> tuple[int, ...]:
        """Return the next values of that format."""
        return layout.unpack(self.read_bytes(layout.size))

    def require_end(self) -> None:
        """Raise DamagedFrame if bytes are left."""
        if self.position != len(self.data):
            raise damaged_frame(f"{len(self.data) - self.position} bytes too many")


BFLOAT16 = np.dtype("V2")  # numpy has no bfloat16; ``a.view(np.uint16)`` are its bits

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Kind:
    """A dtype of the format: its code, numpy dtype and unsigned word type."""

    code: int
    name: str
    dtype: np.dtype[Any]
    word: np.dtype[Any]
    floating: bool

    @property
    def width(self) -> int:
        """Bytes per element."""
        return self.word.itemsize

    @property
    def bits(self) -> int:
        """Bits per element."""
        return 8 * self.word.itemsize


def _kinds() -> tuple[Kind, ...]:
    names = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64"
    kinds = []
    for code, name in enumerate([*names.split(), "bfloat16"], start=1):
        dtype = BFLOAT16 if name == "bfloat16" else np.dtype(name).newbyteorder("<")
        word = np.dtype(f"<u{dtype.itemsize}")
        kinds.append(Kind(code, name, dtype, word, "float" in name))
    return tuple(kinds)


KINDS = _kinds()  # code = position + 1: part of the format, append only
KIND_BY_NAME = {kind.name: kind for kind in KINDS}
KIND_BY_CODE = {kind.code: kind for kind in KINDS}
_KIND_BY_DTYPE = {kind.dtype: kind for kind in KINDS}


def as_array(value: Any, path: str) -> Array:
    """Return the numpy array of an array, numpy scalar or torch tensor (bfloat16: two-byte voids).

    Raises: CodecError, naming ``path``, for anything else.
    """
    if isinstance(value, np.ndarray | np.generic) and not isinstance(value, np.ma.MaskedArray):
        return np.asarray(value)
    torch = sys.modules.get("torch")  # without torch imported there are no tensors
    if torch is not None and isinstance(value, torch.Tensor):
        tensor = value.detach()
        try:
            tensor = tensor.cpu()
            if tensor.dtype == torch.bfloat16:
                bits: Array = tensor.view(torch.int16).numpy()
                return bits.view(BFLOAT16)
            array: Array = tensor.numpy()
        except (TypeError, RuntimeError) as e:
            raise CodecError(f"codec.{path} = {tensor.dtype} tensor: cannot be coded: {e}") from e
        return array
    raise CodecError(
        f"codec.{path} = {type(value).__name__}: not an array; numpy arrays and torch tensors in "
        "dicts, tuples and lists; wrap a number in numpy.asarray"
    )


def kind_of(array: Array, path: str) -> Kind:
    """Return the kind of the array's dtype, in any byte order.

    Raises: CodecError for a dtype without a kind.
    """
    dtype = array.dtype
    if dtype.kind == "V" and dtype.itemsize == 2 and dtype.names is None and dtype.shape == ():
        return KIND_BY_NAME["bfloat16"]  # other packages' bfloat16 included
    kind = _KIND_BY_DTYPE.get(dtype.newbyteorder("<"))
    if kind is None:
        raise CodecError(
            f"codec.{path} = {dtype}: this dtype cannot be coded; allowed are "
            f"{', '.join(KIND_BY_NAME)}; convert the array"
        )
    return kind


def to_words(array: Array, kind: Kind) -> Array:
    """Return the elements in C order as unsigned words [n]: a view where possible."""
    if array.dtype.byteorder == ">" or (array.dtype.byteorder == "=" and sys.byteorder == "big"):
        array = array.byteswap()
    return np.ascontiguousarray(array).reshape(-1).view(kind.word)


def from_words(words: Array, kind: Kind, shape: tuple[int, ...]) -> Array:
    """Return the read-only array of the words."""
    array: Array = words.view(kind.dtype).reshape(shape)
    array.flags.writeable = False
    return array


def as_tensors(tree: Any) -> Any:
    """Convert every array of the tree to a torch tensor with its own memory."""
    import torch

    if isinstance(tree, dict):
        return {key: as_tensors(value) for key, value in tree.items()}
    if isinstance(tree, tuple | list):
        return type(tree)(as_tensors(value) for value in tree)
    array = np.array(tree, copy=True)
    if array.dtype == BFLOAT16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


SAMPLE = 64  # words tested before the whole array

NARROWER_KINDS = {  # narrowest first
    "float64": ("float32",),
    "int64": ("int8", "int16", "int32"),
    "int32": ("int8", "int16"),
    "uint64": ("uint8", "uint16", "uint32"),
    "uint32": ("uint8", "uint16"),
}


def narrower_kinds(kind: Kind) -> list[Kind]:
    """Return the kinds that ``kind`` may be narrowed to, narrowest first."""
    return [KIND_BY_NAME[name] for name in NARROWER_KINDS.get(kind.name, ())]


def narrow(words: Array, kind: Kind, targets: list[Kind]) -> tuple[Kind, Array] | None:
    """Return (first of ``targets`` that represents n > 0 words exactly, the words in that kind).

    NaN payloads and −0.0 count.
    """
    if not targets:
        return None
    if kind.floating:
        for part in (words[:SAMPLE], words):
            with np.errstate(all="ignore"):
                narrow_words = part.view(kind.dtype).astype(targets[0].dtype).view(targets[0].word)
            if (widen(narrow_words, targets[0], kind) != part).any():
                return None
        return targets[0], narrow_words
    values = words.view(kind.dtype)
    lowest, highest = int(values.min()), int(values.max())
    for target in targets:
        limits = np.iinfo(target.dtype)
        if limits.min <= lowest and highest <= limits.max:
            return target, words.astype(target.word)  # low bytes: two's complement
    return None


def widen(words: Array, narrow_kind: Kind, kind: Kind) -> Array:
    """Convert narrowed words back to ``kind``; words of that kind are returned as they are."""
    if narrow_kind is kind:
        return words
    with np.errstate(all="ignore"):
        wide: Array = words.view(narrow_kind.dtype).astype(kind.dtype)
    return wide.view(kind.word)
