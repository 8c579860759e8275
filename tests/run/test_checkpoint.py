"""Checkpoints: exact round trip, every damage found, every crash survived."""

import errno
import itertools
import json
import math
import os
import shutil

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rlrun.errors import CheckpointError, StorageError
from rlrun.run import checkpoint, files
from rlrun.run.checkpoint import (
    load_newest,
    load_weights,
    save_weights,
)
from rlrun.run.manifest import list_checkpoints
from rlrun.run.tensors import read_tensors, write_tensors
from tests.run.forge import Crash, crash_at, save

TORCH = [
    getattr(torch, name)
    for name in ("bool", "uint8", "int16", "int64", "float16", "bfloat16", "float32", "float64")
]
NUMPY = ["?", "u1", "i1", "u2", "i4", "u8", "i8", "f2", "f4", "f8", ">f4", ">i8"]
SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)


@st.composite
def tensors(draw):
    shape = draw(SHAPES)
    bits = torch.from_numpy(draw(hnp.arrays(np.float32, shape, elements=st.floats(width=32))))
    tensor = bits.to(draw(st.sampled_from(TORCH)))
    kind = draw(st.sampled_from(["plain", "strided", "transposed", "parameter"]))
    if kind == "strided":
        return torch.stack([tensor, tensor], -1)[..., 1]
    if kind == "parameter" and tensor.is_floating_point():
        return torch.nn.Parameter(tensor)
    return tensor.mT if kind == "transposed" and tensor.ndim >= 2 else tensor


@st.composite
def arrays(draw):
    dtype = np.dtype(draw(st.sampled_from(NUMPY)))
    array = draw(hnp.arrays(dtype, draw(SHAPES)))
    array = array[..., ::-1] if array.ndim and draw(st.booleans()) else array
    array.flags.writeable = draw(st.booleans())
    return array


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**200), 2**200)
    | st.floats()
    | st.text(max_size=5)
    | hnp.from_dtype(np.dtype("f8")).map(np.float64)
    | st.integers(0, 255).map(np.uint8)
    | st.booleans().map(np.bool_)
)
TEXT = st.text(max_size=4) | st.sampled_from(["$torch", "$dict", "__metadata__", "a/b", "a", "b"])
KEYS = TEXT | st.integers(-3, 3) | st.booleans() | st.none()
TREES = st.recursive(
    SCALARS | tensors() | arrays(),
    lambda node: (
        st.lists(node, max_size=3)
        | st.lists(node, max_size=3).map(tuple)
        | st.dictionaries(KEYS, node, max_size=3)
    ),
    max_leaves=12,
)


def same(a, b):
    """Return whether b is what a must come back as: same types, same bits."""
    if isinstance(a, np.generic):
        a = a.item()
    if isinstance(a, torch.Tensor):
        ok = isinstance(b, torch.Tensor) and (a.dtype, a.shape) == (b.dtype, b.shape)
        return ok and str(a.tolist()) == str(b.tolist()) and b.is_contiguous()  # exact, NaN, -0.0
    if isinstance(a, np.ndarray):
        ok = isinstance(b, np.ndarray) and b.dtype == a.dtype.newbyteorder("=")
        ok = ok and a.shape == b.shape and b.flags.writeable
        return ok and a.astype(b.dtype).tobytes() == b.tobytes()
    if isinstance(a, dict):
        ok = isinstance(b, dict) and [(type(k), k) for k in a] == [(type(k), k) for k in b]
        return ok and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float) and math.isnan(a):
        return isinstance(b, float) and math.isnan(b)
    return type(a) is type(b) and a == b and str(a) == str(b)  # str: -0.0 is not 0.0


def small(mark):
    """A state like a run's: an optimiser's int keys, a generator's big ints, an odd best score."""
    return {
        "mark": mark,
        "net": {"w": torch.full((3, 2), float(mark)), "b": torch.zeros(2, dtype=torch.bfloat16)},
        "optimiser": {"state": {0: {"step": torch.tensor(3.0)}}, "groups": [{"betas": (0.9, 1.0)}]},
        "ring": np.arange(8, dtype=np.uint8),
        "rng": np.random.default_rng(mark).bit_generator.state,
        "best": -math.inf,
    }


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(state=st.dictionaries(TEXT, TREES, max_size=4))
def test_any_tree_comes_back_bit_for_bit(tmp_path_factory, state):
    directory = tmp_path_factory.mktemp("checkpoints")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)  # hundreds of saves, none worth keeping
        path = save(directory, state, env_steps=7, keep=1)
    back, found = load_newest(directory)
    shutil.rmtree(directory)
    assert found == path
    assert same(state, back), (state, back)


def test_shared_memory_is_stored_twice_and_names_do_not_collide(tmp_path):
    base = torch.arange(6.0)
    state = {"a": {"b": base}, "a/b": base[2:4], "__metadata__": base, "c": [base, base]}
    path = save(tmp_path, state, env_steps=1, keep=1)
    back, _ = load_newest(tmp_path)
    assert same(state, back)
    assert back["c"][0].data_ptr() != back["c"][1].data_ptr()
    names = safetensors.torch.load_file(path / "tensors.safetensors").keys()
    assert names == {"a/b", "a/b#", "__metadata__#", "c/0", "c/1"}


def test_the_library_reads_what_is_written(tmp_path):
    tensors = {str(dtype): torch.ones(3, 2).to(dtype) for dtype in TORCH}
    tensors |= {"empty": torch.zeros(0, 3), "scalar": torch.tensor(2.5)}
    digest, size = write_tensors(tmp_path / "t.safetensors", tensors, {"format": "pt"})
    assert size == (tmp_path / "t.safetensors").stat().st_size
    assert digest == files.sha256_file(tmp_path / "t.safetensors")
    back = safetensors.torch.load_file(tmp_path / "t.safetensors")
    assert tensors.keys() == back.keys()
    assert all(same(tensors[name], back[name]) for name in tensors)
    own = read_tensors(tmp_path / "t.safetensors")
    assert same(dict(sorted(tensors.items())), own)
    safetensors.torch.save_file(tensors, tmp_path / "l.safetensors")
    back = read_tensors(tmp_path / "l.safetensors")
    assert all(same(tensors[name], back[name]) for name in tensors)


@pytest.mark.parametrize(
    "value", [object(), b"bytes", {1, 2}, 1j, np.datetime64("2020-01-01"), np.array(["text"])]
)
def test_what_the_format_lacks_is_refused_and_leaves_nothing(tmp_path, value):
    with pytest.raises(TypeError):
        save(tmp_path, {"deep": [value]}, env_steps=1, keep=1)
    assert list_checkpoints(tmp_path) == []


@pytest.fixture
def two(tmp_path):
    """A directory with checkpoints 1 (good) and 2 (to be damaged)."""
    save(tmp_path, small(1), env_steps=1, keep=2)
    return tmp_path, save(tmp_path, small(2), env_steps=2, keep=2)


@pytest.mark.parametrize("name", ["tensors.safetensors", "state.json", "manifest.json"])
def test_damage_of_any_byte_is_found_and_the_one_before_is_used(two, caplog, name):
    """A flipped bit, a cut, an added byte, a missing file."""
    directory, newest = two
    path = newest / name
    content = path.read_bytes()
    damaged = [content[:i] + bytes([content[i] ^ 1 << i % 8]) + content[i + 1 :]
               for i in range(len(content))]  # fmt: skip
    damaged += [content[:n] for n in {*range(0, len(content), 7), len(content) - 1}]
    for wrong in [*damaged, content + b" "]:
        path.write_bytes(wrong)
        state, used = load_newest(directory)
        assert (state["mark"], used.name) == (1, "step_000000001"), wrong
    assert len(caplog.records) == len(damaged) + 1
    assert newest.name in caplog.records[0].getMessage()
    path.unlink()
    assert load_newest(directory)[0]["mark"] == 1
    path.write_bytes(content)
    assert load_newest(directory)[0]["mark"] == 2


def test_no_usable_checkpoint_lists_what_was_tried(two):
    directory, newest = two
    (newest / "state.json").unlink()
    (directory / "step_000000001/manifest.json").write_text("{}")
    with pytest.raises(CheckpointError) as caught:
        load_newest(directory)
    assert caught.value.exit_code == 5
    for part in (
        "step_000000002 (state.json is missing)",
        "step_000000001 (manifest.json: its json",
    ):
        assert part in str(caught.value)
    with pytest.raises(CheckpointError):
        load_newest(directory / "nowhere")


def test_a_full_disk_is_a_storage_error_and_leaves_no_remains(two, monkeypatch):
    directory, _ = two

    def full(path, *_):
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(checkpoint, "write_tensors", full)
    with pytest.raises(StorageError) as caught:
        save(directory, small(3), env_steps=3, keep=2)
    assert caught.value.exit_code == 6
    assert len(list_checkpoints(directory)) == 2
    assert not [*directory.glob(".tmp_*"), *(directory / "rows").iterdir()]
    with pytest.raises(StorageError):
        save_weights(directory / "best.safetensors", {"w": torch.ones(1)}, {})


def test_only_the_newest_are_kept_and_the_left_future_goes(tmp_path):
    for step in (100, 200, 300, 1_000_000_000):
        save(tmp_path, small(1), env_steps=step, keep=3)
    assert [p.name for p in list_checkpoints(tmp_path)] == [
        "step_000000200",
        "step_000000300",
        "step_1000000000",
    ]
    save(tmp_path, small(2), env_steps=250, keep=10)  # resumed from 200
    assert [p.name for p in list_checkpoints(tmp_path)] == ["step_000000200", "step_000000250"]
    again = save(tmp_path, small(3), env_steps=250, keep=10)
    assert [p.name for p in list_checkpoints(tmp_path)] == ["step_000000200", "step_000000250_1"]
    assert load_newest(tmp_path)[1] == again
    save(tmp_path, small(4), env_steps=255, keep=4)
    assert len(list_checkpoints(tmp_path)) == 3
    save(tmp_path, small(4), env_steps=260, keep=1)
    assert [p.name for p in list_checkpoints(tmp_path)] == ["step_000000260"]
    (tmp_path / "step_notes.txt").touch()
    assert len(list_checkpoints(tmp_path)) == 1


def test_weights_round_trip_and_damage(tmp_path):
    path = tmp_path / "checkpoints" / "best.safetensors"
    weights = {"z": torch.randn(3, 2), "a": torch.tensor(1), "e": torch.zeros(0)}
    save_weights(path, weights, {"env_steps": 7, "return_mean": 0.1})
    back, meta = load_weights(path)
    assert same(dict(sorted(weights.items())), back)
    assert meta == {"env_steps": 7, "return_mean": 0.1}
    assert json.loads(path.with_suffix(".json").read_bytes())["previous"] is None
    assert len(list(path.parent.iterdir())) == 2
    for each in (path, path.with_suffix(".json")):
        content = each.read_bytes()
        for at in range(len(content)):
            damaged = bytearray(content)
            damaged[at] ^= 1 << (at % 8)
            each.write_bytes(damaged)
            with pytest.raises(CheckpointError, match=r"best\.safetensors"):
                load_weights(path)
        each.write_bytes(content[:-1])
        with pytest.raises(CheckpointError):
            load_weights(path)
        each.write_bytes(content)
    path.with_suffix(".json").write_bytes(files.seal({"previous": "x"}))
    save_weights(path, weights, {})
    load_weights(path)
    path.unlink()
    with pytest.raises(CheckpointError):
        load_weights(path)


def test_weights_are_readable_at_every_moment_of_their_replacement(tmp_path, monkeypatch):
    path = tmp_path / "best.safetensors"
    for mark in range(3):
        save_weights(path, {"w": torch.tensor(mark)}, {"mark": mark})
    for number in itertools.count(1):
        with monkeypatch.context() as patch:
            crash_at(patch, number)
            try:
                save_weights(path, {"w": torch.tensor(9)}, {"mark": 9})
            except Crash:
                pass
            else:
                break
        weights, meta = load_weights(path)
        assert (int(weights["w"]), meta) in ((2, {"mark": 2}), (9, {"mark": 9}))
    assert number > 4, "moments"
    assert load_weights(path)[1] == {"mark": 9}
    assert len(list(tmp_path.iterdir())) == 2


def synced(monkeypatch):
    """The names of what is fsynced and renamed (to), in order."""
    done, rename, fsync = [], os.rename, os.fsync

    def renamed(a, b):
        done.append(("rename", os.path.basename(b)))
        rename(a, b)

    def told(handle):
        done.append(("fsync", os.path.basename(os.readlink(f"/proc/self/fd/{handle}"))))
        fsync(handle)

    monkeypatch.setattr(os, "rename", renamed)
    monkeypatch.setattr(os, "fsync", told)
    return done


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="names of open files are in /proc")
def test_all_is_on_disk_before_it_is_renamed_and_the_name_behind_it(tmp_path, monkeypatch):
    """A power cut at any moment leaves a checkpoint that is whole."""
    done, directory = synced(monkeypatch), tmp_path / "checkpoints"
    save(directory, small(1), env_steps=1, keep=1)
    at = done.index(("rename", "step_000000001"))
    files = {"tensors.safetensors", "state.json", "manifest.json"}
    before = [name for _, name in done[:at]]
    assert {*before} == {*files, ".tmp_step_000000001"}
    assert before[-1] == ".tmp_step_000000001", "the directory knows of its files"
    assert done[at + 1] == ("fsync", "checkpoints")
    done.clear()
    save_weights(directory / "best.safetensors", {"w": torch.ones(1)}, {})
    assert done == [
        ("fsync", ".tmp_best.safetensors"),
        ("fsync", ".tmp_best.json"), ("rename", "best.json"), ("fsync", "checkpoints"),
        ("rename", "best.safetensors"), ("fsync", "checkpoints"),
    ]  # fmt: skip


def test_checkpoints_are_ordered_by_number_not_by_name(tmp_path):
    names = ["step_000000009", "step_000000010", "step_000000010_1", "step_000000010_2",
             "step_000000010_10", "step_999999999", "step_1000000000"]  # fmt: skip
    for name in sorted(names):
        (tmp_path / name).mkdir()
    for name in ("step_9", "step_000000009_", "xstep_000000009", ".tmp_step_000000009"):
        (tmp_path / name).mkdir()
    assert [path.name for path in list_checkpoints(tmp_path)] == names
