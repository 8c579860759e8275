"""Text as wide as the terminal: nothing is lost, no line is too long that could be shorter.

Private: a text that is cut or too wide shows at some widths alone.
"""

import shlex

import pytest

from rlrun.terminal import command, paragraph, table_lines, width

WORDS = "the quick brown fox jumps over the lazy dog while seven sly hens watch it all day long"
ROWS = [
    ["setting", "score", "what is known of it"],
    ["policy=r2d2 buffer=uniform memory=gru", "-123.456 [-200, -100]", WORDS],
    ["policy=dqn", "7", ""],
]


@pytest.fixture
def columns(monkeypatch):
    return lambda count: monkeypatch.setenv("COLUMNS", str(count))


@pytest.mark.parametrize(("typed", "used"), [(60, 60), (10, 40), (300, 100), ("", 80), ("x", 80)])
def test_width(columns, typed, used):
    """In a pipe 80; very narrow and very wide ones are not followed."""
    columns(typed)
    assert width() == used


@pytest.mark.parametrize("count", [40, 57, 80, 100])
def test_a_paragraph(columns, count):
    columns(count)
    for label in ("", "  key   ", "x" * 70):
        first, *rest = paragraph(label, WORDS).split("\n")
        assert " ".join([first, *rest]).split() == f"{label}{WORDS}".split()
        assert max(map(len, rest), default=0) <= count
        assert label != "  key   " or all(line.startswith(" " * 8) for line in rest)
    assert paragraph("short") == "short"


@pytest.mark.parametrize("count", [60, 80, 100])
def test_a_table(columns, count):
    columns(count)
    lines = table_lines(ROWS, [False, True])
    assert max(map(len, lines)) <= count
    assert sorted(" ".join(lines).split()) == sorted(" ".join(map(" ".join, ROWS)).split())
    score = next(line for line in lines if "-123.456" in line)
    end = score.index("-100]") + len("-100]")
    assert next(line for line in lines if "=dqn" in line)[end - 1] == "7"


def test_a_table_that_fits_is_not_wrapped(columns):
    columns(80)
    assert table_lines([["a", "b"], ["one two", "3"]], [False, True]) == [
        "a        b",
        "one two  3",
    ]
    columns(40)
    assert len(table_lines([["a", "b"], ["x" * 60, "y" * 60]])) == 5, "words are cut at last"


def test_a_command(columns):
    columns(40)
    line = "rlrun -m 'policy.lr=interval(1e-4, 1e-2, log)' env=cartpole seed=0,1,2,3"
    shown = command("    ", line)
    assert max(map(len, shown.split("\n"))) <= 60
    assert shlex.split(shown.replace("\\\n", "")) == shlex.split(line)
