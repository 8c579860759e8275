"""``rlrun export policy``: its usage and its errors; what it writes is tested in tests/export."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from rlrun.errors import CheckpointError
from rlrun.run import onnx
from tests.in_process import Done, files_under

USAGE = [
    ([], "required: RUN_DIR"),
    (["old"], "--onnx = null: a file is needed; a new one is allowed; add it (./policy is a run"),
    (["data"], "rlrun export ./policy DATA_DIR"),
    (["nowhere", "--onnx", "x.onnx"], "RUN_DIR = nowhere: no such directory"),
    (["old", "--onnx", "dir.onnx"], "--onnx = dir.onnx: this is a directory"),
    (["old", "--onnx", "old/config.yaml"], "old/config.yaml: is no ONNX file; FILE.onnx is"),
    (["old", "--onnx", "old.onnx"], "--onnx = old.onnx: the file exists"),
    (["old", "--onnx", "gone/x.onnx"], "--onnx = gone/x.onnx: there is no directory"),
    (["old", "--onnx", "x.onnx", "--tolerance", "0"], "0 is not a number > 0"),
    (["old", "--onnx", "x.onnx", "--tolerance", "nan"], "nan is not a number > 0"),
    (["old", "--onnx", "x.onnx", "--weights", "good"], "good is not final, best or a number"),
    (["chance", "--onnx", "x.onnx"], "policy.name = random: it has no network to export"),
    (["team", "--onnx", "x.onnx"], "policy.name = qmix: its actions are those of a team"),
    (["apart", "--onnx", "x.onnx"], "agents.name = separate: every agent has a network"),
]


@pytest.fixture
def runs(rlrun: Callable[..., Done]) -> None:
    assert rlrun("run.dir=old", "env=bandit", "debug=smoke").code == 0
    assert rlrun("run.dir=chance", "env=bandit", "policy=random", "debug=smoke").code == 0
    assert rlrun("run.dir=team", "env=twostep", "policy=qmix", "debug=smoke").code == 0
    apart = ("policy=dqn", "agents=separate", "explore=anneal", "debug=smoke")
    assert rlrun("run.dir=apart", "env=twostep", *apart).code == 0


def test_usage(rlrun: Callable[..., Done], runs: None, tmp_path: Path) -> None:
    (tmp_path / "dir.onnx").mkdir()
    (tmp_path / "old.onnx").write_bytes(b"old")
    before = files_under(tmp_path)
    for line, text in USAGE:
        done = rlrun("export", "policy", *line)
        assert (done.code, done.out) == (2, ""), line
        assert done.err.startswith("rlrun: error: ")
        assert done.err.count("\n") == 1
        assert text in done.err
    assert files_under(tmp_path) == before


def test_a_missing_package(
    rlrun: Callable[..., Done], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "rlrun.cli.export_policy.find_spec",
        lambda name: None if name == "onnxscript" else find_spec(name),
    )
    done = rlrun("export", "policy", "old", "--onnx", "x.onnx")
    assert (done.code, done.out) == (7, "")
    assert "--onnx = x.onnx: exporting needs the package onnxscript, which is missing" in done.err
    assert "[onnx]'" in done.err


def test_what_it_hands_on(
    rlrun: Callable[..., Done], runs: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[Any, ...]] = []

    def export(run_dir: Path, path: Path, **given: Any) -> str:
        calls.append((run_dir, path, given))
        if given["weights"] == "best":
            raise CheckpointError("none")
        return "onnx: written"

    monkeypatch.setattr(onnx, "export_policy", export)
    assert rlrun("export", "policy", "old", "--onnx", "x.onnx") == (0, "onnx: written\n", "")
    given = {"weights": "final", "tolerance": 1e-5}
    assert calls == [(Path("old"), Path("x.onnx"), given)]
    more = ("--weights", "200", "--tolerance", "1e-3")
    (tmp_path / "x.onnx").write_bytes(b"old")
    assert rlrun("export", "policy", "old", "--onnx", "x.onnx", "--overwrite", *more).code == 0
    (tmp_path / "x.onnx").unlink()
    assert calls[-1][2] == {"weights": "200", "tolerance": 1e-3}
    done = rlrun("export", "policy", "old", "--onnx", "x.onnx", "--weights", "best")
    assert done == (5, "", "rlrun: error: none\n")


def test_a_run_directory_named_policy_is_exported_as_a_dataset(
    rlrun: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Path] = []
    monkeypatch.setattr(
        "rlrun.cli.export.export", lambda run_dir, *_, **__: calls.append(run_dir) or 0
    )
    assert rlrun("export", "./policy", "data").code == 0
    assert calls == [Path("policy")]
