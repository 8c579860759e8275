"""Tensors in safetensors files, with the sha256 of what was written."""

import hashlib
import os
from collections.abc import Container, Mapping
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
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


def raw(array: Array) -> memoryview:
    """The elements' bytes, row-major."""
    return tensor(array).reshape(-1).view(torch.uint8).numpy().data


def write(path: Path, tensors: Mapping[str, Array], metadata: Mapping[str, str]) -> tuple[str, int]:
    """The sha256 (hex) and size in bytes of the new file; it is on disk when this returns.

    Raises: TypeError for a dtype the format lacks, OSError.
    """
    if path.exists():
        raise FileExistsError(f"{path} exists")
    # Tensors that share memory (or overlap) are stored each on its own.
    dense, seen = {}, set()
    for name, array in tensors.items():
        x = tensor(array)
        storage = x.untyped_storage().data_ptr()
        dense[name] = x.clone() if storage in seen else x
        seen.add(storage)
    try:
        save_file(dense, path, dict(metadata))
    except (SafetensorError, KeyError) as e:
        raise OSError(str(e)) from e
    path.chmod(0o644)  # the library makes it private; the rest of a run directory is not
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        os.fsync(file.fileno())
        return digest, os.fstat(file.fileno()).st_size


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
