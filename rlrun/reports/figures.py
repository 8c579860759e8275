"""Figures as SVG and PNG. The only module that needs matplotlib (the extra `plot`).

Texts stay texts in the SVG, which keeps it small and lets a page set its font and colour. Names are
never parsed as formulas. Equal data give equal bytes.
"""

import io
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from rlrun.reports.document import INK, Picture
from rlrun.reports.groups import Axis, Curve, Effect, Group, is_whole
from rlrun.reports.intervals import Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D31", "#7F7F7F")
MAX_GROUPS = 8  # lines of one figure
MAX_ROWS = 24  # groups of the figure of scores
_WIDTH = 5.4  # inches; readable at a phone's width, and two fit next to each other
_LONGEST = 46  # characters of a label
_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "rlrun",
    "text.parse_math": False,
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "legend.frameon": False,
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "axes.titlecolor",
                     "xtick.color", "ytick.color"), INK),
}  # fmt: skip


def available() -> bool:
    """Return whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def _shortened(text: str) -> str:
    text = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
    return f" {text}" if text.startswith("_") else text  # legends omit names that begin with _


@contextmanager
def _figure(height: float, name: str, title: str, out: list[Picture]) -> Iterator["Figure"]:
    """Provide a figure to draw on. The finished picture is appended to ``out``."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH, height), layout="constrained")
        yield figure
        vector, pixels = io.StringIO(), io.BytesIO()
        metadata = {"Date": None, "Creator": None}
        figure.savefig(vector, format="svg", metadata=metadata, facecolor="white")
        figure.savefig(pixels, format="png", dpi=150, facecolor="white")
    out.append(Picture(name, title, vector.getvalue(), pixels.getvalue()))


def _legend(figure: "Figure", handles: Sequence[Any], labels: Sequence[str]) -> None:
    if len(labels) > 1:
        columns = 2 if max(map(len, labels)) < 22 else 1
        texts = [_shortened(label) for label in labels]
        figure.legend(handles, texts, loc="outside lower center", ncols=columns)


def curve_figure(
    curves: Sequence[Curve], axis: Axis, *, name: str, title: str, threshold: float = math.nan
) -> list[Picture]:
    """Return the learning curves: a thin line per seed, and mean and band from five seeds on.

    Dashed: a run that is not done or whose metrics are damaged. ``threshold``: a dotted horizontal
    line; NaN: none.
    """
    from matplotlib.lines import Line2D
    from matplotlib.ticker import EngFormatter

    out: list[Picture] = []
    shown = [curve for curve in curves if curve.seeds][:MAX_GROUPS]
    if not shown:
        return out
    with _figure(3.3 + 0.2 * len(shown), name, title, out) as figure:
        axes = figure.subplots()
        for curve, colour in zip(shown, COLOURS, strict=False):
            banded = bool(np.isfinite(curve.low).any())
            width, alpha = (0.7, 0.4) if banded else (1.1, 0.75)
            for run, x, values in curve.seeds:
                style, mark = "-" if is_whole(run) else "--", "." if len(x) == 1 else None
                look: Any = {"color": colour, "lw": width, "alpha": alpha, "marker": mark}
                axes.step(x, values, style, where="post", **look)
            if banded:
                band: Any = {"color": colour, "alpha": 0.2, "lw": 0, "step": "post"}
                axes.fill_between(curve.x, curve.low, curve.high, **band)
                axes.step(curve.x, curve.mean, color=colour, lw=2, where="post")
        low, high = axes.get_ylim()
        # A distant threshold would flatten the curves.
        if 2 * low - high <= threshold <= 2 * high - low:
            axes.axhline(threshold, color=INK, lw=0.8, ls=":")
        axes.set_ylabel("mean return of an evaluation")
        if axis == "env_steps":
            axes.set_xlabel("environment steps")
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        else:
            axes.set_xlabel("wall time (s)")
        lines = [Line2D([], [], color=colour, lw=2) for colour in COLOURS[: len(shown)]]
        _legend(figure, lines, [curve.group.setting for curve in shown])
    return out


def score_figure(groups: Sequence[Group], *, name: str, title: str, label: str) -> list[Picture]:
    """Return every seed's score as a point, with the interval if one is claimed.

    ``label``: of the axis.
    """
    out: list[Picture] = []
    rows = [(group, mean) for group in groups if (mean := group.mean)][:MAX_ROWS]
    if not rows:
        return out
    with _figure(1.1 + 0.42 * len(rows), name, title, out) as figure:
        axes = figure.subplots()
        for y, (group, mean) in enumerate(rows):
            colour = COLOURS[y % len(COLOURS)]
            if mean.low is not None and mean.high is not None:
                axes.plot([mean.low, mean.high], [y, y], color=colour, lw=7, alpha=0.3)
                axes.plot([mean.value], [y], "|", color=colour, ms=13, mew=2)
            scores = group.scores
            apart = np.resize([0.0, 0.14, -0.14, 0.07, -0.07], len(scores))  # equal ones
            axes.plot(scores, y + apart, "o", color=colour, ms=3.5, alpha=0.8)
        axes.set_yticks(range(len(rows)), [_shortened(group.setting) for group, _ in rows])
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_xlabel(label)
    return out


def effect_figure(effects: Sequence[Effect], *, name: str, title: str, label: str) -> list[Picture]:
    """Return the score against each key: a point per run, a line through the means."""
    out: list[Picture] = []
    if not effects:
        return out
    columns = 2 if len(effects) > 1 else 1
    rows = -(-len(effects) // columns)
    with _figure(0.3 + 2.2 * rows, name, title, out) as figure:
        grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
        for axes in grid.flat[len(effects) :]:
            axes.set_axis_off()
        for axes, effect in zip(grid.flat, effects, strict=False):
            _effect(axes, effect)
        for row in grid:
            row[0].set_ylabel(label)
    return out


def _effect(axes: "Axes", effect: Effect) -> None:
    numeric = bool(np.isfinite(effect.numbers).all())
    if numeric and effect.numbers.min() > 0 and effect.numbers.max() / effect.numbers.min() >= 8:
        axes.set_xscale("log")
    middles = []
    for i, level in enumerate(effect.levels):
        x = level.x if numeric else np.full(len(level.scores), float(i))
        axes.plot(x, level.scores, "o", color=COLOURS[0], ms=3.5, alpha=0.5)
        middles.append(float(np.median(x)))
    means = [level.scores.mean() for level in effect.levels]
    axes.plot(middles, means, "-" if numeric else "_", color=COLOURS[1], lw=1.5, ms=16, mew=2)
    axes.margins(x=0.15)
    if len(effect.values) <= 6:
        axes.set_xticks(middles, [_shortened(v)[:12] for v in effect.values])
        axes.minorticks_off()
    else:
        axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel(_shortened(effect.name)[-32:])
    axes.set_title(f"{100 * effect.share:.0f} % of the variance", fontsize=9)


def profile_figure(
    profiles: Sequence[tuple[str, Floats, Floats, Floats, Floats]], *, name: str, title: str
) -> list[Picture]:
    """Return performance profiles: (label, tau [K], share of runs above [K], low [K], high [K])."""
    out: list[Picture] = []
    if not profiles:
        return out
    with _figure(3.3 + 0.2 * len(profiles), name, title, out) as figure:
        axes = figure.subplots()
        handles = []
        for (_, tau, share, low, high), colour in zip(profiles, COLOURS, strict=False):
            handles += axes.plot(tau, share, color=colour, lw=1.8)
            if np.isfinite(low).any():
                axes.fill_between(tau, low, high, color=colour, alpha=0.2, lw=0)
        axes.set_xlabel("normalised score τ")
        axes.set_ylabel("share of runs with a score > τ")
        axes.set_ylim(-0.02, 1.02)
        _legend(figure, handles, [label for label, *_ in profiles])
    return out
