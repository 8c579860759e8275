"""Datasets of a stranger, hashes right: exit 2 or 6, nothing outside of the directory is read."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlrun.dataset import read_dataset, write_dataset
from rlrun.dataset.format import DESCRIPTION_FILE, INDEX_FILE
from rlrun.errors import ConfigError, StorageError
from rlrun.rundir import durable, tensorfile
from tests.dataset.test_dataset import SPEC
from tests.reference.streams import make_stream

STREAM = make_stream([[9, 4, 20], [3, 17]], [[True, False, True], [True, False]], 33).segment


@pytest.fixture(params=[None, "auto"], ids=["tensors", "frames"])
def made(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    path = tmp_path / "data"
    write_dataset(path, [STREAM], spec=SPEC, meta={}, shard_rows=24, coder=request.param)
    return path


def edit(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    fields = durable.unseal((path / DESCRIPTION_FILE).read_bytes())
    fields.pop("sha256", None)
    change(fields)
    (path / DESCRIPTION_FILE).write_bytes(durable.seal(fields))


def put(*path: Any) -> Callable[[dict[str, Any]], Any]:
    """``put("columns", 0)``: the last is the new value."""
    *above, last, value = path

    def change(fields: dict[str, Any]) -> None:
        node: Any = fields
        for key in above:
            node = node[key]
        node[last] = value

    return change


def use(path: Path) -> None:
    data = read_dataset(path)
    data.require(SPEC)
    for trajectory in data.trajectories():
        trajectory.read(0, trajectory.steps)
    data.summary()


DESCRIPTIONS = {
    **{f"columns {x}": put("columns", x) for x in (0, -1, 10**30, "x", None, [1])},
    **{f"rows {x}": put("rows", x) for x in (-1, 0, "x", None)},
    **{f"no {name}": (lambda f, n=name: f.pop(n)) for name in
       ("columns", "rows", "steps", "shards", "index", "fields", "obs", "spaces", "format")},
    **{f"{name} of a text": put(name, "x") for name in ("shards", "index", "fields", "spaces")},
    **{f"shard {name}": put("shards", 0, "file", name) for name in
       ("../data/index.safetensors", "/etc/hostname", "/dev/zero", "", "a\0b", "x" * 5000, 3)},
    "index elsewhere": put("index", "file", "../../etc/hostname"),
    **{f"bytes {x}": put("shards", 0, "bytes", x) for x in (-1, 10**15, "x", None)},
    **{f"shard rows {x}": put("shards", 0, "rows", x) for x in ("x", None, [1])},
    "format": put("format", 10**9),
    "a list": lambda f: f.clear(),
}  # fmt: skip


@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_descriptions(made: Path, name: str) -> None:
    edit(made, DESCRIPTIONS[name])
    with pytest.raises((ConfigError, StorageError)) as e:
        use(made)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("field", ["row", "column", "steps"])
@pytest.mark.parametrize("value", [-1, 10**6, 2**62, -(2**62)])
def test_trajectories_outside_of_the_rows(made: Path, field: str, value: int) -> None:
    path = made / INDEX_FILE
    arrays = {n: np.asarray(x) for n, x in tensorfile.read(path).items()}
    arrays[field] = np.full_like(arrays[field], value)
    path.unlink()
    digest, size = tensorfile.write(path, arrays, {"format": "pt"})
    edit(made, lambda f: f["index"].update(sha256=digest, bytes=size))
    with pytest.raises(StorageError, match="lies outside of the rows"):
        use(made)


def test_deep_json_and_links(made: Path, tmp_path: Path) -> None:
    (made / DESCRIPTION_FILE).write_text("[" * 100_000)
    with pytest.raises(StorageError):
        read_dataset(made)
    (made / DESCRIPTION_FILE).unlink()
    (made / DESCRIPTION_FILE).symlink_to("/dev/zero")
    with pytest.raises(StorageError):
        read_dataset(made)
