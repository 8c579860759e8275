"""History of weights: the newest version as a key frame, older ones as deltas to the next.

``checkpoints/history/step_000030000.rldf`` is one frame of ``rlrun.codec`` with the weights of that
env step. No file depends on the oldest one, so it can be deleted. No state is kept in memory
between saves, so a killed process leaves nothing to repair. Files are written under a temporary
name, fsynced, then renamed, in an order that keeps every version readable at any time.
"""

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from rlrun import codec
from rlrun.errors import CheckpointError, CodecError, storage_errors
from rlrun.run.files import MAX_READ, read_file, replace_file

_logger = logging.getLogger(__name__)

DIRECTORY = "history"
KEY_INTERVAL = 32  # versions per key frame: limits the frames a read decodes
_NAME = re.compile(r"step_(\d{9,})\.rldf")


def versions(directory: Path) -> dict[int, Path]:
    """Return {env steps: file} of a history directory, oldest first, readable or not."""
    if not directory.is_dir():
        return {}
    pairs = ((_NAME.fullmatch(path.name), path) for path in directory.iterdir())
    return dict(sorted((int(match[1]), path) for match, path in pairs if match))


def save(
    directory: Path, weights: Mapping[str, Tensor], *, env_steps: int, updates: int, keep: int
) -> tuple[int, int]:
    """Add a version. Keep the ``keep`` >= 1 versions before it.

    Returns the bytes of the versions uncompressed, and of their files.

    Versions of later env steps are deleted, because the run has resumed before them. Earlier
    versions that cannot be read are deleted with a warning.

    Raises: StorageError (disk full, not writable).
    """
    counts = {"env_steps": np.int64(env_steps), "updates": np.int64(updates)}
    tree = {"weights": dict(weights), **counts}
    what = f"{directory}: the weights of env step {env_steps}"
    need = "the earlier ones are unchanged; free space, or set checkpoint.history=0"
    with storage_errors(what, need):
        directory.mkdir(parents=True, exist_ok=True)
        for path in directory.glob(".tmp_*"):
            path.unlink()
        before = _discard_from(directory, env_steps)
        replace_file(_path(directory, env_steps), codec.encode(tree, coder="planes"))
        if before is not None:
            _store_as_delta(directory, before, tree)
        for steps in list(versions(directory))[: -keep - 1]:
            _path(directory, steps).unlink()
        files = versions(directory).values()
        raw = sum(tensor.nbytes for tensor in weights.values())
        return len(files) * raw, sum(path.stat().st_size for path in files)


def load(directory: Path, env_steps: int) -> tuple[dict[str, Tensor], dict[str, int]]:
    """Return the weights of a version and its meta (env_steps, updates).

    Raises: CheckpointError if it does not exist or cannot be read.
    """
    existing = versions(directory)
    if env_steps not in existing:
        wrong = f"{directory}: there are no weights of env step {env_steps}"
        if not existing:
            raise CheckpointError(
                f"{wrong}: the run kept no past ones (checkpoint.history); final and best are "
                "allowed; choose one of them"
            )
        listed = ", ".join(map(str, existing))
        raise CheckpointError(f"{wrong}; there are {listed}; choose one of them")
    try:
        tree = _read(directory, env_steps)
    except (OSError, CodecError) as e:
        raise CheckpointError(
            f"{directory}: the weights of env step {env_steps} cannot be read: {e}; its file and "
            "the later ones up to a key frame must be unchanged; choose a later version"
        ) from e
    weights: dict[str, Tensor] = codec.as_tensors(tree["weights"])
    return weights, {name: int(tree[name]) for name in ("env_steps", "updates")}


def iterate_newest_first(directory: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (env steps, weights as read-only arrays) of every version, newest first.

    Each frame is decoded once. Stops with a warning at the first unreadable one.

    Raises: OSError.
    """
    after: Any = None
    for steps, path in reversed(versions(directory).items()):
        try:
            after = _decode(path, steps, after)
        except CodecError as e:
            _logger.warning("history: %s and older versions cannot be read: %s", path, e)
            return
        yield steps, after["weights"]


def _path(directory: Path, env_steps: int) -> Path:
    return directory / f"step_{env_steps:09d}.rldf"


def _read(directory: Path, env_steps: int) -> Any:
    """Return the tree of a version, decoded from a key frame. Raises: CodecError, OSError."""
    chain = []
    for steps, path in versions(directory).items():
        if steps >= env_steps:
            chain.append((steps, path))
            if _is_key_frame(path):
                break
    tree: Any = None
    for steps, path in reversed(chain):
        tree = _decode(path, steps, tree)
    return tree


def _decode(path: Path, env_steps: int, after: Any) -> Any:
    """Return the tree of a file, given the next version's tree. Raises: CodecError, OSError."""
    tree = codec.decode(_content(path), base=after)
    if not isinstance(tree, dict) or int(tree.get("env_steps", -1)) != env_steps:
        raise CodecError(f"{path.name}: contains another version; restore the file")
    return tree


def _content(path: Path) -> bytes:
    """Return the bytes of a frame. Raises: CodecError, OSError."""
    try:
        return read_file(path, MAX_READ)
    except ValueError as e:
        raise CodecError(f"{path}: {e}; a file of the history is needed; restore it") from e


def _is_key_frame(path: Path) -> bool:
    """Return whether the file can be decoded alone. Raises: CodecError, OSError."""
    return codec.is_key_frame(_content(path))


def _discard_from(directory: Path, env_steps: int) -> int | None:
    """Delete the versions from ``env_steps`` on. Return the newest remaining one, a key frame."""
    existing = versions(directory)
    earlier = [steps for steps in existing if steps < env_steps]
    while earlier:
        newest = _path(directory, earlier[-1])
        try:
            tree = _read(directory, earlier[-1])
            if not _is_key_frame(newest):
                replace_file(newest, codec.encode(tree, coder="planes"))
            break
        except CodecError as e:
            _logger.warning("history: %s cannot be read and is dropped: %s", newest, e)
            newest.unlink()
            earlier.pop()
    for steps, path in existing.items():  # oldest first, so that the remaining ones stay readable
        if steps >= env_steps:
            path.unlink()
    return earlier[-1] if earlier else None


def _store_as_delta(directory: Path, env_steps: int, after: Any) -> None:
    """Replace a key frame by a delta to the next version, except once per ``KEY_INTERVAL``."""
    path = _path(directory, env_steps)
    older = [file for steps, file in versions(directory).items() if steps < env_steps]
    is_delta = len(older) < KEY_INTERVAL - 1
    for recent in older[1 - KEY_INTERVAL :]:
        with suppress(CodecError):  # a damaged file is no key frame
            is_delta = is_delta or _is_key_frame(recent)
    if is_delta:
        tree = _decode(path, env_steps, None)
        replace_file(path, codec.encode(tree, base=after))
