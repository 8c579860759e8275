"""Format of a dataset directory: file names, names of arrays, spaces, error messages.

``data-00000.safetensors, …``   rows in the order they were collected, [T, columns, …] per field
``data-00000.rldf, …``          the same, each a frame of ``rlrun.codec`` (rlrun export --codec)
``index.safetensors``           column, row and steps of every trajectory
``states.safetensors``          recurrent states before some rows (optional)
``dataset.json``                metadata, SHA-256 and size of every file, its own SHA-256
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces

from rlrun.errors import ConfigError
from rlrun.types import Segment, Spec, Tree, tree_leaves

FORMAT, CODED_FORMAT = 1, 2  # versions for safetensors shards and coded shards
CODED_SUFFIX = ".rldf"
DESCRIPTION_FILE, INDEX_FILE = "dataset.json", "index.safetensors"
STATES_FILE = "states.safetensors"
MOST_ROWS = 2**53
STEP_FIELDS = ("action", "reward", "terminated", "truncated", "valid")
_FLAGS = ("first", "terminated", "truncated", "valid")


# -- structure -------------------------------------------------------------------------------------


def flatten(tree: Tree, name: str) -> tuple[Any, dict[str, Any]]:
    """Return (structure of ``tree`` as JSON over leaf names, leaves by name: obs/0, obs/key, …)."""
    leaves: dict[str, Any] = {}

    def visit(node: Tree, path: str) -> Any:
        if isinstance(node, Mapping):
            return {"dict": [[k, visit(v, f"{path}/{k}")] for k, v in node.items()]}
        if isinstance(node, tuple):
            return {"tuple": [visit(v, f"{path}/{i}") for i, v in enumerate(node)]}
        while path in leaves:  # a key contains a slash
            path += "#"
        leaves[path] = node
        return path

    return visit(tree, name), leaves


def unflatten(structure: Any, leaf: Callable[[str], Any]) -> Tree:
    """Return the tree of ``leaf(name)``, the inverse of ``flatten``."""
    match structure:
        case {"dict": pairs}:
            return {key: unflatten(node, leaf) for key, node in pairs}
        case {"tuple": nodes}:
            return tuple(unflatten(node, leaf) for node in nodes)
    return leaf(structure)


def leaf_names(structure: Any) -> list[str]:
    """Return the names of the leaves of a structure. Raises: TypeError if it is not one."""
    match structure:
        case str(name):
            return [name]
        case {"dict": list(pairs)} if all(isinstance(p, list) and len(p) == 2 for p in pairs):
            nodes = [node for _, node in pairs]
        case {"tuple": list(nodes)}:
            pass
        case other:
            raise TypeError(f"a structure is {str(other)[:40]}")
    return [name for node in nodes for name in leaf_names(node)]


def require_structure(structure: Any, space: gym.Space[Any]) -> None:
    """Raise ValueError unless ``structure`` is that of observations of ``space``."""

    def tree(space: gym.Space[Any]) -> Tree:
        if isinstance(space, spaces.Dict):
            return {str(key): tree(part) for key, part in space.spaces.items()}
        return tuple(map(tree, space.spaces)) if isinstance(space, spaces.Tuple) else space

    wanted = unflatten(flatten(tree(space), "obs")[0], str)
    if unflatten(structure, str) != wanted:
        raise ValueError(f"obs is {str(structure)[:80]}")


def require_description(description: dict[str, Any]) -> tuple[list[str], list[int]]:
    """Return the files of the shards and their rows of each column.

    Raises: KeyError, TypeError, ValueError if it does not describe a dataset.
    """
    columns, rows = (_whole(description, name, 1) for name in ("columns", "rows"))
    for name in ("steps", "episodes", "trajectories"):
        _whole(description, name, 0)
    if rows % columns:
        raise ValueError(f"{rows} rows of {columns} columns")
    for name in ("index", "fields", "spaces", "source"):
        if not isinstance(description[name], dict):
            raise TypeError(f"{name} is not a mapping")
    for name in ("obs", "action"):
        if not isinstance(description["spaces"][name], dict):
            raise TypeError(f"spaces {name} is not a mapping")
    fields = description["fields"]
    for name in ("first", *STEP_FIELDS, *leaf_names(description["obs"])):
        kind = fields[name]
        if not isinstance(kind["dtype"], str) or not isinstance(kind["shape"], list):
            raise TypeError(f"field {name} is {str(kind)[:80]}")
    if any(fields[name] != {"dtype": "bool", "shape": []} for name in _FLAGS):
        raise TypeError("a flag is not true or false")
    start = np.asarray(description.get("action_start", 0))
    if start.dtype.kind != "i" or [*start.shape] not in ([], fields["action"]["shape"]):
        raise TypeError(f"action_start is {str(start)[:40]}")
    score, states = description["return"], description["states"]
    if score is not None and not all(isinstance(score[n], float | int) for n in ("mean", "std")):
        raise TypeError(f"return is {str(score)[:40]}")
    entries = [*description["shards"], description["index"], *([] if states is None else [states])]
    for entry in entries:
        if not isinstance(entry["file"], str) or not isinstance(entry["sha256"], str):
            raise TypeError("a file has no name and hash")
        _whole(entry, "bytes", 0)
    if states is not None:
        leaf_names(states["tree"])
    shards = description["shards"]
    counts = [_whole(shard, "rows", columns) for shard in shards]
    if sum(counts) != rows or any(count % columns for count in counts):
        raise ValueError(f"{rows} rows, its shards have {sum(counts)}")
    if len({shard["file"] for shard in shards}) < len(shards):
        raise ValueError("two shards are one file")
    return [shard["file"] for shard in shards], [count // columns for count in counts]


def _whole(fields: dict[str, Any], name: str, low: int) -> int:
    value = fields[name]
    if type(value) is not int or not low <= value <= MOST_ROWS:
        raise ValueError(f"{name} is {str(value)[:40]}")
    return value


def arrays_by_name(segment: Segment) -> dict[str, np.ndarray]:
    """Return the arrays of a collected segment by name, with ``states/…`` if it has states."""
    tensors = flatten(segment.obs, "obs")[1]
    tensors |= {name: getattr(segment, name) for name in ("first", *STEP_FIELDS)}
    tensors |= {f"extras/{name}": x for name, x in segment.extras.items()}
    if tree_leaves(segment.states):
        tensors |= flatten(segment.states, "states")[1]
    return {name: x.numpy() for name, x in tensors.items()}


def as_segment(
    tensor: Callable[[str], torch.Tensor], obs: Any, extras: Iterable[str], states: Tree = ()
) -> Segment:
    """Return the segment of ``tensor(name)``: the inverse of ``arrays_by_name``.

    ``obs``: the structure of observations. ``extras``: their names, without ``extras/``.
    """
    fields: dict[str, Any] = {name: tensor(name) for name in ("first", *STEP_FIELDS)}
    fields |= {"extras": {name: tensor(f"extras/{name}") for name in extras}, "states": states}
    return Segment(unflatten(obs, tensor), **fields)


def has_final_entry(name: str) -> bool:
    """Return True for fields with T + 1 entries, one after the last row (obs, first)."""
    return name == "first" or name.partition("/")[0] == "obs"


# -- spaces ----------------------------------------------------------------------------------------


def spec_json(spec: Spec) -> dict[str, Any]:
    """Return the spaces of one environment as JSON."""
    return {"obs": _space(spec.obs), "action": _space(spec.action)}


def _space(space: gym.Space[Any]) -> dict[str, Any]:
    match space:
        case spaces.Dict():
            return {"type": "Dict", "spaces": {str(k): _space(s) for k, s in space.items()}}
        case spaces.Tuple():
            return {"type": "Tuple", "spaces": [_space(s) for s in space.spaces]}
        case spaces.Box():
            bounds = {"low": _bounds(space.low), "high": _bounds(space.high)}
            return {"type": "Box", "dtype": str(space.dtype), "shape": [*space.shape], **bounds}
        case spaces.Discrete():
            return {"type": "Discrete", "n": int(space.n), "start": int(space.start)}
        case spaces.MultiDiscrete():
            return {
                "type": "MultiDiscrete",
                "n": space.nvec.tolist(),
                "start": space.start.tolist(),
            }
        case spaces.MultiBinary():
            return {"type": "MultiBinary", "shape": [*space.shape]}
    return {"type": type(space).__name__, "text": repr(space)}


def _bounds(x: np.ndarray) -> Any:
    """Return bounds as JSON: one number if all are equal, infinities as strings."""
    if x.size and (x == x.flat[0]).all():
        return _finite(x.flat[0].item())
    return _finite(x.tolist())


def _finite(value: Any) -> Any:
    if isinstance(value, list):
        return [_finite(v) for v in value]
    return value if math.isfinite(value) else str(value)


def space_difference(own: Any, other: Any, path: str) -> str | None:
    """Return ``path is OWN, not OTHER`` for the first difference of two space descriptions."""
    if isinstance(own, dict) and isinstance(other, dict) and own.keys() == other.keys():
        for key in own:
            inner = f"{path} {key}".replace(" spaces", "")
            if difference := space_difference(own[key], other[key], inner):
                return difference
        return None
    if own == other:
        return None
    return f"{path} is {_space_text(own)}, not {_space_text(other)}"


def _space_text(value: Any) -> str:
    if isinstance(value, dict) and "type" in value:
        value = {k: v for k, v in value.items() if k != "type"} | {"type": value["type"]}
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."


def require_spaces(described: dict[str, Any], spec: Spec, prefix: str) -> None:
    """Raise ConfigError unless the described spaces equal those of ``spec``."""
    needed = spec_json(spec)
    for name, word in (("obs", "observation space"), ("action", "action space")):
        if difference := space_difference(described[name], needed[name], word):
            raise ConfigError(
                f"{prefix}: its {difference} as the environment's; both must be the same; use the "
                "env it came from, or another dataset"
            )
