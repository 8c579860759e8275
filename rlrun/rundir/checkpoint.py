"""Checkpoints, written atomically and verified when they are read.

``checkpoints/step_000030000/`` holds ``tensors.safetensors`` (every tensor and array),
``state.json`` (the tree around them) and ``manifest.json`` (SHA-256 and size of both, and its own
SHA-256). It is written under a temporary name, fsynced, then renamed, so that a crash leaves the
earlier checkpoints unchanged; any corruption is detected on read. No pickle.
"""

import hashlib
import json
import logging
import math
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from rlrun import __version__
from rlrun.errors import CheckpointError, StorageError
from rlrun.rundir import tensorfile
from rlrun.rundir.durable import (
    fsync_directory,
    replace_file,
    seal,
    sha256_file,
    unseal,
    verify_file,
    write_file,
)
from rlrun.rundir.inert import member, read_file
from rlrun.rundir.tensorfile import Array

_logger = logging.getLogger(__name__)

FORMAT = 2
TENSORS, STATE, MANIFEST = "tensors.safetensors", "state.json", "manifest.json"
# What loading a state of other parts, types or shapes raises.
MISFITS = (
    AssertionError, AttributeError, IndexError, KeyError, MemoryError, OverflowError, RuntimeError,
    TypeError, ValueError,
)  # fmt: skip
UNREADABLE = (  # what reading a damaged or forged checkpoint raises
    OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, MemoryError,
)  # fmt: skip
_NAME = re.compile(r"step_(\d{9,})(?:_(\d+))?")


def save(directory: Path, state: dict[str, Any], *, env_steps: int, keep: int) -> Path:
    """Save ``state`` as the checkpoint ``directory/step_<env_steps>``; return its path.

    ``state`` is a tree of dicts (keys: str, int, float, bool or None), lists and tuples over
    tensors, arrays, int, float, str, bool and None; numpy scalars become Python's. The ``keep``
    newest checkpoints are kept; those of later env steps are deleted, since the run has resumed
    before them.

    Raises: StorageError (disk full, not writable), TypeError for an unsupported value.
    """
    target = _free_name(directory, env_steps)
    temporary = directory / f".tmp_{target.name}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _remove_temporaries(directory)
        _write(temporary, state, env_steps)
        os.rename(temporary, target)
        fsync_directory(directory)
        _prune(directory, target, env_steps, keep)
    except OSError as e:
        shutil.rmtree(temporary, ignore_errors=True)  # a full disk needs the space
        raise StorageError(
            f"{directory}: the checkpoint of env step {env_steps} cannot be written "
            f"({e.strerror or e}); the earlier ones are unchanged; free space or fix the "
            "permissions, then `rlrun resume` the run"
        ) from e
    return target


def load_newest(directory: Path) -> tuple[dict[str, Any], Path]:
    """Return (state, path) of the newest intact checkpoint; warn about damaged ones.

    Tensors are in host memory.

    Raises: CheckpointError when none can be used; the message lists the reasons.
    """
    tried = []
    for path in reversed(list_checkpoints(directory)):
        try:
            state = _read(path)
        except UNREADABLE as e:
            tried.append(f"{path.name} ({e})")
            _logger.warning("checkpoint skipped: %s: %s", path, e)
            continue
        return state, path
    reason = "tried " + ", ".join(tried) if tried else "there is none in it"
    raise CheckpointError(
        f"{directory}: no usable checkpoint: {reason}; a run resumes from an intact checkpoint; "
        "remove the directory and start the run again (overrides.yaml has its command line)"
    )


def load(path: Path) -> dict[str, Any]:
    """Return the state of one checkpoint. Raises: CheckpointError unless it is intact."""
    try:
        return _read(path)
    except UNREADABLE as e:
        raise CheckpointError(
            f"{path}: cannot be used: {e}; a checkpoint must be unchanged; use another"
        ) from e


@contextmanager
def fitting(path: Path) -> Iterator[None]:
    """Within the context a state of ``path`` is loaded by what it belongs to.

    Raises: CheckpointError where its parts, shapes or numbers are not those that it loads.
    """
    try:
        yield
    except MISFITS as e:
        text = " ".join(str(e).split())[:300]
        raise CheckpointError(
            f"{path}: does not fit this run ({type(e).__name__}: {text}); a checkpoint must be as "
            "it was saved, and of this config; use another one, or start the run again"
        ) from e


def list_checkpoints(directory: Path) -> list[Path]:
    """Return the checkpoints of a directory, oldest first, intact or not."""
    if not directory.is_dir():
        return []
    named = [(match, path) for path in directory.iterdir() if (match := _parse_name(path))]
    return [path for _, path in sorted(named)]


def save_weights(path: Path, weights: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
    """Write weights to ``path`` (.safetensors), their SHA-256 and ``meta`` to the json next to it.

    The json is replaced first and includes the hash and meta of the previous weights, so that the
    pair is readable at any time. ``meta``: finite JSON values.

    Raises: StorageError.
    """
    description = path.with_suffix(".json")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".tmp_{path.name}")
        temporary.unlink(missing_ok=True)
        digest, _ = tensorfile.write(temporary, weights, {"format": "pt"})
        entry = {"format": FORMAT, "weights_sha256": digest, "meta": dict(meta)}
        replace_file(description, seal({**entry, "previous": _current_weights(path)}))
        os.rename(temporary, path)
        fsync_directory(path.parent)
    except OSError as e:
        raise StorageError(
            f"{path}: the weights cannot be written ({e.strerror or e}); free space or fix the "
            "permissions of the run directory"
        ) from e


def load_weights(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the weights and meta written by ``save_weights``.

    Raises: CheckpointError when they are missing or damaged.
    """
    try:
        fields = unseal(read_file(path.with_suffix(".json")))
        digest = sha256_file(member(path.parent, path.name))
        for entry in (fields, fields["previous"] or {}):
            if entry.get("weights_sha256") == digest:
                weights = tensorfile.read(path)
                return {k: v for k, v in weights.items() if isinstance(v, Tensor)}, entry["meta"]
        raise ValueError("its sha256 is not the one in its json")
    except UNREADABLE as e:
        raise CheckpointError(
            f"{path}: the weights cannot be used: {e}; weights must be unchanged; use a checkpoint "
            "of the run (`rlrun resume`) or train again"
        ) from e


def _write(directory: Path, state: dict[str, Any], env_steps: int) -> None:
    tensors: dict[str, Array] = {}
    text = json.dumps(_encode(state, "", tensors), allow_nan=False).encode()
    directory.mkdir()
    digest, size = tensorfile.write(directory / TENSORS, tensors, {"format": "pt"})
    write_file(directory / STATE, text)
    files = {
        TENSORS: {"sha256": digest, "bytes": size},
        STATE: {"sha256": hashlib.sha256(text).hexdigest(), "bytes": len(text)},
    }
    fields = {"format": FORMAT, "env_steps": env_steps, "rlrun": __version__, "files": files}
    write_file(directory / MANIFEST, seal(fields))
    fsync_directory(directory)


def _read(directory: Path) -> dict[str, Any]:
    """Return the state of a checkpoint. Raises: ValueError with the reason unless it is intact."""
    try:
        fields = unseal(read_file(directory / MANIFEST))
    except FileNotFoundError:
        raise ValueError(f"{MANIFEST} is missing") from None
    if fields["format"] != FORMAT:
        raise ValueError(f"has format {fields['format']}, this rlrun {__version__} reads {FORMAT}")
    for name, expected in fields["files"].items():
        try:
            verify_file(member(directory, name), expected)
        except ValueError as e:
            raise ValueError(f"{name} {e}") from None
    packed = json.loads(read_file(directory / STATE))
    arrays: set[str] = set()
    _array_names(packed, arrays)
    tensors = tensorfile.read(directory / TENSORS, numpy=arrays)
    state: dict[str, Any] = _decode(packed, tensors)
    return state


def _encode(node: Any, path: str, tensors: dict[str, Array]) -> Any:
    """Return ``node`` as JSON; add its tensors to ``tensors`` under their path.

    Types without a JSON equivalent become an object with one key: $torch, $numpy (a tensor's
    name), $tuple, $dict (pairs, for keys that are not plain strings), $float (nan, inf, -inf).
    """
    if isinstance(node, np.generic):
        node = node.item()
    if node is None or isinstance(node, bool):
        return node
    if isinstance(node, str | int):
        return node if isinstance(node, str) else int(node)
    if isinstance(node, float):
        return float(node) if math.isfinite(node) else {"$float": repr(float(node))}
    if isinstance(node, Tensor | np.ndarray):
        name = path or "root"
        while name in tensors or name == "__metadata__":
            name += "#"
        tensors[name] = node
        return {"$torch" if isinstance(node, Tensor) else "$numpy": name}
    if isinstance(node, list | tuple):
        items = [_encode(child, _join(path, i), tensors) for i, child in enumerate(node)]
        return items if isinstance(node, list) else {"$tuple": items}
    if isinstance(node, Mapping):
        pairs = [
            (_encode(key, path, tensors), _encode(child, _join(path, key), tensors))
            for key, child in node.items()
        ]
        if all(isinstance(key, str) and not key.startswith("$") for key in node):
            return dict(pairs)
        return {"$dict": pairs}
    raise TypeError(f"state[{path}] is a {type(node).__name__}, which a checkpoint cannot hold")


def _join(path: str, part: object) -> str:
    return f"{path}/{part}" if path else str(part)


def _decode(node: Any, tensors: Mapping[str, Array]) -> Any:
    """Return the tree of ``_encode``'s JSON."""
    if isinstance(node, list):
        return [_decode(child, tensors) for child in node]
    if not isinstance(node, dict):
        return node
    match next(iter(node.items()), None):
        case ("$torch" | "$numpy", name):
            return tensors[name]
        case ("$float", text):
            return float(text)
        case ("$tuple", items):
            return tuple(_decode(child, tensors) for child in items)
        case ("$dict", pairs):
            return {_decode(k, tensors): _decode(v, tensors) for k, v in pairs}
    return {key: _decode(child, tensors) for key, child in node.items()}


def _array_names(node: Any, names: set[str]) -> None:
    """Add the names of tensors that were numpy arrays."""
    if isinstance(node, dict):
        if isinstance(node.get("$numpy"), str):
            names.add(node["$numpy"])
        for child in node.values():
            _array_names(child, names)
    elif isinstance(node, list):
        for child in node:
            _array_names(child, names)


def _current_weights(path: Path) -> dict[str, Any] | None:
    """Return hash and meta of the weights at ``path``, None if there are no intact ones."""
    try:
        fields = unseal(path.with_suffix(".json").read_bytes())
        digest = sha256_file(path)
    except (OSError, ValueError):
        return None
    for entry in (fields, fields["previous"] or {}):
        if entry.get("weights_sha256") == digest:
            return {"weights_sha256": digest, "meta": entry["meta"]}
    return None


def _parse_name(path: Path) -> tuple[int, int] | None:
    """Return (env steps, serial) of a checkpoint's name, None for other names."""
    match = _NAME.fullmatch(path.name)
    return (int(match[1]), int(match[2] or 0)) if match else None


def _free_name(directory: Path, env_steps: int) -> Path:
    """Return an unused name, so that saving a step again never leaves it without a checkpoint."""
    target, serial = directory / f"step_{env_steps:09d}", 0
    while target.exists():
        serial += 1
        target = directory / f"step_{env_steps:09d}_{serial}"
    return target


def _prune(directory: Path, target: Path, env_steps: int, keep: int) -> None:
    existing = list_checkpoints(directory)
    older = [path for path in existing if (_parse_name(path) or (0,))[0] < env_steps]
    kept = {target, *older[max(len(older) - keep + 1, 0) :]}
    for path in existing:
        if path not in kept:
            deleted = directory / f".tmp_gone_{path.name}"
            os.rename(path, deleted)  # a partly deleted one must not look like a damaged one
            shutil.rmtree(deleted)


def _remove_temporaries(directory: Path) -> None:
    """Remove temporaries of a crashed process; the run directory is locked by this one."""
    for path in directory.glob(".tmp_*"):
        remove = shutil.rmtree if path.is_dir() else Path.unlink
        remove(path)
