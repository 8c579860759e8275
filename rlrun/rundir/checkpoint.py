"""Checkpoints, written atomically and verified when they are read.

``checkpoints/step_000030000/`` holds ``tensors.safetensors`` (tensors and arrays), ``state.json``
(the tree around them) and ``manifest.json`` (SHA-256 and size of both and of the segments with the
rows of the replay, and its own SHA-256). It is written under a temporary name, fsynced, then
renamed, so that a crash leaves the earlier checkpoints unchanged; any corruption is detected on
read. No pickle.
"""

import json
import logging
import os
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from rlrun.errors import CheckpointError, StorageError
from rlrun.rundir import manifest, tensorfile
from rlrun.rundir.durable import fsync_directory, replace_file, seal
from rlrun.rundir.inert import read_file
from rlrun.rundir.manifest import METRICS, ROWS, STATE, TENSORS, list_checkpoints
from rlrun.rundir.saver import Saver
from rlrun.rundir.segments import Part, RowFiles
from rlrun.rundir.statetree import array_names, unpack

_logger = logging.getLogger(__name__)

# What a state of other parts, types or shapes raises.
MISFITS = (
    AssertionError, AttributeError, IndexError, KeyError, MemoryError, OverflowError, RuntimeError,
    TypeError, ValueError,
)  # fmt: skip
NETWORKS, ENVIRONMENTS, REPLAY = "networks", "environments", "replay"  # parts of a checkpoint
UNREADABLE = (OSError, RecursionError, *MISFITS)  # what reading a damaged or forged one raises

__all__ = [
    "committed", "fitting", "list_checkpoints", "load", "load_newest", "load_weights", "save",
    "save_weights",
]  # fmt: skip


def save(directory: Path, state: Mapping[str, Any], *, env_steps: int, keep: int) -> Path:
    """Save ``state`` as the checkpoint ``directory/step_<env_steps>``; return its path.

    As ``Saver.save``, but returns when the checkpoint is durable. Raises: StorageError, TypeError.
    """
    saver = Saver(directory)
    saver.save(state, env_steps=env_steps, keep=keep)
    saver.wait()
    return list_checkpoints(directory)[-1]


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
    require_saved(directory)
    reason = "tried " + ", ".join(tried) if tried else "there is none in it"
    raise CheckpointError(
        f"{directory}: no usable checkpoint: {reason}; a run resumes from an intact checkpoint; "
        "remove the directory and start the run again (overrides.yaml has its command line)"
    )


def require_saved(directory: Path) -> None:
    """Raise CheckpointError where a run has not saved anything yet: nothing is damaged."""
    if not list_checkpoints(directory) and not (directory / "last.json").exists():
        run = shlex.quote(str(directory.parent))
        raise CheckpointError(
            f"{directory.parent}: has no weights and no checkpoint yet; a run saves them every "
            "run.checkpoint_every env steps and at its end; wait for the first, or let it go on: "
            f"rlrun resume {run}"
        )


def load(path: Path) -> dict[str, Any]:
    """Return the state of one checkpoint. Raises: CheckpointError unless it is intact."""
    try:
        return _read(path)
    except UNREADABLE as e:
        raise CheckpointError(
            f"{path}: cannot be used: {e}; a checkpoint must be unchanged; use another"
        ) from e


def committed(path: Path) -> dict[str, Any]:
    """Return size and SHA-256 of the run's growing files when checkpoint ``path`` was saved."""
    found: dict[str, Any] = manifest.read_manifest(path)["committed"]
    return found


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


class MisfitError(CheckpointError):
    """A checkpoint whose ``part`` does not fit what the config builds."""

    def __init__(self, text: str, part: str) -> None:
        super().__init__(text)
        self.part = part


@contextmanager
def fitting_part(part: str) -> Iterator[None]:
    """Within the context a part of a run is loaded. Raises: MisfitError where it does not fit."""
    try:
        yield
    except CheckpointError as e:
        raise MisfitError(str(e), part) from e
    except MISFITS as e:
        text = " ".join(str(e).split())
        raise MisfitError(
            f"checkpoints: the {part} do not fit the config ({type(e).__name__}: {text}); allowed "
            "are the networks, replay and environments that the run began with; undo the changes "
            "of its config",
            part,
        ) from e


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
        digest, size = tensorfile.write(temporary, weights, {"format": "pt"})
        entry = {"format": manifest.FORMAT, "weights_sha256": digest, "weights_bytes": size,
                 "meta": dict(meta)}  # fmt: skip
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
    if path.parent.name == "checkpoints" and not path.exists():
        require_saved(path.parent)
        if path.name == "best.safetensors" and not path.with_suffix(".json").exists():
            raise CheckpointError(
                f"{path.parent.parent}: has no best weights yet; the first evaluation "
                "(run.eval_every) saves them; use the newest (--weights final)"
            )
    try:
        meta = manifest.weights_entry(path)["meta"]
        weights = tensorfile.read(path)
        return {k: v for k, v in weights.items() if isinstance(v, Tensor)}, meta
    except UNREADABLE as e:
        raise CheckpointError(
            f"{path}: the weights cannot be used: {e}; weights must be unchanged; use a checkpoint "
            "of the run (`rlrun resume`) or train again"
        ) from e


def _read(directory: Path) -> dict[str, Any]:
    """Return the state of a checkpoint. Raises: ValueError with the reason unless it is intact."""
    fields = manifest.verify(directory)
    manifest.verify_committed(directory.parent.parent, fields, METRICS)
    packed = json.loads(read_file(directory / STATE))
    tensors = tensorfile.read(directory / TENSORS, numpy=array_names(packed["state"]))
    rings = [_row_files(directory.parent, ring, fields["segments"]) for ring in packed["rings"]]
    state: dict[str, Any] = unpack(packed["state"], tensors, rings)
    return state


def _row_files(directory: Path, ring: list[Any], listed: Mapping[str, Any]) -> RowFiles:
    """The segments of a ring: [file, first, stop] each, in the order of their rows."""
    parts = [
        Part(file, int(first), int(stop), listed[file]["sha256"], listed[file]["bytes"])
        for file, first, stop in ring
    ]
    return RowFiles(directory / ROWS, parts)


def _current_weights(path: Path) -> dict[str, Any] | None:
    """Return hash and meta of the weights at ``path``, None if there are no intact ones."""
    try:
        entry = manifest.weights_entry(path)
    except (OSError, ValueError):
        return None
    return {key: entry[key] for key in ("weights_sha256", "weights_bytes", "meta") if key in entry}
