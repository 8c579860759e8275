"""Checkpoints, written atomically and verified when they are read. No pickle.

``checkpoints/step_000030000/`` holds ``tensors.safetensors`` (tensors and arrays), ``state.json``
(the tree around them) and ``manifest.json`` (SHA-256 and size of both, of the segments with the
rows of the replay, and its own SHA-256). It is written under a temporary name, fsynced, then
renamed, so a crash leaves earlier checkpoints unchanged. Any corruption is detected on read.
"""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from threading import Thread
from typing import Any

from torch import Tensor

from rlrun import __version__
from rlrun.errors import CheckpointError, StorageError, storage_errors
from rlrun.run import manifest
from rlrun.run.files import fsync_directory, read_file, replace_file, seal, write_file
from rlrun.run.manifest import METRICS, ROWS, STATE, TENSORS, list_checkpoints
from rlrun.run.tensors import (
    TEMPORARY,
    NewSegment,
    Packed,
    RowFiles,
    SegmentFile,
    new_segments,
    read_tensors,
    unpack,
    write_tensors,
)
from rlrun.trust import resume_line

_logger = logging.getLogger(__name__)

# Errors that loading a state with other parts, types or shapes raises.
MISFITS = (
    AssertionError, AttributeError, IndexError, KeyError, MemoryError, OverflowError, RuntimeError,
    TypeError, ValueError,
)  # fmt: skip
NETWORKS, ENVIRONMENTS, REPLAY = "networks", "environments", "replay"  # parts of a checkpoint
UNREADABLE = (OSError, RecursionError, *MISFITS)  # errors of reading a damaged or manipulated one


def load_newest(directory: Path) -> tuple[dict[str, Any], Path]:
    """Return (state, path) of the newest intact checkpoint. Warn about damaged ones.

    Tensors are in host memory.

    Raises: CheckpointError if none can be used; the message lists the reasons.
    """
    tried = []
    for path in reversed(list_checkpoints(directory)):
        try:
            return _read(path), path
        except UNREADABLE as e:
            tried.append(f"{path.name} ({e})")
            _logger.warning("checkpoint skipped: %s: %s", path, e)
    require_saved(directory)
    reason = "tried " + ", ".join(tried) if tried else "there is none"
    raise CheckpointError(
        f"{directory}: no usable checkpoint: {reason}; a run resumes from an intact checkpoint; "
        "remove the directory and start the run again (overrides.yaml has its command line)"
    )


def require_saved(directory: Path) -> None:
    """Raise CheckpointError if a run has not saved anything yet. Nothing is damaged then."""
    if not list_checkpoints(directory) and not (directory / "last.json").exists():
        raise CheckpointError(
            f"{directory.parent}: has no weights and no checkpoint yet; a run saves them on "
            "its way (run.checkpoint_every) and at its end; wait for the first, or continue: "
            f"{resume_line(directory.parent)}"
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
    """Return size and SHA-256 of the run's growing files at the time of checkpoint ``path``."""
    entries: dict[str, Any] = manifest.read_manifest(path)["committed"]
    return entries


class MisfitError(CheckpointError):
    """A checkpoint whose ``part`` does not fit what the config builds."""

    def __init__(self, text: str, part: str) -> None:
        super().__init__(text)
        self.part = part


@contextmanager
def fitting(what: Path | str, part: str | None = None) -> Iterator[None]:
    """Convert errors of loading a state of ``what``, or a ``part`` of it, within the block.

    Raises: CheckpointError if its parts, shapes or numbers do not fit; MisfitError for a ``part``.
    """
    try:
        yield
    except (CheckpointError, *MISFITS) as e:
        if isinstance(e, CheckpointError) and (part is None or isinstance(e, MisfitError)):
            raise
        text = str(e)
        if not isinstance(e, CheckpointError):
            cause = " ".join(text.split())[:300]
            text = (
                f"{what}: the {part or 'state'} cannot be loaded ({type(e).__name__}: {cause}); "
                "allowed are the networks, replay and environments that the run began with; undo "
                "the changes of its config, or use another checkpoint"
            )
        raise (CheckpointError(text) if part is None else MisfitError(text, part)) from e


def save_weights(path: Path, weights: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
    """Write weights to ``path`` (.safetensors), and their SHA-256 and ``meta`` to the json next to
    it.

    The json is replaced first and includes hash and meta of the previous weights, so that the pair
    is readable at any time. ``meta``: finite JSON values.

    Raises: StorageError.
    """
    description = path.with_suffix(".json")
    need = "free space or fix the permissions of the run directory"
    with storage_errors(f"{path}: the weights", need):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".tmp_{path.name}")
        temporary.unlink(missing_ok=True)
        digest, size = write_tensors(temporary, weights, {"format": "pt"})
        previous = None
        with suppress(*UNREADABLE):  # no intact weights
            old = manifest.weights_entry(path)
            previous = {k: old[k] for k in ("weights_sha256", "weights_bytes", "meta") if k in old}
        entry = {"format": manifest.WEIGHTS_FORMAT, "weights_sha256": digest, "weights_bytes": size,
                 "meta": dict(meta), "previous": previous}  # fmt: skip
        replace_file(description, seal(entry))
        os.rename(temporary, path)
        fsync_directory(path.parent)


def load_weights(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the weights and meta written by ``save_weights``.

    Raises: CheckpointError if they are missing or damaged.
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
        return read_tensors(path), meta
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
    tensors = read_tensors(directory / TENSORS)
    rings, ends = [], {f: (e["sha256"], e["bytes"]) for f, e in fields["segments"].items()}
    for ring in packed["rings"]:  # [file, first, stop] of each segment, in the order of its rows
        parts = [
            SegmentFile(file, int(first), int(stop), *ends[file]) for file, first, stop in ring
        ]
        rings.append(RowFiles(directory.parent / ROWS, parts))
    state: dict[str, Any] = unpack(packed["state"], tensors, rings)
    return state


class Saver:
    """Saves the checkpoints of a run one after the other.

    ``save`` copies the state and returns; a thread writes, hashes and syncs the files. An error of
    the thread is raised by the next ``save`` or ``wait``. The process does not exit before the
    thread has ended. A killed process leaves the earlier checkpoints.
    """

    def __init__(self, directory: Path) -> None:
        """``directory``: contains the checkpoints."""
        self.directory = directory
        self._thread: Thread | None = None
        self._error: BaseException | None = None
        self._began = False
        self._segments: dict[Path, set[str] | None] = {}  # segments of each checkpoint

    def save(
        self,
        state: Mapping[str, Any],
        *,
        env_steps: int,
        keep: int,
        committed: Mapping[str, Mapping[str, Any]] | None = None,
        before: Callable[[], object] = lambda: None,
        after: Callable[[], object] = lambda: None,
    ) -> None:
        """Save ``state`` as the checkpoint ``step_<env_steps>``.

        ``state`` is a tree of dicts (keys: str, int, float, bool or None), lists and tuples over
        tensors, arrays, ``Rows``, int, float, str, bool and None; numpy scalars become Python's.
        The ``keep`` newest checkpoints are kept. Those of later env steps are deleted, because the
        run has resumed before them. ``committed``: size and SHA-256 of the run's growing files.
        ``before``: called first by the thread, for instance to sync these. ``after``: called once
        the checkpoint exists.

        Raises: TypeError for an unsupported value, StorageError of the previous save.
        """
        self.wait()
        if not self._began:
            for path in self.directory.glob(".tmp_*"):  # of a crashed process
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            self._began = True
        packed = Packed(state)
        segments = new_segments(packed.rows, self.directory / ROWS)
        if not all(segment.small for segment in segments):
            # The run waits, because a copy may not fit in memory.
            self._write_segments(segments, env_steps)
        committed = {name: dict(entry) for name, entry in (committed or {}).items()}

        def write() -> None:
            try:
                before()
                self._write(packed, segments, committed, env_steps, keep)
                after()
            except BaseException as e:
                self._error = e

        self._thread = Thread(target=write, name="checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Wait until the last checkpoint is durable.

        Raises: StorageError if it could not be written.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _write(
        self,
        packed: Packed,
        segments: list[NewSegment],
        committed: dict[str, Any],
        env_steps: int,
        keep: int,
    ) -> None:
        directory = self.directory
        name = f"step_{env_steps:09d}"  # a step that is saved again gets a number
        targets = (directory / (f"{name}_{serial}" if serial else name) for serial in count())
        target = next(target for target in targets if not target.exists())
        temporary = directory / f".tmp_{target.name}"
        written: list[Path] = []
        try:
            written = self._write_segments(segments, env_steps)
            self._write_generation(temporary, packed, segments, committed, env_steps)
            os.rename(temporary, target)
            fsync_directory(directory)
            for segment in segments:
                segment.commit(directory / ROWS)
            self._prune(target, env_steps, keep)
        except OSError as e:
            shutil.rmtree(temporary, ignore_errors=True)  # a full disk needs the space
            if not target.exists():
                for path in written:
                    path.unlink(missing_ok=True)
            raise self._storage_error(e, env_steps) from e

    def _write_segments(self, segments: list[NewSegment], env_steps: int) -> list[Path]:
        """Write and sync the segments that are not written yet. Return their paths."""
        directory = self.directory / ROWS
        written: list[Path] = []
        try:
            directory.mkdir(parents=True, exist_ok=True)
            for segment in segments:
                written += filter(None, [segment.write(directory)])
            if written:
                fsync_directory(directory)
        except OSError as e:
            for path in (*written, directory / TEMPORARY):
                path.unlink(missing_ok=True)
            raise self._storage_error(e, env_steps) from e
        return written

    def _storage_error(self, error: OSError, env_steps: int) -> StorageError:
        return StorageError(
            f"{self.directory}: the checkpoint of env step {env_steps} cannot be written "
            f"({error.strerror or error}); the earlier ones are unchanged; free space or fix the "
            "permissions, then `rlrun resume` the run"
        )

    def _write_generation(
        self,
        directory: Path,
        packed: Packed,
        segments: list[NewSegment],
        committed: dict[str, Any],
        env_steps: int,
    ) -> None:
        """Write the files of one checkpoint to ``directory``, which is made, and sync them."""
        by_ring = {id(segment.files): segment.parts for segment in segments}
        parts = [by_ring[id(files)] for files in packed.rings]
        rings = [[part[:3] for part in ring] for ring in parts]
        tree = {"rings": rings, "state": packed.tree}
        text = json.dumps(tree, allow_nan=False).encode()
        directory.mkdir()
        digest, size = write_tensors(directory / TENSORS, packed.tensors, {"format": "pt"})
        write_file(directory / STATE, text)
        files = {
            TENSORS: {"sha256": digest, "bytes": size},
            STATE: {"sha256": hashlib.sha256(text).hexdigest(), "bytes": len(text)},
        }
        listed = {p.file: {"sha256": p.sha256, "bytes": p.bytes} for ring in parts for p in ring}
        content = {
            "format": manifest.FORMAT, "rlrun": __version__, "env_steps": env_steps,
            "files": files, "segments": listed, "committed": committed,
        }  # fmt: skip
        write_file(directory / manifest.MANIFEST, seal(content))
        fsync_directory(directory)

    def _prune(self, target: Path, env_steps: int, keep: int) -> None:
        """Delete all but the ``keep`` newest checkpoints up to ``env_steps``; unused segments."""
        existing = list_checkpoints(self.directory)
        needed = dict(self._segments)
        for path in existing:
            if path not in needed:
                try:
                    needed[path] = {*manifest.read_manifest(path)["segments"]}
                except (OSError, ValueError, KeyError):
                    needed[path] = None  # damaged
        older = [p for p in existing if (manifest.parse_name(p) or (0,))[0] < env_steps]
        intact = [p for p in older if needed[p] is not None]
        kept = {target, *intact[max(len(intact) - keep + 1, 0) :]}
        for path in existing:
            if path not in kept:
                manifest.delete(path)
        self._segments = {path: needed[path] for path in kept}
        segments = {name for path in kept for name in needed[path] or ()}
        for path in (self.directory / ROWS).iterdir():
            if path.name not in segments:
                path.unlink()
