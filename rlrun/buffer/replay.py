"""Replay: windows over a ring of rows, and a sampler over the windows.

``WindowTable`` keeps the windows that are stored, ``Replay`` adds rows, draws windows and sets
their priorities. ``rlrun.buffer.cutter`` cuts episodes into windows, the rows themselves are in
``rlrun.buffer.ring``, the draws in ``rlrun.buffer.samplers``. Loops over rows or windows are
functions of ``rlrun.buffer.kernels``, which numba compiles.

A window has S = burnin + learned + nstep positions. Position p holds row ``learn + p - burnin`` of
its column if the trajectory has such a row, else filler (left) or a null row (right). Row numbers
are absolute: they count the rows of a column since the run began.
"""

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rlrun.buffer import kernels, saved
from rlrun.buffer.cutter import Cutter
from rlrun.buffer.hindsight import Hindsight
from rlrun.buffer.kernels import FIRST, LEARNED, VALID
from rlrun.buffer.layout import TABLE, Allocate, Layout, in_memory, rows_before
from rlrun.buffer.ring import ChunkValidator, Gather, Ring, Spans, priorities_of
from rlrun.buffer.samplers import Uniform, probe_metrics, require_finite
from rlrun.errors import CheckpointError
from rlrun.run.tensors import RingRows, RowFiles
from rlrun.types import Chunk, Sample, Segment, Tree, Window, tree_leaves, tree_map

if TYPE_CHECKING:
    import torch

_NONE = np.empty(0, np.int64)
_NOTHING = _NONE, _NONE
_COUNTS = "steps", "learned", "late"


class NewWindows(NamedTuple):
    """Changes of the table by appended rows."""

    dropped: np.ndarray  # slots of windows that are no longer stored
    slots: np.ndarray  # slots of new windows
    keys: np.ndarray  # their keys
    valid: int  # rows that are steps
    learned: int  # rows learned by some window for the first time


class WindowTable:
    """The windows that can be sampled, each in a slot, with a key that is never reused.

    Windows are numbered in order of completion. Window ``number`` is in slot number % capacity,
    with its rows and the recurrent state before its first row. If every valid row has a window of
    its own (``layout.windows`` None: one learned row, no state), its rows follow from the flags of
    the ring and only ``alive`` is stored. The window that learns row r of a column then has number
    r in that column, and its slot is the row's cell.

    A window is dropped when the ring overwrites one of the ``rows_before`` rows before its first
    (previous action and reward, stacked frames), or when the table is full of younger ones.
    """

    def __init__(
        self,
        ring: Ring,
        window: Window,
        layout: Layout,
        allocate: Allocate,
        *,
        cutter: Cutter,
        rows_before: int,
    ) -> None:
        self.ring, self.window, self.cutter = ring, window, cutter
        self.rows, self.rows_before = window.rows, rows_before
        self.of_rows = layout.windows is None  # every row has a window
        self.capacity, self.columns = layout.slots, 1
        if self.of_rows:
            self.capacity, self.columns = ring.rows, ring.columns
        blocks = layout.table()
        self.alive = allocate(blocks["alive"])
        self.lines = allocate(blocks["lines"])
        self.states = tree_map(allocate, layout.states())
        # States before the last S rows, for windows not yet complete. None: no row was added.
        self.recent: list[np.ndarray] | None = None
        # The next number of every part (of every column), and the oldest that may be alive.
        self.heads, self.tails = np.zeros((2, self.columns), np.int64)
        self.live = 0  # windows that can be sampled
        # Whether windows may begin with a part of the burn-in: others have all of it or none.
        self.has_partial = not self.of_rows and window.burnin > cutter.stride
        self.early = 0  # windows evicted from a full table before their rows were overwritten
        self._name_arrays()

    def _name_arrays(self) -> None:
        self.numbers = dict(zip(TABLE, self.lines.T, strict=True))
        self.state_leaves = tree_leaves(self.states)
        self.files = RowFiles()  # of the windows saved so far

    def split(self, rings: Sequence[Ring]) -> "list[WindowTable]":
        """Return a table for each of ``rings``, the equal parts of this table's ring.

        They share its arrays. Windows are inserted into them and read from this table.
        """
        count, parts, cutter = len(rings), [], self.cutter
        if not self.of_rows:
            self.capacity, self.columns = self.capacity // count, count
            self.heads, self.tails = np.zeros((2, count), np.int64)
        arrays = self.alive, self.lines, self.heads, self.tails, self.states, cutter.origin
        shared = tree_map(lambda x: np.split(x, count), arrays)
        for i, ring in enumerate(rings):
            part = copy(self)
            part.ring, part.columns, part.cutter = ring, self.columns // count, copy(cutter)
            (
                part.alive, part.lines, part.heads, part.tails, part.states, part.cutter.origin,
            ) = tree_map(lambda x, i=i: x[i], shared)  # fmt: skip
            part._name_arrays()
            parts.append(part)
        return parts

    @property
    def head(self) -> int:
        """The next number."""
        return int(self.heads[0])

    @head.setter
    def head(self, number: int) -> None:
        self.heads.fill(number)

    @property
    def tail(self) -> int:
        """The oldest number that may be alive."""
        return int(self.tails[0])

    @tail.setter
    def tail(self, number: int) -> None:
        self.tails.fill(number)

    # -- live windows ------------------------------------------------------------------------------

    def append(self, chunk: Chunk) -> NewWindows:
        """Write the flags of the rows after the ring's head and insert the windows they complete.

        Windows that read overwritten rows are dropped.
        """
        ring, steps = self.ring, len(chunk.reward)
        oldest = ring.head + steps + 1 - ring.rows  # oldest complete row after these
        first = oldest + self.rows_before if oldest > 0 else 0
        flags = chunk.first, chunk.terminated, chunk.truncated, chunk.valid, chunk.reward
        if not self.of_rows:
            dead = self._expire(first) if first else _NONE
            valid = kernels.write_flags(ring.arrays, ring.head, flags)
            return self._extend(chunk, first, dead, valid)
        cutter, until = self.cutter, max(first, self.tail)
        dead, (slots, keys), valid = kernels.append_rows(
            ring.arrays, self.alive, ring.head, flags, (cutter.origin, cutter.shape), self.tail,
            until,
        )  # fmt: skip
        self.tail, self.head = until, ring.head + steps
        cutter.row += steps
        self.live += len(slots) - len(dead)
        return NewWindows(dead, slots, keys, valid, len(slots))

    def _expire(self, first: int) -> np.ndarray:
        """Drop the windows that begin before row ``first`` and return their slots."""
        table = self.lines, self.alive
        dead: np.ndarray = kernels.expire_lines(table, self.tail, self.head, first, self.rows)
        while self.tail < self.head and not self.alive[self.tail % self.capacity]:
            self.tail += 1
        self.live -= len(dead)
        return dead

    def _extend(self, chunk: Chunk, first: int, dead: np.ndarray, valid: int) -> NewWindows:
        """Insert the windows that begin at row ``first`` or later."""
        new = self.cutter.cut(chunk.first[: len(chunk.reward)], chunk.valid)
        new = new[new[:, 1] - new[:, 2] >= first]  # the end of a trajectory may complete older ones
        keys = np.arange(self.head, self.head + len(new))[-self.capacity :]
        skip = len(new) - len(keys)
        self.early += skip
        until = self.head + len(new) - self.capacity
        dropped = self._evict(until) if until > self.tail else _NONE
        slots = keys % self.capacity
        self.lines[slots], self.alive[slots] = new[skip:], True
        self.live += len(keys)
        self.head += len(new)
        row, last = new[:, 1:2] + np.arange(self.window.learned), new[:, 3:4] - new[:, 4:5]
        cells = np.unique(self.ring.cells(row, new[:, :1])[row <= last])  # of the learned rows
        learned = int(np.count_nonzero(self.ring.flags[cells] & LEARNED == 0))
        self.ring.flags[cells] |= np.uint8(LEARNED)
        self._keep_states(chunk.states, new[skip:], slots)
        return NewWindows(np.concatenate([dead, dropped]), slots, keys, valid, learned)

    def _keep_states(self, states: Tree, new: np.ndarray, slots: np.ndarray) -> None:
        """Store the states before the first rows of the windows ``new`` in ``slots``.

        ``states``: before the rows of the chunk. Windows may begin in the S rows before it.
        """
        earlier, self.recent = self.recent, []
        for i, x in enumerate(tree_leaves(states)):
            known = x if earlier is None else np.concatenate([earlier[i], x])
            self.recent.append(known[-self.rows :].copy())
            row = new[:, 1] - new[:, 2] - self.cutter.row + len(known)  # in ``known``
            self.state_leaves[i][slots] = known[row, new[:, 0]]

    def _evict(self, until: int) -> np.ndarray:
        """Drop windows with numbers below ``until``: the table is full of younger ones."""
        slots = np.arange(self.tail, min(until, self.head)) % self.capacity
        slots = slots[self.alive[slots]]
        self.alive[slots] = False
        self.live -= len(slots)
        self.early += len(slots)
        self.tail = until  # one add that overfills the table skips numbers below it
        return slots

    # -- slots and keys ----------------------------------------------------------------------------

    def keys(self, slots: np.ndarray) -> np.ndarray:
        """Return the keys of the windows in ``slots``."""
        column, slot = np.divmod(slots, self.capacity)
        newest = self.heads[column] - 1
        keys: np.ndarray = (newest - (newest - slot) % self.capacity) * self.columns + column
        return keys

    def find(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (slots, whether the window is still stored) of ``keys``."""
        number, column = np.divmod(keys, self.columns)
        slots = column * self.capacity + number % self.capacity
        stored = (number >= self.tails[column]) & (number < self.heads[column])
        return slots, stored & self.alive[slots]

    def all(self) -> np.ndarray:
        """Return the live slots, oldest first."""
        slots = np.flatnonzero(self.alive)
        return slots[np.argsort(self.keys(slots))]

    def live_slots(self, share: np.ndarray, out: np.ndarray, found: int = 0) -> int:
        """Write the live slots at ``share`` of the candidates; see ``kernels.live_slots``."""
        places = self.alive, self.heads, self.tails, self.capacity
        count: int = kernels.live_slots(*places, share, out, found)
        return count

    def spans(self, slots: np.ndarray) -> Spans:
        """Return the rows of the windows in ``slots``."""
        ring = self.ring
        if self.of_rows:
            return Spans(kernels.row_spans(ring.arrays, slots, ring.heads, self.window.nstep))
        return Spans(kernels.line_spans(ring.arrays, self.lines, slots, self.heads))

    def states_of(self, slots: np.ndarray) -> Tree:
        """Return the states before the first rows of the windows, new arrays [n, ...]."""
        return tree_map(lambda store: store[slots], self.states)

    def partial(self, slots: np.ndarray) -> tuple[int, ...]:
        """Return the burn-in lengths in ``slots`` strictly between 0 and the full one."""
        burnin = self.numbers["burnin"][slots]
        partial = (burnin > 0) & (burnin < self.window.burnin)
        return tuple(np.unique(burnin[partial]).tolist())

    # -- checks, checkpoints -----------------------------------------------------------------------

    def check(self) -> str | None:
        """Return a broken invariant, or None."""
        ring, slots = self.ring, np.flatnonzero(self.alive)
        spans = self.spans(slots)
        number = self.keys(slots) // self.columns
        wrong = {
            "the number of live windows is not the counted one": len(slots) != self.live,
            "a live window is older than the tail": (number < self.tail).any(),
            "a live window has a key not yet assigned": (number >= self.head).any(),
            "a window needs an overwritten row": ring.oldest > 0
            and (spans.first - self.rows_before < ring.oldest).any(),
            "a window reads ahead": (spans.last > ring.head).any(),
            "an invalid row has a window": not (ring.flags[spans.cell] & kernels.VALID).all(),
            "cutter and ring count different rows": self.cutter.row != ring.head,
        }
        return next((problem for problem, broken in wrong.items() if broken), None)

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state, without slots that hold no window."""
        used = len(self.alive) if self.of_rows else min(self.head, self.capacity)
        numbers = {name: getattr(self, name) for name in ("head", "tail", "live", "early")}
        lines, states, leaves = None, None, iter(self.recent or ())
        recent = None if self.recent is None else tree_map(lambda _: next(leaves), self.states)
        if not self.of_rows:
            lines = self._written(self.lines)
            states = tree_map(self._written, self.states)
        return numbers | {
            "lines": lines,
            "alive": self.alive[:used],
            "states": states,
            "recent": recent,
            "cutter": self.cutter.state_dict(),
        }

    def _written(self, array: np.ndarray) -> RingRows:
        """Return the entries [slots, ...] of windows from ``tail`` on, which are final."""
        return RingRows(array[None], self.tail, self.head, self.files)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in ("head", "tail", "live", "early"):
            setattr(self, name, saved.integer(f"windows.{name}", state[name], 0, saved.MOST_ROWS))
        saved.fill("windows.alive", self.alive, state["alive"])
        if not self.of_rows:

            def restore(array: np.ndarray, rows: Any) -> None:
                saved.fill_rows("windows", array[None], rows, self.tail, self.head)

            restore(self.lines, state["lines"])
            self.files = state["lines"].saved_files()
            tree_map(restore, self.states, state["states"])
        self.recent = None
        if state["recent"] is not None:
            recent = tree_map(np.array, state["recent"])
            saved.check_recent(recent, self.states, self.window, self.ring)
            self.recent = tree_leaves(recent)
        self.cutter.load_state_dict(state["cutter"])
        saved.check_table(self)


class Replay:
    """Stores every row once and gathers windows of S rows from it.

    It consists of a ``ring`` of rows, the ``windows`` over it and a ``sampler`` of window slots. A
    window is dropped before the ring overwrites a row that it reads, so no window straddles the
    write head.
    """

    def __init__(
        self,
        layout: Layout,
        *,
        window: Window,
        cutter: Cutter,
        sampler: Uniform,
        stack: int = 1,
        allocate: Allocate = in_memory,
        device: "torch.device | None" = None,
        table: WindowTable | None = None,
    ) -> None:
        """``cutter``: cuts the windows. ``stack``: frames per observation (env.frame_stack).

        ``allocate``: makes the arrays of rows, table and states. ``device``: stores observations,
        actions and extras and receives samples; None: host memory. ``table``: windows and ring,
        parts of another replay's; None: new ones.
        """
        before = rows_before(stack)
        assert layout.rows > window.rows + before, "rlrun.config has checked that"
        assert device is None or not layout.goals, "hindsight goals are found in host memory"
        self.layout, self.window, self.stack = layout, window, stack
        if table is None:
            ring = Ring(layout, allocate, device)
            table = WindowTable(ring, window, layout, allocate, cutter=cutter, rows_before=before)
        self.ring, self.windows, self.sampler = table.ring, table, sampler
        self.gather = Gather(self.ring, layout.row, stack=stack)
        self.max_rows = layout.rows - window.rows - before  # rows of one write
        self.validate = ChunkValidator(
            layout.row, layout.columns, states=layout.windows is not None
        )
        self.steps = 0  # valid rows stored since the run began; end rows do not count
        self.learned = self.late = 0  # rows that windows learn; priorities of overwritten windows
        self.loaded = LoadedRows()
        self.hindsight: Hindsight | None = None  # relabels sampled windows
        self.drawn = _NOTHING  # keys and slots of the last sample, until rows are added

    def __len__(self) -> int:
        """Return the number of windows that can be sampled."""
        return self.windows.live

    # -- writing -----------------------------------------------------------------------------------

    def add(self, rows: Chunk | Segment) -> np.ndarray:
        """Store collected rows and return the keys of the windows they complete, int64.

        Raises: ValueError, with nothing stored, if the fields differ from the layout.
        """
        chunk = rows if type(rows) is Chunk else Chunk.of(rows)
        arrays = self.validate(chunk)
        count = len(chunk.reward)
        if count > self.max_rows:  # the ring keeps only the end
            starts = range(0, count, self.max_rows)
            added = [self.add(chunk.rows(t, min(t + self.max_rows, count))) for t in starts]
            keys = np.concatenate(added)
            alive: np.ndarray = keys[self.windows.find(keys)[1]]
            return alive
        if count == 0:
            return _NONE
        self.drawn = _NOTHING
        new = self.windows.append(chunk)
        self.ring.write(chunk, arrays)
        self.sampler.replace_slots(new.dropped, new.slots)
        self.steps += new.valid
        self.learned += new.learned
        return new.keys

    # -- reading -----------------------------------------------------------------------------------

    def sample(self, batch: int, env_steps: int) -> Sample:
        """Sample ``batch`` windows, with importance weights float32 [batch].

        ``batch`` 0: all windows, oldest first, weight 1.

        The sample's arrays are overwritten by the second ``sample`` of its size after it (two sets
        take turns). Copy what must last longer, or use ``get``, which returns new arrays.
        """
        if batch == 0:
            return self.get(self.windows.keys(self.windows.all()), env_steps)
        if not self.windows.live:
            raise ValueError(
                f"batch = {batch}: no window is complete yet, {self.steps} steps are stored; "
                f"{self.window.rows} rows or the rest of an episode complete one; add rows first"
            )
        slots, weight = self.sampler.draw(self.windows, batch, env_steps)
        spans = self.windows.spans(slots)
        self.drawn = spans.key, slots
        segment = self._read(slots, spans, reuse=True)
        if self.hindsight is not None:
            segment = self.hindsight(segment, spans)
        return Sample(segment, self.gather.tensor(weight), self.drawn[0], env_steps)

    def _read(self, slots: np.ndarray, spans: Spans, *, reuse: bool = False) -> Segment:
        windows = self.windows
        segment = self.gather(spans, windows.rows, self.window.burnin, reuse=reuse)
        if windows.of_rows:
            return segment
        state = tree_map(self.gather.tensor, windows.states_of(slots))
        partial = windows.partial(slots) if windows.has_partial else ()
        return replace(segment, state=state, partial=partial)

    def read_slots(self, slots: np.ndarray) -> Segment:
        """Return the windows in ``slots`` in new arrays."""
        return self._read(slots, self.windows.spans(slots))

    def get(self, key: np.ndarray, env_steps: int) -> Sample:
        """Return the windows with these keys, which must be stored, weight 1."""
        slots, alive = self.windows.find(key)
        assert alive.all(), "a window that is asked for by key is no longer stored"
        weight = self.gather.tensor(np.ones(len(key), np.float32))
        return Sample(self.read_slots(slots), weight, key, env_steps)

    def prioritize(self, key: np.ndarray, priority: "np.ndarray | torch.Tensor") -> None:
        """Set |delta| priorities. Those of windows overwritten meanwhile are only counted.

        Raises: NumericError if one is NaN, infinite or negative, ValueError if there are not as
        many as keys.
        """
        if priority.shape != key.shape:
            raise ValueError(
                f"priority = shape {list(priority.shape)}: keys have {list(key.shape)}; allowed is "
                "one number per sampled window; pass Sample.key and Update.priority"
            )
        values = priorities_of(priority)
        if key is self.drawn[0]:  # no row was added since: the common case
            self.sampler.update(self.drawn[1], values)
            return
        slots, alive = self.windows.find(key)
        if not alive.all():
            require_finite(values)
            self.late += int((~alive).sum())
            slots, values = slots[alive], values[alive]
        self.sampler.update(slots, values)

    def histories(self, count: int, generator: np.random.Generator) -> tuple[Segment, Segment]:
        """Return at most ``count`` windows and the rows of their trajectories before them.

        They are drawn uniformly among windows that are not the first of their trajectory and whose
        trajectory is stored from its start. Left-aligned, possibly empty.
        """
        windows, ring, numbers = self.windows, self.ring, self.windows.numbers
        slots = _NONE if windows.of_rows else np.flatnonzero(windows.alive)
        spans, origin = windows.spans(slots), numbers["origin"][slots]
        cell = ring.cells(origin, spans.column)
        known = (origin >= ring.oldest_of(spans.column)) & (ring.flags[cell] & FIRST > 0)
        slots = generator.permutation(slots[known & (spans.first > origin)])[:count]
        spans, origin = windows.spans(slots), numbers["origin"][slots]
        longest = int((spans.first - origin).max(initial=0))
        cell = ring.cells(origin, spans.column)
        before = Spans.of(cell, spans.column, origin, origin, spans.first - 1, spans.first)
        return self._read(slots, spans), self.gather(before, longest + 1, 0)

    def random_windows(self, count: int, generator: np.random.Generator) -> Segment:
        """Return at most ``count`` windows, drawn uniformly with ``generator``."""
        slots = np.empty(count, np.int64)
        found = self.windows.live_slots(generator.random(count), slots) if len(self) else 0
        return self.read_slots(slots[:found])

    def peek(self, count: int, generator: np.random.Generator, env_steps: int) -> "Peek | None":
        """Return ``count`` windows of the sampler's quantiles, None without any.

        Weights are 1, goals are not relabelled. Changes nothing, in particular not the random
        numbers of ``sample``.
        """
        slots = self.sampler.probe(self.windows)[0] if len(self) else _NONE
        if not len(slots):
            return None
        drawn = slots[generator.integers(len(slots), size=count)]
        sample = self.get(self.windows.keys(drawn), env_steps)
        stored = self.sampler.priorities(self.windows.all())
        return Peek(sample, self.sampler.priorities(drawn), stored)

    def stored_steps(self) -> int:
        """Number of valid rows in the ring."""
        row = np.arange(self.ring.oldest, self.ring.head)[:, None]
        flags = self.ring.flags[self.ring.cells(row, np.arange(self.ring.columns))]
        return int((flags & VALID > 0).sum())

    def stored(self, rows: int, *, skip: int = 0) -> Iterator[Segment]:
        """Yield the stored rows, oldest first, as collected segments in host memory.

        A segment has at most ``rows`` rows. The oldest ``skip`` rows are left out.
        """
        gather = Gather(self.ring, self.layout.row, stack=1)  # single frames
        for start in range(self.ring.oldest + skip, self.ring.head, rows):
            yield gather.rows(start, min(start + rows, self.ring.head))

    def stored_states(self) -> tuple[np.ndarray, np.ndarray, Tree]:
        """Return (row, column, state) of the recurrent states from which windows start."""
        slots = self.windows.all()
        spans = self.windows.spans(slots)
        states = () if self.windows.of_rows else self.windows.states_of(slots)
        return spans.first, spans.column, states

    # -- metrics, checkpoints ----------------------------------------------------------------------

    def metrics(self, env_steps: int) -> dict[str, float]:
        ring = self.ring
        metrics = {
            "buffer/windows": float(len(self)),
            "buffer/fill": float(np.minimum(ring.heads, ring.rows).sum()) / len(ring.flags),
            "buffer/learned_fraction": self.learned / max(self.steps, 1),
            "buffer/late_priorities": float(self.late),
            "buffer/early_evictions": float(self.windows.early),
            **self.sampler.metrics(env_steps),
        }
        slots, probability = self.sampler.probe(self.windows) if len(self) else (_NONE, None)
        if not len(slots):  # no window is stored, or all priorities are 0
            return metrics
        metrics |= self.loaded.age(self.windows.spans(slots), ring, self.steps)
        return metrics | probe_metrics(probability, metrics.get("buffer/beta"))

    def codec_metrics(self) -> dict[str, float]:
        """Return codec/ metrics of compressed observations, empty while there are none."""
        raw, coded = (sum(getattr(b, n) for b in self.ring.blocks) for n in ("raw", "coded"))
        if not raw:
            return {}
        return {"codec/buffer_ratio": coded / raw, "codec/buffer_bytes": float(coded)}

    def check(self) -> None:
        """Raise AssertionError naming a broken invariant."""
        problem = self.windows.check() or self.sampler.check(self.windows.all())
        assert problem is None, problem

    def fingerprint(self) -> str:
        """Return a text that a saved state and the replay that loads it must share."""
        w, hindsight = self.window, "" if self.hindsight is None else ", hindsight goals"
        window = f"burn-in {w.burnin}, learned {w.learned}, nstep {w.nstep}{hindsight}"
        return f"{self.layout.fingerprint()}; {window}; {self.stack} frames"

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state, without slots that were never written."""
        return {
            "layout": self.fingerprint(),
            "counts": {name: getattr(self, name) for name in _COUNTS},
            "loaded": self.loaded.state_dict(),
            "ring": self.ring.state_dict(),
            "windows": self.windows.state_dict(),
            "sampler": self.sampler.state_dict(),
            "hindsight": self.hindsight.state_dict() if self.hindsight is not None else None,
        }

    def load_rows(self, state: dict[str, Any]) -> None:
        """Load rows and windows of a state without the sampler, for ``stored``."""
        self.drawn = _NOTHING
        for name, count in saved.check_counts(state["counts"], _COUNTS).items():
            setattr(self, name, count)
        self.ring.load_state_dict(state["ring"])
        self.loaded.load_state_dict(state["loaded"], self.ring, self.steps)
        self.windows.load_state_dict(state["windows"])
        saved.check_invariants(self.windows.check())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a ``state_dict``. Raises: CheckpointError if it has another shape."""
        if "layout" not in state:
            raise CheckpointError(
                "buffer = the saved one has a replay per collector, as earlier versions wrote with "
                "pipeline=ray; one replay of all is allowed; start the run anew"
            )
        wanted, loaded = (
            f"{layout}; drawn by {', '.join(sorted(sampler))}"
            for layout, sampler in (
                (self.fingerprint(), self.sampler.state_dict()),
                (state["layout"], state["sampler"]),
            )
        )
        if wanted != loaded:
            raise CheckpointError(
                f"buffer = {wanted}: the saved one is {loaded}; allowed is the config it was saved "
                "with; undo the change, or export the old run (rlrun export) and start from it "
                "(buffer.load)"
            )
        self.load_rows(state)
        self.sampler.load_state_dict(state["sampler"])
        saved.check_invariants(self.sampler.check(self.windows.all()))
        if self.hindsight is not None:
            self.hindsight.load_state_dict(state["hindsight"])


@dataclass
class LoadedRows:
    """The loaded rows: all before row ``head`` of every column, ``steps`` of them steps."""

    steps: int = 0
    head: int = 0

    def mark(self, ring: Ring, steps: int) -> None:
        """Count all rows of ``ring`` so far as loaded, ``steps`` of them steps."""
        self.steps, self.head = steps, ring.head

    def age(self, spans: Spans, ring: Ring, steps: int) -> dict[str, float]:
        """Return buffer/sample_age: mean env steps collected since the first learned rows.

        A loaded row counts as collected right before the run's first row. ``steps``: stored so far,
        loaded ones included. Empty while no row was collected.
        """
        lines = float(ring.heads.mean()) - self.head
        if not lines:
            return {}
        steps_per_line = (steps - self.steps) / lines  # of all columns, end rows left out
        ago = (ring.heads[spans.column] - np.maximum(spans.learn, self.head)).mean()
        return {"buffer/sample_age": float(ago) * steps_per_line}

    def state_dict(self) -> dict[str, int]:
        return asdict(self)

    def load_state_dict(self, state: Any, ring: Ring, steps: int) -> None:
        """Load a ``state_dict``. Raises: CheckpointError."""
        good = isinstance(state, dict) and set(state) == {"steps", "head"}
        saved.require(good, "loaded", "other names")
        self.steps = saved.integer("loaded.steps", state["steps"], 0, steps)
        self.head = saved.integer("loaded.head", state["head"], 0, ring.head)


@dataclass(frozen=True, slots=True)
class Peek:
    """Windows, and the priorities |delta| [B] stored for them; None: uniform sampling.

    ``stored``: the priorities of all windows.
    """

    sample: Sample
    priority: np.ndarray | None
    stored: np.ndarray | None
