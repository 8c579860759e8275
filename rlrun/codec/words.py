"""Arrays as flat little-endian unsigned words, and back: bits are moved, numbers never read."""

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlrun.errors import CodecError

BFLOAT16 = np.dtype("V2")  # numpy has no bfloat16: two-byte voids; ``a.view(np.uint16)`` = the bits

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Kind:
    """One dtype of the wire: its code, its numpy dtype and the unsigned words that carry it."""

    code: int
    name: str
    dtype: np.dtype[Any]
    word: np.dtype[Any]
    floating: bool

    @property
    def width(self) -> int:
        """Bytes of an element."""
        return self.word.itemsize

    @property
    def bits(self) -> int:
        """Bits of an element."""
        return 8 * self.word.itemsize


def _kinds() -> tuple[Kind, ...]:
    names = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64"
    kinds = []
    for code, name in enumerate([*names.split(), "bfloat16"], start=1):
        dtype = BFLOAT16 if name == "bfloat16" else np.dtype(name).newbyteorder("<")
        word = np.dtype(f"<u{dtype.itemsize}")
        kinds.append(Kind(code, name, dtype, word, "float" in name))
    return tuple(kinds)


KINDS = _kinds()  # code = position + 1: part of the format, only ever appended to
NAMED = {kind.name: kind for kind in KINDS}
CODED = {kind.code: kind for kind in KINDS}
_BY_DTYPE = {kind.dtype: kind for kind in KINDS}


def as_array(value: Any, path: str) -> Array:
    """The numpy array of an array, numpy scalar or torch tensor (bfloat16: two-byte voids).

    Raises: CodecError, naming ``path``, for anything else.
    """
    if isinstance(value, np.ndarray | np.generic):
        return np.asarray(value)
    torch = sys.modules.get("torch")  # a tensor can only be here if somebody imported torch
    if torch is not None and isinstance(value, torch.Tensor):
        tensor = value.detach().cpu()
        try:
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
    """The wire kind of the array's dtype in any byte order.

    Raises: CodecError for dtypes that have none.
    """
    dtype = array.dtype
    if dtype.kind == "V" and dtype.itemsize == 2 and dtype.names is None and dtype.shape == ():
        return NAMED["bfloat16"]  # also the bfloat16 of other packages
    kind = _BY_DTYPE.get(dtype.newbyteorder("<"))
    if kind is None:
        raise CodecError(
            f"codec.{path} = {dtype}: this dtype has no code; {', '.join(NAMED)}; convert the array"
        )
    return kind


def to_words(array: Array, kind: Kind) -> Array:
    """The elements in C order as unsigned words [n]; a view where the array allows it."""
    if array.dtype.byteorder == ">" or (array.dtype.byteorder == "=" and sys.byteorder == "big"):
        array = array.byteswap()
    return np.ascontiguousarray(array).reshape(-1).view(kind.word)


def from_words(words: Array, kind: Kind, shape: tuple[int, ...]) -> Array:
    """The read-only array of those words."""
    array: Array = words.view(kind.dtype).reshape(shape)
    array.flags.writeable = False
    return array


def as_tensors(tree: Any) -> Any:
    """The tree with a torch tensor, with memory of its own, for every array."""
    import torch

    if isinstance(tree, dict):
        return {key: as_tensors(value) for key, value in tree.items()}
    if isinstance(tree, tuple | list):
        return type(tree)(as_tensors(value) for value in tree)
    array = np.array(tree, copy=True)
    if array.dtype == BFLOAT16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
