"""Compressed observations: the bits of the plain replay, less memory, honest about its size."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.buffer.replay import Replay, host_replay
from rlrun.buffer.storage import compressed as blocks
from rlrun.buffer.storage import layout, sizing
from rlrun.buffer.storage.compressed import CompressedRows, from_state, is_saved
from rlrun.buffer.storage.layout import ArraySpec, in_memory
from rlrun.buffer.storage.ring import read_columns
from rlrun.buffer.windows.cutter import Cutter
from rlrun.config import check
from rlrun.errors import CheckpointError, ConfigError, ResourceError
from rlrun.run import train
from rlrun.rundir.segments import RingRows, RowFiles
from rlrun.schema import Invalid
from rlrun.types import Chunk, Window, tree_leaves
from tests.buffer.factory import make_layout, make_sampler
from tests.buffer.pair import Setup, copied, setups
from tests.compose import changed, config
from tests.pipeline.test_serial import SMOKE, go
from tests.reference.replay_model import World

IMAGE = ArraySpec((9, 31), np.dtype(np.uint8))
SCREEN = ("env=gym", "env.id=tests.env.screen:test/Screen-v0", "env.backend=sync")


# -- blocks alone ----------------------------------------------------------------------------------


def frames(rng: np.random.Generator, steps: int, columns: int, noise: bool) -> np.ndarray:
    top = 256 if noise else 2
    return rng.integers(0, top, (steps, columns, *IMAGE.shape)).astype(np.uint8)


@given(
    st.integers(1, 40), st.integers(1, 3), st.lists(st.integers(1, 40), min_size=1, max_size=9),
    st.booleans(), st.integers(0, 2**32 - 1), st.sampled_from([1, 3, 8]),
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_an_array_and_its_blocks(rows, columns, writes, noise, seed, size):
    """Whatever is written where, in any pieces, round and round: reads are those of an array."""
    rng = np.random.default_rng(seed)
    plain = np.zeros((columns, rows, *IMAGE.shape), np.uint8)
    with pytest.MonkeyPatch.context() as m:
        m.setattr(blocks, "BLOCK_ROWS", size)
        packed, start = CompressedRows("x", IMAGE, columns, rows, in_memory), 0
        for wanted in writes:
            steps = min(wanted, rows)
            new = frames(rng, steps, columns, noise)
            packed.write(new, start % rows)
            slots = (start + np.arange(steps)) % rows
            for t, slot in enumerate(slots):
                plain[:, slot] = new[t]
            start += steps - 1  # the last one is written again, as a ring does
            known = np.arange(min(start + 1, rows))
            column = rng.integers(0, columns, (4, 5))
            cells = column * rows + rng.choice(known, (4, 5))
            out = np.empty((4, 5, *IMAGE.shape), np.uint8)
            packed.take(cells, 0, out)
            np.testing.assert_array_equal(out, plain.reshape(-1, *IMAGE.shape)[cells])
        state = packed.state_dict()
        assert is_saved(state)
        again = from_state(state)
        sizes = [(x.raw, x.coded - sys.getsizeof(x.packed)) for x in (again, packed)]
        assert sizes[0] == sizes[1]  # slots that were never used are left out
        first = max(0, start + 1 - rows)
        found = read_columns(state, first, start + 1)
        slots = np.arange(first, start + 1) % rows
        np.testing.assert_array_equal(found, np.stack([plain[:, s] for s in slots]))
        ring = RingRows(plain, first, start + 1, RowFiles())
        np.testing.assert_array_equal(found, read_columns(ring, first, start + 1))


def test_bytes_are_counted_to_the_last(monkeypatch):
    """``coded`` is what the packed blocks and their list take, whatever was replaced."""
    rng, one = np.random.default_rng(0), CompressedRows("x", IMAGE, 2, 50, in_memory)
    start = 0
    for k in range(40):
        new = frames(rng, 7, 2, k % 3 == 0)
        one.write(new, start % 50)
        start += 6
        held = [x for x in one.packed if x is not None]
        assert one.coded == sys.getsizeof(one.packed) + sum(map(sys.getsizeof, held))
        assert one.raw == len(held) * one.open[0].nbytes
        assert all(len(x) <= one.open[0].nbytes for x in held), "noise stays as it is"


def test_no_room():
    one = CompressedRows("x", IMAGE, 1, 999, in_memory)
    one.room = one.coded + 20_000
    rng = np.random.default_rng(0)
    noise = frames(rng, 900, 1, True)
    with pytest.raises(ResourceError, match=r"buffer.compress = true: \d+ rows .* take \d+ bytes"):
        one.write(noise, 0)
    assert one.coded <= one.room + one.open.nbytes + 40


# -- a replay --------------------------------------------------------------------------------------


def screens(chunk: Chunk) -> Chunk:
    """The chunk whose observations are images (and, beside them, what they were)."""

    def image(x: np.ndarray) -> np.ndarray:
        flat = np.ascontiguousarray(x).reshape(*x.shape[:2], -1).view(np.uint8)
        return np.tile(flat, 400 // flat.shape[2] + 1)[..., :400].reshape(*x.shape[:2], 20, 20)

    leaf = tree_leaves(chunk.obs)[0]
    return replace(chunk, obs={"screen": image(leaf), "was": leaf, "deep": (image(-leaf), leaf)})


def twins(s: Setup) -> tuple[World, list[Replay]]:
    """A plain replay and one that compresses, of the same setup."""
    lists = [list(x) for x in s.lengths], [list(x) for x in s.ends]
    world = World(*lists, obs="box", states=s.states and s.table is not None)
    replays = []
    for compress in (False, True):
        changes = {} if s.kind == "uniform" else {"weight_norm": s.weight_norm}
        made = make_layout(
            screens(Chunk.of(world.chunk(0))), rows=s.rows, window=s.window, capacity=s.table,
            kind=s.kind, **changes,
        )  # fmt: skip
        cutter = Cutter(
            s.window, columns=made.columns, overlap=s.tiling.overlap,
            residual=s.tiling.residual, plain=s.tiling.plain,
        )  # fmt: skip
        sampler = make_sampler(s.kind, made.slots, seed=s.seed, **changes)
        replays.append(host_replay(
            replace(made, compress=compress), window=s.window, cutter=cutter, close=s.close,
            sampler=sampler, stack=s.stack,
        ))  # fmt: skip
    return world, replays


def bits(segment) -> list[np.ndarray]:
    names = (
        "obs",
        "first",
        "action",
        "reward",
        "terminated",
        "truncated",
        "valid",
        "extras",
        "state",
    )
    return [x.numpy() for x in tree_leaves(tuple(getattr(segment, n) for n in names))]


def alike(plain: Replay, packed: Replay, rng: np.random.Generator) -> None:
    """The same draw from both."""
    assert len(plain) == len(packed)
    if not len(plain):
        return
    one, two = plain.sample(7, 10), packed.sample(7, 10)
    np.testing.assert_array_equal(one.key, two.key)
    assert torch.equal(one.weight, two.weight)
    for x, y in zip(bits(one.segment), bits(two.segment), strict=True):
        np.testing.assert_array_equal(x, y)
    priority = rng.exponential(size=7).astype(np.float32)
    plain.prioritize(one.key, priority)
    packed.prioritize(two.key, priority)


@given(setups(), st.lists(st.integers(1, 30), min_size=1, max_size=12), st.integers(0, 99))
@settings(max_examples=120, deadline=None)
def test_the_same_samples_bit_for_bit(s, chunks, seed):
    """Any window, stack, tiling, sampler; round the ring; through a saved state in a new replay."""
    rng = np.random.default_rng(seed)
    world, (plain, packed) = twins(s)
    assert len(packed.ring.blocks) == 2
    for k, steps in enumerate(chunks):
        chunk = screens(Chunk.of(world.chunk(steps)))
        np.testing.assert_array_equal(plain.add(chunk), packed.add(chunk))
        packed.check()
        alike(plain, packed, rng)
        if k == len(chunks) // 2:
            saved_ = packed.state_dict(), plain.state_dict()
            world_, (plain, packed) = twins(s)
            del world_
            packed.load_state_dict(copied(saved_[0]))
            plain.load_state_dict(copied(saved_[1]))
            alike(plain, packed, rng)
    for one, two in zip(plain.stored(5), packed.stored(5), strict=True):
        for x, y in zip(bits(one), bits(two), strict=True):
            np.testing.assert_array_equal(x, y)


def test_a_plain_state_does_not_fit_a_compressed_replay():
    world, (plain, packed) = twins(Setup())
    plain.add(screens(Chunk.of(world.chunk(9))))
    for a, b in ((plain, packed), (packed, plain)):
        with pytest.raises(CheckpointError, match="images compressed"):
            b.load_state_dict(a.state_dict())


# -- sizes -----------------------------------------------------------------------------------------


def test_what_is_certain_is_computed_and_the_rest_is_counted():
    world, (plain, packed) = twins(Setup(slack=300, lengths=((50,), (50,))))
    for _ in range(30):
        chunk = screens(Chunk.of(world.chunk(20)))
        for replay in (plain, packed):
            replay.add(chunk)
    image = 2 * packed.layout.rows * 2 * 400
    opened = 2 * 2 * layout.BLOCK_ROWS * 400
    assert packed.layout.packed == image
    assert packed.layout.nbytes == plain.layout.nbytes - image + opened
    assert packed.nbytes == packed.layout.nbytes + sum(b.coded for b in packed.ring.blocks)
    assert packed.nbytes < plain.nbytes / 2
    told = packed.codec_metrics()
    assert told["codec/buffer_bytes"] == packed.nbytes - packed.layout.nbytes
    assert 0 < told["codec/buffer_ratio"] < 0.5
    assert plain.codec_metrics() == {}
    assert f"{layout.amount(image)} at most" in packed.layout.describe()
    assert "at most" not in plain.layout.describe()


def sized(free: int, **buffer) -> layout.Layout:
    c = config("policy=dqn", *SCREEN, "buffer.compress=true", "buffer.capacity=10000")
    c = changed(c, buffer=changed(c.buffer, **buffer))
    image = gym.spaces.Box(0, 255, (36, 36), np.uint8)
    row = sizing.row_of(c, image, gym.spaces.Discrete(2))
    window = Window(0, 1, 3)
    return sizing.check_size(c, sizing.make_layout(c, row, window), window, free=free)


def test_room_is_what_is_left_of_the_limit():
    """Uncompressed the images would take 13 MB; less is enough, and then it is watched."""
    assert sized(10**9).room is None, "they fit whatever they take"
    some = sized(10**9, max_bytes=3_000_000)
    assert some.room == 3_000_000 - some.nbytes
    assert f"{layout.amount(some.room)} at most" in some.describe()
    assert sized(3_750_000).room == 3_000_000 - some.nbytes
    with pytest.raises(ResourceError, match=r"buffer.capacity = 10000: .*set buffer.capacity="):
        sized(10**9, max_bytes=400_000)


# -- runs ------------------------------------------------------------------------------------------

LINES = {
    "dqn": ("policy=dqn", "env.frame_stack=3", "buffer=prioritized"),
    "r2d2": ("policy=r2d2", "buffer.initial_priority=td"),
}


@pytest.mark.parametrize("name", LINES)
def test_a_run_is_the_same_run(tmp_path, name):
    line = (*LINES[name], *SCREEN, "buffer.capacity=300")
    runs = [go(tmp_path / x, *line, f"buffer.compress={x}") for x in ("false", "true")]
    assert runs[0]["digest"] == runs[1]["digest"]
    told = [json.loads(x) for x in (tmp_path / "true/timings.jsonl").read_text().splitlines()]
    assert 0 < told[-1]["codec/buffer_ratio"] < 0.5
    assert told[-1]["codec/buffer_bytes"] > 0
    ends = []
    for x in ("false", "true"):
        c = config(*SMOKE, *line, f"buffer.compress={x}", "run.total_steps=600")
        assert train.resume(tmp_path / x, c, raw_yaml="", overrides=[]) == 0
        ends.append(json.loads((tmp_path / x / "run.json").read_text())["digest"])
    assert ends[0] == ends[1]
    sizes = [load_size(tmp_path / x) for x in ("false", "true")]
    assert sizes[0] - sizes[1] > 200_000, "checkpoints keep the blocks as they are"


def load_size(run_dir: Path) -> int:
    files = (run_dir / "checkpoints").rglob("*.safetensors")
    return sum(path.stat().st_size for path in files)


def test_images_that_do_not_compress_end_the_run_in_one_line(tmp_path):
    """1 MB holds the noise of some 550 rows; the run says so before memory is gone."""
    line = ("policy=dqn", *SCREEN, "env.kwargs.noise=true", "buffer.capacity=2000")
    (tmp_path / "config.yaml").write_text("{}")
    c = config(*SMOKE, *line, "buffer.compress=true", "buffer.max_bytes=1000000",
               "run.total_steps=1500")  # fmt: skip
    with pytest.raises(ResourceError, match=r"set buffer.capacity to \d+ or less"):
        train.run(c, tmp_path, raw_yaml="", overrides=[])
    assert json.loads((tmp_path / "run.json").read_text())["exit_code"] == 7


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (("env=cartpole", "policy=dqn"), "buffer.compress = true: CartPole-v1 observes no images"),
        ((*SCREEN, "policy=random"), "buffer.compress = true: policy random keeps no replay"),
        ((*SCREEN, "policy=dqn", "buffer.mmap=x"), "buffer.compress = true: compressed rows live"),
        (
            ("env=bitflip", "policy=dqn", "buffer.relabel=future"),
            "buffer.relabel = future: goals are looked up row by row",
        ),
    ],
)
def test_where_it_is_refused(line, text):
    with pytest.raises(ConfigError, match=text):
        check(config(*line, "buffer.compress=true"))


def test_a_device_is_refused():
    with pytest.raises(Invalid, match=r"buffer\.device = cuda"):
        changed(config("env=cartpole").buffer, compress=True, device="cuda")
