"""Record of a run (run.json) and its digest."""

import dataclasses
import datetime
import errno
import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from rlrun import __version__
from rlrun.errors import CheckpointError, StorageError
from rlrun.rundir import tensorfile
from rlrun.rundir.durable import replace_file, seal
from rlrun.rundir.texts import RECORD, read_record

GIT_SECONDS = 2.0
BLOCK = 4096  # bytes a file system allocates at once, at least
_PACKAGES = {"numpy": "numpy", "gymnasium": "gymnasium", "hydra": "hydra-core"}


def _whole_blocks(path: Path) -> int:
    """Bytes of the blocks that a file has. Raises: OSError."""
    return -(-path.stat().st_size // BLOCK) * BLOCK


def package_versions() -> dict[str, str | None]:
    """Return the versions of Python, rlrun and its numerical packages; None: not installed."""
    found: dict[str, str | None] = {"python": platform.python_version(), "rlrun": __version__}
    found["torch"] = str(torch.__version__)  # includes the build, unlike some wheels' metadata
    for name, package in _PACKAGES.items():
        try:
            found[name] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def host_info() -> dict[str, str | int | None]:
    """Return the machine's name, platform and number of CPU cores."""
    return {
        "hostname": platform.node(),
        "platform": platform.platform(),
        "cpu_count": os.cpu_count(),
    }


def git_state() -> dict[str, str | bool] | None:
    """Return commit and dirty flag of rlrun's repository, else of the working directory's.

    None if neither is in a repository, or git is missing or slow.
    """
    for directory in (Path(__file__).parent, Path.cwd()):
        commit = _git(directory, "rev-parse", "HEAD")
        changes = _git(directory, "status", "--porcelain") if commit else None
        if commit and changes is not None:
            return {"commit": commit, "dirty": bool(changes)}
    return None


def _git(directory: Path, *arguments: str) -> str | None:
    try:
        result = subprocess.run(
            ["git", "-C", str(directory), *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=GIT_SECONDS,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip() if result.returncode == 0 else None


@dataclass(slots=True)
class RunRecord:
    """Contents of run.json, written when a run starts (status running) and when it ends."""

    seed: int
    device: str
    threads: int
    parameters: int
    backend: str | None = None  # what computed the updates: numpy or torch
    backend_reason: str | None = None
    status: Literal["running", "done", "failed", "interrupted"] = "running"
    exit_code: int | None = None  # None: running, or killed
    env_steps: int = 0
    updates: int = 0
    rollbacks: int = 0  # after non-finite updates (run.on_nan=rollback)
    exact: bool = True  # killed and resumed, it equals the run that was not
    exact_reason: str | None = None  # why not
    changed: list[str] = field(default_factory=list)  # keys of resumes that changed its numbers
    wall_seconds: float = 0.0
    ended_by: Literal["run.total_steps", "run.stop_value"] | None = None  # of a run that is done
    eval: dict[str, float] | None = None  # of the final weights
    best_eval: dict[str, float] | None = None  # of the best weights
    digest: str | None = None
    command: list[str] = field(default_factory=lambda: list(sys.argv))
    files: dict[str, list[str]] = field(default_factory=dict)  # SHA-256 of config and overrides
    parent: dict[str, Any] | None = None  # of a fork: directory, env_steps, manifest's sha256
    resumes: list[list[str]] = field(default_factory=list)  # the command of every resume
    started: str = field(
        default_factory=lambda: datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    )
    versions: dict[str, str | None] = field(default_factory=package_versions)
    git: dict[str, str | bool] | None = field(default_factory=git_state)
    host: dict[str, str | int | None] = field(default_factory=host_info)

    def write(self, run_dir: Path) -> None:
        """Replace run.json atomically; on a full disk overwrite it, which needs no space.

        Raises: StorageError.
        """
        path = run_dir / RECORD
        text = seal(dataclasses.asdict(self))
        try:
            try:
                replace_file(path, text)
            except OSError as e:
                if e.errno != errno.ENOSPC or len(text) > _whole_blocks(path):
                    raise
                with path.open("r+b", buffering=0) as file:
                    file.write(text)
                    file.truncate()
        except OSError as e:
            raise StorageError(
                f"{run_dir / RECORD}: cannot be written ({e.strerror or e}); the run directory "
                "must be writable; free space, or choose another with run.dir=PATH"
            ) from e

    @classmethod
    def read(cls, run_dir: Path) -> "RunRecord":
        """Return the record of a run directory.

        Raises: ConfigError when there is no run.json, CheckpointError when it is damaged.
        """
        try:
            record = cls(**read_record(run_dir))
            if not (isinstance(record.resumes, list) and isinstance(record.command, list)):
                raise TypeError("other types")
            return record
        except TypeError as e:
            raise CheckpointError(
                f"{run_dir / RECORD}: has fields of another version of rlrun ({e}); one of rlrun "
                f"{__version__} is required; use the version that wrote it"
            ) from e


def run_digest(metrics: Path, weights: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 (hex) of the metrics file and the weights, equal for equal runs.

    sha256(bytes of metrics.jsonl || for each name in sorted order: name as UTF-8, NUL, the
    dtype (torch.float32), NUL, the shape as JSON ([64, 4]), NUL, the elements' bytes,
    row-major).

    Raises: StorageError when the file cannot be read.
    """
    try:
        content = metrics.read_bytes()
    except OSError as e:
        raise StorageError(
            f"{metrics}: cannot be read ({e.strerror or e}); a run needs its metrics file; check "
            "whether the run directory was moved or removed"
        ) from e
    total = hashlib.sha256(content)
    for name in sorted(weights):
        tensor = weights[name]
        head = (name, str(tensor.dtype), json.dumps(list(tensor.shape)))
        total.update(b"".join(part.encode() + b"\0" for part in head))
        total.update(tensorfile.raw_bytes(tensor))
    return total.hexdigest()
