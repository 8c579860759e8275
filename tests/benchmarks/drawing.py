"""The two SVG elements that pictures of benchmarks are made of."""

from collections.abc import Sequence
from html import escape


def line(points: Sequence[tuple[float, float]], colour: str, width: float, more: str = "") -> str:
    """A line through points in px."""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return (
        f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}" {more}/>'
    )


def text(x: float, y: float, words: str, more: str = "") -> str:
    """Words whose baseline starts at (x, y) px, unless ``more`` anchors them elsewhere."""
    return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{escape(words)}</text>'


def document(parts: Sequence[str], width: float, height: float) -> str:
    """An SVG file of elements on white."""
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    return "\n".join([*head, *parts, "</svg>\n"])
