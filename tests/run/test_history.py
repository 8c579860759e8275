"""Past weights: every version bit for bit, whatever was pruned, cut short or left behind."""

import itertools
import json
import logging
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.cli.main import main
from rlrun.errors import CheckpointError, StorageError
from rlrun.run import checkpoint, files, history
from rlrun.run.manifest import list_checkpoints
from rlrun.run.tensors import raw_bytes
from tests.pipeline.make import SMOKE
from tests.run.forge import Crash, crash_at

KINDS = (torch.float32, torch.float64, torch.bfloat16, torch.int64)


def weights(seed: int, *, drift: int = 0) -> dict[str, torch.Tensor]:
    """Weights of a network with several dtypes, after ``drift`` small steps."""
    rng = np.random.default_rng(seed)
    out = {}
    for i, kind in enumerate(KINDS):
        x = rng.normal(size=(7, 3 + i)) + 1e-3 * drift * rng.normal(size=(7, 3 + i))
        out[f"layer.{i}"] = torch.from_numpy(x).to(kind)
    return out | {"empty": torch.zeros(0, 4), "scalar": torch.tensor(float(drift))}


def put(directory: Path, steps: int, *, keep: int = 3, seed: int = 0) -> dict[str, torch.Tensor]:
    """Save the version that is a function of ``steps``."""
    given = weights(seed, drift=steps)
    history.save(directory, given, env_steps=steps, updates=2 * steps, keep=keep)
    return given


def holds(directory: Path, steps: int, expected: dict[str, torch.Tensor]) -> None:
    found, meta = history.load(directory, steps)
    assert meta == {"env_steps": steps, "updates": 2 * steps}
    same(found, expected)


def same(found, expected) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        own = torch.as_tensor(found[name])
        assert own.dtype == tensor.dtype
        assert own.shape == tensor.shape
        assert bytes(raw_bytes(own)) == bytes(raw_bytes(tensor))


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=12),
    st.lists(st.integers(1, 5), min_size=12, max_size=12),
)
@settings(max_examples=8)
def test_what_is_kept_is_a_prefix_of_the_newest(tmp_path_factory, times, keeps):
    """Any sequence of saves, also back in time: the model is a dict."""
    directory = tmp_path_factory.mktemp("history")
    model: dict[int, dict[str, torch.Tensor]] = {}
    for i, (steps, keep) in enumerate(zip(times, keeps, strict=False)):
        saved = put(directory, steps, keep=keep, seed=i)
        model = {s: w for s, w in model.items() if s < steps} | {steps: saved}
        model = dict(list(model.items())[-keep - 1 :])
        assert list(history.versions(directory)) == list(model)
        for s, w in model.items():
            holds(directory, s, w)
        read = list(history.iterate_newest_first(directory))
        assert [s for s, _ in read] == list(reversed(model))
    assert not list(directory.glob(".tmp*"))


def test_older_ones_are_small_deltas(tmp_path):
    """A version whose neighbour differs little takes little; only the newest is whole."""
    rng = np.random.default_rng(0)
    base = rng.normal(size=50_000).astype(np.float32)
    for k in range(6):
        moved = torch.from_numpy(base + np.float32(1e-6) * k)
        history.save(tmp_path, {"w": moved}, env_steps=k, updates=k, keep=9)
    sizes = [path.stat().st_size for path in history.versions(tmp_path).values()]
    assert max(sizes[:-1]) < 0.4 * sizes[-1]
    raw, coded = history.save(
        tmp_path, {"w": torch.from_numpy(base)}, env_steps=9, updates=9, keep=9
    )
    assert raw == 7 * base.nbytes
    assert coded == sum(p.stat().st_size for p in history.versions(tmp_path).values())


def test_one_in_so_many_stays_whole(tmp_path, monkeypatch):
    """Private: weights are the same without; loading the last of thousands takes long."""
    monkeypatch.setattr(history, "KEY_INTERVAL", 4)
    saved = {k: put(tmp_path, k, keep=20) for k in range(14)}
    whole = [s for s, path in history.versions(tmp_path).items() if history._is_key_frame(path)]
    assert max(b - a for a, b in itertools.pairwise([-1, *whole])) <= 4
    assert len(whole) <= 5
    for k, w in saved.items():
        holds(tmp_path, k, w)


@pytest.mark.parametrize("back", [False, True], ids=["forward", "after a resume"])
def test_killed_at_every_moment(tmp_path, monkeypatch, back):
    """Whatever is left can be read, save the future that is being left; the next save works."""
    start = tmp_path / "start"
    saved = {k: put(start, k) for k in (10, 20, 30, 40)}
    steps = 25 if back else 50
    doomed = {30, 40} if back else {10}
    for n in itertools.count(1):
        directory = tmp_path / f"killed{n}"
        shutil.copytree(start, directory)
        with monkeypatch.context() as patch:
            crash_at(patch, n)
            try:
                put(directory, steps)
            except Crash:
                pass
            else:
                break
        left = history.versions(directory)
        assert set(saved) - doomed <= set(left)
        for s in left:
            if s in saved and s not in doomed:
                holds(directory, s, saved[s])
        new = put(directory, steps)
        holds(directory, steps, new)
        for s in set(history.versions(directory)) - {steps}:
            holds(directory, s, saved[s])
        expected = [10, 20, 25] if back else [20, 30, 40, 50]
        assert list(history.versions(directory)) == expected
    assert n > 5, "moments"


@pytest.mark.parametrize("cut", [0, 40, 0.5, -1])
@pytest.mark.parametrize("which", [20, 40])
def test_a_file_cut_short(tmp_path, caplog, which, cut):
    """Versions that need it raise an error; the others are readable; saving continues."""
    saved = {k: put(tmp_path, k) for k in (10, 20, 30, 40)}
    path = history.versions(tmp_path)[which]
    content = path.read_bytes()
    path.write_bytes(content[: int(cut * len(content)) if isinstance(cut, float) else cut])
    for k in saved:
        if k > which:
            holds(tmp_path, k, saved[k])
            continue
        with pytest.raises(CheckpointError):
            history.load(tmp_path, k)
    with caplog.at_level(logging.WARNING):
        fresh = put(tmp_path, 50)
    holds(tmp_path, 50, fresh)
    if which == 40:
        assert list(history.versions(tmp_path)) == [50], "nothing behind it can be read"
        assert len(caplog.messages) == 4, "a line for each"
    else:
        holds(tmp_path, 30, saved[30])
        assert [s for s, _ in history.iterate_newest_first(tmp_path)] == [50, 40, 30]


def test_what_is_not_there(tmp_path):
    with pytest.raises(CheckpointError, match=r"checkpoint\.history"):
        history.load(tmp_path / "nothing", 5)
    put(tmp_path, 10)
    with pytest.raises(CheckpointError, match=r"5.*10"):
        history.load(tmp_path, 5)


def test_a_full_disk_is_reported(tmp_path, monkeypatch):
    def full(*given):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "write_file", full)
    with pytest.raises(StorageError):
        put(tmp_path, 1)


# -- in a run ------------------------------------------------------------------------------------

LINE = ("policy=dqn", "env=cartpole", "run.checkpoint_every=100", "checkpoint.history=2")


def test_a_run_keeps_its_past_and_plays_it(tmp_path, capsys):
    """The versions are the weights of the checkpoints; eval --weights N plays them."""
    run_dir = tmp_path / "run"
    line = [*SMOKE, *LINE, "-q", "run.keep_checkpoints=9"]
    assert main([*line, f"run.dir={run_dir}"]) == 0
    directory = run_dir / "checkpoints"
    kept = history.versions(directory / "history")
    assert len(kept) == 3
    last, _ = checkpoint.load_weights(directory / "last.safetensors")
    same(history.load(directory / "history", max(kept))[0], last)
    for path in list_checkpoints(directory)[-3:]:
        steps = int(path.name.removeprefix("step_"))
        found, meta = history.load(directory / "history", steps)
        state = checkpoint.load(path)
        same(found, state["policy"]["net"]["net"])
        assert meta == {"env_steps": steps, "updates": state["counters"]["updates"]}
    lines = [json.loads(x) for x in (run_dir / "timings.jsonl").read_text().splitlines()]
    assert 0 < lines[-1]["codec/history_ratio"] < 1.1
    capsys.readouterr()
    for weights_ in (str(min(kept)), str(max(kept)), "final"):
        assert main(["eval", str(run_dir), "--episodes", "1", "--weights", weights_]) == 0
    assert f"env_steps      {min(kept)}" in capsys.readouterr().out
    assert main(["eval", str(run_dir), "--episodes", "1", "--weights", "1"]) == 5
    assert ", ".join(map(str, kept)) in capsys.readouterr().err
    assert main(["resume", str(run_dir), "run.total_steps=600", "-q"]) == 0
    after = list(history.versions(directory / "history"))
    assert len(after) == 3
    assert min(after) > min(kept)
    assert [s for s, _ in history.iterate_newest_first(directory / "history")] == after[::-1]
