"""The picture of sampled windows: its colours are the masks of the segment.

Private: a wrong colour shows to the eye alone.
"""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from rlrun.functional.rows import readable
from rlrun.log.window_figure import (
    BURN_IN,
    COLOURS,
    FILLER,
    LARGEST,
    LEARNED,
    LOOK_AHEAD,
    PADDING,
    ROW,
    WindowFigure,
    kinds,
)

F, B, L, K, P = FILLER, BURN_IN, LEARNED, LOOK_AHEAD, PADDING
CASES = {  # burn-in 2, learned 3, n = 2: (valid, terminated) of six rows -> seven positions
    "whole": ("111111", "000000", [B, B, L, L, L, K, K]),
    "ends within": ("001100", "000100", [F, F, L, L, P, P, P]),
    "cut within": ("111100", "000000", [B, B, L, L, K, P, P]),
    "half a burn-in": ("011111", "000001", [F, B, L, L, L, K, P]),
    "nothing": ("000000", "000000", [F, F, P, P, P, P, P]),
}


def flags(texts):
    return np.array([[c == "1" for c in text] for text in texts]).T


@pytest.fixture(scope="module")
def windows():
    valid, terminated = (flags([case[i] for case in CASES.values()]) for i in (0, 1))
    return valid, terminated, kinds(valid, terminated, burnin=2, learned=3)


def test_kinds_of_hand_made_windows(windows):
    _, _, kind = windows
    for column, (name, case) in zip(kind.T, CASES.items(), strict=True):
        assert list(column) == case[2], name


def test_kinds_are_what_networks_and_losses_read(windows):
    """Learned: valid and in the learned range. Used at all: readable."""
    random = np.random.default_rng(0)
    valid, terminated = (random.random((6, 500)) < 0.7 for _ in range(2))
    terminated &= valid
    for v, t, kind in [(*windows[:2], windows[2]), (valid, terminated, None)]:
        kind = kinds(v, t, burnin=2, learned=3) if kind is None else kind
        inside = np.zeros_like(kind, bool)
        inside[2:5] = v[2:5]
        assert np.array_equal(kind == LEARNED, inside)
        used = readable(torch.from_numpy(v), torch.from_numpy(t)).numpy()
        assert np.array_equal(np.isin(kind, (BURN_IN, LEARNED, LOOK_AHEAD)), used)


def test_pixels_are_the_kinds_and_the_delta(windows):
    _, _, kind = windows
    td = np.where(kind == LEARNED, np.arange(kind.size).reshape(kind.shape) / 10.0, np.nan)
    figure = WindowFigure(kind, td, np.array([0.1, 3.0, 2.0, 1.0, 0.0]), "title")
    encoded, height, width = figure.png()
    with Image.open(io.BytesIO(encoded)) as image:
        pixels = np.asarray(image.convert("RGB"))
    assert pixels.shape == (height, width, 3)
    seen = {}
    for t in range(kind.shape[0]):
        for b in range(kind.shape[1]):
            x, y = figure.corner(t, b)
            cell = pixels[y : y + ROW, x : x + figure.cell - 1].reshape(-1, 3)
            assert (cell == cell[0]).all()
            seen[t, b] = tuple(int(c) for c in cell[0])
            if kind[t, b] != LEARNED:
                assert seen[t, b] == tuple(COLOURS[kind[t, b]])
    learned = sorted((td[at], colour) for at, colour in seen.items() if kind[at] == LEARNED)
    assert learned[-1][1] == tuple(LARGEST.astype(int))
    greens = [colour[1] for _, colour in learned]
    assert greens == sorted(greens, reverse=True), "the larger |delta|, the darker"
    share = learned[0][0] / learned[-1][0]
    expected = COLOURS[LEARNED] * (1 - share) + LARGEST * share
    assert learned[0][1] == pytest.approx(expected, abs=1)
    assert len({*map(tuple, COLOURS), tuple(LARGEST)}) == 6, "kinds can be told apart"


@pytest.mark.parametrize(("shape", "value"), [((2, 1), 0.0), ((2, 1), np.nan), ((100, 4), np.inf)])
def test_any_values_and_sizes_can_be_drawn(shape, value):
    kind = np.full(shape, LEARNED, np.uint8)
    figure = WindowFigure(kind, np.full(shape, value), np.full(shape[1], value), "x")
    with np.errstate(all="raise"):
        encoded, height, width = figure.png()
    with Image.open(io.BytesIO(encoded)) as image:
        assert image.size == (width, height)
