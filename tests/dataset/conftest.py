"""A dataset in a directory of its own; nothing waits for the disk."""

import os
from pathlib import Path

import numpy as np
import pytest

from rlrun.dataset import write_dataset
from tests.dataset.make import SOURCE, SPEC
from tests.reference.streams import make_stream, part


@pytest.fixture(scope="module", autouse=True)
def _no_fsync():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)  # none is worth keeping
        yield


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A dataset of three columns, 30 rows, in several shards, with states."""
    segment = make_stream([[4], [9, 2], [50]], [[True], [False], [True]], 30).segment
    row, column = np.array([5, 0, 10]), np.array([0, 1, 1])
    states = (row, column, (np.ones((3, 2), np.float32),))
    path = tmp_path / "in" / "data"
    parts = [part(segment, 0, 13), part(segment, 13, 30)]
    write_dataset(path, parts, spec=SPEC, meta=SOURCE, shard_rows=24, states=states)
    return path
