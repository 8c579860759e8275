"""Rows of a ring on their way to another process: those that no file holds yet."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rlrun.run.tensors import RowFiles, Rows


class SentRows(Rows):
    """Rows ``start``..``stop``-1 as arrays; those from ``first`` on are in ``files`` already."""

    def __init__(
        self, first: int, stop: int, start: int, arrays: dict[str, np.ndarray], files: RowFiles
    ) -> None:
        self.first, self.stop, self.start, self.held = first, stop, start, arrays
        self.files = files

    def pieces(self, first: int, stop: int) -> Iterator[tuple[int, int, dict[str, np.ndarray]]]:
        if first < self.start:
            raise ValueError(f"rows {first} to {self.start} were not sent")
        if first == stop:
            return
        part = slice(first - self.start, stop - self.start)
        sizes = self.held.get("/sizes")
        if sizes is None:
            yield first, stop, {"": self.held[""][:, part]}
            return
        ends = np.concatenate([[0], np.cumsum(sizes.sum(1))])
        rows = slice(ends[part.start], ends[part.stop])
        yield first, stop, {"": self.held[""][rows], "/sizes": sizes[part]}


def send(state: Any, start_of: Callable[[Rows], int]) -> Any:
    """``state`` with copies of its rows, from ``start_of(rows)`` on, in place of rows of a ring."""

    def sent(rows: Rows) -> SentRows:
        start = start_of(rows)
        arrays = rows.arrays(start, rows.stop) if start < rows.stop else {}
        return SentRows(rows.first, rows.stop, start, arrays, RowFiles())

    return mapped(state, sent)


def mapped(node: Any, function: Callable[[Rows], Any]) -> Any:
    """A state tree with ``function(rows)`` for all of its rows."""
    if isinstance(node, Rows):
        return function(node)
    if isinstance(node, dict):
        return {name: mapped(child, function) for name, child in node.items()}
    if isinstance(node, list | tuple):
        children = [mapped(child, function) for child in node]
        return children if isinstance(node, list) else tuple(children)
    return node


def all_rows(node: Any) -> list[Rows]:
    """All rows in a state tree, in its order."""
    found: list[Rows] = []
    mapped(node, found.append)
    return found
