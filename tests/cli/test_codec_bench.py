"""``rlrun codec bench``: finds weights and rows in what it is given, measures what it says."""

import re
import sys
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from rlrun import codec
from rlrun.cli import codec_bench
from rlrun.cli.codec_bench import CHUNKS, ROWS, Series, series_of
from rlrun.cli.main import main
from rlrun.codec import planes
from rlrun.config import Composer, to_yaml
from rlrun.run import history
from rlrun.run.export import export_run
from rlrun.run.tensors import write_tensors
from tests.compose import config
from tests.pipeline.make import SMOKE, go

LINE = ("policy=dqn", "env=cartpole", "run.checkpoint_every=100", "buffer.capacity=400")


def save_config(run_dir, *line):
    text = to_yaml(Composer().compose([*SMOKE, *line]))
    (run_dir / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(text)))


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """A run with a history of three, a replay that went round, and its dataset."""
    path = tmp_path_factory.mktemp("bench") / "run"
    line = (*LINE, "checkpoint.history=2", "run.total_steps=600")
    go(path, *line)
    save_config(path, *line)
    text = (path / "config.yaml").read_text()
    export_run(path, path.parent / "data", config(*SMOKE, *line), raw_yaml=text, shard_rows=100)
    return path


def bench(capsys, *argv):
    capsys.readouterr()
    code = main(["codec", "bench", *argv])
    done = capsys.readouterr()
    return code, done.out, done.err


def test_a_run_and_its_dataset(run_dir, capsys):
    code, out, err = bench(capsys, str(run_dir), str(run_dir.parent / "data"))
    assert (code, err) == (0, "")
    names = ["weights", "observations", "actions", "rewards"]
    expected = [f"{run_dir}: {n}" for n in names]
    expected += [f"{run_dir.parent / 'data'}: {n}" for n in names[1:]]
    titles = re.findall(r"^(\S.*?: \w+): (\d+) ", out, re.M)
    assert [name for name, _ in titles] == expected
    assert titles[0][1] == "3", "snapshots of the weights"
    for coder in codec.CODER_OPTIONS:
        count = len(re.findall(rf"^  {coder} +\d+\.\d % +\d+ MB/s +\d+ MB/s ", out, re.M))
        assert count == (7 if coder != "pco" or planes.installed() else 0)


def test_the_figures_are_those_of_the_streams(run_dir):
    """Sizes of the frames a stream sends; the first, a key frame, is not in the ratio."""
    weights, obs, *_ = series_of([run_dir])
    assert weights.at == list(history.versions(run_dir / "checkpoints/history"))
    found = codec_bench.measure(weights, "planes")
    sender = codec.Encoder("x", keep=2, key_seconds=0, coder="planes")
    sizes = [len(sender.encode(item)) for item in weights.items]
    assert found.coded.tolist() == sizes
    assert found.raw.tolist() == weights.nbytes
    assert found.figures[0] == sum(sizes[1:]) / sum(weights.nbytes[1:])
    for coder in ("xorz", "auto"):
        rows = codec_bench.measure(obs, coder)
        sizes = [len(codec.encode_chunk(item, coder=coder)) for item in obs.items]
        assert rows.coded.tolist() == sizes
        assert rows.figures[0] == sum(sizes) / sum(obs.nbytes), "no chunk is a key frame"


def test_what_the_replay_holds_is_what_the_dataset_has(run_dir):
    """The same rows, oldest first, although the ring has wrapped."""
    _, *replay = series_of([run_dir])
    data = series_of([run_dir.parent / "data"])
    for one, two in zip(replay, data, strict=True):
        a, b = (np.concatenate(x.items) for x in (one, two))
        np.testing.assert_array_equal(a, b)
        assert a.shape[1] == 4
    assert replay[0].at[0] > 0, "the ring has wrapped"


def test_a_run_without_a_history(tmp_path):
    """Its checkpoints are the versions."""
    go(tmp_path, *LINE)
    save_config(tmp_path, *LINE)
    weights = series_of([tmp_path])[0]
    assert (len(weights.items), weights.unit) == (2, "env steps")
    assert weights.at == sorted(weights.at)


@pytest.mark.parametrize("demos", [False, True])
def test_a_run_of_rollouts_or_with_demonstrations(run_dir, tmp_path, demos):
    on_policy = ("policy=ppo", "env=cartpole")
    line = (*LINE, f"buffer.demos={run_dir.parent / 'data'}") if demos else on_policy
    go(tmp_path, *line)
    save_config(tmp_path, *line)
    units = [series.unit for series in series_of([tmp_path])]
    assert (units[0], len(units)) == ("env steps", 4 if demos else 1)


def test_files(tmp_path, capsys):
    """An .npy is rows; .npz and .safetensors alike in names and shapes are versions."""
    rng = np.random.default_rng(0)
    rows = np.cumsum(rng.normal(size=(ROWS * (CHUNKS + 3), 2)), axis=0)
    np.save(tmp_path / "rows.npy", rows)
    for k in range(3):
        w = (rows[:500] * (1 + 1e-4 * k)).astype(np.float32)
        np.savez(tmp_path / f"w{k}.npz", w=w)
        tensors = {"w": torch.from_numpy(w).bfloat16()}
        write_tensors(tmp_path / f"w{k}.safetensors", tensors, {})
    np.savez(tmp_path / "other.npz", v=w)
    names = ["w0.npz", "rows.npy", "w1.npz", "other.npz", "w0.safetensors", "w1.safetensors"]
    found = series_of([tmp_path / n for n in names])
    assert [(len(s.items), s.rows) for s in found] == [
        (2, False), (CHUNKS, True), (1, False), (2, False),
    ]  # fmt: skip
    np.testing.assert_array_equal(np.concatenate(found[1].items), rows[-ROWS * CHUNKS :])
    code, out, err = bench(capsys, str(tmp_path / "w0.npz"))
    assert (code, err) == (0, "")
    assert str(tmp_path / "w0.npz") in out


BROKEN = {
    "no.npy": b"not an array", "no.npz": b"PK\x03\x04 not a zip", "no.safetensors": b"\xff" * 30,
    "no.txt": b"text", "short.npy": b"\x93NUMPY\x01\x00",
}  # fmt: skip


@pytest.mark.parametrize("name", [*BROKEN, "nowhere", "nowhere.npy", "directory"])
def test_what_cannot_be_read_is_exit_2(tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "directory").mkdir()
    if name in BROKEN:
        (tmp_path / name).write_bytes(BROKEN[name])
    code, out, err = bench(capsys, name)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert re.search(rf"FILE(:| =) {name}\b", err)
    assert all(kind in err for kind in (".npy", ".npz", ".safetensors"))


def test_pickled_objects_are_not_loaded(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    np.save("objects.npy", np.array([{"a": 1}], object), allow_pickle=True)
    np.savez("objects.npz", x=np.array([{"a": 1}], object))
    np.save("text.npy", np.array(["a", "b", "c"]))
    for name in ("objects.npy", "objects.npz"):
        code, _, err = bench(capsys, name)
        assert code == 2, err
    code, _, err = bench(capsys, "text.npy")
    assert (code, err.count("\n")) == (6, 1)


def test_a_run_without_anything_is_exit_5(tmp_path, capsys):
    (tmp_path / "config.yaml").write_text("seed: 0\n")
    assert bench(capsys, str(tmp_path))[0] == 5
    go(tmp_path, "policy=random", "env=bandit")
    assert bench(capsys, str(tmp_path))[0] == 5


def test_missing_matplotlib_is_reported_before_measuring(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr("rlrun.config.config_errors.find_spec", lambda name: None)
    code, out, err = bench(capsys, str(tmp_path), "--plot", "x.png")
    assert (code, out) == (7, "")
    assert "[plot]'" in err


@pytest.mark.skipif(find_spec("matplotlib") is None, reason="matplotlib is not installed")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_plot(run_dir, tmp_path, capsys):
    code, out, err = bench(capsys, str(run_dir), "--plot", str(tmp_path / "ratio.png"))
    assert (code, err) == (0, "")
    assert "ratio.png" in out
    assert (tmp_path / "ratio.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    for name in ("x.bmp", "no/x.png"):
        code, _, err = bench(capsys, str(run_dir), "--plot", str(tmp_path / name))
        assert (code, name in err) == (2, True)


def test_a_coder_that_lost_something_would_be_found_out(monkeypatch):
    """The comparison sees one flipped bit."""
    x = np.arange(500, dtype=np.float32).reshape(50, 10)
    series = Series("x", rows=True, items=[x], at=[0])
    codec_bench.measure(series, "planes")

    class Liar(codec.Decoder):
        def decode(self, data):
            back = super().decode(data).copy()
            back[3, 4] = -back[3, 4]
            return back

    monkeypatch.setattr(codec, "Decoder", Liar)
    with pytest.raises(AssertionError):
        codec_bench.measure(series, "planes")
