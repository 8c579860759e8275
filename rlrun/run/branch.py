"""Return to an earlier checkpoint of a run, in its directory or a new one. Torch-free."""

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from rlrun.errors import CheckpointError, ConfigError, StorageError, storage_errors
from rlrun.run import files, manifest
from rlrun.run.manifest import CHECKPOINTS, MANIFEST, ROWS
from rlrun.schema import RunConfig
from rlrun.schema.override import keys_of, read_overrides
from rlrun.trust import resume_line


def split_step(text: str) -> tuple[Path, int | None]:
    """Return (run directory, env step) of ``RUN_DIR`` or ``RUN_DIR@ENV_STEP``."""
    name, at, step = text.rpartition("@")
    if at and name and step.isascii() and step.isdecimal() and not os.path.exists(text):
        return Path(name), int(step)
    return Path(text), None


def checkpoint_at(run_dir: Path, step: int | None) -> Path:
    """Return the newest checkpoint of env step ``step``; None: the newest of all.

    Raises: ConfigError naming the checkpoints that are kept.
    """
    existing = manifest.list_checkpoints(run_dir / CHECKPOINTS)
    if not existing:
        raise ConfigError(
            f"RUN_DIR = {run_dir}: has no checkpoint yet; a run saves them on its "
            "way (run.checkpoint_every) and at its end; wait for the first, or continue: "
            f"{resume_line(run_dir)}",
            key="RUN_DIR",
        )
    steps = [(manifest.parse_name(path) or (0,))[0] for path in existing]
    chosen = [path for path, saved in zip(existing, steps, strict=True) if step in (None, saved)]
    if not chosen:
        kept = ", ".join(map(str, dict.fromkeys(steps)))
        raise ConfigError(
            f"{run_dir}@{'' if step is None else step}: there is no checkpoint of this env step; "
            f"kept are {kept} (run.keep_checkpoints); choose one of them"
        )
    return chosen[-1]


def later_steps(run_dir: Path, path: Path) -> list[int]:
    """Return the env steps of the checkpoints after ``path``, which ``go_back`` deletes."""
    existing = manifest.list_checkpoints(run_dir / CHECKPOINTS)
    later = existing[existing.index(path) + 1 :]
    return [name[0] for name in map(manifest.parse_name, later) if name is not None]


def require_steps_left(path: Path, run: RunConfig) -> None:
    """Raise ConfigError if a run that continues from checkpoint ``path`` would train nothing."""
    try:
        fields = manifest.read_manifest(path)
        state = json.loads(files.read_file(path / manifest.STATE))["state"]
        enough = state["consecutive_solved"] >= run.stop_after
        solved = enough and state["stop_return"] == run.stop_return
        steps = int(fields["env_steps"])
    except (OSError, RecursionError, ValueError, KeyError, TypeError):
        return  # verified before use
    if steps >= run.total_steps:
        later = 2 * max(steps, run.total_steps)
        raise ConfigError(
            f"run.total_steps = {run.total_steps}: the checkpoint is of env step {steps}, so the "
            f"fork would train nothing; more than {steps} are allowed; add run.total_steps={later}",
            key="run.total_steps",
        )
    if solved and run.stop_return is not None:
        raise ConfigError(
            f"run.stop_return = {run.stop_return}: the checkpoint (env step {steps}) reached it, "
            "so the fork would train nothing; another value and null are allowed; add "
            "run.stop_return=null",
            key="run.stop_return",
        )


def _verified(run_dir: Path, path: Path) -> dict[str, Any]:
    """Return the manifest of an intact checkpoint whose records are intact, too.

    Raises: CheckpointError.
    """
    try:
        fields = manifest.verify(path)
        manifest.verify_committed(run_dir, fields, manifest.METRICS)
    except (OSError, ValueError, KeyError) as e:
        raise CheckpointError(
            f"{path}: cannot be used: {e}; a checkpoint must be unchanged; use another"
        ) from e
    return fields


def go_back(run_dir: Path, path: Path) -> None:
    """Make ``path`` the newest checkpoint: delete all later ones, the newest first.

    The directory must be locked. If killed at any time, the newest remaining checkpoint can be
    resumed.

    Raises: CheckpointError if ``path`` is damaged (nothing is deleted), StorageError.
    """
    fields = _verified(run_dir, path)
    existing = manifest.list_checkpoints(run_dir / CHECKPOINTS)
    try:
        for later in reversed(existing[existing.index(path) + 1 :]):
            manifest.delete(later)
        best = run_dir / CHECKPOINTS / "best.safetensors"
        if _env_steps_of(best) > fields["env_steps"]:  # weights of the deleted future
            best.unlink(missing_ok=True)
            best.with_suffix(".json").unlink(missing_ok=True)
        files.fsync_directory(run_dir / CHECKPOINTS)
    except OSError as e:
        raise StorageError(
            f"{e.filename or run_dir}: cannot be deleted ({e.strerror or e}); going back deletes "
            "later checkpoints; fix the permissions of the run directory"
        ) from e


def _env_steps_of(weights: Path) -> int:
    """Return the env steps of saved weights, -1 if there are none that can be read."""
    try:
        fields = files.unseal(files.read_file(weights.with_suffix(".json")))
        return int(fields["meta"]["env_steps"])
    except (OSError, ValueError, KeyError, TypeError):
        return -1


def fork(
    run_dir: Path, path: Path, new: Path, raw_yaml: str, overrides: Sequence[str]
) -> dict[str, Any]:
    """Make the run directory ``new``, which is empty, continue from ``path``. Return its parent.

    Its overrides are those of the run, with ``overrides`` in place of the same keys. Files that
    never change are hard-linked if the file system supports it. run.json is written last.

    Raises: CheckpointError if ``path`` is damaged, StorageError.
    """
    fields = _verified(run_dir, path)
    need = "a writable directory with enough space is allowed; choose another with run.dir=PATH"
    with storage_errors(f"run.dir = {new}: the fork", need):
        target = new / CHECKPOINTS / path.name
        (new / CHECKPOINTS / ROWS).mkdir(parents=True)
        target.mkdir()
        for name in fields["segments"]:
            _link(path.parent / ROWS / name, new / CHECKPOINTS / ROWS / name)
        for name in (*fields["files"], MANIFEST):
            _link(path / name, target / name)
        for name, entry in fields["committed"].items():
            with (run_dir / name).open("rb") as file:
                files.replace_file(new / name, file.read(entry["bytes"]))
        best = path.parent / "best.safetensors"
        if 0 <= _env_steps_of(best) <= fields["env_steps"]:
            for file_path in (best, best.with_suffix(".json")):
                _link(file_path, new / CHECKPOINTS / file_path.name)
        again = keys_of(read_overrides(overrides))
        kept = [o for o in read_overrides(files.typed_texts(run_dir)) if o.key not in again]
        texts = [*map(str, (*kept, *overrides))]
        typed = str(yaml.safe_dump(texts, allow_unicode=True, width=10**6))
        files.replace_file(new / files.TEXTS[1], typed.encode("utf-8", "surrogateescape"))
        files.replace_file(new / files.CONFIG, raw_yaml.encode())
        _verified(new, target)  # the parent may have deleted files meanwhile
        parent = {
            "directory": os.fspath(run_dir.absolute()), "env_steps": fields["env_steps"],
            "checkpoint": path.name, "manifest_sha256": files.sha256_file(target / MANIFEST),
        }  # fmt: skip
        record = files.read_record(run_dir) | {
            "status": "interrupted", "exit_code": None, "digest": None, "eval": None,
            "env_steps": fields["env_steps"], "parent": parent, "files": files.hashes(new),
            "resumes": [], "ended_by": None,
        }  # fmt: skip
        files.replace_file(new / files.RECORD, files.seal(record))
    return parent


def _link(source: Path, target: Path) -> None:
    """Hard-link a file, or copy it if that fails."""
    try:
        os.link(source, target, follow_symlinks=False)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copyfile(source, target, follow_symlinks=False)
