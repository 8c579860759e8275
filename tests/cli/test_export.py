"""``rlrun export``, ``export policy`` and ``export card``: usage, errors, what they hand on."""

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from rlrun.dataset import read_dataset, write_dataset
from rlrun.errors import CheckpointError
from rlrun.run import onnx
from tests.dataset.test_dataset import SPEC
from tests.in_process import assert_one_error, files_under
from tests.reference.streams import make_stream


@pytest.fixture
def exports(build, monkeypatch):
    """Calls of a stand-in for ``rlrun.run.export.export_run`` that writes a small dataset."""
    calls = []

    def export_run(run_dir, out, config, *, raw_yaml, shard_rows, last, coder):
        calls.append((run_dir, out, config, raw_yaml, last, shard_rows))
        segment = make_stream([[4]], [[True]], 20).segment
        write_dataset(out, [segment], spec=SPEC, meta={"seed": config.seed}, shard_rows=shard_rows,
              coder=coder)  # fmt: skip

    monkeypatch.setattr(sys.modules["rlrun.run.export"], "export_run", export_run, raising=False)
    return calls


@pytest.fixture
def run_dir(rlrun, tmp_path):
    assert rlrun("run.dir=old", "env=bandit", "debug=smoke", "seed=5").code == 0
    return tmp_path / "old"


def test_export(rlrun, exports, run_dir, tmp_path):
    done = rlrun("export", "old", "data")
    assert (done.code, done.err) == (0, "")
    for fact in ("16 steps", "4 trajectories", "4 finished episodes", "70 +- 44.72", "shards: 1"):
        assert fact in done.out
    ((path, out, config, raw_yaml, last, shard_rows),) = exports
    assert (path, out, config.seed) == (Path("old"), Path("data"), 5)
    assert (last, shard_rows) == (None, 65_536)
    assert raw_yaml == (run_dir / "config.yaml").read_text()
    assert read_dataset(tmp_path / "data").source == {"seed": 5}
    more = ("--shard-rows", "7", "--last", "9", str(tmp_path / "more"))
    assert rlrun("export", str(run_dir), *more).code == 0
    assert exports[-1][-2:] == (9, 7)
    assert len(list((tmp_path / "more").glob("data-*"))) == 3
    assert rlrun("export", str(run_dir), str(tmp_path / "coded"), "--codec", "planes").code == 0
    assert [p.suffix for p in (tmp_path / "coded").glob("data-*")] == [".rldf"]


def test_a_run_on_a_gpu_is_exported_without(rlrun, exports, run_dir):
    path = run_dir / "config.yaml"
    path.write_text(path.read_text().replace("device: cpu\n", "device: cuda:7\n", 1))
    assert rlrun("export", "old", "data").code == 0
    assert exports[0][2].device == "cpu"
    assert "cuda:7" in exports[0][3]


def test_errors_of_the_export_itself(rlrun, exports, run_dir, monkeypatch):
    for words in (["old"], ["card", "old"]):
        assert_one_error(rlrun("export", *words, "old/config.yaml/data"), code=6)

    def fails(*_, **__):
        raise CheckpointError("none")

    monkeypatch.setattr(sys.modules["rlrun.run.export"], "export_run", fails)
    assert_one_error(rlrun("export", "old", "data"), code=5)
    assert "rlrun export?" in rlrun("exprt").err


@pytest.fixture
def runs(rlrun, tmp_path):
    apart = "env=twostep policy=dqn agents=separate explore=anneal"
    for name, line in {"old": "env=bandit", "chance": "env=bandit policy=random",
                       "team": "env=twostep policy=qmix", "apart": apart}.items():  # fmt: skip
        assert rlrun(f"run.dir={name}", "debug=smoke", *line.split()).code == 0
    (tmp_path / "dir.onnx").mkdir()
    (tmp_path / "old.onnx").write_bytes(b"old")


USAGE = {
    "": [("", "DATA_DIR"), ("old", "DATA_DIR"), ("old data more", "more"),
         ("old data --shard-rows 0", "0"), ("old data --shard-rows 1e3", "1e3"),
         ("old data --shard-rows", "--shard-rows"), ("old data --shards 3", "--shards"),
         ("old data --codec zip", "--codec = zip"), ("nowhere data", "RUN_DIR = nowhere"),
         ("yaml data", "RUN_DIR = yaml"), ("old old", "DATA_DIR = old"),
         ("old old/config.yaml", "DATA_DIR = old/config.yaml")],
    "policy": [("", "RUN_DIR"), ("old", "--onnx = null"),
               ("data", "rlrun export ./policy DATA_DIR"),
               ("nowhere --onnx x.onnx", "RUN_DIR = nowhere"),
               *((f"old --onnx {path}", path) for path in (
                   "dir.onnx", "old/config.yaml", "old.onnx", "gone/x.onnx")),
               *((f"old --onnx x.onnx {more}", more.split()[1]) for more in (
                   "--tolerance 0", "--tolerance nan", "--weights good")),
               ("chance --onnx x.onnx", "policy.name = random"),
               ("team --onnx x.onnx", "policy.name = qmix"),
               ("apart --onnx x.onnx", "agents.name = separate")],
    "card": [("", "RUN_DIR"), ("old", "OUT"), ("nowhere x", "RUN_DIR = nowhere"),
             ("old old", "OUT = "), ("old old.onnx", "OUT = "), ("old x --weights good", "good"),
             ("old x --tolerance 0", "0"), ("chance x", "policy.name = random"),
             ("team x", "policy.name = qmix"), ("apart x", "agents.name = separate")],
}  # fmt: skip


@pytest.mark.parametrize("kind", USAGE)
def test_usage(rlrun, exports, runs, tmp_path, kind):
    (tmp_path / "yaml").mkdir()
    before = files_under(tmp_path)
    for line, text in USAGE[kind]:
        assert_one_error(rlrun("export", *kind.split(), *line.split()), text)
    assert exports == []
    assert files_under(tmp_path) == before


@pytest.mark.parametrize(
    ("line", "room", "package", "texts"),
    [("policy old --onnx x.onnx", "config", "onnxscript", ("--onnx = x.onnx", "[onnx]'")),
     ("card old x", "config", "onnxscript", ("OUT = x", "[onnx]'")),
     ("card old x", "video", "PIL", ("OUT = x", "[video]'"))],
)  # fmt: skip
def test_a_missing_package(rlrun, monkeypatch, line, room, package, texts):
    module = {"config": "config.config_errors", "video": "video.files"}[room]
    monkeypatch.setattr(
        f"rlrun.{module}.find_spec", lambda name: None if name == package else find_spec(name)
    )
    assert_one_error(rlrun("export", *line.split()), package, *texts, code=7)


def test_what_export_card_hands_on(rlrun, runs, tmp_path, monkeypatch):
    calls = []

    def export(run_dir, out, config_yaml, **given):
        calls.append((run_dir, out, given))
        assert "name: r2d2" in config_yaml
        return "card: written"

    monkeypatch.setattr("rlrun.run.card.export_card", export)
    assert rlrun("export", "card", "old", "x") == (0, "card: written\n", "")
    more = ("--no-gif", "--weights", "best", "--tolerance", "1e-3")
    assert rlrun("export", "card", "old", "x", *more).code == 0
    assert calls == [
        (Path("old"), tmp_path / "x", {"weights": w, "tolerance": t, "picture": p})
        for w, t, p in (("final", 1e-5, True), ("best", 1e-3, False))
    ]


def test_what_export_policy_hands_on(rlrun, runs, tmp_path, monkeypatch):
    calls = []

    def export(run_dir, path, **given):
        calls.append((run_dir, path, given))
        if given["weights"] == "best":
            raise CheckpointError("none")
        return "onnx: written"

    monkeypatch.setattr(onnx, "export_policy", export)
    assert rlrun("export", "policy", "old", "--onnx", "x.onnx") == (0, "onnx: written\n", "")
    assert calls == [(Path("old"), Path("x.onnx"), {"weights": "final", "tolerance": 1e-5})]
    more = ("--weights", "200", "--tolerance", "1e-3")
    (tmp_path / "x.onnx").write_bytes(b"old")
    assert rlrun("export", "policy", "old", "--onnx", "x.onnx", "--overwrite", *more).code == 0
    (tmp_path / "x.onnx").unlink()
    assert calls[-1][2] == {"weights": "200", "tolerance": 1e-3}
    assert_one_error(
        rlrun("export", "policy", "old", "--onnx", "x.onnx", "--weights", "best"), code=5
    )


def test_a_run_directory_named_policy_is_exported_as_a_dataset(rlrun, exports, run_dir):
    run_dir.rename("policy")
    assert rlrun("export", "./policy", "data").code == 0
    assert exports[0][0] == Path("policy")
