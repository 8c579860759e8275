"""State trees as JSON with the tensors and rows taken out, and back."""

import math
from collections.abc import Container, Mapping
from typing import Any

import numpy as np
from torch import Tensor

from rlrun.rundir.segments import RowFiles, Rows, SavedRows
from rlrun.rundir.tensorfile import Array


class Packed:
    """A state tree as JSON (``tree``), its tensors and its rows by name.

    The tensors are copies in host memory and the tree is new: the state may change afterwards.
    Types without a JSON equivalent become an object with one key: $torch, $numpy (a tensor's
    name), $rows, $tuple, $dict (pairs, for keys that are not plain strings), $float (nan, inf,
    -inf).

    Raises: TypeError for an unsupported value.
    """

    def __init__(self, state: Mapping[str, Any]) -> None:
        self.tensors: dict[str, Array] = {}
        self.rows: dict[str, Rows] = {}
        self.rings: list[RowFiles] = []  # of ``rows``; a $rows names one by its index
        self.tree = self._encode(state, "")

    def _encode(self, node: Any, path: str) -> Any:
        if isinstance(node, np.generic):
            node = node.item()
        if node is None or isinstance(node, bool):
            return node
        if isinstance(node, str | int):
            return node if isinstance(node, str) else int(node)
        if isinstance(node, float):
            return float(node) if math.isfinite(node) else {"$float": repr(float(node))}
        if isinstance(node, Rows):
            return {"$rows": self._ring(node, path)}
        if isinstance(node, Tensor | np.ndarray):
            return self._tensor(node, path)
        if isinstance(node, list | tuple):
            items = [self._encode(child, _join(path, i)) for i, child in enumerate(node)]
            return items if isinstance(node, list) else {"$tuple": items}
        if isinstance(node, Mapping):
            pairs = [
                (self._encode(key, path), self._encode(child, _join(path, key)))
                for key, child in node.items()
            ]
            if all(isinstance(key, str) and not key.startswith("$") for key in node):
                return dict(pairs)
            return {"$dict": pairs}
        raise TypeError(f"state[{path}] is a {type(node).__name__}, which a checkpoint cannot hold")

    def _tensor(self, node: Array, path: str) -> dict[str, str]:
        name = _free_name(path, self.tensors)
        self.tensors[name] = copied(node)
        return {"$torch" if isinstance(node, Tensor) else "$numpy": name}

    def _ring(self, node: Rows, path: str) -> dict[str, Any]:
        name = _free_name(path, self.rows)
        self.rows[name] = node
        index = next((i for i, files in enumerate(self.rings) if files is node.files), None)
        if index is None:
            index = len(self.rings)
            self.rings.append(node.files)
        return {"name": name, "first": node.first, "stop": node.stop, "ring": index}


def copied(array: Array) -> Any:
    """A copy in host memory."""
    if isinstance(array, Tensor):
        return array.detach().clone() if array.device.type == "cpu" else array.detach().cpu()
    return array.copy()


def _free_name(path: str, taken: Container[str]) -> str:
    name = path or "root"
    while name in taken or name == "__metadata__":
        name += "#"
    return name


def _join(path: str, part: object) -> str:
    return f"{path}/{part}" if path else str(part)


def unpack(node: Any, tensors: Mapping[str, Array], rings: list[RowFiles]) -> Any:
    """Return the state of ``Packed.tree``.

    Raises: KeyError, TypeError, ValueError, IndexError when the tree is not that of ``Packed``.
    """
    if isinstance(node, list):
        return [unpack(child, tensors, rings) for child in node]
    if not isinstance(node, dict):
        return node
    match next(iter(node.items()), None):
        case ("$torch" | "$numpy", name):
            return tensors[name]
        case ("$rows", {"name": str(name), "first": int(first), "stop": int(stop), "ring": ring}):
            return SavedRows(name, first, stop, rings[ring])
        case ("$float", text):
            return float(text)
        case ("$tuple", items):
            return tuple(unpack(child, tensors, rings) for child in items)
        case ("$dict", pairs):
            return {unpack(k, tensors, rings): unpack(v, tensors, rings) for k, v in pairs}
    return {key: unpack(child, tensors, rings) for key, child in node.items()}


def array_names(node: Any) -> set[str]:
    """Return the names of the tensors that were numpy arrays."""
    if isinstance(node, dict):
        own = {node["$numpy"]} if isinstance(node.get("$numpy"), str) else set()
        return own.union(*(array_names(child) for child in node.values()))
    if isinstance(node, list):
        return set().union(*(array_names(child) for child in node))
    return set()


def require_kind(part: str, given: Any, own: Any) -> None:
    """Raise ValueError unless ``given``, of a checkpoint, is a state of the kind of ``own``.

    Numbers are finite and of 64 bits; arrays have the dtype and shape of ``own``, any length where
    it has none. None on either side, parts that one side lacks, lists of other lengths and states
    of random generators are left to those that load them.
    """
    if given is None or own is None:
        if isinstance(given, float | int):
            _require_number(part, given)
        return
    if isinstance(own, Mapping):
        if not isinstance(given, Mapping):
            raise ValueError(f"{part} is a {type(given).__name__}, no mapping")
        if "bit_generator" in own:
            return
        for key in own.keys() & given.keys():
            require_kind(f"{part}.{key}", given[key], own[key])
        return
    if isinstance(own, Tensor | np.ndarray):
        if not isinstance(given, Tensor | np.ndarray):
            raise ValueError(f"{part} is a {type(given).__name__}, no array")
        same = _dtype(given) == _dtype(own) and given.ndim == own.ndim
        if not same or (0 not in own.shape and given.shape != own.shape):
            shapes = [f"{x.dtype} {list(x.shape)}" for x in (given, own)]
            raise ValueError(f"{part} is {shapes[0]}, not {shapes[1]}")
        return
    if isinstance(own, list | tuple):
        if not isinstance(given, list | tuple):
            raise ValueError(f"{part} is a {type(given).__name__}, no list")
        if len(given) == len(own):
            for i, (one, other) in enumerate(zip(given, own, strict=True)):
                require_kind(f"{part}.{i}", one, other)
        return
    if isinstance(own, float | int) and not isinstance(own, bool):
        _require_number(part, given)
    elif type(given) is not type(own):
        raise ValueError(f"{part} is a {type(given).__name__}, no {type(own).__name__}")


def _dtype(x: Array) -> str:
    """dtype of a tensor, kind of an array's: an actor's numbers may be wider than a space's."""
    return str(x.dtype).removeprefix("torch.") if isinstance(x, Tensor) else x.dtype.kind


def _require_number(part: str, given: Any) -> None:
    good = isinstance(given, float | int) and not isinstance(given, bool)
    if not good or not (-(2**63) <= given < 2**64):  # False for NaN
        raise ValueError(f"{part} is {str(given)[:40]}, no number of 64 bits")
