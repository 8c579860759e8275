"""Compressed observations: the bits of the plain replay, less memory, honest about its size."""

import json
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.buffer import layout
from rlrun.errors import ResourceError
from rlrun.run import checkpoint, start
from rlrun.types import Segment, Window, tree_leaves
from tests.buffer.make import same_samples, same_segments
from tests.buffer.pair import Setup, copied, setups
from tests.compose import changed, config
from tests.pipeline.make import SMOKE
from tests.run.forge import save

SCREEN = ("env=gym", "env.id=tests.env.screen:test/Screen-v0", "env.backend=sync")


def screens(chunk: Segment) -> Segment:
    """The chunk whose observations are images (and, beside them, what they were)."""

    def image(x: torch.Tensor) -> torch.Tensor:
        flat = np.ascontiguousarray(x.numpy()).reshape(*x.shape[:2], -1).view(np.uint8)
        wide = np.tile(flat, 400 // flat.shape[2] + 1)[..., :400]
        return torch.from_numpy(wide.reshape(*x.shape[:2], 20, 20))

    leaf = tree_leaves(chunk.obs)[0]
    return replace(chunk, obs={"screen": image(leaf), "was": leaf, "deep": (image(-leaf), leaf)})


class Twins:
    """A plain replay and one that compresses, of the same setup."""

    def __init__(self, s: Setup) -> None:
        self.world, self.setup = replace(s, obs="box").world(), replace(s, device=None)
        self.both = self.make()

    def make(self):
        example = screens(self.world.chunk(0))
        return [self.setup.replay(example, compress=x) for x in (False, True)]

    def add(self, chunk: Segment) -> None:
        one, two = (replay.add(chunk) for replay in self.both)
        np.testing.assert_array_equal(one, two)
        self.both[1].check()

    def draw(self, rng: np.random.Generator) -> None:
        """The same draw from both."""
        if not len(self.both[0]):
            return
        one, two = (replay.sample(7, 10) for replay in self.both)
        same_samples(one, two)
        priority = rng.exponential(size=7).astype(np.float32)
        for replay, sample in zip(self.both, (one, two), strict=True):
            replay.prioritize(sample.key, priority)


@given(setups(), st.lists(st.integers(1, 30), min_size=1, max_size=9), st.integers(0, 99))
@settings(max_examples=40)
def test_the_same_samples_bit_for_bit(s, steps, seed):
    """Any window, stack, tiling, sampler; round the ring; through a saved state in a new replay."""
    rng, twins = np.random.default_rng(seed), Twins(s)
    for k, count in enumerate(steps):
        twins.add(screens(twins.world.chunk(count)))
        twins.draw(rng)
        if k == len(steps) // 2:
            states = [copied(replay.state_dict()) for replay in twins.both]
            twins.both = twins.make()
            for replay, state in zip(twins.both, states, strict=True):
                replay.load_state_dict(state)
            twins.draw(rng)
    for one, two in zip(*(replay.stored(5) for replay in twins.both), strict=True):
        same_segments(one, two)


@pytest.mark.parametrize("noise", [False, True])
def test_what_is_certain_is_computed_and_the_rest_is_counted(noise, tmp_path):
    """Through wraps and a checkpoint; a block of noise is stored as it is."""
    twins, rng = Twins(Setup(slack=300, lengths=((50,), (50,)))), np.random.default_rng(0)
    plain, packed = twins.both
    for _ in range(40):
        chunk = screens(twins.world.chunk(20))
        for x in (chunk.obs["screen"], chunk.obs["deep"][0]) if noise else ():
            x.copy_(torch.from_numpy(rng.integers(0, 256, x.shape).astype(np.uint8)))
        twins.add(chunk)
    image = 2 * packed.layout.rows * 2 * 400
    opened = 2 * 2 * layout.BLOCK_ROWS * 400
    assert packed.layout.packed == image
    assert packed.layout.nbytes == plain.layout.nbytes - image + opened
    told = packed.codec_metrics()
    coded = told["codec/buffer_bytes"]
    assert coded == sum(x.coded for x in packed.ring.blocks)
    assert plain.codec_metrics() == {}
    if noise:
        assert 1 < told["codec/buffer_ratio"] < 1.05, "an object a block"
    else:
        assert 0 < told["codec/buffer_ratio"] < 0.5
        assert packed.layout.nbytes + coded < plain.layout.nbytes / 2
    save(tmp_path, packed.state_dict(), env_steps=1, keep=1)
    other = twins.make()[1]
    other.load_state_dict(checkpoint.load_newest(tmp_path)[0])
    assert other.codec_metrics() == told
    for one, two in zip(other.stored(50), plain.stored(50), strict=True):
        same_segments(one, two)
    assert layout.amount(image) in packed.layout.describe()
    assert layout.amount(image) not in plain.layout.describe()


def sized(free: int, **buffer) -> layout.Layout:
    c = config("policy=dqn", *SCREEN, "buffer.compress=true", "buffer.capacity=10000")
    c = changed(c, buffer=changed(c.buffer, **buffer))
    image = gym.spaces.Box(0, 255, (36, 36), np.uint8)
    row = layout.row_of(c, image, gym.spaces.Discrete(2))
    window = Window(0, 1, 3)
    return layout.check_size(
        c, layout.make_layout(c, row, window, c.collector.num_envs), window, free=free
    )


def test_room_is_what_is_left_of_the_limit():
    """Uncompressed the images would take 13 MB; less is enough, and then it is watched."""
    assert sized(10**9).room is None, "they fit whatever they take"
    some = sized(10**9, max_bytes=3_000_000)
    assert some.room == 3_000_000 - some.nbytes
    assert layout.amount(some.room) in some.describe()
    assert sized(3_750_000).room == 3_000_000 - some.nbytes
    with pytest.raises(ResourceError, match=r"buffer.capacity = 10000: .*buffer.capacity="):
        sized(10**9, max_bytes=400_000)


# -- runs ------------------------------------------------------------------------------------------


def test_images_that_do_not_compress_end_the_run_in_one_line(tmp_path):
    """1 MB holds the noise of some 550 rows; the run says so before memory is gone."""
    line = ("policy=dqn", *SCREEN, "env.kwargs.noise=true", "buffer.capacity=2000")
    (tmp_path / "config.yaml").write_text("{}")
    c = config(*SMOKE, *line, "buffer.compress=true", "buffer.max_bytes=1000000",
               "run.total_steps=1500")  # fmt: skip
    with pytest.raises(ResourceError, match=r"buffer.capacity .*\d+"):
        start.start(start.Launch(c, tmp_path, ""))
    assert json.loads((tmp_path / "run.json").read_text())["exit_code"] == 7
