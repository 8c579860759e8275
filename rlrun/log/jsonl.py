"""JSON Lines files of metrics and timings: one object per line, keyed by env steps."""

import hashlib
import io
import json
import logging
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from numbers import Integral
from pathlib import Path
from typing import Any, SupportsFloat, TypeAlias

from rlrun.errors import NumericError, StorageError, storage_errors

Committed: TypeAlias = Mapping[str, Any]  # bytes and sha256, from ``JsonLinesFile.committed``
NOTHING: Committed = {"bytes": 0, "sha256": hashlib.sha256().hexdigest()}

_logger = logging.getLogger(__name__)

_MAX_LINE = 2**20  # bytes; longer lines are not records


def finite_number(key: str, value: SupportsFloat) -> int | float:
    """Return ``value`` as int (integers) or float (others, including 0-d tensors and arrays).

    Raises: NumericError if it is NaN or infinite, which JSON and plots would hide.
    """
    if type(value) is not float and isinstance(value, Integral):  # the test of a class is slow
        return int(value)
    plain = float(value)
    if not math.isfinite(plain):
        raise NumericError(
            f"{key} = {plain}: a logged metric is not a number; metrics must be finite; look at "
            "the lines before it in metrics.jsonl; try a lower policy.lr or policy.max_grad_norm"
        )
    return plain


def encode_record(env_steps: int, values: Mapping[str, SupportsFloat]) -> bytes:
    """Return a record as a line: ``env_steps`` first, then sorted keys, shortest exact floats."""
    record: dict[str, int | float] = {"env_steps": int(env_steps)}
    for key in sorted(values):
        record[key] = finite_number(key, values[key])
    return json.dumps(record, allow_nan=False).encode() + b"\n"


class JsonLinesFile:
    """Append-only file of records with increasing ``env_steps``, unbuffered.

    ``committed``: the state to which the file is cut in a resume; ``last`` is the newest record
    then. None: the file is new and must not exist.

    Raises: StorageError from every method.
    """

    def __init__(self, path: Path, *, committed: Committed | None) -> None:
        self.path = path
        self.last: dict[str, Any] | None = None
        self._size, self._digest = 0, hashlib.sha256()  # of all records
        with self._writing():
            if committed is not None and path.exists():
                self._truncate(committed)
            mode = "x" if committed is None else "a"
            self._file = io.FileIO(path, mode, opener=_append)

    def write(self, env_steps: int, values: Mapping[str, SupportsFloat]) -> None:
        """Append a record and pass it to the operating system."""
        text = encode_record(env_steps, values)
        self._require_intact()
        rest = memoryview(text)
        with self._writing():
            while rest:  # an unbuffered write may be partial
                count = self._file.write(rest)
                self._size += count
                self._digest.update(rest[:count])
                rest = rest[count:]

    def committed(self) -> dict[str, Any]:
        """Return size and SHA-256 (hex) of the records so far, for a checkpoint."""
        self._require_intact()
        return {"bytes": self._size, "sha256": self._digest.hexdigest()}

    def rewind(self, committed: Committed) -> None:
        """Drop the records after ``committed``, like a resume from there."""
        with self._writing():
            self._truncate(committed)

    def _truncate(self, committed: Committed) -> None:
        with open(self.path, "r+b", opener=_no_follow) as file:
            file.truncate(min(committed["bytes"], os.fstat(file.fileno()).st_size))
            os.fsync(file.fileno())
        content = self.path.read_bytes()
        self._size, self._digest = len(content), hashlib.sha256(content)
        if self._digest.hexdigest() != committed["sha256"]:
            _logger.warning("%s: damaged; it is not what the checkpoint was saved with", self.path)
        self.last = _parse(content[content.rfind(b"\n", 0, -1) + 1 :])

    def sync(self) -> None:
        """Fsync the file. Called before a checkpoint is saved; any thread may call it."""
        with self._writing():
            os.fsync(self._file.fileno())

    def _require_intact(self) -> None:
        """Raise StorageError if the file was removed, replaced or cut.

        Writes to a file without a name succeed but are lost, and no checkpoint can be resumed
        without the lost records.
        """
        same = False
        with self._writing(), suppress(FileNotFoundError):
            file, path = os.fstat(self._file.fileno()), os.stat(self.path, follow_symlinks=False)
            same = (file.st_dev, file.st_ino) == (path.st_dev, path.st_ino)
        if not same:
            raise self._changed("was removed or replaced")
        if file.st_size < self._size:
            raise self._changed(f"was cut to {file.st_size} of {self._size} bytes")
        if file.st_size > self._size:
            raise self._changed(f"was written by others ({file.st_size} bytes, not {self._size})")

    def _changed(self, wrong: str) -> StorageError:
        return StorageError(
            f"{self.path}: the file {wrong} while the run was writing it; a checkpoint cannot be "
            "used without its records, so the files of a run must stay unchanged; `rlrun verify` "
            "reports what can still be resumed"
        )

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._file.close()

    def _writing(self) -> AbstractContextManager[None]:
        need = "a run needs its metrics file; free space, or choose a writable new directory with "
        return storage_errors(f"{self.path}:", f"{need}run.dir=PATH")


def read_records(path: Path) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield (env_steps, values) of a file's records, up to an incomplete or damaged line.

    Raises: StorageError if it cannot be read.
    """
    need = "the records of a run are needed; give the directory of a run"
    with storage_errors(f"{path}:", need, "cannot be read"), path.open("rb") as file:
        while raw := file.readline(_MAX_LINE):
            record = _parse(raw)
            if record is None:
                return
            step = record.pop("env_steps")
            yield step, {k: v for k, v in record.items() if isinstance(v, int | float)}


def _append(path: str, flags: int) -> int:
    """Open a file for writing at its end, even after ``rewind`` has cut it."""
    return _no_follow(path, flags | os.O_APPEND)


def _no_follow(path: str, flags: int) -> int:
    """Open a file that is not a link: an untrusted run directory could lead to any file."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)


def _parse(raw: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(raw)
        valid = isinstance(record, dict) and isinstance(record.get("env_steps"), int)
        return record if valid else None
    except (ValueError, RecursionError):
        return None
