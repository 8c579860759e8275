"""Comparison of two runs: the first record of metrics and the first tensor in which they differ."""

import json
import math
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlrun.errors import CheckpointError
from rlrun.run import checkpoint, manifest
from rlrun.run.branch import checkpoint_at
from rlrun.run.files import read_lines, require_regular_files
from rlrun.run.manifest import CHECKPOINTS, METRICS
from rlrun.run.tensors import Rows

_NONE_KEPT = "the runs keep no checkpoint of the same env step"


def compare(a: tuple[Path, int | None], b: tuple[Path, int | None]) -> tuple[bool, list[str]]:
    """Return whether two runs are equal in everything that both keep, and lines that say where not.

    Each is (run directory, env step): the checkpoint of that step and the records before it.
    Without a step: all records, and the checkpoints of all env steps that both keep.

    Raises: ConfigError for a step that is not kept or a directory with links, CheckpointError for
    damage.
    """
    for run_dir, _ in (a, b):
        require_regular_files(run_dir)
    pairs = _pairs(a, b)
    record = _first_record(_records(*a), _records(*b))
    leaf, line = _first_leaf(pairs) if pairs else (None, _NONE_KEPT)
    return record is None and leaf is None, [record or f"{METRICS}: equal", line]


def _pairs(a: tuple[Path, int | None], b: tuple[Path, int | None]) -> list[tuple[Path, Path]]:
    """Return the checkpoints to compare, oldest first."""
    if a[1] is not None or b[1] is not None:
        steps = [x[1] if x[1] is not None else y[1] for x, y in ((a, b), (b, a))]
        return [(checkpoint_at(a[0], steps[0]), checkpoint_at(b[0], steps[1]))]
    kept = [
        {name[0]: path for path in manifest.list_checkpoints(run_dir / CHECKPOINTS)
         if (name := manifest.parse_name(path))}
        for run_dir, _ in (a, b)
    ]  # fmt: skip
    return [(kept[0][step], kept[1][step]) for step in sorted(kept[0].keys() & kept[1].keys())]


def _first_leaf(pairs: list[tuple[Path, Path]]) -> tuple[str | None, str]:
    """Return the first leaf that differs, or None, and the line that reports it."""
    steps = []
    for paths in pairs:
        one, two = (checkpoint.load(path) for path in paths)
        steps.append(str(one["counters"]["env_steps"]))
        if (leaf := next(differences(one, two), None)) is not None:
            return leaf, f"checkpoint of env step {steps[-1]}: {leaf}"
    several = "checkpoints of env steps" if len(steps) > 1 else "checkpoint of env step"
    return None, f"{several} {', '.join(steps)}: equal"


def _records(run_dir: Path, step: int | None) -> Iterator[dict[str, Any]]:
    """Yield the records of a run, up to the checkpoint of env step ``step``."""
    path, done = run_dir / METRICS, 0
    try:
        size = math.inf
        if step is not None:
            size = checkpoint.committed(checkpoint_at(run_dir, step))[METRICS]["bytes"]
        for raw in read_lines(path):
            done += len(raw)
            if done > size or not raw.endswith(b"\n"):  # cut by a kill
                return
            record = json.loads(raw)
            if not isinstance(record, dict) or not isinstance(record.get("env_steps"), int):
                raise ValueError(f"a line before byte {done} is not a record")
            yield record
    except (OSError, ValueError, KeyError, RecursionError) as e:
        text = e.strerror if isinstance(e, OSError) else e
        raise CheckpointError(
            f"{path}: cannot be read ({text}); the records of a run are needed; rlrun verify "
            f"{run_dir} says what else is damaged"
        ) from e


def _first_record(a: Iterator[dict[str, Any]], b: Iterator[dict[str, Any]]) -> str | None:
    """Return a line on the first record in which two files differ, or None."""
    for number, (one, two) in enumerate(zip_longest(a, b), 1):
        if one is None or two is None:
            kept = [number - (x is None) + sum(1 for _ in rest) for x, rest in ((one, a), (two, b))]
            return f"{METRICS}: {kept[0]} / {kept[1]} records, the first {number - 1} are equal"
        if list(one.items()) == list(two.items()):
            continue
        keys = [key for key in one | two if one.get(key) != two.get(key)]
        key = keys[0] if keys else "the order of the keys"
        values = f"{one.get(key)} / {two.get(key)}"
        more = f" ({len(keys) - 1} more keys)" if len(keys) > 1 else ""
        return f"{METRICS}: record {number}, env step {one['env_steps']}: {key} {values}{more}"
    return None


def differences(a: Any, b: Any, path: str = "") -> Iterator[str]:
    """Yield a text on every leaf in which two states differ in type, dtype, shape or any bit."""
    if isinstance(a, Rows) and isinstance(b, Rows):
        if a != b:
            yield f"{path}: rows {a.first} to {a.stop} / {b.first} to {b.stop}"
    elif type(a) is not type(b):
        yield f"{path}: {type(a).__name__} / {type(b).__name__}"
    elif isinstance(a, Mapping):
        for key in a | b:
            below = f"{path}/{key}" if path else str(key)
            if key not in a or key not in b:
                yield f"{below}: only in {'A' if key in a else 'B'}"
            else:
                yield from differences(a[key], b[key], below)
    elif isinstance(a, list | tuple):
        if len(a) != len(b):
            yield f"{path}: {len(a)} / {len(b)} items"
        for i, (x, y) in enumerate(zip(a, b, strict=False)):
            yield from differences(x, y, f"{path}/{i}")
    elif isinstance(a, Tensor | np.ndarray):
        yield from _arrays(a, b, path)
    elif a != b and not (a != a and b != b):
        yield f"{path}: {a!r} / {b!r}"


def _arrays(a: Any, b: Any, path: str) -> Iterator[str]:
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        yield f"{path}: {a.dtype} {list(a.shape)} / {b.dtype} {list(b.shape)}"
        return
    bf16 = a.dtype is torch.bfloat16  # numpy does not have it
    x, y = (np.asarray(t.view(dtype=torch.int16) if bf16 else t) for t in (a, b))
    if x.tobytes() != y.tobytes():
        yield f"{path}: {int((x != y).sum())} of {x.size} numbers differ"
