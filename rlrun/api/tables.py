"""Tables for Python: pandas if it is installed, else lists of dicts and dicts of arrays."""

from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlrun.reports.document import Table

Series = tuple[NDArray[np.int64], NDArray[np.float64]]  # env_steps [K], values [K]


def find_pandas() -> Any:
    """Return the package pandas, or None if it is not installed."""
    try:
        return import_module("pandas")
    except ImportError:
        return None


def as_table(rows: list[dict[str, Any]]) -> Any:
    """Return the rows as a DataFrame, or unchanged without pandas."""
    pandas = find_pandas()
    return rows if pandas is None else pandas.DataFrame(rows)


def table_rows(table: Table) -> list[dict[str, Any]]:
    """Return the rows of a report's table, in Python's numbers; see ``Table.flat``."""
    names, *rows = table.flat()
    return [
        {
            str(name): cell.item() if isinstance(cell, np.generic) else cell
            for name, cell in zip(names, cells, strict=True)
        }
        for cells in rows
    ]


def as_series(records: Iterable[tuple[int, Mapping[str, float]]]) -> dict[str, Series]:
    """Return metric -> (env_steps, values), in the order of the records."""
    points: dict[str, list[tuple[int, float]]] = {}
    for step, values in records:
        for name, value in values.items():
            points.setdefault(name, []).append((step, value))
    return {
        name: (np.array([s for s, _ in pairs], np.int64), np.array([x for _, x in pairs]))
        for name, pairs in sorted(points.items())
    }


def as_frame(records: Iterable[tuple[int, Mapping[str, float]]]) -> Any:
    """Return a DataFrame with a row per env step and a column per metric, NaN where it has none.

    None if pandas is not installed.
    """
    pandas = find_pandas()
    if pandas is None:
        return None
    rows: dict[int, dict[str, float]] = {}
    for step, values in records:
        rows.setdefault(step, {}).update(values)
    names = sorted({name for values in rows.values() for name in values})
    index = pandas.Index(list(rows), name="env_steps", dtype="int64")
    return pandas.DataFrame(list(rows.values()), index=index, columns=names, dtype="float64")
