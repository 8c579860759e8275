"""Packing of trajectories into columns of collected segments, the input of a buffer."""

import heapq
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from rlrun.dataset.format import arrays_by_name, as_segment, flatten, has_final_entry, unflatten
from rlrun.errors import ConfigError
from rlrun.types import Segment, tree_map

_logger = logging.getLogger(__name__)

ColumnQueues = list[deque[tuple[int, "Trajectory"]]]  # of every column: (first row, trajectory)


@dataclass(frozen=True, slots=True)
class Trajectory:
    """Consecutive steps of one episode, read lazily.

    ``read(start, stop)`` returns steps [start, stop) as a segment [n, 1], with the observation
    after them (that of the end row for stop = ``steps``). The last step is terminated or truncated,
    the first one is ``first``, all are valid.
    """

    steps: int
    read: Callable[[int, int], Segment]


class TrajectorySource:
    """Trajectories on disk."""

    prefix: str  # of error messages

    def trajectories(self) -> Iterator[Trajectory]:
        """Yield all trajectories with steps, in the order of the source."""
        raise NotImplementedError

    def episodes(self) -> Iterator[Segment]:
        """Yield the trajectories as segments in memory: T steps [T, 1], T + 1 observations."""
        return (trajectory.read(0, trajectory.steps) for trajectory in self.trajectories())

    def chunks(self, columns: int, rows: int, *, like: Segment | None = None) -> Iterator[Segment]:
        """Yield all rows as segments of ``pack_trajectories``.

        ``states`` are zeros except before rows with a stored state, the first rows of the exported
        windows. Windows of the same tiling find theirs, except in a trajectory whose beginning was
        overwritten, which is tiled from its new beginning. Memory: the segment and its rows of one
        trajectory; for Minari the whole episode.

        Raises: ConfigError (fields differ from ``like``), StorageError (damaged files).
        """
        trajectories = self.trajectories()
        return pack_trajectories(trajectories, columns, rows, like=like, prefix=self.prefix)


def pack_trajectories(
    trajectories: Iterable[Trajectory],
    columns: int,
    rows: int,
    *,
    like: Segment | None = None,
    prefix: str = "dataset",
) -> Iterator[Segment]:
    """Yield collected segments [T, columns], T = ``rows`` (the last one: at most), for a buffer.

    Every trajectory lies in one column as a whole, starting with ``first`` and followed by its end
    row. The least filled column gets the next one. The end of a column is padded with filler rows
    (``first`` and truncated, episodes of no steps, not valid), so that rows added later start a new
    trajectory. Actions, rewards and extras of end rows and filler rows are 0.

    Args:
        trajectories: the input.
        columns: number of columns of the segments.
        rows: rows T of a segment.
        like: a collected segment (of any length) of the run that uses the segments. Its fields are
            required; other extras are dropped. ``states`` have its shapes and the source's values,
            or zeros for rows without.
        prefix: prefix of error messages.

    Memory: two segments and the queued trajectories, in addition to the memory of ``read``.

    Raises: ConfigError if ``columns`` or ``rows`` is less than 1, or the fields differ from those
    of ``like``.
    """
    if min(columns, rows) < 1:
        wrong = "both must be at least 1; raise them"
        raise ConfigError(f"{prefix}: columns = {columns}, rows = {rows}: {wrong}")
    heap = [(0, column) for column in range(columns)]  # (rows assigned, column)
    queues: ColumnQueues = [deque() for _ in range(columns)]
    start, builder = 0, None
    for trajectory in trajectories:
        builder = builder or _SegmentBuilder(trajectory.read(0, 0), like, prefix)
        offset, column = heap[0]
        queues[column].append((offset, trajectory))
        heapq.heapreplace(heap, (offset + trajectory.steps + 1, column))
        while heap[0][0] > start + rows:  # until every column has the row after the segment
            yield builder.segment(queues, start, rows)
            start += rows
    end = max(heap)[0]
    while builder is not None and start < end:
        yield builder.segment(queues, start, min(rows, end - start))
        start += rows


class _SegmentBuilder:
    """Builder of segments from the trajectories queued in every column."""

    def __init__(self, source: Segment, like: Segment | None, prefix: str) -> None:
        if like is not None:
            _require_fields(source, like, prefix)
        self.like = source if like is None else like
        self.fields = arrays_by_name(self.like)
        self.names = set(self.fields)
        stored = {n: x for n, x in arrays_by_name(source).items() if n.startswith("states")}
        needed = {n: x for n, x in self.fields.items() if n.startswith("states")}
        if stored and needed and _shapes(stored) != _shapes(needed):
            self.names -= set(needed)
            text = "%s: its recurrent states do not fit this network's; zeros instead"
            _logger.info(text, prefix)

    def segment(self, queues: ColumnQueues, start: int, rows: int) -> Segment:
        """Return rows [start, start + rows) of all columns. Remove finished trajectories."""
        out = {
            name: np.zeros((rows + has_final_entry(name), len(queues), *x.shape[2:]), x.dtype)
            for name, x in self.fields.items()
        }
        out["first"][:] = True
        for column, queue in enumerate(queues):
            for offset, trajectory in queue:
                if offset > start + rows:
                    break
                begin = max(start - offset, 0)
                stop = min(start + rows - offset, trajectory.steps)
                row = offset + begin - start
                for name, x in arrays_by_name(trajectory.read(begin, stop)).items():
                    if name in self.names:
                        out[name][row : row + len(x), column] = x[:, 0]
            while queue and queue[0][0] + queue[0][1].steps < start + rows:
                queue.popleft()
        tensors = {name: torch.from_numpy(x) for name, x in out.items()}
        states = unflatten(flatten(self.like.states, "states")[0], tensors.__getitem__)
        structure = flatten(self.like.obs, "obs")[0]
        segment = as_segment(tensors.__getitem__, structure, self.like.extras, states)
        return replace(segment, state=tree_map(lambda x: x[0], states))


def _shapes(arrays: dict[str, np.ndarray]) -> dict[str, str]:
    return {n: f"{x.dtype} {list(x.shape[2:])}" for n, x in arrays.items()}


def _require_fields(source: Segment, like: Segment, prefix: str) -> None:
    """Raise ConfigError unless ``source`` has the fields of ``like``."""
    held, needed = (
        {n: s for n, s in _shapes(arrays_by_name(x)).items() if not n.startswith("states")}
        for x in (source, like)
    )
    fix = "both must be the same; use the env it came from"
    for name, shape in needed.items():
        if name not in held and name.startswith("extras/"):
            lacks = f"its rows lack {name.removeprefix('extras/')}, which collector.keep_info names"
            extras = [n.removeprefix("extras/") for n in held if n.startswith("extras/")]
            raise ConfigError(
                f"{prefix}: {lacks}; it has {', '.join(extras) or 'no extras'}; export it from a "
                "run that keeps it, or remove it from collector.keep_info"
            )
        if held.get(name) != shape:
            violation = f"its field {name} is {held.get(name, 'missing')}, this run's is {shape}"
            raise ConfigError(f"{prefix}: {violation}; {fix}")
    if unknown := [n for n in held if n not in needed and has_final_entry(n)]:
        violation = f"its field {unknown[0]} is not one of this run's"
        raise ConfigError(f"{prefix}: {violation}; {fix}")
