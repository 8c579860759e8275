"""A small finished run, hostile changes to copies of it whose hashes are right, and crashes."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlrun.run import checkpoint, files
from rlrun.run import manifest as names
from rlrun.run.files import TEXTS

RUN = (
    "policy=dqn", "env=cartpole", "buffer=prioritized", "torso.hidden=[8]", "collector.num_envs=2",
    "buffer.capacity=200", "learner.batch_size=4", "learner.learning_starts=20",
    "run.total_steps=200", "run.eval_every=100", "run.eval_episodes=1", "run.checkpoint_every=100",
    "checkpoint.history=2", "logger.progress=off", "logger.tensorboard=false", "run.dir=run",
    "learner.threads=1",
)  # fmt: skip

Change = Callable[[Path], Any]
Edit = Callable[[dict[str, Any]], Any]


def save(directory: Path, state: dict[str, Any], *, env_steps: int, keep: int) -> Path:
    """Save a checkpoint and wait until it is durable; return its path."""
    saver = checkpoint.Saver(directory)
    saver.save(state, env_steps=env_steps, keep=keep)
    saver.wait()
    return names.list_checkpoints(directory)[-1]


def text(name: str, content: str | bytes) -> Change:
    """Replace a file."""
    data = content.encode() if isinstance(content, str) else content
    return lambda run: ((run / name).unlink(missing_ok=True), (run / name).write_bytes(data))


def append(name: str, content: str) -> Change:
    """Append lines to a file."""
    return lambda run: (run / name).write_bytes((run / name).read_bytes() + f"{content}\n".encode())


def added(content: str) -> Change:
    """Append to config.yaml."""
    return append("config.yaml", content)


def config(old: str, new: str) -> Change:
    """Replace a line of config.yaml."""

    def change(run: Path) -> None:
        path = run / "config.yaml"
        found = path.read_text()
        assert old in found, old
        path.write_text(found.replace(old, new, 1))

    return change


def link(name: str, target: str) -> Change:
    """A link of that name."""
    return lambda run: ((run / name).unlink(missing_ok=True), (run / name).symlink_to(target))


def pipe(name: str) -> Change:
    """A pipe of that name, which nobody writes to."""
    return lambda run: ((run / name).unlink(missing_ok=True), os.mkfifo(run / name))


def sparse(pattern: str) -> Change:
    """Files of a terabyte that take no space; ``pattern`` as of glob."""
    return lambda run: [os.truncate(path, 2**40) for path in run.glob(pattern)]


def no_checkpoints(run: Path) -> None:
    """A file in place of the checkpoints."""
    shutil.rmtree(run / "checkpoints")
    (run / "checkpoints").write_text("x")


def state(edit: Edit) -> Change:
    """Edit the state of the newest checkpoint, save it with right hashes, drop the others."""

    def change(run: Path) -> None:
        path = names.list_checkpoints(run / "checkpoints")[-1]
        found = checkpoint.load(path)
        edit(found)
        for other in names.list_checkpoints(run / "checkpoints"):
            shutil.rmtree(other)
        save(run / "checkpoints", found, env_steps=names.parse_name(path)[0], keep=1)

    return change


def _at(tree: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def put(*path: Any) -> Change:
    """``put("counters", "env_steps", -1)``: the last is the new value."""
    *above, last, value = path
    return state(lambda found: _at(found, tuple(above)).__setitem__(last, value))


def drop(*path: Any) -> Change:
    """Remove an entry of the state."""
    return state(lambda found: _at(found, path[:-1]).pop(path[-1]))


def fill(*path: Any) -> Change:
    """Fill an array of the state with a value."""
    return state(lambda found: np.asarray(_at(found, path[:-1])).fill(path[-1]))


def manifest(edit: Edit) -> Change:
    """Edit every manifest and seal it again."""

    def change(run: Path) -> None:
        for path in names.list_checkpoints(run / "checkpoints"):
            fields = files.unseal((path / names.MANIFEST).read_bytes())
            fields.pop("sha256", None)
            edit(fields)
            (path / names.MANIFEST).write_bytes(files.seal(fields))

    return change


def committed(value: Any) -> Change:
    """Let every manifest say that metrics.jsonl had ``value`` bytes."""
    return manifest(lambda fields: fields["committed"]["metrics.jsonl"].update(bytes=value))


def member(name: str, **changed: Any) -> Change:
    """Let every manifest name another file, with the size and hash of ``/etc/hostname``'s kind."""
    empty = {"sha256": hashlib.sha256(b"").hexdigest(), "bytes": 0}
    return manifest(lambda fields: fields["files"].__setitem__(name, empty | changed))


def weights(edit: Edit, **meta: Any) -> Change:
    """Edit last.safetensors and best.safetensors and hash them again."""

    def change(run: Path) -> None:
        for path in (run / "checkpoints").glob("*.safetensors"):
            tensors, found = checkpoint.load_weights(path)
            edit(tensors)
            checkpoint.save_weights(path, tensors, found | meta)

    return change


def bomb(levels: int = 40) -> str:
    """Yaml whose aliases expand to 2 ** ``levels`` values."""
    lines = ["a0: &a0 [x, x]"]
    lines += [f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, levels)]
    return "\n".join(lines)


def record(**changed: Any) -> Change:
    """Change fields of run.json."""

    def change(run: Path) -> None:
        fields = json.loads((run / "run.json").read_text()) | changed
        (run / "run.json").write_bytes(json.dumps(fields).encode())

    return change


def reseal(run: Path) -> None:
    """Give run.json the hashes of the changed config, and its own."""
    path = run / "run.json"
    if not path.is_file() or path.stat().st_size > 2**30 or (run / "config.yaml").is_fifo():
        return
    try:
        fields = json.loads(path.read_bytes())
        del fields["sha256"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return
    if fields["files"].keys() <= {*TEXTS} and all(fields["files"].values()) and fields["files"]:
        fields["files"] = {
            name: [files.sha256_file(run / name)] for name in fields["files"]
            if (run / name).is_file()
        }  # fmt: skip
    path.write_bytes(files.seal(fields))


class Crash(BaseException):
    """A kill: nothing is cleaned up."""


POINTS = ("fsync", "rename", "unlink", "rmdir", "mkdir")


def crash_at(patch: pytest.MonkeyPatch, number: int) -> list[str]:
    """Crash before the ``number``-th call that changes the disk; a file is torn at its fsync."""
    calls: list[str] = []

    def wrapped(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **more: Any) -> Any:
            calls.append(name)
            if len(calls) == number:
                if name == "fsync" and os.fstat(given[0]).st_size > 1:
                    _tear(given[0])
                raise Crash
            return real(*given, **more)

        return call

    for name in POINTS:
        patch.setattr(os, name, wrapped(name, getattr(os, name)))
    return calls


def _tear(handle: int) -> None:
    if os.path.isfile(path := os.readlink(f"/proc/self/fd/{handle}")):
        os.truncate(path, os.path.getsize(path) // 2)
