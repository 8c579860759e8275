"""metrics.jsonl and timings.jsonl: one JSON object a line, the truth every plot is drawn from."""

import json
import logging
import math
import os
from collections.abc import Iterator, Mapping
from numbers import Integral
from pathlib import Path
from typing import Any, SupportsFloat

from rlrun.errors import NumericError, StorageError

_logger = logging.getLogger(__name__)


def number(key: str, value: SupportsFloat) -> int | float:
    """``value`` as a plain int (integers) or float (all else, 0-d tensors and arrays too).

    Raises: NumericError when it is NaN or infinite: a file that says null, or a plot with a hole,
    would hide it.
    """
    if isinstance(value, Integral):
        return int(value)
    plain = float(value)
    if not math.isfinite(plain):
        raise NumericError(
            f"{key} = {plain}: a logged metric is not a number; metrics must be finite; look at "
            "the lines before it in metrics.jsonl, then try a lower policy.lr or policy.grad_clip"
        )
    return plain


def line(env_steps: int, values: Mapping[str, SupportsFloat]) -> bytes:
    """The line of one record: ``env_steps`` first, then the keys sorted, shortest exact floats."""
    record: dict[str, int | float] = {"env_steps": int(env_steps)}
    for key in sorted(values):
        record[key] = number(key, values[key])
    return json.dumps(record, allow_nan=False).encode() + b"\n"


class JsonLines:
    """An append-only file of lines with rising ``env_steps``; every line is written at once.

    A new file must not exist yet. With ``resume_from`` the file is cut to its lines with
    env_steps <= resume_from (a torn last line goes too) and ``last`` is the newest line kept.

    Raises: StorageError from every method, since a run without its metrics is worth nothing.
    """

    def __init__(self, path: Path, *, resume_from: int | None) -> None:
        self.path = path
        self.last: dict[str, Any] | None = None
        try:
            if resume_from is not None and path.exists():
                self.last = _cut(path, resume_from)
            self._file = path.open("xb" if resume_from is None else "ab", buffering=0)
        except OSError as e:
            raise self._failed(e) from e

    def write(self, env_steps: int, values: Mapping[str, SupportsFloat]) -> None:
        """Appends one line; the operating system has it when this returns.

        The line that a resumed file ends with is not written twice: an evaluation that was owed is
        done again when the run was killed before its next checkpoint.
        """
        text = line(env_steps, values)
        if self.last is not None and text == json.dumps(self.last).encode() + b"\n":
            return
        rest = memoryview(text)
        try:
            while rest:  # an unbuffered write may take only a part
                rest = rest[self._file.write(rest) :]
            removed = os.fstat(self._file.fileno()).st_nlink == 0
        except OSError as e:
            raise self._failed(e) from e
        if removed:  # writing to an unlinked file succeeds, and is lost
            raise StorageError(
                f"{self.path}: the file was removed while the run was writing it; the run "
                "directory must stay in place; start the run again"
            )

    def sync(self) -> None:
        """Returns when the disk has every line (called before a checkpoint counts on them)."""
        try:
            os.fsync(self._file.fileno())
        except OSError as e:
            raise self._failed(e) from e

    def close(self) -> None:
        """Closes the file; harmless twice."""
        self._file.close()

    def _failed(self, error: OSError) -> StorageError:
        return StorageError(
            f"{self.path}: cannot be written ({error.strerror or error}); a run needs its metrics "
            "file; free space, or choose a writable new directory with run.dir=PATH"
        )


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a file, oldest first; a torn last line is left out."""
    with path.open("rb") as file:
        for raw in file:
            record = _parse(raw)
            if record is None:
                return
            yield record


def _parse(raw: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(raw)
        good = isinstance(record, dict) and isinstance(record.get("env_steps"), int)
        return record if good else None
    except ValueError:
        return None


def _cut(path: Path, env_steps: int) -> dict[str, Any] | None:
    """The newest line with env_steps <= the given ones; what follows it is cut off."""
    last, end = None, 0
    with path.open("r+b") as file:
        for raw in file:
            record = _parse(raw)
            if record is None and file.peek(1):  # not the last line, so not torn by a crash
                _logger.warning("%s: unreadable after byte %d, the rest is dropped", path, end)
            if record is None or record["env_steps"] > env_steps:
                break
            last, end = record, end + len(raw)
            if not raw.endswith(b"\n"):  # whole, but the crash took its line end
                file.seek(end)
                file.write(b"\n")
                end += 1
                break
        file.flush()
        file.truncate(end)
        os.fsync(file.fileno())
    return last
