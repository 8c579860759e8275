"""A few bytes of every file of a run directory; ``python -m tests.faults.flips`` takes all."""

import pytest

from rlrun.rundir import manifest
from tests.faults import flips

TENSORS = "tensors.safetensors"


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    path = tmp_path_factory.mktemp("flips") / "run"
    flips.make_run(path)
    return path


def damage(run_dir, name):
    found = flips.damage(run_dir, name, max(1, (run_dir / name).stat().st_size // 3))
    assert found.changes >= 6
    return found


def test_flips_and_cuts_are_noticed_and_nothing_else_is_loaded(run_dir):
    names = flips.files_of(run_dir)
    kinds = {name.rpartition("/")[2] for name in names}
    assert kinds > {TENSORS, "state.json", "manifest.json", "metrics.jsonl", "run.json"}
    found = [damage(run_dir, name) for name in names]
    assert [c for c in found if c.unnoticed or c.wrong] == []


def test_without_hashes_they_would_be(run_dir, monkeypatch):
    monkeypatch.setattr(manifest, "verify_file", lambda path, expected: None)
    newest = max(name for name in flips.files_of(run_dir) if name.endswith(TENSORS))
    found = damage(run_dir, newest)
    assert found.unnoticed
    assert found.wrong
