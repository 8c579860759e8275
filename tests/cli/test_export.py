"""``rlrun export``: its usage, its errors, what it hands on."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlrun.dataset import read_dataset, write_dataset
from rlrun.errors import CheckpointError
from tests.dataset.test_dataset import SPEC
from tests.in_process import Build, Done, files_under
from tests.reference.streams import make_stream

ROOT = Path(__file__).parents[2]
Export = Callable[..., None]


@pytest.fixture
def exports(build: Build, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Calls of a stand-in for ``rlrun.run.export.export_run`` that writes a small dataset."""
    calls: list[tuple[Any, ...]] = []

    def export_run(
        run_dir: Path,
        out: Path,
        config: Any,
        *,
        raw_yaml: str,
        shard_rows: int,
        last: int | None,
        coder: str | None,
    ) -> None:
        calls.append((run_dir, out, config, raw_yaml, last, shard_rows))
        segment = make_stream([[4]], [[True]], 20).segment
        write_dataset(out, [segment], spec=SPEC, meta={"seed": config.seed}, shard_rows=shard_rows,
              coder=coder)  # fmt: skip

    monkeypatch.setattr(sys.modules["rlrun.run.export"], "export_run", export_run, raising=False)
    return calls


@pytest.fixture
def run_dir(rlrun: Callable[..., Done], tmp_path: Path) -> Path:
    assert rlrun("run.dir=old", "env=bandit", "debug=smoke", "seed=5").code == 0
    return tmp_path / "old"


def test_export(
    rlrun: Callable[..., Done], exports: list[tuple[Any, ...]], run_dir: Path, tmp_path: Path
) -> None:
    done = rlrun("export", "old", "data")
    assert (done.code, done.err) == (0, "")
    assert done.out == (
        "dataset: 16 steps in 4 trajectories, 4 finished episodes of return 70 +- 44.72; "
        "0.0 MB in data (shards: 1)\n"
    )
    ((path, out, config, raw_yaml, last, shard_rows),) = exports
    assert last is None
    assert (path, out, config.seed, shard_rows) == (Path("old"), Path("data"), 5, 65_536)
    assert raw_yaml == (run_dir / "config.yaml").read_text()
    assert read_dataset(tmp_path / "data").source == {"seed": 5}
    more = ("--shard-rows", "7", "--last", "9", str(tmp_path / "more"))
    assert rlrun("export", str(run_dir), *more).code == 0
    assert exports[-1][-2:] == (9, 7)
    assert len(list((tmp_path / "more").glob("data-*"))) == 3
    assert rlrun("export", str(run_dir), str(tmp_path / "coded"), "--codec", "planes").code == 0
    assert [p.suffix for p in (tmp_path / "coded").glob("data-*")] == [".rldf"]
    done = rlrun("export", str(run_dir), str(tmp_path / "no"), "--codec", "zip")
    assert (done.code, "--codec = zip: no such coder; auto, raw, xor" in done.err) == (2, True)
    assert not (tmp_path / "no").exists()


def test_a_run_on_a_gpu_is_exported_without(
    rlrun: Callable[..., Done], exports: list[tuple[Any, ...]], run_dir: Path
) -> None:
    path = run_dir / "config.yaml"
    path.write_text(path.read_text().replace("device: cpu\n", "device: cuda:7\n", 1))
    assert rlrun("export", "old", "data").code == 0
    assert exports[0][2].device == "cpu"
    assert "cuda:7" in exports[0][3]


USAGE = [
    ([], "RUN_DIR, DATA_DIR"),
    (["old"], "DATA_DIR"),
    (["old", "data", "more"], "unrecognized arguments: more"),
    (["old", "data", "--shard-rows", "0"], "0 is not an integer >= 1"),
    (["old", "data", "--shard-rows", "1e3"], "1e3 is not an integer >= 1"),
    (["old", "data", "--shard-rows"], "expected one argument"),
    (["old", "data", "--shards", "3"], "unrecognized"),
    (["nowhere", "data"], "RUN_DIR = nowhere: no such directory"),
    (["yaml", "data"], "RUN_DIR = yaml: is no run directory"),
    (["old", "old"], "DATA_DIR = old: the directory is not empty"),
    (["old", "old/config.yaml"], "DATA_DIR = old/config.yaml: this is not a directory"),
]


@pytest.mark.parametrize(
    ("line", "text"), USAGE, ids=[" ".join(line) or "nothing" for line, _ in USAGE]
)
def test_usage(
    rlrun: Callable[..., Done],
    exports: list[tuple[Any, ...]],
    run_dir: Path,
    tmp_path: Path,
    line: list[str],
    text: str,
) -> None:
    (tmp_path / "yaml").mkdir()
    before = files_under(tmp_path)
    done = rlrun("export", *line)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("rlrun: error: ")
    assert done.err.count("\n") == 1
    assert text in done.err
    assert exports == []
    assert files_under(tmp_path) == before


def test_errors_of_the_export_itself(
    rlrun: Callable[..., Done],
    exports: list[tuple[Any, ...]],
    run_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done = rlrun("export", "old", "old/config.yaml/data")
    assert done.code == 6
    assert "is not a directory" in done.err

    def fails(*_: Any, **__: Any) -> None:
        raise CheckpointError("none")

    monkeypatch.setattr(sys.modules["rlrun.run.export"], "export_run", fails)
    assert rlrun("export", "old", "data") == (5, "", "rlrun: error: none\n")


def test_help(rlrun: Callable[..., Done], capsys: pytest.CaptureFixture[str]) -> None:
    assert "rlrun export RUN_DIR DATA_DIR" in rlrun("--help").out
    with pytest.raises(SystemExit) as left:
        rlrun("export", "--help")
    assert left.value.code == 0
    out = capsys.readouterr().out
    assert all(word in out for word in ("RUN_DIR", "DATA_DIR", "--shard-rows", "65536"))
    assert "did you mean rlrun export?" in rlrun("exprt").err


@pytest.mark.parametrize("line", [["export"], ["export", "nowhere", "data"]], ids=" ".join)
def test_answers_without_torch(line: list[str], tmp_path: Path) -> None:
    code = (
        "import sys; from rlrun.cli.main import main; code = main(sys.argv[1:]); "
        "print(code, 'torch' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *line],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr.splitlines()[-1] == "2 False", done.stderr
