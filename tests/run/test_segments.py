"""Rows of a ring as segments: each written once, none lost at any crash, every damage found.

Private: which rows are written when shows in bytes, and after a crash at one moment alone.
"""

import json
import os
import shutil
import struct
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from rlrun.errors import CheckpointError, StorageError
from rlrun.run import checkpoint, manifest, tensors
from rlrun.run.checkpoint import Saver
from rlrun.run.tensors import RingRows, RowFiles
from tests.run.forge import POINTS, Crash, crash_at

COLUMNS, ROWS = 2, 40


class Ring:
    """A ring of rows (row r of column c is 10 r + c) and of windows, two for every three rows."""

    def __init__(self) -> None:
        self.obs, self.reward = np.zeros((COLUMNS, ROWS, 3), np.uint8), np.zeros((COLUMNS, ROWS))
        self.windows, self.head, self.keys = np.zeros((1, 30, 2), np.int64), 0, 0
        self.files, self.table_files = RowFiles(), RowFiles()

    def add(self, count: int) -> None:
        for _ in range(count):
            slot = self.head % ROWS
            self.reward[:, slot] = 10 * self.head + np.arange(COLUMNS)
            self.obs[:, slot] = self.reward[:, slot, None] % 251
            self.head += 1
            while self.keys < 2 * self.head // 3:
                self.windows[0, self.keys % 30] = self.keys, self.head
                self.keys += 1

    def state(self, mark: int = 0) -> dict:
        first = max(0, self.head + 1 - ROWS)
        rows = {n: RingRows(getattr(self, n), first, self.head, self.files)
                for n in ("obs", "reward")}  # fmt: skip
        windows = RingRows(self.windows, max(0, self.keys - 30), self.keys, self.table_files)
        return {"mark": mark, "ring": rows, "windows": windows, "w": torch.full((3,), float(mark))}

    def load(self, state: dict) -> None:
        self.head, self.keys = state["ring"]["reward"].stop, state["windows"].stop
        for name, leaf in state["ring"].items():
            leaf.fill(getattr(self, name))
        state["windows"].fill(self.windows)
        self.files = state["ring"]["reward"].saved_files()
        self.table_files = state["windows"].saved_files()

    def check(self) -> None:
        fresh = Ring()
        fresh.add(self.head)
        mine, theirs = self.state(), fresh.state()
        assert mine["ring"] == theirs["ring"]
        assert mine["windows"] == theirs["windows"]


@pytest.fixture
def no_fsync(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)


def small_segments(monkeypatch, size):
    monkeypatch.setattr(tensors, "SMALL", (size, size))


@pytest.mark.usefixtures("no_fsync")
@pytest.mark.parametrize("small", [0, 1500, 10**9])
@pytest.mark.parametrize("seed", range(4))
def test_any_order_of_adding_saving_crashing_and_resuming(tmp_path, monkeypatch, seed, small):
    """What is loaded is what a ring holds that was never interrupted; no file is left over."""
    small_segments(monkeypatch, small)
    if seed % 2:  # without copies: written before the ring changes
        monkeypatch.setattr(tensors, "COPY", 0)
    rng = np.random.default_rng(seed)
    ring, saver, saved = Ring(), Saver(tmp_path), {}
    for _ in range(60):
        match rng.integers(4):
            case 0 | 1:
                ring.add(int(rng.integers(1, (4, 70)[rng.integers(2)])))
            case 2:
                saver.save(ring.state(), env_steps=ring.head, keep=3)
                ring.add(int(rng.integers(5)))  # while the files are written
                saver.wait()
                saved = {p: manifest.read_manifest(p) for p in manifest.list_checkpoints(tmp_path)}
                listed = {name for fields in saved.values() for name in fields["segments"]}
                assert {p.name for p in (tmp_path / "rows").iterdir()} == listed
            case 3 if saved:
                path = list(saved)[rng.integers(len(saved))]
                ring, saver = Ring(), saver if rng.integers(2) else Saver(tmp_path)
                ring.load(checkpoint.load(path))
                assert ring.head == saved[path]["env_steps"]
        ring.check()


@pytest.mark.usefixtures("no_fsync")
def test_only_new_rows_are_written(tmp_path, monkeypatch):
    small_segments(monkeypatch, 0)
    ring, saver, sizes = Ring(), Saver(tmp_path), []
    for _ in range(6):
        ring.add(9)
        before = {p.name for p in tmp_path.glob("rows/*")}
        saver.save(ring.state(), env_steps=ring.head, keep=1)
        saver.wait()
        new = [p for p in tmp_path.glob("rows/*") if p.name not in before]
        sizes.append(len(new))
        assert {p.name[:19] for p in new} == {
            f"{ring.head - 9:09d}_{ring.head:09d}",
            f"{2 * (ring.head - 9) // 3:09d}_{ring.keys:09d}",
        }
    assert sizes == [2] * 6
    first = min(p.name for p in tmp_path.glob("rows/*"))
    assert int(first[10:19]) > 0, "segments of rows that were all overwritten are deleted"


@pytest.mark.usefixtures("no_fsync")
def test_many_short_intervals_make_few_files_and_one_that_vanished_is_written_again(tmp_path):
    ring, saver = Ring(), Saver(tmp_path)
    for _ in range(50):
        ring.add(1)
        saver.save(ring.state(), env_steps=ring.head, keep=1)
    saver.wait()
    files = [*tmp_path.glob("rows/*")]
    assert len(files) == 2
    for path in files:
        path.unlink()
    ring.add(3)
    saver.save(ring.state(), env_steps=53, keep=1)
    saver.wait()
    again = Ring()
    again.load(checkpoint.load_newest(tmp_path)[0])
    again.check()


def two_generations(directory: Path) -> tuple[Ring, Saver]:
    ring, saver = Ring(), Saver(directory)
    for _ in range(2):
        ring.add(15)
        saver.save(ring.state(ring.head), env_steps=ring.head, keep=2)
    saver.wait()
    return ring, saver


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="names of open files are in /proc")
def test_a_kill_at_every_point_of_a_save(tmp_path, monkeypatch):
    """Each leaves the checkpoint before or the new one, and the next save leaves no remains."""
    small_segments(monkeypatch, 0)
    begin = tmp_path / "begin"
    two_generations(begin)
    seen, number = [], 0
    while True:
        number += 1
        directory = tmp_path / str(number)
        shutil.copytree(begin, directory)
        ring = Ring()
        ring.load(checkpoint.load_newest(directory)[0])
        saver = Saver(directory)
        ring.add(30)  # the first segments are needed no longer
        with monkeypatch.context() as patch:
            calls = crash_at(patch, number)
            saver.save(ring.state(60), env_steps=60, keep=2)
            try:
                saver.wait()
            except Crash:
                seen.append(calls[-1])
            else:
                break
        state, path = checkpoint.load_newest(directory)
        assert (state["mark"], path.name) in ((30, "step_000000030"), (60, "step_000000060"))
        again = Ring()
        again.load(state)
        assert again.head == state["mark"]
        again.check()
        again.add(7)
        saver = Saver(directory)
        saver.save(again.state(again.head), env_steps=again.head, keep=1)
        saver.wait()
        state, path = checkpoint.load_newest(directory)
        assert state["mark"] == again.head
        assert {p.name for p in directory.iterdir()} == {"rows", path.name}
        listed = manifest.read_manifest(path)["segments"]
        assert {p.name for p in (directory / "rows").iterdir()} == set(listed)
    assert len(seen) == len(calls) >= 20
    assert set(seen) == set(POINTS), "every kind of change of the disk was a point"


def test_every_flipped_byte_and_truncation_of_a_segment_is_found(tmp_path, monkeypatch, caplog):
    """A segment of the newest alone: the one before is used. One of both: an error names it."""
    small_segments(monkeypatch, 0)
    two_generations(tmp_path)
    newest, before = (
        manifest.read_manifest(p)["segments"] for p in reversed(manifest.list_checkpoints(tmp_path))
    )
    assert len(newest) == 4
    assert len(before) == 2
    for name in newest:
        path = tmp_path / "rows" / name
        content = path.read_bytes()
        damaged = [content[:i] + bytes([content[i] ^ 1 << i % 8]) + content[i + 1 :]
                   for i in range(0, len(content), 3)]  # fmt: skip
        damaged += [content[:n] for n in range(0, len(content), 29)] + [content + b"x"]
        for wrong in damaged:
            path.write_bytes(wrong)
            caplog.clear()
            if name in before:
                with pytest.raises(CheckpointError, match=name):
                    checkpoint.load_newest(tmp_path)
            else:
                assert checkpoint.load_newest(tmp_path)[0]["mark"] == 15
                assert name in caplog.text
        path.unlink()
        with pytest.raises(CheckpointError, match=name):
            checkpoint.load(manifest.list_checkpoints(tmp_path)[-1])
        path.write_bytes(content)
    assert checkpoint.load_newest(tmp_path)[0]["mark"] == 30


def test_an_error_of_the_thread_is_raised_by_the_next_save_or_wait(tmp_path, monkeypatch):
    small_segments(monkeypatch, 0)
    ring, saver = two_generations(tmp_path)
    files = sorted(p.name for p in tmp_path.rglob("*"))
    ring.add(5)

    def full(handle):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        saver.save(ring.state(35), env_steps=35, keep=2)
        with pytest.raises(StorageError):
            saver.save(ring.state(35), env_steps=35, keep=2)
    assert sorted(p.name for p in tmp_path.rglob("*")) == files, "what was begun is removed"
    saver.save(ring.state(35), env_steps=35, keep=2)
    saver.wait()
    again = Ring()
    again.load(checkpoint.load_newest(tmp_path)[0])
    again.check()


def test_the_state_may_change_while_it_is_written(tmp_path):
    ring, saver, release = Ring(), Saver(tmp_path), threading.Event()
    ring.add(30)
    state = ring.state(1) | {"a": np.arange(5), "t": torch.arange(5), "l": [1, {"n": 2}]}
    saver.save(state, env_steps=1, keep=1, before=lambda: release.wait(120))
    ring.add(60)
    state["a"][:], state["l"][1]["n"] = 0, 9
    state["t"].zero_()
    release.set()
    saver.wait()
    back, again = checkpoint.load_newest(tmp_path)[0], Ring()
    again.load(back)
    assert again.head == 30
    again.check()
    assert (back["a"].tolist(), back["t"].tolist(), back["l"]) == (
        [0, 1, 2, 3, 4], [0, 1, 2, 3, 4], [1, {"n": 2}],
    )  # fmt: skip


def test_nothing_beyond_the_file_of_a_forged_header_is_read(tmp_path):
    """Private: a stranger's hashes are right, and his offsets would take a terabyte of memory."""
    path = tmp_path / "rows.safetensors"

    def read(start, stop, length=None):
        entry = {"dtype": "U8", "shape": [stop - start], "data_offsets": [start, stop]}
        header = json.dumps({"a": entry}).encode()
        path.write_bytes(struct.pack("<Q", length or len(header)) + header + b"\1\2\3")
        return tensors.read_arrays(path, "a")[""].tolist()

    assert read(0, 3) == [1, 2, 3]
    for wrong in ((1, 3), (0, 4), (0, 2**40), (-1, 2), (2, 1), (0, 3, 2**40)):
        with pytest.raises(ValueError, match=r"rows\.safetensors"):
            read(*wrong)
