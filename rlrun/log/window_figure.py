"""A picture of sampled windows: kinds of positions, |delta| of learned rows, priorities."""

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from PIL import ImageDraw

FILLER, BURN_IN, LEARNED, LOOK_AHEAD, PADDING = range(5)
COLOURS = np.array(
    [(236, 236, 236), (158, 202, 225), (255, 245, 235), (161, 217, 155), (120, 120, 120)], np.uint8
)  # of the kinds; for learned rows, of delta = 0
LARGEST = np.array((179, 0, 0), np.float64)  # colour of the largest |delta|
NAMES = ("filler", "burn-in", "learned, |delta|: 0", "look-ahead", "padding")

MARGIN, TOP, ROW, GAP, BAR = 10, 80, 30, 4, 100  # pixels
FONT = 26  # pixels; TensorBoard shows pictures at half size
_WIDTH = 400  # approximate pixels of the positions
_INK = (40, 40, 40)


def kinds(valid: np.ndarray, terminated: np.ndarray, *, burnin: int, learned: int) -> np.ndarray:
    """Return uint8 [S, B]: the kind of every position of windows of S positions.

    ``valid`` and ``terminated`` are a segment's, bool [S - 1, B]. Look-ahead positions are read by
    targets only. They include the observation after the last row of a cut episode.
    """
    none = np.zeros_like(valid[:1])
    real = np.concatenate([valid, none])
    read = real | np.concatenate([none, valid & ~terminated])
    position = np.arange(len(real))[:, None]
    empty = np.where(position < burnin, FILLER, PADDING)
    used = np.where(position < burnin, BURN_IN, np.where(real, LEARNED, LOOK_AHEAD))
    used = np.where(position >= burnin + learned, LOOK_AHEAD, used)
    return np.where(read, used, empty).astype(np.uint8)


@dataclass(frozen=True)
class WindowFigure:
    """B windows of S positions. ``td``: |delta| [S, B] of learned ones; ``priority`` [B]."""

    kind: np.ndarray
    td: np.ndarray
    priority: np.ndarray
    title: str

    @property
    def cell(self) -> int:
        """Width of a position in pixels."""
        return int(np.clip(_WIDTH // len(self.kind), 3, 40))

    @property
    def largest(self) -> float:
        """The largest finite |delta| of a learned position, which has the darkest colour."""
        seen = self.td[(self.kind == LEARNED) & np.isfinite(self.td)]
        return float(seen.max(initial=0.0))

    def colours(self) -> np.ndarray:
        """Return the colours of all positions, uint8 [S, B, 3]."""
        out: np.ndarray = COLOURS[self.kind]
        learned = self.kind == LEARNED
        share = np.where(np.isfinite(self.td), self.td, np.inf) / max(self.largest, 1e-12)
        share = np.clip(share, 0, 1)[..., None]
        shade = COLOURS[LEARNED] * (1 - share) + LARGEST * share
        out[learned] = np.rint(shade[learned]).astype(np.uint8)
        return out

    def corner(self, position: int, window: int) -> tuple[int, int]:
        """Return (x, y) of the upper left pixel of a position."""
        return MARGIN + position * self.cell, TOP + window * (ROW + GAP)

    def png(self) -> tuple[bytes, int, int]:
        """Return (PNG file, height, width)."""
        from PIL import Image, ImageDraw, ImageFont  # TensorBoard's dependency

        positions, windows = self.kind.shape
        bars = MARGIN + positions * self.cell + 2 * MARGIN
        width = max(bars + BAR + 5 * FONT, 620)
        below = TOP + windows * (ROW + GAP) + 2 * MARGIN
        height = below + 2 * (ROW + MARGIN)
        image = Image.new("RGB", (width, height), "white")
        draw = ImageDraw.Draw(image)
        draw.font, draw.fontmode = ImageFont.load_default(FONT), "1"  # smooth text: 2.5 x the bytes
        draw.text((MARGIN, 4), self.title, _INK)
        draw.text((bars, TOP - ROW - 6), "priority", _INK)
        known = np.where(np.isfinite(self.priority), self.priority, 0)
        colours, most = self.colours(), max(float(known.max()), 1e-12)
        for b in range(windows):
            for t in range(positions):
                x, y = self.corner(t, b)
                right = x + self.cell - 1 - (self.cell > 4)
                draw.rectangle((x, y, right, y + ROW - 1), tuple(int(c) for c in colours[t, b]))
            share = float(known[b]) / most
            y = self.corner(0, b)[1]
            draw.rectangle((bars, y, bars + round(share * BAR), y + ROW - 1), (107, 107, 160))
            draw.text((bars + BAR + MARGIN, y - 2), f"{self.priority[b]:.3g}", _INK)
        self._legend(draw, below, width)
        file = io.BytesIO()
        image.save(file, "PNG")
        return file.getvalue(), height, width

    def _legend(self, draw: "ImageDraw.ImageDraw", y: int, width: int) -> None:
        """Draw the colours and their meanings, in lines of ``width`` pixels."""
        x = MARGIN
        entries = [(COLOURS[k], NAMES[k]) for k in (FILLER, BURN_IN, LEARNED)]
        entries.append((LARGEST.astype(np.uint8), f"{self.largest:.3g}"))
        entries += [(COLOURS[k], NAMES[k]) for k in (LOOK_AHEAD, PADDING)]
        for colour, name in entries:
            step = ROW + 22 + round(draw.textlength(name))
            if x + step > width:
                x, y = MARGIN, y + ROW + MARGIN
            draw.rectangle((x, y, x + ROW, y + ROW - 1), tuple(map(int, colour)), (150, 150, 150))
            draw.text((x + ROW + 6, y - 2), name, _INK)
            x += step
