"""How an episode is cut into windows: by hand, and what else counts them.

Private: windows that overlap otherwise are plausible ones.
"""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.pipeline.transport import StateFilter
from rlrun.run.build import make_cutter
from rlrun.types import Chunk, Window
from tests.buffer.make import make_replay, plan_of
from tests.buffer.pair import Pair, Setup
from tests.reference.replay_model import Tiling, plain_starts
from tests.reference.streams import make_stream, part

RESIDUALS = ("last", "null_padding", "drop")


def starts(length: int, window: Window, tiling: Tiling) -> list[int]:
    """First own rows of the windows of one finished episode."""
    pair = Pair(Setup(window, slack=99, table=200, tiling=tiling, lengths=((length,),)))
    pair.add(length + 1)
    pair.agree_on_all()
    return [place.first for place in pair.alive()]


@pytest.mark.parametrize(
    ("length", "rows", "overlap", "residual", "expected"),
    [
        (6, 3, 0, "last", [0, 3]),  # (a)
        (6, 4, 0, "last", [0, 2]),  # (b)
        (6, 7, 0, "last", [0]),  # (c): padded
        (6, 7, 0, "drop", [0]),
        (7, 4, 2, "null_padding", [0, 2, 4]),
        (6, 4, 2, "last", [0, 2]),
        (7, 4, 1, "last", [0, 3]),
        (6, 4, 0, "null_padding", [0, 4]),
        (6, 4, 0, "drop", [0]),
        (3, 3, 0, "last", [0]),
    ],
)
def test_plain_golden(length, rows, overlap, residual, expected):
    window = Window(0, rows - 1, 1)
    assert starts(length, window, Tiling(True, overlap, residual)) == expected
    assert plain_starts(length, rows, overlap, residual) == expected


@st.composite
def cases(draw):
    columns = draw(st.integers(1, 3))
    lengths = [draw(st.lists(st.integers(1, 14), min_size=1, max_size=4)) for _ in range(columns)]
    pieces = draw(st.lists(st.integers(1, 15), min_size=1, max_size=6))
    window = Window(draw(st.integers(0, 6)), draw(st.integers(1, 5)), draw(st.integers(1, 4)))
    plain = draw(st.booleans())
    overlap = draw(st.integers(0, (window.rows if plain else window.learned) - 1))
    stream = make_stream(lengths, [[True, False]] * columns, sum(pieces)).segment
    plan = plan_of(
        stream, rows=sum(pieces) + window.rows + 3, window=window, overlap=overlap, plain=plain,
        residual=draw(st.sampled_from(RESIDUALS)),
    )  # fmt: skip
    return stream, pieces, plan


@settings(max_examples=60)
@given(cases())
def test_a_collector_counts_the_windows_that_its_rows_complete(case):
    """collector.unit=window: row by row, whatever the tiling; and keeps the states of their
    first rows, others may be zeroed on the way."""
    stream, pieces, plan = case
    given_ = vars_of(plan)
    whole, thinned = (make_replay(stream, **given_) for _ in range(2))
    counter, states, row = make_cutter(plan), StateFilter(make_cutter(plan)), 0
    for n in pieces:
        chunk = part(stream, row, row + n)
        new = len(whole.add(chunk))
        first, valid = chunk.first.numpy(), chunk.valid.numpy()
        assert sum(counter.count(first[t], valid[t]) for t in range(n)) == new
        thinned.add(states.filter(Chunk.of(chunk)))
        row += n
    a, b = whole.sample(0, 0).segment, thinned.sample(0, 0).segment
    assert torch.equal(a.obs, b.obs)
    assert torch.equal(a.state[0], b.state[0])


def vars_of(plan):
    """The arguments of ``plan_of`` that make this plan again."""
    c = plan.config
    overlap = c.collector.overlap or c.collector.learned_overlap
    return {
        "rows": c.buffer.capacity // plan.columns + 1, "window": plan.window,
        "overlap": overlap, "plain": c.collector.tiling == "plain",
        "residual": c.collector.residual,
    }  # fmt: skip


def test_a_cutter_that_begins_later_cuts_the_windows_of_the_rows_it_has_seen():
    """Those of a collector that was restarted: from an end row or an opened episode on they are
    windows of the whole stream, though its first row is taken for one amid a trajectory."""
    stream = make_stream([[5, 9, 2], [7, 3]], [[True]] * 2, 60).segment
    window, found = Window(2, 3, 2), {}
    plan = plan_of(stream, rows=99, window=window)
    for begin in range(40):
        cutter = make_cutter(plan)
        cut = cutter.cut(stream.first[begin:-1].numpy(), stream.valid[begin:].numpy())
        rows = cut[:, [0, 1, 2, 3, 4, 6]]
        rows[:, [1, 3, 5]] += begin
        found[begin] = {tuple(x) for x in rows.tolist()}
        assert all(x[5] >= begin for x in found[begin])
        for column in np.flatnonzero(stream.first[begin] | ~stream.valid[begin]):
            assert {x for x in found[begin] if x[0] == column} <= found[0]
