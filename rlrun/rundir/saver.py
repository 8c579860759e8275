"""Saving of checkpoints: a snapshot in the training thread, the files in another one."""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Thread
from typing import Any

import torch
from torch import Tensor

from rlrun.errors import StorageError
from rlrun.rundir import manifest, tensorfile
from rlrun.rundir.durable import fsync_directory, write_file
from rlrun.rundir.manifest import ROWS, STATE, TENSORS
from rlrun.rundir.segments import TEMPORARY, NewSegment, new_segments
from rlrun.rundir.statetree import Packed

_logger = logging.getLogger(__name__)

WEIGHTS = "policy/"  # names of the tensors that decide whether a checkpoint is finite


class Saver:
    """Saves the checkpoints of a run one after the other.

    ``save`` copies the state and returns; a thread writes, hashes and syncs the files. An error of
    the thread is raised by the next ``save`` or ``wait``. The process does not exit before the
    thread has ended; a process that is killed leaves the earlier checkpoints.
    """

    def __init__(self, directory: Path) -> None:
        """``directory``: of the checkpoints."""
        self.directory = directory
        self._thread: Thread | None = None
        self._error: BaseException | None = None
        self._began = False
        self._manifests: dict[Path, dict[str, Any] | None] = {}  # of those that exist; None: bad

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
        The ``keep`` newest checkpoints with finite weights are kept; those of later env steps are
        deleted, since the run has resumed before them. ``committed``: size and SHA-256 of the files
        of the run that only grow. ``before``: called by the thread first, for instance to sync
        these; ``after``: called once the checkpoint is there.

        Raises: TypeError for an unsupported value, StorageError of the save before.
        """
        self.wait()
        if not self._began:
            _remove_temporaries(self.directory)
            self._began = True
        packed = Packed(state)
        segments = new_segments(packed.rows, self.directory / ROWS)
        if not all(segment.small for segment in segments):
            self._write_segments(segments, env_steps)  # the run waits: no memory for a copy
        committed = {name: dict(entry) for name, entry in (committed or {}).items()}

        def write() -> None:
            before()
            self._write(packed, segments, committed, env_steps, keep)
            after()

        self._thread = Thread(target=self._run, args=(write,), name="checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Wait until the last checkpoint is durable.

        Raises: StorageError when it could not be written.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self, write: Callable[[], None]) -> None:
        try:
            write()
        except BaseException as e:
            self._error = e

    def _write(
        self,
        packed: Packed,
        segments: list[NewSegment],
        committed: dict[str, Any],
        env_steps: int,
        keep: int,
    ) -> None:
        directory = self.directory
        target = manifest.free_name(directory, env_steps)
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
        """Write and sync the segments that are not yet; return their paths."""
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
        digest, size = tensorfile.write(directory / TENSORS, packed.tensors, {"format": "pt"})
        write_file(directory / STATE, text)
        files = {
            TENSORS: {"sha256": digest, "bytes": size},
            STATE: {"sha256": hashlib.sha256(text).hexdigest(), "bytes": len(text)},
        }
        listed = {p.file: {"sha256": p.sha256, "bytes": p.bytes} for ring in parts for p in ring}
        manifest.write_manifest(
            directory, env_steps=env_steps, finite=_is_finite(packed), files=files,
            segments=listed, committed=committed,
        )  # fmt: skip
        fsync_directory(directory)

    def _prune(self, target: Path, env_steps: int, keep: int) -> None:
        """Delete what is older than the ``keep`` newest finite checkpoints, or not needed."""
        existing = manifest.list_checkpoints(self.directory)
        found = {path: self._manifest(path) for path in existing}
        older = [p for p in existing if (manifest.parse_name(p) or (0,))[0] < env_steps]
        finite = [p for p in older if (found[p] or {}).get("finite")]
        more = keep - 1 if (found[target] or {}).get("finite") else keep
        kept = {target, *finite[max(len(finite) - more, 0) :]}
        for path in existing:
            if path not in kept:
                manifest.delete(path)
        self._manifests = {path: found[path] for path in kept}
        needed = {name for path in kept for name in (found[path] or {"segments": ()})["segments"]}
        for path in (self.directory / ROWS).iterdir():
            if path.name not in needed:
                path.unlink()

    def _manifest(self, path: Path) -> dict[str, Any] | None:
        if path not in self._manifests:
            try:
                self._manifests[path] = manifest.read_manifest(path)
            except (OSError, ValueError, KeyError):
                return None
        return self._manifests[path]


def _remove_temporaries(directory: Path) -> None:
    """Remove temporaries of a crashed process; the run directory is locked by this one."""
    for path in directory.glob(".tmp_*"):
        remove = shutil.rmtree if path.is_dir() else Path.unlink
        remove(path)


def _is_finite(packed: Packed) -> bool:
    """Whether all weights and the state of the optimiser are numbers."""
    return all(
        bool(torch.isfinite(x).all())
        for name, x in packed.tensors.items()
        if name.startswith(WEIGHTS) and isinstance(x, Tensor) and x.is_floating_point()
    )
