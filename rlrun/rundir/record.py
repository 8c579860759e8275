"""What a run directory says about its run: run.json, the digest, and the lock."""

import dataclasses
import datetime
import fcntl
import hashlib
import json
import logging
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from rlrun import __version__
from rlrun.errors import ConfigError, LockedError, StorageError
from rlrun.rundir import tensorfile
from rlrun.rundir.durable import replace_file

_logger = logging.getLogger(__name__)

RECORD, LOCK = "run.json", ".lock"
GIT_SECONDS = 2.0
_PACKAGES = {"numpy": "numpy", "gymnasium": "gymnasium", "hydra": "hydra-core"}


def versions() -> dict[str, str | None]:
    """Versions of Python, rlrun and what its numbers depend on; None: not installed."""
    found: dict[str, str | None] = {"python": platform.python_version(), "rlrun": __version__}
    found["torch"] = str(torch.__version__)  # with its build, which a wheel's metadata may lack
    for name, package in _PACKAGES.items():
        try:
            found[name] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def host() -> dict[str, str | int | None]:
    """The machine: name, platform, CPU cores."""
    return {
        "hostname": platform.node(),
        "platform": platform.platform(),
        "cpu_count": os.cpu_count(),
    }


def git() -> dict[str, str | bool] | None:
    """Commit and dirty flag of the repository rlrun runs from, else of the working directory.

    None: neither is in a repository, or git is missing or slow.
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
    """run.json. Written when a run starts (status running) and when it ends, however it ends."""

    seed: int
    device: str
    threads: int
    parameters: int
    status: Literal["running", "done", "failed", "interrupted"] = "running"
    exit_code: int | None = None  # None: running, or killed
    env_steps: int = 0
    updates: int = 0
    wall_seconds: float = 0.0
    eval: dict[str, float] | None = None  # of the final weights
    best_eval: dict[str, float] | None = None  # of the kept best
    digest: str | None = None
    command: list[str] = field(default_factory=lambda: list(sys.argv))
    resumes: list[list[str]] = field(default_factory=list)  # the command of every resume
    started: str = field(
        default_factory=lambda: datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    )
    versions: dict[str, str | None] = field(default_factory=versions)
    git: dict[str, str | bool] | None = field(default_factory=git)
    host: dict[str, str | int | None] = field(default_factory=host)

    def write(self, run_dir: Path) -> None:
        """Replaces run.json at once: a reader sees the old or the new.

        Raises: StorageError.
        """
        text = json.dumps(dataclasses.asdict(self), indent=2, allow_nan=False)
        try:
            replace_file(run_dir / RECORD, text.encode() + b"\n")
        except OSError as e:
            raise StorageError(
                f"{run_dir / RECORD}: cannot be written ({e.strerror or e}); the run directory "
                "must be writable; free space, or choose another with run.dir=PATH"
            ) from e

    @classmethod
    def read(cls, run_dir: Path) -> "RunRecord":
        """The record of a run directory.

        Raises: ConfigError when the directory is not one.
        """
        path = run_dir / RECORD
        try:
            fields: dict[str, Any] = json.loads(path.read_bytes())
            return cls(**fields)
        except (OSError, ValueError, TypeError) as e:
            reason = e.strerror if isinstance(e, OSError) else "it is damaged"
            raise ConfigError(
                f"{path}: cannot be read ({reason}); a run directory is one that rlrun made; give "
                "the directory that holds run.json"
            ) from e


def digest(metrics: Path, weights: Mapping[str, Tensor]) -> str:
    """The sha256 (hex) over the metrics file and the weights: equal digests, equal runs.

    sha256(bytes of metrics.jsonl || for each name in sorted order: name as UTF-8, NUL, the
    dtype (torch.float32), NUL, the shape as JSON ([64, 4]), NUL, the elements' bytes,
    row-major).

    Raises: StorageError when the file cannot be read.
    """
    try:
        content = metrics.read_bytes()
    except OSError as e:
        raise StorageError(
            f"{metrics}: cannot be read ({e.strerror or e}); a run needs its metrics file; look "
            "whether the run directory was moved or removed"
        ) from e
    total = hashlib.sha256(content)
    for name in sorted(weights):
        tensor = weights[name]
        head = (name, str(tensor.dtype), json.dumps(list(tensor.shape)))
        total.update(b"".join(part.encode() + b"\0" for part in head))
        total.update(tensorfile.raw(tensor))
    return total.hexdigest()


_held: set[int] = set()


def _forget_in_child() -> None:
    """A forked worker closes its copies, so that the lock dies with the process that took it."""
    for handle in _held:
        os.close(handle)
    _held.clear()


os.register_at_fork(after_in_child=_forget_in_child)


@contextmanager
def lock(run_dir: Path) -> Iterator[None]:
    """Holds the run directory for this process within the block, and until it dies.

    Raises: LockedError when another live process holds it, StorageError when the lock file
    cannot be made.
    """
    path = run_dir / LOCK
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as e:
        raise StorageError(
            f"{path}: cannot be made ({e.strerror or e}); the run directory must be writable; fix "
            "its permissions, or choose another with run.dir=PATH"
        ) from e
    _held.add(handle)
    try:
        _take(handle, path)
        yield
    finally:
        if handle in _held:  # not in a forked child, which has closed its copy
            _held.discard(handle)
            os.close(handle)  # gives the lock back


def _take(handle: int, path: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(handle, 200, 0).decode(errors="replace").strip() or "another process"
        raise LockedError(
            f"{path.parent}: in use by {holder}; one process at a time may use a run directory; "
            "wait for it to end, or stop it"
        ) from None
    except OSError as e:  # some network file systems have no locks
        _logger.warning("%s: cannot be locked (%s); going on without", path.parent, e.strerror)
        return
    os.ftruncate(handle, 0)
    os.pwrite(handle, f"process {os.getpid()} on {platform.node()}\n".encode(), 0)
