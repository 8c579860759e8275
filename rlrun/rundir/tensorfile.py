"""Tensors in safetensors files, with the sha256 of what was written."""

import hashlib
import json
import math
import os
import struct
from collections.abc import Container, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

Array: TypeAlias = Tensor | np.ndarray


def tensor(array: Array) -> Tensor:
    """The array as a contiguous tensor in host memory; no copy when it is one already.

    Raises: TypeError when torch has no such dtype.
    """
    if isinstance(array, np.ndarray):
        native = array.astype(array.dtype.newbyteorder("="), copy=False)
        if not native.flags.writeable or any(stride < 0 for stride in native.strides):
            native = native.copy()  # torch takes neither
        try:
            return torch.from_numpy(np.ascontiguousarray(native)).reshape(array.shape)
        except TypeError as e:
            raise TypeError(f"cannot store dtype {array.dtype}: {e}") from e
    return array.detach().cpu().contiguous()


def raw(array: Array) -> "memoryview[int]":
    """The elements' bytes, row-major."""
    flat = tensor(array).reshape(-1)
    if flat.numel() <= 1:  # counts as contiguous whatever its stride, but cannot be viewed then
        flat = flat.as_strided((flat.numel(),), (1,))
    elements: memoryview[int] = flat.view(torch.uint8).numpy().data
    return elements


def write(path: Path, tensors: Mapping[str, Array], metadata: Mapping[str, str]) -> tuple[str, int]:
    """The sha256 (hex) and size in bytes of the new file; it is on disk when this returns.

    Written here and not by the library, which holds all of it in memory once more: a replay may be
    larger than that. Format: 8 bytes length of the header, the header (JSON, padded to 8 bytes),
    the elements of all tensors one after the other.

    Raises: TypeError for a dtype the format lacks, OSError.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    # Wide dtypes first, so that all are aligned.
    names = sorted(tensors, key=lambda name: (-_dtype(tensors[name]).itemsize, name))
    for name in names:
        dtype, shape = _dtype(tensors[name]), list(tensors[name].shape)
        size = math.prod(shape) * dtype.itemsize
        span = [offset, offset + size]
        header[name] = {"dtype": _NAMES[dtype], "shape": shape, "data_offsets": span}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256()
    with path.open("xb") as file:
        head = struct.pack("<Q", len(text)) + text
        parts: Iterator[Any] = chain([head], _parts(tensors, names))
        for part in parts:
            file.write(part)
            digest.update(part)
        file.flush()
        os.fsync(file.fileno())
        return digest.hexdigest(), file.tell()


def _parts(tensors: Mapping[str, Array], names: list[str]) -> Iterator["bytes | memoryview[int]"]:
    """The elements' bytes, a tensor or (where it is not contiguous) an entry of it at a time."""
    for name in names:
        array = tensors[name]
        whole = array.flags.c_contiguous if isinstance(array, np.ndarray) else True
        if whole or array.ndim < 2:
            yield raw(array)
        else:
            yield from (raw(entry) for entry in array)


def _dtype(array: Array) -> torch.dtype:
    """Raises: TypeError when the format has no such dtype."""
    dtype = array.dtype if isinstance(array, Tensor) else tensor(np.empty(0, array.dtype)).dtype
    if dtype not in _NAMES:
        raise TypeError(f"cannot store dtype {array.dtype}")
    return dtype


_NAMES = {
    torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8",
    torch.int16: "I16", torch.uint16: "U16", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int32: "I32", torch.uint32: "U32", torch.float32: "F32",
    torch.int64: "I64", torch.uint64: "U64", torch.float64: "F64", torch.complex64: "C64",
}  # fmt: skip


def read(path: Path, numpy: Container[str] = ()) -> dict[str, Array]:
    """The tensors of a file (host memory); those named in ``numpy`` come as arrays.

    The file's hash must have been checked: a wrong header is found out, wrong data is not.

    Raises: ValueError when it is no such file, OSError.
    """
    try:
        tensors = load_file(path)
    except SafetensorError as e:
        raise ValueError(f"{path}: {e}") from e
    return {name: x.numpy() if name in numpy else x for name, x in sorted(tensors.items())}
