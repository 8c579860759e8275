"""Tables: the same numbers everywhere, texts escaped for where they go."""

import csv
import io
import math

import pytest

from rlrun.reports.document import Interval, Table, csv_text, markdown, terminal_lines

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
    ("cell", "text"),
    [
        (1 / 3, "0.3333"), (123456.0, "123456"), (1e-7, "1e-07"), (NAN, "-"), (math.inf, "never"),
        (Interval(31.0, 12.0, 50.0), "31 [12, 50]"), (Interval(31.0, NAN, NAN), "31"),
        (Interval(NAN, 1.0, 2.0), "[1, 2]"), (7, "7"), ("\x1b[31m\nred", "\\x1b[31m\\nred"),
        ("a\u202ed\udc80", "a\\u202ed\\udc80"),
    ],
)  # fmt: skip
def test_cells_of_the_terminal(cell, text):
    assert [line.strip() for line in terminal_lines(Table("t", ("a",), [(cell,)]))] == ["a", text]


def test_columns_that_say_nothing_are_not_shown():
    """In the CSV they are."""
    lines = [line.split() for line in terminal_lines(TABLE)]
    assert lines[1:] == [["dqn", "5", "31.25", "[12,", "50.12]"],
                         ["r2d2", "2", "0.3333", "points", "only"]]  # fmt: skip
    rows = [("CartPole-v1", 1), ("CartPole-v1", 2)]
    table = Table("t", ("environment", "score"), rows)
    assert [line.strip() for line in terminal_lines(table)] == ["score", "1", "2"]
    assert csv_text(table).startswith("environment,score\n")
    assert terminal_lines(Table("t", ("a", "note"), [(1, ""), (2, None)]))[0] == "a"
    two = Table("t", ("environment", "score"), [*rows, ("Acrobot-v1", 3)])
    assert terminal_lines(two)[0].split() == ["environment", "score"]


def test_csv_has_all_digits_and_no_formula():
    rows = list(csv.reader(io.StringIO(csv_text(TABLE))))
    assert rows == [
        ["setting", "seeds", "score", "score low", "score high", "note"],
        ["dqn", "5", "31.25", "12.0", "50.125", ""],
        ["r2d2", "2", repr(1 / 3), "", "", "points only"],
    ]
    some = Table("t", ("x", "y"), [(Interval(1.0, 0.5, 2.0), 3), (None, 4)])
    assert csv_text(some).splitlines() == ["x,x low,x high,y", "1.0,0.5,2.0,3", ",,,4"]
    for text in ("=1+1", "+1", "-1", "@x"):
        assert csv_text(Table("t", (text,), [(text,)])) == f"'{text}\n'{text}\n"


def test_markdown():
    table = Table("t", ("a", "b"), [("x|y<b>`_*[", 1)])
    assert markdown(table).endswith("| x\\|y&lt;b&gt;\\`\\_\\*\\[ | 1 |\n")
