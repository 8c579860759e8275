"""Stacks of frames: by hand, and as acting saw them. The model of test_machine stacks them too."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from rlrun.env.framestack import FrameStack
from rlrun.types import Window, tree_map
from tests.buffer.pair import Pair, Setup


@pytest.mark.parametrize("k", [2, 4])
def test_the_learner_sees_what_the_actor_saw(k):
    """The acting side's stacks, pushed row by row, are those gathered for the same rows."""
    pair = Pair(Setup(window=Window(0, 1, 2), slack=60, stack=k, obs="dict",
                      lengths=((5, 1, 8), (2, 13))))  # fmt: skip
    seen, acted, twin = None, [], pair.setup.world()
    for _ in range(11):
        chunk = twin.chunk(5)
        for t in range(5):
            obs = tree_map(lambda x, t=t: x[t].numpy(), chunk.obs)
            seen = FrameStack(k, obs) if seen is None else seen
            acted.append(tree_map(np.copy, seen.push(obs, chunk.first[t].numpy())))
        pair.add(5)
    obs, places = pair.replay.sample(0, 0).segment.obs, pair.alive()
    assert len(places) > 60
    for b, w in enumerate(places):
        for p in range(w.last - w.first + 1):
            for name in ("a", "b"):
                shown = acted[w.learn + p][name][w.column]
                np.testing.assert_array_equal(obs[name][p, b].numpy(), shown)


def test_frames_are_stored_once():
    s = Setup(window=Window(0, 1, 1), slack=30, stack=4)
    one = replace(s, stack=1, slack=32)
    assert s.rows == one.rows
    assert Pair(s).replay.nbytes == Pair(one).replay.nbytes


def test_histories_are_stacked_too():
    pair = Pair(Setup(Window(1, 2, 1), slack=60, table=300, stack=3, lengths=((9,), (20,))))
    for _ in range(9):
        pair.add(11)
    _, history = pair.replay.histories(64, np.random.default_rng(0))
    assert history.valid.shape[1] > 5
    for b in range(history.valid.shape[1]):
        steps = int(history.valid[:, b].sum())
        times = torch.arange(steps + 1)[:, None] - torch.arange(2, -1, -1)
        assert torch.equal(history.obs[: steps + 1, b, :, 2], times.clamp(min=0).float())
        assert len(history.obs[: steps + 1, b, :, :2].flatten(0, 1).unique(dim=0)) == 1
