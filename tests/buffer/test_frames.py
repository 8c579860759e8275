"""Stacks gathered from single frames are those that a list of frames would give."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from rlrun.env.framestack import FrameStack
from rlrun.types import Window, tree_leaves, tree_map
from tests.buffer.pair import Pair, Setup
from tests.reference.replay_model import BOTH, OBSERVATIONS, TERMINATED, TRUNCATED
from tests.reference.stacks import stack_at

ENDS = ((TERMINATED, TRUNCATED, BOTH), (TRUNCATED, TERMINATED))
SHAPES = [
    (None, Window(0, 1, 1)),
    (None, Window(0, 1, 4)),
    (300, Window(2, 3, 2)),
    (300, Window(7, 2, 1)),
]


class Filmed:
    """A pair of which every frame of every column is kept, episode by episode."""

    def __init__(self, setup):
        self.pair, columns = Pair(setup), len(setup.lengths)
        self.frames = [[[] for _ in range(columns)] for _ in range(4)]  # by leaf and column
        self.first = [[] for _ in range(columns)]

    def add(self, steps):
        chunk = self.pair.world.chunk(steps)
        leaves = tree_leaves(chunk.obs)
        for c, first in enumerate(self.first):
            del first[self.pair.replay.ring.head :]  # the row behind was looked at already
            first += chunk.first[:, c].tolist()
            for frames, leaf in zip(self.frames, leaves, strict=False):
                del frames[c][self.pair.replay.ring.head :]
                frames[c] += list(leaf[:, c].numpy().copy())
        self.pair.replay.add(chunk)

    def assert_stacks(self, k):
        """Every position of every live window; how many stacks reach round the ring's end."""
        replay = self.pair.replay
        places = self.pair.where(replay.windows.all())
        leaves = tree_leaves(replay.sample(0, 0).segment.obs)
        round_ = 0
        for b, w in enumerate(places):
            for p in range(replay.window.rows):
                row = min(max(w.learn + p - replay.window.burnin, w.first), w.last)
                for i, leaf in enumerate(leaves):
                    frames = self.frames[i][w.column]
                    expected = stack_at(frames, self.first[w.column], row, k)
                    assert leaf[p, b].dtype == torch.from_numpy(expected).dtype
                    np.testing.assert_array_equal(leaf[p, b].numpy(), expected)
                opens = max(r for r in range(row + 1) if self.first[w.column][r])
                round_ += row % replay.ring.rows < min(k - 1, row - opens)
        return round_


@pytest.mark.parametrize(("table", "window"), SHAPES)
@pytest.mark.parametrize("obs", OBSERVATIONS)
@pytest.mark.parametrize("k", [2, 4, 5])
def test_stacks_are_those_of_a_list_of_frames(table, window, obs, k):
    """Episode starts, end rows, burn-in, filler and null rows, three times round the ring."""
    setup = Setup(
        window=window, slack=12, table=table, stack=k, obs=obs, close=k == 4,
        lengths=((6, 1, 11), (3, 30)), ends=ENDS,
    )  # fmt: skip
    film, round_ = Filmed(setup), 0
    rng = np.random.default_rng(k)
    while film.pair.replay.ring.head < 3 * setup.rows:
        film.add(int(rng.integers(1, 14)))
        film.pair.replay.check()
        round_ += film.assert_stacks(k)
    assert round_ > 3, "no stack reaches back over the ring's end"


def test_stacks_worked_by_hand():
    """An episode of 3 steps and its end row, k = 3; then the next episode's first row."""
    pair = Pair(Setup(window=Window(0, 1, 1), stack=3, lengths=((3, 9),)))
    pair.replay.add(pair.world.chunk(6))
    obs = pair.replay.sample(0, 0).segment.obs  # [2, B, 3, 3]: (column, episode, t)
    assert obs[0, :, :, 2].tolist() == [[0, 0, 0], [0, 0, 1], [0, 1, 2], [0, 0, 0]]
    assert obs[1, :, :, 2].tolist() == [[0, 0, 1], [0, 1, 2], [1, 2, 3], [0, 0, 1]]
    assert obs[0, :, :, 1].tolist() == [[0] * 3, [0] * 3, [0] * 3, [1] * 3]


@pytest.mark.parametrize("k", [2, 3, 4])
def test_the_learner_sees_what_the_actor_saw(k):
    """The acting side's stacks, pushed row by row, are those gathered for the same rows."""
    setup = Setup(window=Window(0, 1, 2), slack=60, stack=k, lengths=((5, 1, 8), (2, 13)))
    pair = Pair(replace(setup, obs="dict"))
    seen, row, acted = None, 0, {}
    while row < 55:
        chunk = pair.world.chunk(5)
        for t in range(5):
            obs = tree_map(lambda x, t=t: x[t].numpy(), chunk.obs)
            seen = FrameStack(k, obs) if seen is None else seen
            acted[row + t] = tree_map(np.copy, seen.push(obs, chunk.first[t].numpy()))
        pair.replay.add(chunk)
        row += 5
    places = pair.where(pair.replay.windows.all())
    obs = pair.replay.sample(0, 0).segment.obs
    assert len(places) > 60
    for b, w in enumerate(places):
        for p in range(w.last - w.first + 1):
            for name in ("a", "b"):
                shown = acted[w.learn + p][name][w.column]
                np.testing.assert_array_equal(obs[name][p, b].numpy(), shown)


def test_frames_are_stored_once():
    one, four = (Pair(Setup(slack=30 + (k == 1) * 2, stack=k)).replay for k in (1, 4))
    assert one.ring.rows == four.ring.rows
    assert one.nbytes == four.nbytes
    assert one.ring.obs.shape == four.ring.obs.shape


def test_a_window_dies_with_the_first_frame_of_its_stack():
    """A ring of 11 slots holds 10 whole rows; k = 4: the three rows before a window's first."""
    pair = Pair(Setup(window=Window(0, 1, 1), slack=5, stack=4, lengths=((100,),)))
    assert pair.setup.rows == 11
    alive = lambda: [w.learn for w in pair.where(pair.replay.windows.all())]  # noqa: E731
    pair.add(6)
    pair.add(4)
    assert alive() == list(range(9))
    pair.add(1)
    assert alive() == list(range(4, 10)), "row 0 went, which row 3 would show"


def test_histories_are_stacked_too():
    setup = Setup(window=Window(1, 2, 1), slack=60, table=300, stack=3, lengths=((9,), (20,)))
    film = Filmed(setup)
    for _ in range(9):
        film.add(11)
    _, history = film.pair.replay.histories(64, np.random.default_rng(0))
    assert history.valid.shape[1] > 5
    for b in range(history.valid.shape[1]):
        steps = int(history.valid[:, b].sum())
        for t in range(steps + 1):
            column, number, at = (int(x) for x in history.obs[t, b, -1])
            assert at == t
            times = [max(0, t - j) for j in (2, 1, 0)]
            assert history.obs[t, b].tolist() == [[column, number, s] for s in times]
