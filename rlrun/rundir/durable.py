"""Durable and verified files: fsync, atomic replacement, SHA-256, sealed JSON."""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlrun.rundir.inert import no_follow


def write_file(path: Path, content: bytes) -> None:
    """Write a file and fsync it. Raises: OSError."""
    with open(path, "wb", opener=no_follow) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def fsync_directory(directory: Path) -> None:
    """Make the names in a directory durable. Raises: OSError."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file atomically: readers see the old or the new content, also after a crash.

    Raises: OSError.
    """
    temporary = path.with_name(f".tmp_{path.name}")
    try:
        write_file(temporary, content)
    except OSError:
        temporary.unlink(missing_ok=True)  # a full disk needs the space
        raise
    os.rename(temporary, path)
    fsync_directory(path.parent)


def sha256_file(path: Path) -> str:
    """Return the SHA-256 (hex) of a file. Raises: OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_prefix(path: Path, size: int) -> str:
    """Return the SHA-256 (hex) of the first ``size`` bytes of a file. Raises: OSError."""
    digest, done = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(min(1 << 20, size - done)):
            digest.update(chunk)
            done += len(chunk)
    return digest.hexdigest()


def verify_file(path: Path, expected: Mapping[str, Any]) -> None:
    """Raise ValueError unless the file has the size ``bytes`` and the hash ``sha256`` expected."""
    if path.is_symlink() or not path.is_file():
        raise ValueError("is missing" if not os.path.lexists(path) else "is no regular file")
    if (size := path.stat().st_size) != expected["bytes"]:
        raise ValueError(f"has {size} bytes, not {expected['bytes']}")
    if sha256_file(path) != expected["sha256"]:
        raise ValueError("is damaged (its sha256 is wrong)")


def seal(fields: dict[str, Any]) -> bytes:
    """Return the fields as JSON, with the SHA-256 of the rest as the last key."""
    text = json.dumps(fields, indent=1, allow_nan=False)
    sealed = {**fields, "sha256": hashlib.sha256(text.encode()).hexdigest()}
    return json.dumps(sealed, indent=1, allow_nan=False).encode() + b"\n"


def unseal(content: bytes) -> dict[str, Any]:
    """Return the fields of sealed JSON. Raises: ValueError unless ``seal`` returns ``content``."""
    try:
        fields: dict[str, Any] = json.loads(content)
        fields.pop("sha256")
        intact = seal(fields) == content
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        intact = False
    if not intact:
        raise ValueError("its json description is damaged")
    return fields
