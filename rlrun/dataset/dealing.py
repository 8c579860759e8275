"""Trajectories dealt into columns of collected segments, as a buffer takes them."""

import heapq
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rlrun.dataset.files import arrays_of, behind, flatten, unflatten
from rlrun.errors import ConfigError
from rlrun.types import Segment, tree_map

_logger = logging.getLogger(__name__)

Hands = list[deque[tuple[int, "Trajectory"]]]  # of every column: (first row, trajectory)


@dataclass(frozen=True, slots=True)
class Trajectory:
    """Consecutive steps of one episode; its rows are fetched when they are asked for.

    ``read(start, stop)``: steps [start, stop) as a segment [n, 1] and the observation behind them
    (that of the end row for stop = ``steps``). The last step is terminated or truncated, the first
    one is ``first``, all are valid.
    """

    steps: int
    read: Callable[[int, int], Segment]


def deal(
    trajectories: Iterable[Trajectory],
    columns: int,
    rows: int,
    *,
    like: Segment | None = None,
    where: str = "dataset",
) -> Iterator[Segment]:
    """Collected segments [T, columns], T = ``rows`` (the last one: at most), for ``Replay.add``.

    Every trajectory lies whole in one column, its end row behind it, opened by ``first``; the least
    filled column takes the next one. What is left of a column at the very end is filled with rows
    of their own that open nothing and are not valid (first, and an end row at once: episodes of no
    steps), so whatever is added afterwards opens a new trajectory. Actions, rewards and extras of
    end rows and of that filling are 0.

    ``like``: a collected segment (of any length) of the run that is to learn from them. The fields
    must be its fields; extras it does not have are left out, and ``states`` have its shapes. They
    are those the source has for a row, zeros elsewhere. ``where`` begins the text of an error.

    Memory: two segments and what ``read`` needs, besides the trajectories in hand.

    Raises: ConfigError when the fields are not those of ``like``.
    """
    heap = [(0, column) for column in range(columns)]  # rows dealt to a column
    hands: Hands = [deque() for _ in range(columns)]
    start, table = 0, None
    for trajectory in trajectories:
        table = table or _Table(trajectory.read(0, 0), like, where)
        at, column = heap[0]
        hands[column].append((at, trajectory))
        heapq.heapreplace(heap, (at + trajectory.steps + 1, column))
        while heap[0][0] > start + rows:  # the row behind the segment is there in every column
            yield table.segment(hands, start, rows)
            start += rows
    end = max(heap)[0]
    while table is not None and start < end:
        yield table.segment(hands, start, min(rows, end - start))
        start += rows


class _Table:
    """Lays the trajectories in hand out as segments."""

    def __init__(self, source: Segment, like: Segment | None, where: str) -> None:
        if like is not None:
            _require_fields(source, like, where)
        self.like = source if like is None else like
        self.fields = arrays_of(self.like)
        self.names = set(self.fields)
        given = {n: x for n, x in arrays_of(source).items() if n.startswith("states")}
        own = {n: x for n, x in self.fields.items() if n.startswith("states")}
        if given and own and _shapes(given) != _shapes(own):
            self.names -= set(own)
            text = "%s: its recurrent states do not fit this network's; zeros instead"
            _logger.info(text, where)

    def segment(self, hands: Hands, start: int, rows: int) -> Segment:
        """Rows [start, start + rows) of all columns; lays aside what is done with."""
        out = {
            name: np.zeros((rows + behind(name), len(hands), *x.shape[2:]), x.dtype)
            for name, x in self.fields.items()
        }
        out["first"][:] = True
        for column, hand in enumerate(hands):
            for at, trajectory in hand:
                if at > start + rows:
                    break
                begin = max(start - at, 0)
                stop = min(start + rows - at, trajectory.steps)
                self._lay(out, trajectory.read(begin, stop), at + begin - start, column)
            while hand and hand[0][0] + hand[0][1].steps < start + rows:
                hand.popleft()
        return self._as_segment(out)

    def _lay(self, out: dict[str, np.ndarray], piece: Segment, row: int, column: int) -> None:
        for name, x in arrays_of(piece).items():
            if name in self.names:
                out[name][row : row + len(x), column] = x[:, 0]

    def _as_segment(self, out: dict[str, np.ndarray]) -> Segment:
        tensors = {name: torch.from_numpy(x) for name, x in out.items()}
        states = unflatten(flatten(self.like.states, "states")[0], tensors.__getitem__)
        return Segment(
            obs=unflatten(flatten(self.like.obs, "obs")[0], tensors.__getitem__),
            first=tensors["first"],
            extras={name: tensors[f"extras/{name}"] for name in self.like.extras},
            states=states,
            state=tree_map(lambda x: x[0], states),
            action=tensors["action"],
            reward=tensors["reward"],
            terminated=tensors["terminated"],
            truncated=tensors["truncated"],
            valid=tensors["valid"],
        )


def _shapes(arrays: dict[str, np.ndarray]) -> dict[str, str]:
    return {n: f"{x.dtype} {list(x.shape[2:])}" for n, x in arrays.items()}


def _require_fields(source: Segment, like: Segment, where: str) -> None:
    """Raises ConfigError unless ``source`` has the fields of ``like``."""
    own = {n: s for n, s in _shapes(arrays_of(source)).items() if not n.startswith("states")}
    needed = {n: s for n, s in _shapes(arrays_of(like)).items() if not n.startswith("states")}
    for name, shape in needed.items():
        if name not in own and name.startswith("extras/"):
            wrong = f"its rows lack {name.removeprefix('extras/')}, which collector.keep_info names"
            raise ConfigError(
                f"{where}: {wrong}; it has {_names(own)}; export it from a run that keeps it, or "
                "leave it out of collector.keep_info"
            )
        if own.get(name) != shape:
            wrong = f"its field {name} is {own.get(name, 'missing')}, this run's is {shape}"
            raise ConfigError(f"{where}: {wrong}; both must be the same; use the env it came from")
    if unknown := [n for n in own if n not in needed and behind(n)]:
        wrong = f"its field {unknown[0]} is none of this run's"
        raise ConfigError(f"{where}: {wrong}; both must be the same; use the env it came from")


def _names(fields: dict[str, Any]) -> str:
    extras = [n.removeprefix("extras/") for n in fields if n.startswith("extras/")]
    return ", ".join(extras) or "no extras"
