"""Conversion between arrays and flat little-endian unsigned words; bits are never interpreted."""

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlrun.errors import CodecError

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
    if isinstance(value, np.ndarray | np.generic):
        return np.asarray(value)
    torch = sys.modules.get("torch")  # without torch imported there are no tensors
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
