"""Datasets of a stranger, hashes right: nothing outside of the directory is read."""

from pathlib import Path

import pytest

from rlrun.dataset import read_dataset
from rlrun.dataset.format import DESCRIPTION_FILE
from rlrun.errors import ConfigError, StorageError
from rlrun.run.files import seal, unseal

ELSEWHERE = ("../data/index.safetensors", "/etc/hostname", "/dev/zero", "", "a\0b", "x" * 5000)


@pytest.mark.parametrize("part", ["shards", "index"])
def test_files_elsewhere(made: Path, part: str) -> None:
    path = made / DESCRIPTION_FILE
    fields = unseal(path.read_bytes())
    fields.pop("sha256", None)
    entry = fields[part][0] if part == "shards" else fields[part]
    for name in ELSEWHERE:
        entry["file"] = name
        path.write_bytes(seal(fields))
        with pytest.raises((ConfigError, StorageError)) as e:
            list(read_dataset(made).chunks(2, 8))
        assert "\n" not in str(e.value)


def test_deep_json_and_links(made: Path) -> None:
    path = made / DESCRIPTION_FILE
    path.write_text("[" * 100_000)
    with pytest.raises(StorageError):
        read_dataset(made)
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(StorageError):
        read_dataset(made)
