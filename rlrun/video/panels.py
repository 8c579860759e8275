"""Panels beside the picture: what the agent computes, over the last steps of the episode."""

from collections import deque
from typing import Any, Protocol

import numpy as np

from rlrun.video.files import enlarged

WIDTH, HEIGHT = 360, 400  # pixels of all panels; the height is at least this
STEPS = 80  # of the time axis
UNITS = 64  # of a recurrent state that are drawn, the first ones
LINES = 18  # actions with a line
MARGIN, TITLE, FONT = 8, 18, 13  # pixels
PALETTE = [
    (31, 119, 180), (255, 127, 14), (44, 160, 44), (214, 39, 40), (148, 103, 189), (140, 86, 75),
    (227, 119, 194), (127, 127, 127),
]  # fmt: skip
INK, AXIS, PAPER = (40, 40, 40), (200, 200, 200), (255, 255, 255)


class Drawable(Protocol):
    """State, values and action of one row: ``rlrun.policy.actor.Reading``."""

    @property
    def kind(self) -> str: ...

    @property
    def values(self) -> np.ndarray: ...

    @property
    def state(self) -> np.ndarray: ...

    @property
    def action(self) -> np.ndarray: ...


class Panels:
    """Draws readings beside pictures; one episode after the other."""

    def __init__(self) -> None:
        from PIL import ImageFont

        self._font = ImageFont.load_default(FONT)
        self._readings: deque[Drawable | None] = deque(maxlen=STEPS)
        self._rewards: deque[float] = deque(maxlen=STEPS)
        self._kind, self._units, self._episode = "", 0, -1

    def beside(
        self,
        picture: np.ndarray,
        *,
        episode: int,
        t: int,
        reward: float,
        total: float,
        reading: Drawable | None,
    ) -> np.ndarray:
        """Return the picture, uint8 [H, W, 3], with the panels to its right.

        ``reward``: of the step that led to it; ``total``: the return so far. ``reading`` None: the
        last picture of an episode, for which nothing was computed.
        """
        from PIL import Image, ImageDraw

        if episode != self._episode:
            self._episode = episode
            self._readings.clear()
            self._rewards.clear()
        self._readings.append(reading)
        self._rewards.append(reward)
        if reading is not None:
            self._kind, self._units = reading.kind, min(len(reading.state), UNITS)
        picture = enlarged(picture, side=HEIGHT)
        height = max(picture.shape[0], HEIGHT)
        image = Image.new("RGB", (picture.shape[1] + WIDTH, height), PAPER)
        image.paste(Image.fromarray(picture), (0, (height - picture.shape[0]) // 2))
        pen = ImageDraw.Draw(image)
        left = picture.shape[1] + MARGIN
        text = f"episode {episode + 1}   step {t}   return {total:.6g}"
        pen.text((left, MARGIN // 2), text, INK, self._font)
        top, names = TITLE + MARGIN, ["reward"]
        names = [*(["state"] if self._units else []), *(["values"] if self._kind else []), *names]
        room = (height - top) // len(names)
        for name in names:
            box = left, top + TITLE, WIDTH - 2 * MARGIN, room - TITLE - MARGIN
            getattr(self, f"_draw_{name}")(image, pen, box)
            top += room
        return np.asarray(image).copy()

    def _draw_state(self, image: Any, pen: Any, box: tuple[int, int, int, int]) -> None:
        """Heat map: a line for each unit, a column for each step; blue < 0 < red."""
        from PIL import Image

        left, top, width, height = box
        columns = [r.state[: self._units] for r in self._readings if r is not None]
        if not columns:
            return
        grid = np.stack(columns, 1)
        scale = max(float(np.abs(grid).max()), 1e-9)
        title = f"recurrent state, units 0 to {self._units - 1}, within +-{scale:.3g}"
        pen.text((left, top - TITLE), title, INK, self._font)
        colours = diverging(grid / scale)
        size = max(round(width * len(columns) / STEPS), 1), height
        image.paste(Image.fromarray(colours).resize(size, Image.Resampling.NEAREST), (left, top))
        pen.rectangle((left, top, left + width, top + height), outline=AXIS)

    def _draw_values(self, image: Any, pen: Any, box: tuple[int, int, int, int]) -> None:
        """A line for each action; the dot and the star are on the chosen one where it is a number.

        Where the labels of all do not fit, that of the chosen one, or of the first, is shown.
        """
        left, top, width, _ = box
        readings = [r for r in self._readings if r is not None]
        if not readings:
            return
        points, span = self._lines(pen, box, np.stack([r.values[:LINES] for r in readings], 1))
        newest = readings[-1]
        numbered = newest.kind != "mean" and newest.action.size == 1
        chosen = int(newest.action.flat[0]) if numbered else -1
        if 0 <= chosen < len(points):
            px, py = points[chosen][-1]
            pen.ellipse((px - 3, py - 3, px + 3, py + 3), fill=_colour(chosen))
        labels = {
            i: f"{'*' if i == chosen else ''}[{i}] {value:.3g}   "
            for i, value in enumerate(newest.values[:LINES])
        }
        kind = f"{newest.kind}   "
        room = width - pen.textlength(kind + span, self._font)
        if sum(pen.textlength(text, self._font) for text in labels.values()) > room:
            labels = {i: labels[i] for i in (chosen if chosen in labels else 0,)}
        pen.text((left, top - TITLE), kind, INK, self._font)
        x = left + pen.textlength(kind, self._font)
        for i, text in labels.items():
            pen.text((x, top - TITLE), text, _colour(i), self._font)
            x += pen.textlength(text, self._font)

    def _draw_reward(self, image: Any, pen: Any, box: tuple[int, int, int, int]) -> None:
        self._lines(pen, box, np.array([self._rewards]))
        text = f"reward {self._rewards[-1]:.4g}"
        pen.text((box[0], box[1] - TITLE), text, _colour(0), self._font)

    def _lines(
        self, pen: Any, box: tuple[int, int, int, int], values: np.ndarray
    ) -> tuple[list[list[tuple[float, float]]], str]:
        """Draw the rows of ``values`` [K, T] as lines; return their points and the range as text.

        It stands above the box at its right end.
        """
        left, top, width, height = box
        low, high = float(values.min()), float(values.max())
        span = max(high - low, 1e-9)
        pen.rectangle((left, top, left + width, top + height), outline=AXIS)
        if low < 0 < high:
            zero = top + height * (high / span)
            pen.line((left, zero, left + width, zero), fill=AXIS)
        x = left + np.arange(values.shape[1]) * width / (STEPS - 1)
        y = top + height * (high - values) / span
        points = [list(zip(x.tolist(), row.tolist(), strict=True)) for row in y]
        for i, line in enumerate(points):
            pen.line(line, fill=_colour(i), width=2)
        text = f"{low:.3g} to {high:.3g}"
        end = left + width - pen.textlength(text, self._font)
        pen.text((end, top - TITLE), text, INK, self._font)
        return points, text


def _colour(i: int) -> tuple[int, int, int]:
    return PALETTE[i % len(PALETTE)]


def diverging(values: np.ndarray) -> np.ndarray:
    """Return colours of numbers in [-1, 1]: blue, white at 0, red; uint8 [..., 3]."""
    amount = np.clip(np.abs(values), 0, 1)[..., None]
    ends = np.where(values[..., None] < 0, np.array(PALETTE[0]), np.array(PALETTE[3]))
    colours: np.ndarray = (255 + (ends - 255) * amount).round().astype(np.uint8)
    return colours
