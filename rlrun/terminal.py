"""Text as wide as the terminal: paragraphs, and tables whose cells wrap."""

import os
import re
import sys
from collections.abc import Sequence
from itertools import zip_longest
from textwrap import wrap

_WIDTHS = 40, 100  # least and most columns; a longer line is hard to read
_PIPED = 80  # columns where there is no terminal
_LEAST = 30  # columns beside a label
_GAP = "  "  # between columns of a table
_WORD = re.compile(r"""(?:[^\s'"]|'[^']*'|"[^"]*")+""")  # of a command, with its quotes


def width() -> int:
    """Return the columns of the terminal, or of COLUMNS, within 40 and 100; 80 in a pipe."""
    try:
        count = int(os.environ.get("COLUMNS") or 0) or os.get_terminal_size(sys.stdout.fileno())[0]
    except (AttributeError, OSError, ValueError):  # a stand-in for stdout, or no terminal
        count = 0
    return max(_WIDTHS[0], min(count or _PIPED, _WIDTHS[1]))


def paragraph(label: str, text: str = "") -> str:
    """Return ``label`` and ``text`` in lines of `width`, the later ones below the text.

    Without ``text`` they are indented by two more than the label.
    """
    limit = width()
    if len(label + text) <= limit:
        return (label + text).rstrip()
    hang = len(label) if text else len(label) - len(label.lstrip()) + 2
    indent = " " * (hang if hang <= limit - _LEAST else 8)
    lines = wrap(
        label + text, limit, subsequent_indent=indent, break_on_hyphens=False,
        break_long_words=False,
    )  # fmt: skip
    return "\n".join(lines)


def command(indent: str, line: str) -> str:
    """Return a shell command whose lines end in a backslash where it is wider than the terminal."""
    lines = [indent]
    for word in _WORD.findall(line):
        if lines[-1].strip() and len(lines[-1] + word) > width() - len(" \\"):
            lines[-1] += "\\"
            lines.append(f"{indent}    ")
        lines[-1] += f"{word} "
    return "\n".join(lines).rstrip()


def table_lines(rows: Sequence[Sequence[str]], right: Sequence[bool] = ()) -> list[str]:
    """Return the lines of a table with aligned columns, its head first.

    Where it is wider than the terminal, cells of the columns that are not ``right`` wrap.
    """
    numeric = [*right, *[False] * (len(rows[0]) - len(right))]
    widths = _widths([*zip(*rows, strict=True)], numeric)
    shape = _GAP.join(f"{{:{'>' if r else '<'}{w}}}" for r, w in zip(numeric, widths, strict=True))
    lines = []
    for row in rows:
        cells = [
            wrap(text, size, break_on_hyphens=False) if len(text) > size else [text]
            for text, size in zip(row, widths, strict=True)
        ]
        lines += [shape.format(*parts).rstrip() for parts in zip_longest(*cells, fillvalue="")]
    return lines


def _widths(columns: Sequence[Sequence[str]], numeric: Sequence[bool]) -> list[int]:
    """Return natural widths where these fit the terminal, else the largest equal share that does.

    A column is not narrower than its longest word, unless even that does not fit. A numeric column
    has its natural width.
    """
    natural = [max(map(len, column)) for column in columns]
    words = [max(map(len, [*" ".join(column).split(), ""])) for column in columns]
    room = width() - len(_GAP) * (len(columns) - 1)
    for floors in (words, [1] * len(columns)):
        least = [n if r else floor for n, r, floor in zip(natural, numeric, floors, strict=True)]
        for share in range(max(natural), 0, -1):
            sizes = [max(low, min(n, share)) for low, n in zip(least, natural, strict=True)]
            if sum(sizes) <= room:
                return sizes
    return natural
