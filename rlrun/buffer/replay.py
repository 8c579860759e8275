"""Replay: a ring of rows, windows over it, and a sampler over the windows."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlrun.buffer.fused_append import Append
from rlrun.buffer.hindsight import Hindsight
from rlrun.buffer.samplers.priority import finite_priorities
from rlrun.buffer.samplers.proportional import Proportional, Sampler
from rlrun.buffer.storage.accept import Accept
from rlrun.buffer.storage.layout import Allocate, Layout, in_memory
from rlrun.buffer.storage.ring import VALID, Ring
from rlrun.buffer.windows.cutter import Cutter
from rlrun.buffer.windows.gather import Gather
from rlrun.buffer.windows.single_row import Cells
from rlrun.buffer.windows.spans import Spans
from rlrun.buffer.windows.table import Table
from rlrun.errors import CheckpointError
from rlrun.types import Chunk, Sample, Segment, Tree, Window, tree_map


class Replay:
    """Stores every row once and gathers windows of S rows from it.

    Windows of one learned row need no table (``Cells``); longer ones have one (``Table``). Either
    way a window dies before the ring overwrites a row it reads: none straddles the write head.
    """

    def __init__(
        self,
        layout: Layout,
        *,
        window: Window,
        cutter: Cutter,
        close: bool,
        sampler: Sampler,
        stack: int = 1,
        allocate: Allocate = in_memory,
    ) -> None:
        """``close``: the end of a chunk ends its trajectories (collector.trajectory); ``stack``:
        frames of an observation (env.frame_stack).

        Raises: ConfigError when the columns are too short for one window.
        """
        reach = max(1, stack - 1)  # rows read before a window's own
        layout.require_rows(window.rows, reach)
        self.layout, self.window, self.close, self.sampler = layout, window, close, sampler
        self.stack = stack
        self.ring = Ring(layout, allocate)
        self.most = layout.rows - window.rows - reach  # rows one write may bring
        self.windows: Cells | Table
        if layout.windows is None:
            self.windows = Cells(self.ring, window, close=close, reach=reach)
        else:
            self.windows = Table(
                self.ring, window, layout, allocate, cutter=cutter, close=close, reach=reach
            )
        self.append: Append | None = None  # what adds at once
        if isinstance(self.windows, Cells) and type(sampler) is Proportional and not sampler.least:
            self.append = Append(self.ring, self.windows, sampler)
        self.gather = Gather(self.ring, layout.row, stack=stack)
        self.accept = Accept(layout)
        self.counts = {"rows": 0, "learned": 0, "late": 0}
        self.hindsight: Hindsight | None = None  # what relabels sampled windows
        self.drawn = _NOTHING  # keys and slots of the last sample, while nothing is added

    def __len__(self) -> int:
        """Windows that can be sampled."""
        return len(self.windows)

    @property
    def rows(self) -> int:
        """Steps stored since the run began."""
        return self.counts["rows"]

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays owned, ``layout.nbytes``, and of what is compressed."""
        arrays = (*self.ring.arrays(), *self.windows.arrays(), *self.sampler.arrays())
        return sum(int(a.nbytes) for a in arrays) + sum(b.coded for b in self.ring.blocks)

    # -- writing ---------------------------------------------------------------------------------

    def add(self, rows: Chunk | Segment) -> np.ndarray:
        """Store collected rows; the keys of the windows they completed.

        Raises: ValueError, with nothing stored, when its fields are not those of the layout.
        """
        chunk = rows if type(rows) is Chunk else Chunk.of(rows)
        given = self.accept(chunk)
        steps = len(chunk.reward)
        if steps == 0:
            return _NONE
        if steps <= self.most:
            return self._add(chunk, given, close=self.close)
        keys = []
        for start in range(0, steps, self.most):
            piece = chunk.rows(start, min(start + self.most, steps))
            close = self.close and start + self.most >= steps
            keys.append(self._add(piece, self.accept(piece), close=close))
        new = np.concatenate(keys)  # of a chunk longer than the ring only the end is left
        alive: np.ndarray = new[self.windows.find(new)[1]]
        return alive

    def _add(self, chunk: Chunk, given: list[np.ndarray], *, close: bool) -> np.ndarray:
        ring, windows, sampler = self.ring, self.windows, self.sampler
        self.drawn = _NOTHING
        if self.append is not None:
            keys, steps = self.append(chunk, given, close=close)
            self.counts["rows"] += steps
            self.counts["learned"] += len(keys)
            return keys
        dead = windows.expire(max(0, ring.head + len(chunk.reward) + 1 - ring.rows))
        self.counts["rows"] += ring.write(chunk, given, close=close)
        new = windows.extend(chunk, close=close)
        if len(new.dropped):
            dead = np.concatenate([dead, new.dropped])
        sampler.exchange(dead, new.slots)
        self.counts["learned"] += new.learned
        return new.keys

    # -- reading ---------------------------------------------------------------------------------

    def sample(self, batch: int, env_steps: int) -> Sample:
        """``batch`` windows drawn by the sampler, with importance weights.

        ``batch`` 0: all windows, oldest first, weight 1.
        """
        self._require_windows(batch)
        if batch == 0:
            return self.get(self.windows.keys(self.windows.all()), env_steps)
        slots, weight = self.sampler.draw(self.windows, batch, env_steps)
        spans = self.windows.spans(slots)
        key = spans.key
        self.drawn = key, slots
        segment = self._gather(slots, spans)
        if self.hindsight is not None:
            segment = self.hindsight(segment, spans)
        return Sample(segment, torch.from_numpy(weight), key, env_steps)

    def _require_windows(self, batch: int) -> None:
        if batch and not len(self):
            raise ValueError(
                f"batch = {batch}: no window is complete yet, {self.rows} steps are stored; a "
                f"window is {self.window.rows} rows or an episode's rest; add rows first"
            )

    def get(self, key: np.ndarray | Tensor, env_steps: int) -> Sample:
        """The named windows (which must be alive), weight 1."""
        assert isinstance(key, np.ndarray), "keys are handed back as they came"
        slots, there = self.windows.find(key)
        assert there.all(), "a window that is asked for by name is gone"
        segment = self._gather(slots, self.windows.spans(slots), keep=False)
        return Sample(segment, torch.ones(len(key)), key, env_steps)

    def prioritize(self, key: np.ndarray | Tensor, priority: np.ndarray | Tensor) -> None:
        """Set |delta| priorities; those of windows overwritten since are counted, not used.

        Raises: NumericError when one is NaN, infinite or negative, ValueError when there are not as
            many as keys.
        """
        if isinstance(priority, Tensor):
            wide = priority if priority.dtype in _WIDE else priority.float()
            values: np.ndarray = wide.numpy(force=True)
        else:
            values = priority if priority.dtype.itemsize >= 4 else priority.astype(np.float32)
        assert isinstance(key, np.ndarray), "keys are handed back as they came"
        if values.shape != key.shape:
            raise ValueError(
                f"priority = shape {list(values.shape)}: keys have {list(key.shape)}; one number "
                "for every window sampled; hand back Sample.key and Update.priority"
            )
        if key is self.drawn[0]:  # nothing was added since: the common case
            self.sampler.update(self.drawn[1], values)
            return
        slots, there = self.windows.find(key)
        if not there.all():
            finite_priorities(values)
            self.counts["late"] += int((~there).sum())
            slots, values = slots[there], values[there]
        self.sampler.update(slots, values)

    def _gather(self, slots: np.ndarray, spans: Spans, *, keep: bool = True) -> Segment:
        windows, w = self.windows, self.window
        if isinstance(windows, Cells):
            return self.gather(spans, w.rows, w.burnin, keep=keep)
        state = tree_map(torch.from_numpy, windows.gather_states(slots))
        partial = windows.partial(slots)
        return self.gather(spans, w.rows, w.burnin, keep=keep, state=state, partial=partial)

    def histories(self, count: int, generator: np.random.Generator) -> tuple[Segment, Segment]:
        """(windows, the rows of their trajectories before them) of at most ``count`` windows.

        Drawn uniformly among those that are not their trajectory's first and whose trajectory is
        still stored from its start; left-aligned, possibly empty.
        """
        windows = self.windows
        slots = np.flatnonzero(windows.alive) if isinstance(windows, Table) else _NONE
        if not isinstance(windows, Table):
            nothing = self._gather(slots, windows.spans(slots), keep=False)
            return nothing, nothing
        table, ring = windows.columns, self.ring
        slots = slots[table["origin"][slots] >= ring.oldest]
        slots = slots[ring.opens(table["origin"][slots], table["column"][slots])]
        slots = slots[table["learn"][slots] - table["burnin"][slots] > table["origin"][slots]]
        slots = generator.permutation(slots)[:count]
        own, origin = windows.spans(slots), table["origin"][slots]
        longest = int((own.first - origin).max(initial=0))
        cell = ring.cells(origin, own.column)
        before = Spans.of(cell, own.column, origin, origin, own.first - 1, own.first)
        return self._gather(slots, own, keep=False), self.gather(before, longest + 1, 0, keep=False)

    def steps_held(self) -> int:
        """Steps whose rows are still there."""
        row = np.arange(self.ring.oldest, self.ring.head)[:, None]
        flags = self.ring.flags[self.ring.cells(row, np.arange(self.ring.columns))]
        return int((flags & VALID > 0).sum())

    def stored(self, rows: int, *, skip: int = 0) -> Iterator[Segment]:
        """All rows still whole but the oldest ``skip``, oldest first, in collected segments of at
        most ``rows`` rows."""
        ring = self.ring
        column = np.arange(ring.columns)
        gather = Gather(ring, self.layout.row, stack=1)
        for start in range(ring.oldest + skip, ring.head, rows):
            stop = min(start + rows, ring.head)
            first, last = np.full_like(column, start), np.full_like(column, stop)
            spans = Spans.of(ring.cells(first, column), column, first, first, last - 1, last)
            segment = gather(spans, stop - start + 1, 0, keep=False)
            row = np.arange(start, stop + 1)[:, None]
            flags = [torch.from_numpy(x) for x in ring.flags_of(row, column)]
            extras = {n: x for n, x in segment.extras.items() if n in self.layout.row.extras}
            yield replace(
                segment, first=flags[0], terminated=flags[1][:-1], truncated=flags[2][:-1],
                valid=flags[3][:-1], extras=extras,
            )  # fmt: skip

    def stored_states(self) -> tuple[np.ndarray, np.ndarray, Tree]:
        """(row, column, state) of every recurrent state kept: those windows start from."""
        slots = self.windows.all()
        spans = self.windows.spans(slots)
        return spans.first, spans.column, self.windows.gather_states(slots)

    # -- accounts --------------------------------------------------------------------------------

    def metrics(self, env_steps: int) -> dict[str, float]:
        """buffer/ metrics."""
        counts = self.counts
        return {
            "buffer/windows": float(len(self)),
            "buffer/fill": min(1.0, self.ring.head / self.ring.rows),
            "buffer/learned_fraction": counts["learned"] / max(counts["rows"], 1),
            "buffer/late_priorities": float(counts["late"]),
            "buffer/early_evictions": float(self.windows.early),
            **self.sampler.metrics(env_steps),
        }

    def coded(self) -> dict[str, float]:
        """codec/ metrics of compressed observations, once there are some."""
        raw, coded = (sum(getattr(b, n) for b in self.ring.blocks) for n in ("raw", "coded"))
        if not raw:
            return {}
        return {"codec/buffer_ratio": coded / raw, "codec/buffer_bytes": float(coded)}

    def check(self) -> None:
        """Raises AssertionError naming the broken invariant in words."""
        problem = self.windows.check() or self.sampler.check(self.windows.all())
        assert problem is None, problem

    def fingerprint(self) -> str:
        """What a saved state must have in common with a replay that goes on with it."""
        w, hindsight = self.window, "" if self.hindsight is None else ", hindsight goals"
        cut = ", cut at a collect's end" if self.close else ""
        window = f"burn-in {w.burnin}, learned {w.learned}, nstep {w.nstep}{cut}{hindsight}"
        return f"{self.layout.fingerprint()}; {window}; {self.stack} frames"

    def state_dict(self) -> dict[str, Any]:
        """Everything but slots that were never written."""
        return {
            "layout": self.fingerprint(),
            "counts": dict(self.counts),
            "ring": self.ring.state_dict(),
            "windows": self.windows.state_dict(),
            "sampler": self.sampler.state_dict(),
            "hindsight": self.hindsight.state_dict() if self.hindsight is not None else None,
        }

    def load_rows(self, state: dict[str, Any]) -> None:
        """Rows and windows of a state, not what draws them: for reading (``stored``)."""
        self.drawn = _NOTHING
        self.counts = {name: int(value) for name, value in state["counts"].items()}
        self.ring.load_state_dict(state["ring"])
        self.windows.load_state_dict(state["windows"])

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of ``state_dict``. Raises: CheckpointError: of a replay of another shape."""
        own, other = (
            f"{rows}; drawn by {', '.join(sorted(sampler))}"
            for rows, sampler in (
                (self.fingerprint(), self.sampler.state_dict()),
                (state["layout"], state["sampler"]),
            )
        )
        if own != other:
            raise CheckpointError(
                f"buffer = {own}: the saved one is {other}; a "
                "buffer goes on with the config it was made with; undo the change, or export the "
                "old run (rlrun export) and start from it (buffer.load)"
            )
        self.load_rows(state)
        self.sampler.load_state_dict(state["sampler"])
        if self.hindsight is not None:
            self.hindsight.load_state_dict(state["hindsight"])


_NONE = np.empty(0, np.int64)
_NOTHING = _NONE, _NONE
_WIDE = (torch.float32, torch.float64)
