"""Windows of one learned row without a table are those that a table would hold."""

from dataclasses import replace

import numpy as np
import pytest

from rlrun.buffer.storage.base import LIVE, VALID
from rlrun.buffer.windows.single_row import SingleRowWindows
from rlrun.buffer.windows.table import WindowTable
from rlrun.types import Window, tree_leaves
from tests.buffer.pair import Pair, Setup
from tests.buffer.test_sumtree import chi_square
from tests.reference.replay_model import BOTH, TERMINATED, TRUNCATED

DRAWS = 1_000_000


def both(setup):
    """The same replay without and with a table."""
    cells = Pair(replace(setup, table=None))
    table = Pair(replace(setup, table=4 * setup.rows * len(setup.lengths), states=False))
    assert isinstance(cells.replay.windows, SingleRowWindows)
    assert isinstance(table.replay.windows, WindowTable)
    return cells, table


def in_order(pair):
    """All windows alive by (row, column): where they lie, and what they show."""
    replay = pair.replay
    slots = replay.windows.all()
    spans = replay.windows.spans(slots)
    order = np.lexsort((spans.column, spans.learn))
    places = [x[order].tolist() for x in spans.lines[1:-1]]  # the names differ
    return places, replay.get(replay.windows.keys(slots)[order], 0).segment


@pytest.mark.parametrize("close", [False, True])
@pytest.mark.parametrize("nstep", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("stack", [1, 3])
def test_cells_are_a_table(nstep, close, stack):
    """The same windows with equal segments, from the first row through several wraps."""
    ends = (TERMINATED, TRUNCATED, BOTH)
    setup = Setup(
        window=Window(0, 1, nstep), slack=17, close=close, stack=stack,
        lengths=((5, 1, 9), (2, 30), (1,)), ends=(ends, ends[:2], ends),
    )  # fmt: skip
    rng = np.random.default_rng([nstep, close])
    cells, table = both(setup)
    compared = 0
    while cells.replay.ring.head < 8 * setup.rows:
        steps = int(rng.integers(1, 14))
        cells.add(steps)
        table.add(steps)
        (a, left), (b, right) = in_order(cells), in_order(table)
        assert a == b
        compared += left.reward.shape[1]
        for x, y in zip(everything(left), everything(right), strict=True):
            assert x.numpy().tobytes() == y.numpy().tobytes()
        assert cells.replay.counts == table.replay.counts
    assert compared > 500


def everything(segment):
    s = segment
    flags = (s.first, s.terminated, s.truncated, s.valid)
    return [*tree_leaves((s.obs, s.extras)), s.action, s.reward, *flags]


def rows_alive(pair):
    return sorted(place.learn for place in pair.where(pair.replay.windows.all()))


def test_when_a_row_can_be_sampled_worked_by_hand():
    """n = 2, an episode of 3 steps (rows 0 1 2, end row 3), then one of 4 (rows 4 5 6 7, 8)."""
    pair = Pair(Setup(window=Window(0, 1, 2), slack=20, lengths=((3, 4),)))
    expected = [[], [], [0], [0, 1, 2], [0, 1, 2], [0, 1, 2], [0, 1, 2, 4], [0, 1, 2, 4, 5]]
    for rows in expected:
        pair.add(1)
        assert rows_alive(pair) == rows
    pair.add(1)
    assert rows_alive(pair) == [0, 1, 2, 4, 5, 6, 7]


def test_when_a_row_dies_worked_by_hand():
    """A ring of 8 slots holds 7 whole rows; the oldest is only there for the row behind it."""
    pair = Pair(Setup(window=Window(0, 1, 1), slack=4, lengths=((100,),)))
    assert pair.setup.rows == 8
    pair.add(7)
    assert rows_alive(pair) == [0, 1, 2, 3, 4, 5], "row 6 waits for row 7"
    pair.add(1)
    assert rows_alive(pair) == [2, 3, 4, 5, 6], "row 1 is there, row 0 before it is not"
    pair.add(1)
    assert rows_alive(pair) == [3, 4, 5, 6, 7]


def test_the_end_of_a_collect_releases_every_row():
    pair = Pair(Setup(window=Window(0, 1, 3), slack=20, close=True, lengths=((100,),)))
    for rows in (2, 5, 6, 10):
        pair.add(rows - len(rows_alive(pair)))
        assert rows_alive(pair) == list(range(rows))


@pytest.mark.parametrize("table", [None, 64])
def test_uniform_samples_are_of_live_windows(table):
    """1e6 draws: every live window alike, also after wrap and where many places are dead."""
    setup = Setup(window=Window(0, 1, 3), slack=25, table=table, lengths=((3, 1), (1, 7)))
    pair = Pair(setup)
    for steps in (9, 31, 40):
        pair.add(steps)
        pair.agree()
        replay = pair.replay
        alive = replay.windows.all()
        counts = np.zeros(replay.layout.slots)
        for _ in range(DRAWS // 20_000):
            slots, weight = replay.sampler.draw(replay.windows, 20_000, 0)
            counts += np.bincount(slots, minlength=len(counts))
            assert (weight == 1).all()
        assert counts[alive].sum() == counts.sum(), "a dead window was drawn"
        statistic, freedom = chi_square(counts[alive], np.full(len(alive), DRAWS / len(alive)))
        assert abs(statistic - freedom) <= 5 * np.sqrt(2 * freedom)


@pytest.mark.parametrize("table", [None, 64])
@pytest.mark.parametrize("kind", ["prioritized", "rank"])
def test_prioritized_draws_follow_keys(kind, table):
    """1e6 draws through wrap: what is drawn by priority is the window that the key names."""
    setup = Setup(window=Window(0, 1, 2), slack=20, table=table, kind=kind, lengths=((6, 2), (9,)))
    pair = Pair(setup)
    rng = np.random.default_rng(3)
    for steps in (19, 30, 17):
        pair.add(steps)
        keys = pair.replay.windows.keys(pair.replay.windows.all())
        pair.prioritize(keys, rng.random(len(keys)).astype(np.float32) ** 3)
    pair.agree()
    replay = pair.replay
    if kind == "rank":
        replay.sampler.resort(0)
    windows = replay.windows
    keys = windows.keys(windows.all())
    counts = dict.fromkeys(keys.tolist(), 0)
    for _ in range(DRAWS // 2000):
        slots, _ = replay.sampler.draw(windows, 2000, 0)
        for key, n in zip(*np.unique(windows.keys(slots), return_counts=True), strict=True):
            counts[int(key)] += int(n)
    p = np.array([pair.model.priority[pair.names[int(key)]] for key in keys])
    mass = p**0.6 if kind == "prioritized" else (1.0 + np.argsort(np.argsort(-p))) ** -0.7
    got = np.array([counts[int(key)] for key in keys])
    statistic, freedom = chi_square(got, DRAWS * mass / mass.sum())
    assert statistic <= freedom + 5 * np.sqrt(2 * freedom)


BROKEN = [
    (lambda w: setattr(w, "live", w.live + 1), "the count of live windows is wrong"),
    (lambda w: w.ring.flags.__ior__(LIVE), "the count of live windows is wrong"),
    (lambda w: swap(w, LIVE, VALID), "an invalid row has a window"),
    (lambda w: w.pending.__isub__(3), "a window can be sampled before it is complete"),
    (lambda w: setattr(w, "rows_before", 9), "a window needs an overwritten row"),
]


def swap(windows, bit, other):
    """Take ``other`` from a cell that has ``bit``."""
    flags = windows.ring.flags
    flags[np.flatnonzero(flags & bit)[0]] &= ~np.uint8(other)


@pytest.mark.parametrize(("damage", "words"), BROKEN)
def test_check_names_what_is_broken(damage, words):
    pair = Pair(Setup(window=Window(0, 1, 1), slack=8, lengths=((50,),)))
    pair.add(30)
    assert pair.replay.windows.check() is None
    damage(pair.replay.windows)
    with pytest.raises(AssertionError, match=words):
        pair.replay.check()
