"""Which files of a run directory are damaged, and what could be resumed. Torch-free."""

import hashlib
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlrun.errors import RlrunError
from rlrun.rundir import manifest
from rlrun.rundir.branch import require_run
from rlrun.rundir.inert import read_lines, require_regular_files
from rlrun.rundir.manifest import CHECKPOINTS, METRICS
from rlrun.rundir.texts import RECORD, read_record, text_problems

_WEIGHTS = ("last", "best")
_DAMAGED = (  # what reading damaged or forged files raises
    AttributeError, KeyError, MemoryError, OSError, OverflowError, RecursionError, TypeError,
    ValueError, struct.error, RlrunError,
)  # fmt: skip
_TORCH = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64",
          "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool"}  # fmt: skip


class Report:
    """Problems of a run directory, one line each, and its intact checkpoints, oldest first."""

    def __init__(self, run_dir: Path) -> None:
        """Raises: ConfigError when ``run_dir`` is none, or holds a link, a pipe or a device."""
        if not (run_dir / RECORD).exists():
            require_run(run_dir)
        require_regular_files(run_dir)
        self.run_dir, self.directory = run_dir, run_dir / CHECKPOINTS
        self.problems: list[str] = []
        self.intact: list[Path] = []
        self.files = 0  # looked at
        self.record = self._record()
        self._checkpoints()
        self._weights()
        self._history()
        self._metrics()

    def _try(self, name: str, function: Any, *given: Any) -> Any:
        """The result of ``function``; None, and a problem, when it finds damage."""
        self.files += 1
        try:
            return function(*given)
        except _DAMAGED as e:
            text = " ".join((e.strerror or str(e) if isinstance(e, OSError) else str(e)).split())
            self.problems.append(f"{name}: {text}")
            return None

    def _record(self) -> dict[str, Any]:
        record: dict[str, Any] = self._try(RECORD, read_record, self.run_dir) or {}
        self.problems += self._try(RECORD, text_problems, self.run_dir, record) or []
        return record

    def _checkpoints(self) -> None:
        known: dict[Path, str | None] = {}
        for path in manifest.list_checkpoints(self.directory):
            before = len(self.problems)
            name = f"{CHECKPOINTS}/{path.name}"
            fields = self._try(name, manifest.verify, path, known)
            for appended in (fields or {}).get("committed", {}):
                self._try(name, manifest.verify_committed, self.run_dir, fields, appended)
            if len(self.problems) == before:
                self.intact.append(path)
        self.files += len(known)

    def _weights(self) -> None:
        for name in _WEIGHTS:
            path = self.directory / f"{name}.safetensors"
            if path.exists() or path.with_suffix(".json").exists():
                self._try(f"{CHECKPOINTS}/{path.name}", manifest.weights_entry, path)

    def _history(self) -> None:
        if any((self.directory / "history").glob("step_*")):
            from rlrun.rundir import history  # imports torch

            for steps in history.versions(self.directory / "history"):
                name = f"{CHECKPOINTS}/history, env step {steps}"
                self._try(name, history.load, self.directory / "history", steps)

    def _metrics(self) -> None:
        if (self.run_dir / METRICS).exists():
            self._try(METRICS, _check_lines, self.run_dir / METRICS)
        digest = self.record.get("digest")
        if digest is not None and not self.problems:
            last = self.directory / "last.safetensors"
            found = self._try(METRICS, _digest, self.run_dir / METRICS, last)
            if found is not None and found != digest:
                self.problems.append(f"{METRICS}: with the weights its sha256 is not the digest")

    def lines(self) -> Iterator[str]:
        """Yield a line for each problem, then what could be resumed."""
        yield from self.problems
        last = self.directory / "last.json"  # written after the first checkpoint
        saved = last.exists() or bool(manifest.list_checkpoints(self.directory))
        if self.intact:
            steps = ", ".join(str(step) for step in map(_env_steps, reversed(self.intact)))
            yield f"can be resumed from env step {steps}"
        elif not saved:
            yield "can be resumed from its start: nothing was saved"
        else:
            yield "nothing can be resumed: no checkpoint is intact"


def _env_steps(path: Path) -> int:
    parsed = manifest.parse_name(path)
    assert parsed is not None
    return parsed[0]


def _check_lines(path: Path) -> None:
    """Raise ValueError unless all lines but the last, which a kill may have cut, are records."""
    for number, raw in enumerate(read_lines(path), 1):
        if raw.endswith(b"\n") and not isinstance(json.loads(raw).get("env_steps"), int):
            raise ValueError(f"line {number} is no record")


def _digest(metrics: Path, weights: Path) -> str:
    """The digest of ``rlrun.rundir.record.run_digest``."""
    with metrics.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
    with weights.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        for name in sorted(header):
            entry = header[name]
            head = (name, f"torch.{_TORCH[entry['dtype']]}", json.dumps(entry["shape"]))
            digest.update(b"".join(part.encode() + b"\0" for part in head))
            start, stop = entry["data_offsets"]
            file.seek(8 + length + start)
            digest.update(file.read(stop - start))
    return digest.hexdigest()
