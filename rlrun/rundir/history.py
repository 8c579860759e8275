"""Past weights beside the checkpoints: the newest whole, each older one as a delta to the next.

``checkpoints/history/step_000030000.rldf`` is one frame of ``rlrun.codec``: the weights of that env
step. Nothing depends on the oldest file, so dropping it is all that pruning takes; and nothing is
kept in memory between two saves, so a process that is killed leaves no stream to be mended. Every
write is a file under a temporary name, fsynced, then renamed, in an order in which all versions can
be read at every moment.
"""

import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from rlrun import codec
from rlrun.codec import frame
from rlrun.codec.stream import MAX_BYTES
from rlrun.errors import CheckpointError, CodecError, StorageError
from rlrun.rundir.durable import replace_file

_logger = logging.getLogger(__name__)

DIRECTORY = "history"
KEYS = 32  # a version in so many stays whole: bounds what a read decodes and one bad file spoils
_NAME = re.compile(r"step_(\d{9,})\.rldf")


@dataclass(frozen=True, slots=True)
class Size:
    """What a history takes: raw bytes of its versions and bytes of its files."""

    raw: int
    coded: int


def versions(directory: Path) -> dict[int, Path]:
    """{env steps: file} of a history directory, oldest first, readable or not."""
    if not directory.is_dir():
        return {}
    found = ((_NAME.fullmatch(path.name), path) for path in directory.iterdir())
    return dict(sorted((int(match[1]), path) for match, path in found if match))


def save(
    directory: Path, weights: Mapping[str, Tensor], *, env_steps: int, updates: int, keep: int
) -> Size:
    """Adds a version; afterwards it and the ``keep`` >= 1 before it are there.

    Those of a later env step are gone: a run that saves here has left that future behind. Earlier
    versions that cannot be read any more are dropped with a warning.

    Raises: StorageError (disk full, not writable).
    """
    tree = {
        "weights": dict(weights),
        "env_steps": np.int64(env_steps),
        "updates": np.int64(updates),
    }
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for path in directory.glob(".tmp_*"):
            path.unlink()
        before = _rewind(directory, env_steps)
        replace_file(_path(directory, env_steps), codec.encode(tree, coder="planes"))
        if before is not None:
            _thin(directory, before, tree)
        for steps in list(versions(directory))[: -keep - 1]:
            _path(directory, steps).unlink()
        files = versions(directory).values()
        raw = sum(tensor.nbytes for tensor in weights.values())
        return Size(len(files) * raw, sum(path.stat().st_size for path in files))
    except OSError as e:
        raise StorageError(
            f"{directory}: the weights of env step {env_steps} cannot be written "
            f"({e.strerror or e}); the earlier ones are untouched; free space, or set "
            "checkpoint.history=0"
        ) from e


def load(directory: Path, env_steps: int) -> tuple[dict[str, Tensor], dict[str, int]]:
    """The weights of a version and its meta (env_steps, updates).

    Raises: CheckpointError when it is not there or cannot be read.
    """
    there = versions(directory)
    if env_steps not in there:
        listed = ", ".join(map(str, there)) or "none (checkpoint.history keeps them)"
        raise CheckpointError(
            f"{directory}: there are no weights of env step {env_steps}; there are {listed}; "
            "choose one of them"
        )
    try:
        tree = _read(directory, env_steps)
    except (OSError, CodecError) as e:
        raise CheckpointError(
            f"{directory}: the weights of env step {env_steps} cannot be read: {e}; it and the "
            "versions behind it up to a whole one must be as they were written; choose a later one"
        ) from e
    weights: dict[str, Tensor] = codec.as_tensors(tree["weights"])
    return weights, {name: int(tree[name]) for name in ("env_steps", "updates")}


def newest_first(directory: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(env steps, weights as read-only arrays) of every version, each frame decoded once.

    Ends with a warning before the first that cannot be read. Raises: OSError.
    """
    after: Any = None
    for steps, path in reversed(versions(directory).items()):
        try:
            after = _decode(path, steps, after)
        except CodecError as e:
            _logger.warning("history: %s and what is older cannot be read: %s", path, e)
            return
        yield steps, after["weights"]


def _path(directory: Path, env_steps: int) -> Path:
    return directory / f"step_{env_steps:09d}.rldf"


def _read(directory: Path, env_steps: int) -> Any:
    """The tree of a version: from the next whole one back. Raises: CodecError, OSError."""
    chain = []
    for steps, path in versions(directory).items():
        if steps >= env_steps:
            chain.append((steps, path))
            if _whole(path):
                break
    tree: Any = None
    for steps, path in reversed(chain):
        tree = _decode(path, steps, tree)
    return tree


def _decode(path: Path, env_steps: int, after: Any) -> Any:
    """The tree of a file, given that of the version after it. Raises: CodecError, OSError."""
    tree = codec.decode(path.read_bytes(), base=after)
    if not isinstance(tree, dict) or int(tree.get("env_steps", -1)) != env_steps:
        raise CodecError(f"{path.name}: holds another version; its own is needed; restore it")
    return tree


def _whole(path: Path) -> bool:
    """Whether the file needs no other. Raises: CodecError, OSError."""
    return frame.unpack(path.read_bytes(), MAX_BYTES)[0].key


def _rewind(directory: Path, env_steps: int) -> int | None:
    """The newest version before ``env_steps``, whole now; all others from there on are gone."""
    there = versions(directory)
    earlier = [steps for steps in there if steps < env_steps]
    later = [steps for steps in there if steps >= env_steps]
    while earlier:
        newest = _path(directory, earlier[-1])
        try:
            tree = _read(directory, earlier[-1])
            if not _whole(newest):
                replace_file(newest, codec.encode(tree, coder="planes"))
            break
        except CodecError as e:
            _logger.warning("history: %s cannot be read and is dropped: %s", newest, e)
            newest.unlink()
            earlier.pop()
    for steps in later:  # oldest first: what is left can be read
        _path(directory, steps).unlink()
    return earlier[-1] if earlier else None


def _thin(directory: Path, env_steps: int, after: Any) -> None:
    """Make a whole version a delta to the one after it, unless it is its turn to stay whole."""
    path = _path(directory, env_steps)
    older = [other for steps, other in versions(directory).items() if steps < env_steps]
    if len(older) >= KEYS - 1 and not any(_is_whole(p) for p in older[1 - KEYS :]):
        return
    tree = _decode(path, env_steps, None)
    replace_file(path, codec.encode(tree, base=after))


def _is_whole(path: Path) -> bool:
    """The same of a file that may be damaged: it is not, then."""
    try:
        return _whole(path)
    except CodecError:
        return False
