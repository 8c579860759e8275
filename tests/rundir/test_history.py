"""Past weights: every version bit for bit, whatever was pruned, cut short or left behind."""

import itertools
import json
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.errors import CheckpointError, StorageError
from rlrun.run import train
from rlrun.run.evaluate import evaluate_run
from rlrun.rundir import checkpoint, durable, history, tensorfile
from tests.compose import config
from tests.pipeline.test_serial import SMOKE, go

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
        assert bytes(tensorfile.raw_bytes(own)) == bytes(tensorfile.raw_bytes(tensor))


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=12),
    st.lists(st.integers(1, 5), min_size=12, max_size=12),
)
@settings(max_examples=40, deadline=None)
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
    size = history.save(tmp_path, {"w": torch.from_numpy(base)}, env_steps=9, updates=9, keep=9)
    assert size.raw == 7 * base.nbytes
    assert size.coded == sum(p.stat().st_size for p in history.versions(tmp_path).values())


def test_one_in_so_many_stays_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(history, "KEY_INTERVAL", 4)
    saved = {k: put(tmp_path, k, keep=20) for k in range(14)}
    whole = [s for s, path in history.versions(tmp_path).items() if history._is_key_frame(path)]
    assert max(b - a for a, b in itertools.pairwise([-1, *whole])) <= 4
    assert len(whole) <= 5
    for k, w in saved.items():
        holds(tmp_path, k, w)


class Killed(BaseException):
    """The process is gone: no handler may tidy up."""


def points(tmp_path, monkeypatch, act) -> int:
    """How many moments (renames, unlinks, file contents half written) ``act`` has."""
    count = 0

    def counted(function):
        def call(*given, **named):
            nonlocal count
            count += 1
            return function(*given, **named)

        return call

    with monkeypatch.context() as m:
        m.setattr(os, "rename", counted(os.rename))
        m.setattr(Path, "unlink", counted(Path.unlink))
        m.setattr(durable, "write_file", counted(durable.write_file))
        act()
    return count


@pytest.mark.parametrize("back", [False, True], ids=["forward", "after a resume"])
def test_killed_at_every_moment(tmp_path, monkeypatch, back):
    """Whatever is left can be read, save the future that is being left; the next save works."""
    start = tmp_path / "start"
    saved = {k: put(start, k) for k in (10, 20, 30, 40)}
    steps = 25 if back else 50
    doomed = {30, 40} if back else {10}

    def at(n, directory):
        """Save and be killed at moment n."""
        count = 0

        def dies(function, half=False):
            def call(*given):
                nonlocal count
                count += 1
                if count == n:
                    if half:
                        given[0].write_bytes(given[1][: len(given[1]) // 2])
                    raise Killed
                return function(*given)

            return call

        with monkeypatch.context() as m:
            m.setattr(os, "rename", dies(os.rename))
            m.setattr(Path, "unlink", dies(Path.unlink))
            m.setattr(durable, "write_file", dies(durable.write_file, half=True))
            put(directory, steps)

    whole = tmp_path / "whole"
    shutil.copytree(start, whole)
    moments = points(tmp_path, monkeypatch, lambda: put(whole, steps))
    assert moments >= 5
    for n in range(1, moments + 1):
        directory = tmp_path / f"killed{n}"
        shutil.copytree(start, directory)
        with pytest.raises(Killed):
            at(n, directory)
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


@pytest.mark.parametrize("cut", [0, 1, 40, 0.5, -1])
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
        with pytest.raises(CheckpointError, match="cannot be read"):
            history.load(tmp_path, k)
    with caplog.at_level(logging.WARNING):
        fresh = put(tmp_path, 50)
    holds(tmp_path, 50, fresh)
    if which == 40:
        assert list(history.versions(tmp_path)) == [50], "nothing behind it can be read"
        assert "cannot be read and is dropped" in caplog.text
    else:
        holds(tmp_path, 30, saved[30])
        assert [s for s, _ in history.iterate_newest_first(tmp_path)] == [50, 40, 30]


def test_no_flipped_bit_gives_wrong_weights(tmp_path):
    saved = {k: put(tmp_path, k) for k in (10, 20)}
    rng = np.random.default_rng(0)
    for steps, path in history.versions(tmp_path).items():
        content = bytearray(path.read_bytes())
        for bit in rng.integers(0, 8 * len(content), 60).tolist():
            content[bit // 8] ^= 1 << bit % 8
            path.write_bytes(content)
            try:
                same(history.load(tmp_path, 10)[0], saved[10])
                same(history.load(tmp_path, steps)[0], saved[steps])
            except CheckpointError:
                pass
            content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)


def test_a_file_under_another_name_is_found_out(tmp_path):
    put(tmp_path, 10)
    history._path(tmp_path, 10).rename(history._path(tmp_path, 11))
    with pytest.raises(CheckpointError, match="contains another version"):
        history.load(tmp_path, 11)


def test_what_is_not_there(tmp_path):
    with pytest.raises(
        CheckpointError, match=r"step 5: the run kept no past ones \(checkpoint.history"
    ):
        history.load(tmp_path / "nothing", 5)
    put(tmp_path, 10)
    with pytest.raises(CheckpointError, match="env step 5; there are 10; choose"):
        history.load(tmp_path, 5)


def test_a_full_disk_is_reported(tmp_path, monkeypatch):
    def full(*given):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(durable, "write_file", full)
    with pytest.raises(StorageError, match="No space left on device"):
        put(tmp_path, 1)


# -- in a run --------------------------------------------------------------------------------------

LINE = ("policy=dqn", "env=cartpole", "run.checkpoint_every=100", "checkpoint.history=2")


def test_a_run_keeps_its_past_and_plays_it(tmp_path, capsys):
    """The versions are the weights of the checkpoints; eval --weights N plays them."""
    go(tmp_path, *LINE, "run.keep_checkpoints=9")
    directory = tmp_path / "checkpoints"
    kept = history.versions(directory / "history")
    assert len(kept) == 3
    last, _ = checkpoint.load_weights(directory / "last.safetensors")
    same(history.load(directory / "history", max(kept))[0], last)
    for path in checkpoint.list_checkpoints(directory)[-3:]:
        steps = int(path.name.removeprefix("step_"))
        found, meta = history.load(directory / "history", steps)
        state = checkpoint._read(path)
        same(found, state["policy"]["net"])
        assert meta == {"env_steps": steps, "updates": state["counters"]["updates"]}
    lines = [json.loads(x) for x in (tmp_path / "timings.jsonl").read_text().splitlines()]
    assert 0 < lines[-1]["codec/history_ratio"] < 1.1
    from omegaconf import OmegaConf

    from rlrun.config import Composer, to_yaml

    composer = Composer()
    text = to_yaml(composer.compose([*SMOKE, *LINE]))
    (tmp_path / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(text)))
    (tmp_path / "run.json").unlink()  # it has the hash of the other config
    for weights_ in (str(min(kept)), str(max(kept)), "final"):
        assert evaluate_run(
            tmp_path, episodes=2, weights=weights_, seed=None, device=None
        ) == 0  # fmt: skip
    out = capsys.readouterr().out
    assert f"env_steps      {min(kept)}" in out
    with pytest.raises(CheckpointError, match=f"there are {', '.join(map(str, kept))}"):
        evaluate_run(tmp_path, episodes=2, weights="1", seed=None, device=None)


def test_a_resumed_run_goes_on_with_it(tmp_path):
    go(tmp_path, *LINE)
    before = list(history.versions(tmp_path / "checkpoints/history"))
    longer = config(*SMOKE, *LINE, "run.total_steps=700")
    assert train.resume(tmp_path, longer, raw_yaml="", overrides=[]) == 0
    after = list(history.versions(tmp_path / "checkpoints/history"))
    assert len(after) == 3
    assert min(after) > before[0]
    assert [s for s, _ in history.iterate_newest_first(tmp_path / "checkpoints/history")] == after[
        ::-1
    ]


def test_it_changes_nothing_else(tmp_path):
    with_, without = go(tmp_path / "a", *LINE), go(tmp_path / "b", *LINE[:-1])
    assert with_["digest"] == without["digest"]
    assert not (tmp_path / "b/checkpoints/history").exists()


KILL = """
import os, sys
from pathlib import Path
import torch
from rlrun import history
k = 0
while True:
    k += 1
    w = {"w": torch.full((20_000,), float(k)) + torch.arange(20_000)}
    history.save(Path(sys.argv[1]), w, env_steps=k, updates=2 * k, keep=4)
    print(k, flush=True)
"""


def test_kill_9(tmp_path):
    """Killed for real, many times, in a loop of saves: nothing said to be there is lost."""
    directory = tmp_path / "history"
    for round_ in range(4):
        process = subprocess.Popen(
            [sys.executable, "-c", KILL, str(directory)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        said = 0
        for line in process.stdout:
            said = int(line)
            if said >= 5 + 7 * round_:
                break
        process.kill()
        rest = process.stdout.read().split()
        process.wait()
        process.stdout.close()
        said = int(rest[-1]) if rest else said
        there = history.versions(directory)
        assert set(range(max(1, said - 3), said + 1)) <= set(there)
        for steps in there:
            found, _ = history.load(directory, steps)
            assert found["w"].equal(torch.full((20_000,), float(steps)) + torch.arange(20_000))
