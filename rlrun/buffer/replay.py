"""Replay: a ring of rows, windows over it, and a sampler over the windows."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlrun.buffer import saved
from rlrun.buffer.fused_append import FusedAppend
from rlrun.buffer.hindsight import Hindsight
from rlrun.buffer.loaded import LoadedRows
from rlrun.buffer.samplers.base import Sampler, probe_metrics
from rlrun.buffer.samplers.proportional import Proportional
from rlrun.buffer.storage.base import VALID, Storage
from rlrun.buffer.storage.layout import Allocate, Layout, in_memory
from rlrun.buffer.storage.ring import Ring
from rlrun.buffer.storage.validator import ChunkValidator
from rlrun.buffer.windows.choose import make_windows, num_rows_before
from rlrun.buffer.windows.cutter import Cutter
from rlrun.buffer.windows.reader import HostReader, WindowReader
from rlrun.buffer.windows.single_row import SingleRowWindows
from rlrun.buffer.windows.spans import Spans
from rlrun.buffer.windows.states import HostStates
from rlrun.buffer.windows.table import WindowTable
from rlrun.errors import CheckpointError
from rlrun.types import Chunk, Sample, Segment, Tree, Window


class Replay:
    """Stores every row once and gathers windows of S rows from it.

    Made of a ``storage`` of rows, the ``windows`` over it, a ``sampler`` of their slots and a
    ``reader`` that gathers them; rows, priorities and samples are in host memory (``host_replay``)
    or on a device (``rlrun.buffer.device.replay.device_replay``). A window is dropped before the
    ring overwrites a row it reads: none straddles the write head.
    """

    def __init__(
        self,
        layout: Layout,
        *,
        window: Window,
        close: bool,
        stack: int,
        storage: Storage,
        windows: SingleRowWindows | WindowTable,
        sampler: Sampler,
        reader: WindowReader,
        fused: FusedAppend | None = None,
    ) -> None:
        """``close``: the end of a chunk ends its trajectories (collector.trajectory); ``stack``:
        frames of an observation (env.frame_stack); ``fused``: adds to all parts in one kernel."""
        self.layout, self.window, self.close, self.stack = layout, window, close, stack
        self.ring, self.windows, self.sampler, self.reader = storage, windows, sampler, reader
        self.fused = fused
        self.max_steps = layout.rows - window.rows - windows.rows_before  # rows of one write
        self.validate = ChunkValidator(layout)
        self.counts = {"rows": 0, "learned": 0, "late": 0}
        self.loaded = LoadedRows()
        self.hindsight: Hindsight | None = None  # relabels sampled windows
        self.drawn: tuple[Any, Any] = _NOTHING  # keys and slots of the last sample, until rows come

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
        parts = (self.ring, self.windows, self.sampler, self.reader)
        arrays = [x for part in parts for x in part.arrays()]
        return sum(int(a.nbytes) for a in arrays) + sum(b.coded for b in self.ring.blocks)

    # -- writing -----------------------------------------------------------------------------------

    def add(self, rows: Chunk | Segment) -> np.ndarray:
        """Store collected rows and return the keys of the windows they complete, int64.

        Raises: ValueError, with nothing stored, when the fields differ from the layout.
        """
        chunk = rows if type(rows) is Chunk else Chunk.of(rows)
        given = self.validate(chunk)
        steps = len(chunk.reward)
        if steps == 0:
            return _NONE
        if steps <= self.max_steps:
            return self._add(chunk, given, close=self.close)
        keys = []
        for start in range(0, steps, self.max_steps):
            piece = chunk.rows(start, min(start + self.max_steps, steps))
            close = self.close and start + self.max_steps >= steps
            keys.append(self._add(piece, self.validate(piece), close=close))
        new = np.concatenate(keys)  # the ring keeps only the end of a longer chunk
        alive: np.ndarray = new[self.windows.find(new)[1]]
        return alive

    def _add(self, chunk: Chunk, given: list[np.ndarray], *, close: bool) -> np.ndarray:
        ring, windows, sampler = self.ring, self.windows, self.sampler
        self.drawn = _NOTHING
        if self.fused is not None:
            keys, steps = self.fused(chunk, given, close=close)
            self.counts["rows"] += steps
            self.counts["learned"] += len(keys)
            return keys
        dead = windows.expire(max(0, ring.head + len(chunk.reward) + 1 - ring.rows))
        self.counts["rows"] += ring.write(chunk, given, close=close)
        new = windows.extend(chunk, close=close)
        if len(new.dropped):
            dead = np.concatenate([dead, new.dropped])
        sampler.replace_slots(dead, new.slots)
        self.reader.insert(new.slots)
        self.counts["learned"] += new.learned
        return new.keys

    # -- reading -----------------------------------------------------------------------------------

    def sample(self, batch: int, env_steps: int) -> Sample:
        """Sample ``batch`` windows, with importance weights float32 [batch].

        ``batch`` 0: all windows, oldest first, weight 1.
        """
        self._require_windows(batch)
        if batch == 0:
            return self.get(self.windows.keys(self.windows.all()), env_steps)
        slots, weight = self.sampler.draw(self.windows, batch, env_steps)
        spans = self.reader.spans(slots)
        key = spans.key
        self.drawn = key, slots
        segment = self.reader.read(slots, spans, reuse=True)
        if self.hindsight is not None:
            segment = self.hindsight(segment, spans)
        if isinstance(weight, np.ndarray):  # torch.as_tensor takes three times as long
            weight = torch.from_numpy(weight)
        return Sample(segment, weight, key, env_steps)

    def _require_windows(self, batch: int) -> None:
        if batch and not len(self):
            raise ValueError(
                f"batch = {batch}: no window is complete yet, {self.rows} steps are stored; "
                f"{self.window.rows} rows or the rest of an episode complete one; add rows first"
            )

    def get(self, key: np.ndarray | Tensor, env_steps: int) -> Sample:
        """The windows with these keys, which must be stored, weight 1."""
        slots, alive = self.reader.find(key)
        assert alive.all(), "a window that is asked for by key is no longer stored"
        spans = self.reader.spans(slots)
        segment = self.reader.read(slots, spans, reuse=False)
        weight = torch.ones(len(key), device=segment.reward.device)
        return Sample(segment, weight, spans.key, env_steps)

    def prioritize(self, key: np.ndarray | Tensor, priority: np.ndarray | Tensor) -> None:
        """Set |delta| priorities; those of windows overwritten since are counted, not used.

        Raises: NumericError when one is NaN, infinite or negative, ValueError when there are not as
            many as keys.
        """
        if priority.shape != key.shape:
            raise ValueError(
                f"priority = shape {list(priority.shape)}: keys have {list(key.shape)}; allowed is "
                "one number per sampled window; pass Sample.key and Update.priority"
            )
        values = self.reader.priorities(priority)
        if key is self.drawn[0]:  # no row was added since: the common case
            self.sampler.update(self.drawn[1], values)
            return
        slots, alive = self.reader.find(key)
        self.counts["late"] += self.sampler.update_found(slots, values, alive)

    def histories(self, count: int, generator: np.random.Generator) -> tuple[Segment, Segment]:
        """Return at most ``count`` windows and the rows of their trajectories before them.

        Drawn uniformly among those that are not their trajectory's first and whose trajectory is
        still stored from its start; left-aligned, possibly empty.
        """
        windows = self.windows
        slots = np.flatnonzero(windows.alive) if isinstance(windows, WindowTable) else _NONE
        if not isinstance(windows, WindowTable):
            nothing = self.reader.read_slots(slots)
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
        return self.reader.read_slots(slots), self.reader.read_rows(before, longest + 1)

    def random_windows(self, count: int, generator: np.random.Generator) -> Segment:
        """Return at most ``count`` windows drawn uniformly, with the numbers of ``generator``."""
        candidates = self.windows.num_candidates
        number = generator.integers(max(candidates, 1), size=count if candidates else 0)
        slots, live = self.windows.candidates(number)
        return self.reader.read_slots(slots[live])

    def stored_steps(self) -> int:
        """Number of valid rows in the ring."""
        row = np.arange(self.ring.oldest, self.ring.head)[:, None]
        flags = self.ring.flags[self.ring.cells(row, np.arange(self.ring.columns))]
        return int((flags & VALID > 0).sum())

    def stored(self, rows: int, *, skip: int = 0) -> Iterator[Segment]:
        """Iterate over the stored rows but the oldest ``skip``, oldest first, as collected segments
        of at most ``rows`` rows."""
        ring, column = self.ring, np.arange(self.ring.columns)
        for start in range(ring.oldest + skip, ring.head, rows):
            yield self.reader.read_collected(start, min(start + rows, ring.head), column)

    def stored_states(self) -> tuple[np.ndarray, np.ndarray, Tree]:
        """Return (row, column, state) of the recurrent states that windows start from."""
        windows, slots = self.windows, self.windows.all()
        spans = windows.spans(slots)
        states = windows.states.read(slots) if isinstance(windows, WindowTable) else ()
        return spans.first, spans.column, states

    # -- metrics, checkpoints ----------------------------------------------------------------------

    def metrics(self, env_steps: int) -> dict[str, float]:
        """buffer/ metrics. Raises: NumericError for bad priorities passed to a device."""
        counts = self.counts
        counts["late"] += self.sampler.synchronize()
        found = {
            "buffer/windows": float(len(self)),
            "buffer/fill": min(1.0, self.ring.head / self.ring.rows),
            "buffer/learned_fraction": counts["learned"] / max(counts["rows"], 1),
            "buffer/late_priorities": float(counts["late"]),
            "buffer/early_evictions": float(self.windows.early),
            **self.sampler.metrics(env_steps),
        }
        slots, probability = self.sampler.probe(self.windows) if len(self) else _NOTHING
        if not len(slots):  # no window is stored, or all priorities are 0
            return found
        found |= self.loaded.age(self.windows.spans(slots).learn, self.ring, self.rows)
        return found | probe_metrics(probability, found.get("buffer/beta"))

    def codec_metrics(self) -> dict[str, float]:
        """codec/ metrics of compressed observations; empty while there are none."""
        raw, coded = (sum(getattr(b, n) for b in self.ring.blocks) for n in ("raw", "coded"))
        if not raw:
            return {}
        return {"codec/buffer_ratio": coded / raw, "codec/buffer_bytes": float(coded)}

    def check(self) -> None:
        """Raises AssertionError naming the broken invariant."""
        problem = self.windows.check() or self.sampler.check(self.windows.all())
        problem = problem or self.reader.check()
        assert problem is None, problem

    def fingerprint(self) -> str:
        """Text that a saved state and the replay that loads it must have in common."""
        w, hindsight = self.window, "" if self.hindsight is None else ", hindsight goals"
        cut = ", cut at a collect's end" if self.close else ""
        window = f"burn-in {w.burnin}, learned {w.learned}, nstep {w.nstep}{cut}{hindsight}"
        return f"{self.layout.fingerprint()}; {window}; {self.stack} frames"

    def state_dict(self) -> dict[str, Any]:
        """Everything but slots that were never written. Raises: NumericError, as ``metrics``."""
        self.counts["late"] += self.sampler.synchronize()
        return {
            "layout": self.fingerprint(),
            "counts": dict(self.counts),
            "loaded": self.loaded.state_dict(),
            "ring": self.ring.state_dict(),
            "windows": self.windows.state_dict(),
            "sampler": self.sampler.state_dict(),
            "hindsight": self.hindsight.state_dict() if self.hindsight is not None else None,
        }

    def load_rows(self, state: dict[str, Any]) -> None:
        """Load rows and windows of a state, without the sampler: for ``stored``."""
        self.drawn = _NOTHING
        self.counts = saved.check_counts(state["counts"], self.counts)
        self.ring.load_state_dict(state["ring"])
        self.loaded.load_state_dict(state.get("loaded"), self.ring, self.rows)
        self.windows.load_state_dict(state["windows"])
        saved.check_invariants(self.windows.check())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a ``state_dict``. Raises: CheckpointError when it is of another shape."""
        own, other = (
            f"{rows}; drawn by {', '.join(sorted(sampler))}"
            for rows, sampler in (
                (self.fingerprint(), self.sampler.state_dict()),
                (state["layout"], state["sampler"]),
            )
        )
        if own != other:
            raise CheckpointError(
                f"buffer = {own}: the saved one is {other}; allowed is the config it was saved "
                "with; undo the change, or export the old run (rlrun export) and start from it "
                "(buffer.load)"
            )
        self.load_rows(state)
        self.sampler.load_state_dict(state["sampler"])
        live = self.windows.all()
        self.reader.insert(live)
        self.sampler.set_live(live)
        saved.check_invariants(self.sampler.check(live))
        if self.hindsight is not None:
            self.hindsight.load_state_dict(state["hindsight"])


def host_replay(
    layout: Layout,
    *,
    window: Window,
    cutter: Cutter,
    close: bool,
    sampler: Sampler,
    stack: int = 1,
    allocate: Allocate = in_memory,
) -> Replay:
    """A replay in host memory. Windows of one learned row need no table, longer ones have one.

    Arguments as for ``Replay``; ``cutter``: of the windows in the table; ``allocate``: makes the
    arrays of rows, table and states. Raises: ConfigError when a column is too short for a window.
    """
    layout.require_rows(window.rows, num_rows_before(stack))
    ring = Ring(layout, allocate)
    states = HostStates(layout.states(), allocate)
    windows = make_windows(
        layout, ring, states, window=window, cutter=cutter, close=close, stack=stack,
        allocate=allocate,
    )  # fmt: skip
    fused = None
    if (
        isinstance(windows, SingleRowWindows)
        and type(sampler) is Proportional
        and not sampler.min_tree
    ):
        fused = FusedAppend(ring, windows, sampler)
    reader = HostReader(ring, windows, layout.row, window, stack=stack)
    return Replay(
        layout, window=window, close=close, stack=stack, storage=ring, windows=windows,
        sampler=sampler, reader=reader, fused=fused,
    )  # fmt: skip


_NONE = np.empty(0, np.int64)
_NOTHING = _NONE, _NONE
