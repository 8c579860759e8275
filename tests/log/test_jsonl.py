"""metrics.jsonl: exact, deterministic, cut on resume, and never silently lost."""

import hashlib
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlrun.errors import NumericError, StorageError
from rlrun.log.jsonl import NOTHING, JsonLinesFile, encode_record
from rlrun.run import files
from tests.log.records import read_records

FINITE = st.floats(allow_nan=False, allow_infinity=False) | st.integers()


def write(path, *steps, committed=None):
    file = JsonLinesFile(path, committed=committed)
    for step in steps:
        file.write(step, {"train/loss": step / 3})
    file.close()
    return file


def steps_of(path):
    return [record["env_steps"] for record in read_records(path)]


@given(st.dictionaries(st.text(), FINITE), st.integers(0, 2**53))
def test_a_line_reads_back_exactly_and_does_not_depend_on_the_order(values, env_steps):
    values.pop("env_steps", None)
    text = encode_record(env_steps, values)
    back = json.loads(text)
    assert back == {"env_steps": env_steps, **values}
    assert [type(back[k]) for k in values] == [type(v) for v in values.values()]
    assert list(back) == ["env_steps", *sorted(values)]
    assert encode_record(env_steps, dict(reversed(values.items()))) == text
    assert text.count(b"\n") == 1
    values = {"a": torch.tensor(0.5), "b": np.float64(0.1), "c": np.int64(7), "d": np.float32(0.1)}
    want = f'"a": 0.5, "b": 0.1, "c": 7, "d": {float(np.float32(0.1))!r}, "e": 1'
    assert want in encode_record(0, values | {"e": True}).decode(), "plain numbers"


@pytest.mark.parametrize("value", [math.nan, -math.inf, torch.tensor(math.inf)])
def test_a_value_that_is_not_finite_is_refused_by_name_and_leaves_the_file_whole(tmp_path, value):
    file = JsonLinesFile(tmp_path / "m.jsonl", committed=None)
    file.write(1, {"train/loss": 1.0})
    with pytest.raises(NumericError, match=r"^train/loss = (nan|inf|-inf): ") as caught:
        file.write(2, {"train/a": 1.0, "train/loss": value})
    assert caught.value.exit_code == 4
    file.close()
    assert (tmp_path / "m.jsonl").read_bytes() == b'{"env_steps": 1, "train/loss": 1.0}\n'


def test_a_new_file_that_goes_back_goes_on_at_its_end(tmp_path):
    """Without a hole of zero bytes where the dropped records were."""
    path = tmp_path / "m.jsonl"
    file = JsonLinesFile(path, committed=None)
    file.write(1, {"a/b": 1.0})
    committed = file.committed()
    file.write(2, {"a/b": 1.0})
    file.rewind(committed)
    file.write(3, {"a/b": 1.0})
    assert steps_of(path) == [1, 3]
    assert b"\0" not in path.read_bytes()
    assert file.committed()["bytes"] == path.stat().st_size
    file.close()


def test_errors_of_the_disk_are_storage_errors(tmp_path):
    path = tmp_path / "m.jsonl"
    write(path, 5, committed=NOTHING)  # a resume without a file makes one
    write(path, 6, committed=NOTHING)
    assert steps_of(path) == [6]
    with pytest.raises(StorageError, match=r"m.jsonl") as caught:
        JsonLinesFile(path, committed=None)  # a new run never appends
    assert caught.value.exit_code == 6
    with pytest.raises(StorageError, match="gone"):
        JsonLinesFile(tmp_path / "gone" / "m.jsonl", committed=None)
    file = JsonLinesFile(tmp_path / "n.jsonl", committed=None)
    (tmp_path / "n.jsonl").unlink()
    with pytest.raises(StorageError, match=r"n.jsonl"):
        file.write(1, {"train/loss": 1.0})
    file.close()


def test_resume_truncates_to_what_was_committed_byte_for_byte(tmp_path, caplog):
    path = tmp_path / "m.jsonl"
    lines = JsonLinesFile(path, committed=None)
    for step in (10, 20, 20):
        lines.write(step, {"train/loss": step / 3})
    committed, content = lines.committed(), path.read_bytes()
    assert committed == {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    lines.write(20, {"train/loss": 20 / 3})  # after the checkpoint, at the same step
    lines.close()
    again = JsonLinesFile(path, committed=committed)
    assert again.committed() == committed
    assert again.last == {"env_steps": 20, "train/loss": 20 / 3}
    again.write(20, {"train/loss": 20 / 3})
    assert again.committed()["sha256"] == files.sha256_file(path)
    again.rewind(committed)
    again.write(30, {"train/loss": 1.0})
    again.close()
    assert path.read_bytes() == content + b'{"env_steps": 30, "train/loss": 1.0}\n'
    assert not caplog.records
    path.write_bytes(content[:-3] + b"9" + content[-2:])
    JsonLinesFile(path, committed=committed).close()
    assert len(caplog.records) == 1
