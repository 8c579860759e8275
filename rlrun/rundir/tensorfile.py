"""Reading and streaming writing of safetensors files."""

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


def as_tensor(array: Array) -> Tensor:
    """Return a contiguous tensor in host memory, without a copy where possible.

    Raises: TypeError when torch lacks the dtype.
    """
    if isinstance(array, np.ndarray):
        native = array.astype(array.dtype.newbyteorder("="), copy=False)
        if not native.flags.writeable or any(stride < 0 for stride in native.strides):
            native = native.copy()  # torch supports neither
        try:
            return torch.from_numpy(np.ascontiguousarray(native)).reshape(array.shape)
        except TypeError as e:
            raise TypeError(f"cannot store dtype {array.dtype}: {e}") from e
    return array.detach().cpu().contiguous()


def raw_bytes(array: Array) -> "memoryview[int]":
    """Return the bytes of the elements, row-major."""
    flat = as_tensor(array).reshape(-1)
    if flat.numel() <= 1:  # contiguous for any stride, but view() needs stride 1
        flat = flat.as_strided((flat.numel(),), (1,))
    elements: memoryview[int] = flat.view(torch.uint8).numpy().data
    return elements


def write(path: Path, tensors: Mapping[str, Array], metadata: Mapping[str, str]) -> tuple[str, int]:
    """Write and fsync a new file; return its SHA-256 (hex) and size in bytes.

    The safetensors library would copy all tensors in memory, which a replay may exceed. Format:
    8 bytes length of the header, the header (JSON, padded to 8 bytes), the elements of all tensors.

    Raises: TypeError for an unsupported dtype, OSError.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    # Wide dtypes first for alignment.
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
        parts: Iterator[Any] = chain([head], _byte_chunks(tensors, names))
        for part in parts:
            file.write(part)
            digest.update(part)
        file.flush()
        os.fsync(file.fileno())
        return digest.hexdigest(), file.tell()


def _byte_chunks(
    tensors: Mapping[str, Array], names: list[str]
) -> Iterator["bytes | memoryview[int]"]:
    """Yield the bytes of the elements per tensor, or per entry of non-contiguous arrays."""
    for name in names:
        array = tensors[name]
        contiguous = array.flags.c_contiguous if isinstance(array, np.ndarray) else True
        if contiguous or array.ndim < 2:
            yield raw_bytes(array)
        else:
            yield from (raw_bytes(entry) for entry in array)


def _dtype(array: Array) -> torch.dtype:
    """Return the torch dtype. Raises: TypeError when the format lacks it."""
    dtype = array.dtype if isinstance(array, Tensor) else as_tensor(np.empty(0, array.dtype)).dtype
    if dtype not in _NAMES:
        raise TypeError(f"cannot store dtype {array.dtype}")
    return dtype


_NAMES = {
    torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8",
    torch.int16: "I16", torch.uint16: "U16", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int32: "I32", torch.uint32: "U32", torch.float32: "F32",
    torch.int64: "I64", torch.uint64: "U64", torch.float64: "F64", torch.complex64: "C64",
}  # fmt: skip
_NUMPY = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "I16": "<i2", "U16": "<u2", "F16": "<f2", "I32": "<i4",
    "U32": "<u4", "F32": "<f4", "I64": "<i8", "U64": "<u8", "F64": "<f8", "C64": "<c8",
}  # fmt: skip
_HEADER_BYTES = 1 << 27  # at most


def read_arrays(path: Path, name: str) -> dict[str, np.ndarray]:
    """Return the arrays of a file whose names are ``name`` and a suffix, by suffix.

    Only their bytes are read. Raises: ValueError when the file does not hold them, OSError.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        (length,) = struct.unpack("<Q", file.read(8).ljust(8, b"\0"))
        if length > min(size, _HEADER_BYTES):
            raise ValueError(f"{path}: its header is damaged")
        header = json.loads(file.read(length))
        found = {}
        for key, entry in header.items():
            suffix = key.removeprefix(name)
            if key != name + suffix or suffix not in ("", "/sizes"):
                continue
            dtype, shape = np.dtype(_NUMPY[entry["dtype"]]), tuple(entry["shape"])
            start, stop = entry["data_offsets"]
            count = math.prod(shape)
            if (
                not 0 <= start <= stop <= size - 8 - length
                or stop - start != count * dtype.itemsize
            ):
                raise ValueError(f"{path}: the entry of {key} is damaged")
            file.seek(8 + length + start)
            found[suffix] = np.fromfile(file, dtype, count).reshape(shape)
    if "" not in found:
        raise ValueError(f"{path}: has no {name}")
    return found


def read(path: Path, numpy: Container[str] = ()) -> dict[str, Array]:
    """Return the tensors of a file in host memory, those named in ``numpy`` as arrays.

    Verify the file's hash before: a damaged header is detected, damaged data is not.

    Raises: ValueError when it is not a safetensors file, OSError.
    """
    try:
        tensors = load_file(path)
    except SafetensorError as e:
        raise ValueError(f"{path}: {e}") from e
    return {name: x.numpy() if name in numpy else x for name, x in sorted(tensors.items())}
