"""Tables: the same numbers everywhere, texts escaped for where they go."""

import csv
import io
import math

import pytest

from rlrun.reports.tables import (
    Interval,
    Table,
    csv_text,
    markdown,
    show_cell,
    show_number,
    terminal_lines,
)

NAN = math.nan
TABLE = Table(
    "scores",
    ("setting", "seeds", "score", "note"),
    [
        ("dqn", 5, Interval(31.25, 12.0, 50.125), ""),
        ("r2d2", 2, Interval(1 / 3, NAN, NAN), "points only"),
    ],
)


@pytest.mark.parametrize(
    ("value", "text"),
    [(1 / 3, "0.3333"), (123456.0, "123456"), (1e-7, "1e-07"), (NAN, "-"), (math.inf, "never")],
)
def test_numbers(value: float, text: str) -> None:
    assert show_number(value) == text


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (Interval(31.0, 12.0, 50.0), "31 [12, 50]"),
        (Interval(31.0, NAN, NAN), "31"),
        (Interval(NAN, 1.0, 2.0), "[1, 2]"),
        (None, ""),
        (7, "7"),
    ],
)
def test_cells(cell: object, text: str) -> None:
    assert show_cell(cell) == text


def test_terminal() -> None:
    assert terminal_lines(TABLE) == [
        "setting  seeds              score  note",
        "dqn          5  31.25 [12, 50.12]",
        "r2d2         2             0.3333  points only",
    ]


def test_columns_that_say_nothing_are_not_shown() -> None:
    """In the CSV it is."""
    rows = [("CartPole-v1", 1), ("CartPole-v1", 2)]
    table = Table("t", ("environment", "score"), rows)
    assert terminal_lines(table) == ["score", "    1", "    2"]
    assert csv_text(table).startswith("environment,score\n")
    assert terminal_lines(Table("t", ("a", "note"), [(1, ""), (2, None)]))[0] == "a"
    two = Table("t", ("environment", "score"), [*rows, ("Acrobot-v1", 3)])
    assert terminal_lines(two)[0] == "environment  score"


def test_csv_has_all_digits() -> None:
    rows = list(csv.reader(io.StringIO(csv_text(TABLE))))
    assert rows == [
        ["setting", "seeds", "score", "score low", "score high", "note"],
        ["dqn", "5", "31.25", "12.0", "50.125", ""],
        ["r2d2", "2", repr(1 / 3), "", "", "points only"],
    ]


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@x"])
def test_csv_has_no_formula(text: str) -> None:
    assert csv_text(Table("t", ("a",), [(text,)])) == f"a\n'{text}\n"


def test_csv_has_no_formula_in_its_head() -> None:
    assert csv_text(Table("t", ("=HYPERLINK(1)", "+b"), [("x", 1)])) == "'=HYPERLINK(1),'+b\nx,1\n"


def test_markdown() -> None:
    table = Table("t", ("a", "b"), [("x|y<b>`_*[", 1)])
    assert markdown(table) == "| a | b |\n| --- | ---: |\n| x\\|y&lt;b&gt;\\`\\_\\*\\[ | 1 |\n"


def test_terminal_has_no_control_characters() -> None:
    assert terminal_lines(Table("t", ("a",), [("\x1b[31m\nred",)])) == ["a", "\\x1b[31m\\nred"]
