"""Names and manifests of checkpoints: which files they need, and whether these are intact.

Does not import torch, so that ``rlrun verify`` starts fast.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, deserialize

from rlrun import __version__
from rlrun.errors import CheckpointError, RlrunError
from rlrun.run import files
from rlrun.trust import resume_line

FORMAT, WEIGHTS_FORMAT = 4, 3
TENSORS, STATE, MANIFEST = "tensors.safetensors", "state.json", "manifest.json"
CHECKPOINTS = "checkpoints"  # directory of a run
ROWS = "rows"  # directory of the segments, in that of the checkpoints
SEGMENT = re.compile(r"\d{9,}_\d{9,}_[0-9a-f]{16}\.safetensors")
_NAME = re.compile(r"step_(\d{9,})(?:_(\d+))?")
METRICS = "metrics.jsonl"  # a checkpoint cannot be used without its records
_APPENDED = {METRICS, "timings.jsonl"}


class DamagedError(ValueError):
    """The reason why a checkpoint cannot be used: the file and its problem."""


def parse_name(path: Path) -> tuple[int, int] | None:
    """Return (env steps, serial) of a checkpoint's name, or None for other names."""
    match = _NAME.fullmatch(path.name)
    return (int(match[1]), int(match[2] or 0)) if match else None


def list_checkpoints(directory: Path) -> list[Path]:
    """Return the checkpoints of a directory, oldest first, intact or not.

    Raises: CheckpointError if the directory's name belongs to something else.
    """
    if os.path.lexists(directory) and not directory.is_dir():
        raise CheckpointError(
            f"{directory}: is not a directory; a run keeps its checkpoints there; restore it, or "
            "start the run again"
        )
    if not directory.is_dir():
        return []
    named = [(match, path) for path in directory.iterdir() if (match := parse_name(path))]
    return [path for _, path in sorted(named)]


def how_to_go_on(run_dir: Path, saved: str = "") -> str:
    """Return ``; SAVED; go on: rlrun resume RUN_DIR``, or "" if nothing was saved.

    ``saved``: what was; "": the newest checkpoint, if there is one.
    """
    checkpoints = list_checkpoints(run_dir / CHECKPOINTS)
    if checkpoints and not saved:
        saved = f"the newest checkpoint is {checkpoints[-1].name}"
    return f"; {saved}; go on: {resume_line(run_dir)}" if saved else ""


def delete(path: Path) -> None:
    """Delete a checkpoint. If interrupted, the rest does not look like a damaged one."""
    deleted = path.with_name(f".tmp_gone_{path.name}")
    os.rename(path, deleted)
    shutil.rmtree(deleted)


def read_manifest(path: Path) -> dict[str, Any]:
    """Return the fields of a checkpoint's manifest.

    Raises: DamagedError if it is damaged or has another format, OSError.
    """
    try:
        fields = files.unseal(files.read_file(path / MANIFEST))
    except FileNotFoundError:
        raise DamagedError(f"{MANIFEST} is missing") from None
    except ValueError as e:
        raise DamagedError(f"{MANIFEST}: {e}") from None
    if fields["format"] != FORMAT:
        raise DamagedError(
            f"has format {fields['format']}, written by rlrun {fields.get('rlrun')}; this rlrun "
            f"{__version__} reads format {FORMAT}"
        )
    try:
        _check_shape(fields)
    except (KeyError, TypeError, AttributeError) as e:
        raise DamagedError(f"{MANIFEST}: has other fields ({e!r})") from None
    return fields


def _check_shape(fields: Mapping[str, Any]) -> None:
    """Raise unless the names are those of a checkpoint's files, so that none leads elsewhere."""
    known = {*fields["files"]} == {TENSORS, STATE} and {*fields["committed"]} <= _APPENDED
    if not known or not all(map(SEGMENT.fullmatch, fields["segments"])):
        raise KeyError("names")
    if type(fields["env_steps"]) is not int:
        raise TypeError("env_steps")
    for group in ("files", "segments", "committed"):
        for entry in fields[group].values():
            size, digest = entry["bytes"], entry["sha256"]
            if type(size) is not int or size < 0 or not isinstance(digest, str):
                raise TypeError("entry")


def verify(path: Path, known: dict[Path, str | None] | None = None) -> dict[str, Any]:
    """Return the manifest of a checkpoint after verifying every byte, including its segments.

    ``known``: problems of segments already verified, by path; None: no problem. It is extended.

    Raises: DamagedError naming the file, OSError.
    """
    fields = read_manifest(path)
    for name, expected in fields["files"].items():
        if wrong := files.file_problem(path / name, expected):
            raise DamagedError(f"{name} {wrong}")
    known = {} if known is None else known
    for name, expected in fields["segments"].items():
        file = path.parent / ROWS / name
        if file not in known:
            known[file] = files.file_problem(file, expected)
        if known[file]:
            raise DamagedError(f"{ROWS}/{name} {known[file]}")
    return fields


def verify_committed(run_dir: Path, fields: Mapping[str, Any], name: str) -> None:
    """Raise DamagedError unless ``name`` begins with the bytes it had when ``fields`` was written.

    Raises: OSError.
    """
    expected = fields["committed"].get(name)
    if expected is None:
        return
    if wrong := files.file_problem(run_dir / name, expected, grown=True):
        raise DamagedError(f"{name} {wrong}")


DTYPES = {  # safetensors' name -> torch's, and numpy's if it has the dtype
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "I16": "int16", "U16": "uint16", "F16": "float16",
    "BF16": "bfloat16", "I32": "int32", "U32": "uint32", "F32": "float32", "I64": "int64",
    "U64": "uint64", "F64": "float64", "C64": "complex64",
}  # fmt: skip


def run_digest(metrics: Path, weights: Path) -> str:
    """Return the SHA-256 (hex) of the files of metrics and weights, equal for equal runs.

    sha256(bytes of metrics.jsonl || for each name in sorted order: name as UTF-8, NUL, the dtype
    (torch.float32), NUL, the shape as JSON ([64, 4]), NUL, the elements' bytes, row-major).

    Raises: OSError if a file cannot be read, SafetensorError if the weights are damaged.
    """
    with metrics.open("rb") as file:
        total = hashlib.file_digest(file, "sha256")
    read: Any = deserialize
    for name, entry in sorted(read(weights.read_bytes()), key=itemgetter(0)):
        head = (name, f"torch.{DTYPES[entry['dtype']]}", json.dumps(entry["shape"]))
        total.update(b"".join(part.encode() + b"\0" for part in head))
        total.update(entry["data"])
    return total.hexdigest()


def weights_entry(path: Path) -> dict[str, Any]:
    """Return the entry for a file of weights in the json next to it, by size and SHA-256.

    While weights are replaced, the json also has an entry for the earlier ones.

    Raises: ValueError if there is none, OSError.
    """
    fields = files.unseal(files.read_file(path.with_suffix(".json")))
    size = files.member(path.parent, path.name).stat().st_size
    known = [fields, fields["previous"] or {}]
    known = [entry for entry in known if entry.get("weights_bytes") == size]
    if not known:
        raise ValueError(f"has {size} bytes, not those in its json")
    digest = files.sha256_file(path)
    matching: list[dict[str, Any]] = [e for e in known if e.get("weights_sha256") == digest]
    if not matching:
        raise ValueError("its sha256 is not the one in its json")
    return matching[0]


_DAMAGED = (  # errors of reading damaged or manipulated files
    AttributeError, KeyError, MemoryError, OSError, OverflowError, RecursionError, TypeError,
    ValueError, SafetensorError, RlrunError,
)  # fmt: skip


class Report:
    """Problems of a run directory, one line each, and its intact checkpoints, oldest first.

    Of an exported agent: only problems.
    """

    def __init__(self, run_dir: Path) -> None:
        """Raises: ConfigError if ``run_dir`` is no run directory, or holds a link or pipe."""
        if not os.path.exists(run_dir / files.RECORD):
            files.require_run(run_dir, card=True)
        files.require_regular_files(run_dir)
        self.run_dir, self.directory = run_dir, run_dir / CHECKPOINTS
        self.problems: list[str] = []
        self.intact: list[Path] = []
        self.files = 0  # verified so far
        self.card = files.is_card(run_dir)
        if self.card:
            self._card()
            return
        self.record: dict[str, Any] = self._try(files.RECORD, files.read_record, run_dir) or {}
        self.problems += self._try(files.RECORD, files.text_problems, run_dir, self.record) or []
        self._checkpoints()
        self._weights()
        self._metrics()

    def _try(self, name: str, function: Any, *arguments: Any) -> Any:
        """Return the result of ``function``, or None after adding a problem if it finds damage."""
        self.files += 1
        try:
            return function(*arguments)
        except _DAMAGED as e:
            text = " ".join((e.strerror or str(e) if isinstance(e, OSError) else str(e)).split())
            self.problems.append(f"{name}: {text}")
            return None

    def _card(self) -> None:
        meta = self._try(files.CARD, files.read_card, self.run_dir) or {}
        self.problems += (
            self._try(files.CARD, files.text_problems, self.run_dir, meta, files.CARD) or []
        )
        self._try(files.CARD_WEIGHTS, weights_entry, self.run_dir / files.CARD_WEIGHTS)
        beside = meta.get("beside")
        for name, expected in beside.items() if isinstance(beside, dict) else ():
            digest = self._try(
                name, lambda x: files.sha256_file(files.member(self.run_dir, x)), name
            )
            if digest not in (None, expected):
                self.problems.append(f"{name}: its sha256 is not in {files.CARD}")

    def _checkpoints(self) -> None:
        known: dict[Path, str | None] = {}
        for path in list_checkpoints(self.directory):
            before = len(self.problems)
            name = f"{CHECKPOINTS}/{path.name}"
            fields = self._try(name, verify, path, known)
            for appended in (fields or {}).get("committed", {}):
                self._try(name, verify_committed, self.run_dir, fields, appended)
            if len(self.problems) == before:
                self.intact.append(path)
        self.files += len(known)

    def _weights(self) -> None:
        for path in (self.directory / "last.safetensors", self.directory / "best.safetensors"):
            if path.exists() or path.with_suffix(".json").exists():
                self._try(f"{CHECKPOINTS}/{path.name}", weights_entry, path)
        past = self.directory / "history"
        if any(past.glob("step_*")):
            from rlrun.run import history  # imports torch

            for steps in history.versions(past):
                self._try(f"{CHECKPOINTS}/history, env step {steps}", history.load, past, steps)

    def _metrics(self) -> None:
        if (self.run_dir / METRICS).exists():
            self._try(METRICS, _check_lines, self.run_dir / METRICS)
        digest = self.record.get("digest")
        if digest is not None and not self.problems:
            last = self.directory / "last.safetensors"
            actual = self._try(METRICS, run_digest, self.run_dir / METRICS, last)
            if actual is not None and actual != digest:
                self.problems.append(f"{METRICS}: with the weights its sha256 is not the digest")

    def lines(self) -> Iterator[str]:
        """Yield a line for each problem, then what can be resumed."""
        yield from self.problems
        if self.card:
            return
        if self.intact:
            names = filter(None, map(parse_name, reversed(self.intact)))
            yield f"can be resumed from env step {', '.join(str(step) for step, _ in names)}"
        elif list_checkpoints(self.directory) or (self.directory / "last.json").exists():
            yield "nothing can be resumed: no checkpoint is intact"
        else:
            yield "can be resumed from its start: nothing was saved"


def _check_lines(path: Path) -> None:
    """Raise ValueError unless all lines, except a last one cut by a kill, are records."""
    for number, raw in enumerate(files.read_lines(path), 1):
        if raw.endswith(b"\n") and not isinstance(json.loads(raw).get("env_steps"), int):
            raise ValueError(f"line {number} is not a record")
