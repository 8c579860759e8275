"""The pure slicers against hand-worked cases; the cutter against the slicers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.buffer.windows.cutter import Cutter, Windows, lossless_starts, plain_starts
from rlrun.types import Window
from tests.reference.streams import make_stream

RESIDUALS = ("last", "null_padding", "drop")


@pytest.mark.parametrize(
    ("length", "rows", "overlap", "residual", "starts"),
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
        (1, 1, 0, "last", [0]),
    ],
)
def test_plain_golden(length, rows, overlap, residual, starts):
    assert plain_starts(length, rows, overlap, residual) == starts


@settings(deadline=None)
@given(st.integers(1, 60), st.integers(1, 12), st.data(), st.sampled_from(RESIDUALS))
def test_plain_covers(length, rows, data, residual):
    overlap = data.draw(st.integers(0, rows - 1))
    starts = plain_starts(length, rows, overlap, residual)
    covered = {t for s in starts for t in range(s, min(s + rows, length))}
    assert starts == sorted(set(starts))
    if residual != "drop" or length < rows:
        assert covered == set(range(length))
    else:
        assert all(s + rows <= length for s in starts)


@settings(deadline=None)
@given(st.integers(1, 80), st.integers(1, 15), st.data())
def test_lossless_learns_every_step(length, learned, data):
    overlap = data.draw(st.integers(0, learned - 1))
    starts = lossless_starts(length, learned, overlap)
    times = [t for s in starts for t in range(s, min(s + learned, length))]
    assert set(times) == set(range(length))
    if overlap == 0:
        assert len(times) == length
    assert len(starts) == 1 or starts[-2] + learned < length, "a window that learns nothing new"


def cut(stream, pieces, window, close=False, **kwargs) -> list[tuple[int, ...]]:
    """All windows of a stream fed in pieces, as sorted tuples."""
    seg = stream.segment
    cutter = Cutter(window, columns=seg.reward.shape[1], **kwargs)
    out, row, releases = [], 0, []
    for n in pieces:
        w = cutter.cut(
            seg.first[row : row + n].numpy(), seg.valid[row : row + n].numpy(), close=close
        )
        row += n
        assert np.all(w.release >= row - n)
        assert np.all(w.release <= row)
        releases += list(w.release)
        out += rows_of(w)
    assert releases == sorted(releases)
    return sorted(out)


def rows_of(w: Windows) -> list[tuple[int, ...]]:
    fields = (w.column, w.learn, w.burnin, w.last, w.ended, w.origin)
    return [tuple(int(x) for x in row) for row in zip(*fields, strict=True)]


@st.composite
def cases(draw):
    columns = draw(st.integers(1, 3))
    lengths = [draw(st.lists(st.integers(1, 20), min_size=1, max_size=4)) for _ in range(columns)]
    ends = [draw(st.lists(st.booleans(), min_size=1, max_size=3)) for _ in range(columns)]
    pieces = draw(st.lists(st.integers(1, 15), min_size=1, max_size=8))
    window = Window(draw(st.integers(0, 8)), draw(st.integers(1, 6)), draw(st.integers(1, 5)))
    return make_stream(lengths, ends, sum(pieces)), pieces, window


@settings(max_examples=300, deadline=None)
@given(cases(), st.data(), st.booleans())
def test_a_cutter_that_begins_later_cuts_the_windows_of_the_rows_it_has_seen(case, data, plain):
    """Where the first row is an end row or opens an episode they are windows of the whole stream:
    those of a collector that was restarted, whose shard has seen all."""
    stream, pieces, w = case
    seg, total = stream.segment, sum(pieces)
    first, valid = seg.first[:total].numpy(), seg.valid[:total].numpy()
    begin = data.draw(st.integers(0, total - 1))
    own = {"columns": first.shape[1], "overlap": 0, "residual": "drop", "plain": plain}
    whole, late = Cutter(w, **own), Cutter(w, **own)
    if begin:
        whole.cut(first[:begin], valid[:begin])
    found = [rows_of(c.cut(first[begin:], valid[begin:])) for c in (whole, late)]
    moved = [(c, learn + begin, b, last + begin, end, origin + begin)
             for c, learn, b, last, end, origin in found[1]]  # fmt: skip
    assert all(row >= begin for _, _, _, _, _, row in moved)
    for column in np.flatnonzero(first[begin] | ~valid[begin]):
        assert {x for x in moved if x[0] == column} <= {*found[0]}


@settings(max_examples=300, deadline=None)
@given(cases(), st.data())
def test_cutter_is_the_lossless_slicer(case, data):
    stream, pieces, w = case
    overlap = data.draw(st.integers(0, w.learned - 1))
    expected, end = [], sum(pieces)
    for e in stream.episodes:
        for start in lossless_starts(e.length, w.learned, overlap):
            reach = start + w.learned + w.nstep - 1
            if not e.complete and e.start + reach >= end:
                continue  # its look-ahead is yet to come
            b = min(w.burnin, start)
            last = min(reach, e.length)
            ended = e.complete and last == e.length
            expected.append((e.column, e.start + start, b, e.start + last, ended, e.start))
    got = cut(stream, pieces, w, overlap=overlap, residual=None, plain=False)
    assert got == sorted(expected)


@settings(max_examples=300, deadline=None)
@given(cases(), st.data(), st.sampled_from(RESIDUALS))
def test_cutter_is_the_plain_slicer(case, data, residual):
    stream, pieces, w = case
    overlap = data.draw(st.integers(0, w.rows - 1))
    expected = []
    for e in stream.episodes:
        for start in plain_starts(e.length, w.rows, overlap, residual):
            if not e.complete and (start + w.rows > e.length or start % (w.rows - overlap)):
                continue
            reach = start + w.rows - 1
            last = min(reach, e.length)
            row = e.start + start
            ended = e.complete and last == e.length
            expected.append((e.column, row + w.burnin, w.burnin, e.start + last, ended, e.start))
    got = cut(stream, pieces, w, overlap=overlap, residual=residual, plain=True)
    assert got == sorted(expected)


@settings(max_examples=200, deadline=None)
@given(cases())
def test_collect_closes_trajectories_at_the_chunk_end(case):
    """trajectory: collect learns every valid row once, and no window crosses a chunk's end."""
    stream, pieces, w = case
    got = cut(stream, pieces, w, close=True, overlap=0, residual=None, plain=False)
    valid = stream.segment.valid.numpy()
    learned = np.zeros(valid.shape, int)
    edges = np.cumsum([0, *pieces])
    for column, learn, burnin, last, ended, _ in got:
        stop = last - ended
        learned[learn : min(learn + w.learned, stop + 1), column] += 1
        begin = edges[np.searchsorted(edges, learn, side="right") - 1]
        assert learn - burnin >= begin
        assert stop < edges[np.searchsorted(edges, learn, side="right")]
    np.testing.assert_array_equal(learned, valid)


@settings(max_examples=300, deadline=None)
@given(cases(), st.data(), st.booleans())
def test_counting_row_by_row_is_cutting(case, data, plain):
    stream, _, w = case
    overlap = data.draw(st.integers(0, (w.rows if plain else w.learned) - 1))
    residual = data.draw(st.sampled_from(RESIDUALS)) if plain else None
    made = {"columns": len(stream.segment.reward[0]), "overlap": overlap}
    made |= {"residual": residual, "plain": plain}
    counting, cutting = Cutter(w, **made), Cutter(w, **made)
    first, valid = stream.segment.first.numpy(), stream.segment.valid.numpy()
    for t in range(len(valid)):
        expected = len(cutting.cut(first[t : t + 1], valid[t : t + 1]))
        assert counting.count(first[t], valid[t]) == expected
        assert counting.row == cutting.row
        np.testing.assert_array_equal(counting.origin, cutting.origin)
