"""Replay: a ring of rows, windows over it, and a sampler over the windows."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlrun.buffer import kernels, saved
from rlrun.buffer.hindsight import Hindsight
from rlrun.buffer.kernels import FIRST, PREFETCHED, VALID
from rlrun.buffer.layout import REWARD, Allocate, Layout, Row, in_memory, rows_before
from rlrun.buffer.ring import ChunkValidator, HostRows, Ring, upload
from rlrun.buffer.samplers import Uniform, probe_metrics, require_finite
from rlrun.buffer.windows import Cutter, Spans, WindowTable
from rlrun.errors import CheckpointError
from rlrun.jit import COMPILED
from rlrun.types import Chunk, Sample, Segment, Tree, Window, tree_leaves, tree_map

_NONE = np.empty(0, np.int64)
_NOTHING = _NONE, _NONE
_COUNTS = "steps", "learned", "late"
_FLOATS = (torch.float32, torch.float64)  # dtypes of priorities that are not converted
_SMALL = 256  # largest entry in bytes for which prefetching pays


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
        device: torch.device | None = None,
    ) -> None:
        """``cutter``: cuts the windows. ``stack``: frames per observation (env.frame_stack).

        ``allocate``: makes the arrays of rows, table and states. ``device``: stores observations,
        actions and extras and receives samples; None: host memory.
        """
        before = rows_before(stack)
        assert layout.rows > window.rows + before, "rlrun.config has checked that"
        assert device is None or not layout.goals, "hindsight goals are found in host memory"
        self.layout, self.window, self.stack = layout, window, stack
        self.ring, self.sampler = Ring(layout, allocate, device), sampler
        self.windows = WindowTable(
            self.ring, window, layout, allocate, cutter=cutter, rows_before=before
        )
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

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays owned: ``layout.nbytes`` and the compressed blocks."""
        arrays = [*self.ring.memory(), *self.windows.arrays(), *self.sampler.arrays()]
        return sum(int(a.nbytes) for a in arrays) + sum(b.coded for b in self.ring.blocks)

    # -- writing -----------------------------------------------------------------------------------

    def add(self, rows: Chunk | Segment) -> np.ndarray:
        """Store collected rows and return the keys of the windows they complete, int64.

        Raises: ValueError, with nothing stored, if the fields differ from the layout.
        """
        chunk = rows if type(rows) is Chunk else Chunk.of(rows)
        arrays = self.validate(chunk)
        count = len(chunk.reward)
        if count > self.max_rows:
            return self._add_long(chunk)
        if count == 0:
            return _NONE
        self.drawn = _NOTHING
        new = self.windows.append(chunk)
        self.ring.write(chunk, arrays)
        self.sampler.replace_slots(new.dropped, new.slots)
        self.steps += new.valid
        self.learned += new.learned
        return new.keys

    def _add_long(self, chunk: Chunk) -> np.ndarray:
        """Store a chunk of which the ring keeps only the end."""
        starts, count = range(0, len(chunk.reward), self.max_rows), len(chunk.reward)
        keys = [self.add(chunk.rows(t, min(t + self.max_rows, count))) for t in starts]
        new = np.concatenate(keys)
        alive: np.ndarray = new[self.windows.find(new)[1]]
        return alive

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

    def prioritize(self, key: np.ndarray, priority: np.ndarray | Tensor) -> None:
        """Set |delta| priorities. Those of windows overwritten meanwhile are only counted.

        Raises: NumericError if one is NaN, infinite or negative, ValueError if there are not as
        many as keys.
        """
        if priority.shape != key.shape:
            raise ValueError(
                f"priority = shape {list(priority.shape)}: keys have {list(key.shape)}; allowed is "
                "one number per sampled window; pass Sample.key and Update.priority"
            )
        if isinstance(priority, Tensor):
            wide = priority if priority.dtype in _FLOATS else priority.float()
            values: np.ndarray = wide.numpy(force=True)
        else:
            values = priority if priority.dtype.itemsize >= 4 else priority.astype(np.float32)
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
        slots = slots[numbers["origin"][slots] >= ring.oldest]
        cell = ring.cells(numbers["origin"][slots], numbers["column"][slots])
        slots = slots[ring.flags[cell] & FIRST > 0]
        first = numbers["learn"][slots] - numbers["burnin"][slots]
        slots = slots[first > numbers["origin"][slots]]
        slots = generator.permutation(slots)[:count]
        spans, origin = windows.spans(slots), numbers["origin"][slots]
        longest = int((spans.first - origin).max(initial=0))
        cell = ring.cells(origin, spans.column)
        before = Spans.of(cell, spans.column, origin, origin, spans.first - 1, spans.first)
        return self._read(slots, spans), self.gather(before, longest + 1, 0)

    def random_windows(self, count: int, generator: np.random.Generator) -> Segment:
        """Return at most ``count`` windows, drawn uniformly with ``generator``."""
        candidates = self.windows.num_candidates
        number = generator.integers(max(candidates, 1), size=count if candidates else 0)
        slots, live = self.windows.candidates(number)
        return self.read_slots(slots[live])

    def peek(self, count: int, generator: np.random.Generator, env_steps: int) -> "Peek | None":
        """Return ``count`` windows drawn with the sampler's probabilities, None without any.

        Weights are 1, goals are not relabelled. Changes nothing, in particular not the random
        numbers of ``sample``.
        """
        slots = self.windows.all()
        if not len(slots):
            return None
        priorities = self.sampler.priorities(slots)
        bounds = np.cumsum(np.ones(len(slots)) if priorities is None else priorities[1])
        at = bounds.searchsorted(generator.random(count) * bounds[-1], side="right")
        at = np.minimum(at, len(slots) - 1)  # rounding may exceed the total
        sample = self.get(self.windows.keys(slots[at]), env_steps)
        if priorities is None:
            return Peek(sample, None, None)
        return Peek(sample, priorities[0][at], priorities[0])

    def stored_steps(self) -> int:
        """Number of valid rows in the ring."""
        row = np.arange(self.ring.oldest, self.ring.head)[:, None]
        flags = self.ring.flags[self.ring.cells(row, np.arange(self.ring.columns))]
        return int((flags & VALID > 0).sum())

    def stored(self, rows: int, *, skip: int = 0) -> Iterator[Segment]:
        """Yield the stored rows, oldest first, as collected segments in host memory.

        A segment has at most ``rows`` rows. The oldest ``skip`` rows are left out.
        """
        ring, column = self.ring, np.arange(self.ring.columns)
        gather = Gather(ring, self.layout.row, stack=1)  # single frames
        for start in range(ring.oldest + skip, ring.head, rows):
            stop = min(start + rows, ring.head)
            first, last = np.full_like(column, start), np.full_like(column, stop)
            spans = Spans.of(ring.cells(first, column), column, first, first, last - 1, last)
            segment = gather(spans, stop - start + 1, 0).to(torch.device("cpu"))
            flags = ring.flags_of(np.arange(start, stop + 1)[:, None], column)
            opened, terminated, truncated, valid = (torch.from_numpy(x) for x in flags)
            extras = {name: segment.extras[name] for name in ring.extras}
            yield replace(
                segment, first=opened, terminated=terminated[:-1], truncated=truncated[:-1],
                valid=valid[:-1], extras=extras,
            )  # fmt: skip

    def stored_states(self) -> tuple[np.ndarray, np.ndarray, Tree]:
        """Return (row, column, state) of the recurrent states from which windows start."""
        slots = self.windows.all()
        spans = self.windows.spans(slots)
        states = () if self.windows.of_rows else self.windows.states_of(slots)
        return spans.first, spans.column, states

    # -- metrics, checkpoints ----------------------------------------------------------------------

    def metrics(self, env_steps: int) -> dict[str, float]:
        metrics = {
            "buffer/windows": float(len(self)),
            "buffer/fill": min(1.0, self.ring.head / self.ring.rows),
            "buffer/learned_fraction": self.learned / max(self.steps, 1),
            "buffer/late_priorities": float(self.late),
            "buffer/early_evictions": float(self.windows.early),
            **self.sampler.metrics(env_steps),
        }
        slots, probability = self.sampler.probe(self.windows) if len(self) else (_NONE, None)
        if not len(slots):  # no window is stored, or all priorities are 0
            return metrics
        metrics |= self.loaded.age(self.windows.spans(slots).learn, self.ring, self.steps)
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
        self.loaded.load_state_dict(state.get("loaded"), self.ring, self.steps)
        self.windows.load_state_dict(state["windows"])
        saved.check_invariants(self.windows.check())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a ``state_dict``. Raises: CheckpointError if it has another shape."""
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


class Gather:
    """Copies windows out of a ring, time-major.

    Two sets of output arrays take turns (``Replay.sample``), because page faults of new image
    batches cost more than the copy.
    """

    def __init__(self, ring: Ring, row: Row, *, stack: int) -> None:
        """``stack``: frames per observation."""
        self.ring, self.row, self.stack = ring, row, stack
        self.num_obs = len(tree_leaves(ring.obs))  # stores of observations, the ring's first
        stored = [x for x in ring.stores if isinstance(x, HostRows)]
        self.prefetched = [x.words for x in stored if 0 < x.entry.nbytes <= _SMALL]
        self.sets: list[Outputs] = []  # at most two, the last used at the end

    def tensor(self, array: np.ndarray) -> Tensor:
        """Return the array as a tensor on the samples' device. In host memory they share memory."""
        device = self.ring.device
        return torch.from_numpy(array) if device is None else upload(array, device)

    def __call__(
        self, spans: Spans, positions: int, burnin: int, *, reuse: bool = False
    ) -> Segment:
        """Return the positions from learn - ``burnin`` on. Filler and null rows are invalid.

        ``reuse``: use arrays that later batches of the same size overwrite.
        """
        ring, lines = self.ring, spans.lines
        out = self._outputs(positions, lines.shape[1], reuse)
        if COMPILED and positions > PREFETCHED:
            for words in self.prefetched:
                kernels.prefetch(words, lines[0], positions)
        kernels.read_windows(ring.arrays, lines, burnin, out.cells, out.decoded)
        seen, step, before = out.cells
        shown, fields = seen if self.stack == 1 else self._frames(seen), []
        for i, (store, array) in enumerate(zip(ring.stores, out.fields, strict=True)):
            fields.append(store.take(shown if i < self.num_obs else step, array))
        previous = ring.action.take(before, out.previous)
        if out.segment is not None:  # in host memory
            out.previous[out.decoded[5]] = 0
            return out.segment
        assert ring.device is not None
        decoded = [upload(x, ring.device) for x in out.decoded]
        previous.masked_fill_(decoded[5].view(-1, *[1] * (previous.dim() - 1)), 0)
        return self.segment(decoded, fields, previous)

    def segment(
        self, decoded: Iterable[Tensor], fields: Iterable[Tensor], previous: Tensor
    ) -> Segment:
        """Return the segment of tensors in the order of ``Outputs``."""
        first, terminated, truncated, valid, reward, _, prev_reward = decoded
        rest = iter(fields)
        obs, action = tree_map(lambda _: next(rest), self.row.obs), next(rest)
        extras = dict(zip(self.ring.extras, rest, strict=True))
        extras |= {"prev_action": previous, "prev_reward": prev_reward}
        return Segment(obs, first, action, reward, terminated, truncated, valid, extras)

    def _frames(self, cells: np.ndarray) -> np.ndarray:
        """Return the cells [*cells, stack] of the last frames at ``cells``, oldest first.

        Frames before an episode's first row repeat that row.
        """
        out = np.empty((*cells.shape, self.stack), np.int64)
        for i in range(self.stack - 1, -1, -1):
            out[..., i] = cells
            start = cells % self.ring.rows == 0
            back = np.where(start, cells + self.ring.rows - 1, cells - 1)
            cells = np.where(self.ring.flags[cells] & FIRST > 0, cells, back)
        return out

    def _outputs(self, positions: int, batch: int, reuse: bool) -> "Outputs":
        out = self.sets.pop(0) if reuse and len(self.sets) == 2 else None
        if out is None or out.size != (positions, batch):
            out = Outputs(self, positions, batch)
        if reuse:
            self.sets.append(out)
        return out


class Outputs:
    """Output arrays for a batch of windows of ``positions`` rows."""

    segment: Segment | None = None  # in host memory: tensors that share memory with the arrays

    def __init__(self, gather: Gather, positions: int, batch: int) -> None:
        self.size = seen = positions, batch
        step, stack, ring = (positions - 1, batch), gather.stack, gather.ring
        self.cells = np.empty(seen, np.int64), np.empty(step, np.int64), np.empty(batch, np.int64)
        self.decoded = (  # ``out`` of ``read_windows``
            np.empty(seen, bool), np.empty(step, bool), np.empty(step, bool), np.empty(step, bool),
            np.empty(step, REWARD), np.empty(batch, bool), np.empty(batch, REWARD),
        )  # fmt: skip
        self.fields: list[Any] = [None] * len(ring.stores)  # a device's allocator reuses memory
        self.previous: Any = None
        if ring.device is None:
            shown, action = seen if stack == 1 else (*seen, stack), ring.action.entry
            for i, store in enumerate(ring.stores):
                lead, entry = shown if i < gather.num_obs else step, store.entry
                self.fields[i] = np.empty((*lead, *entry.shape), entry.dtype)
            self.previous = np.empty((batch, *action.shape), action.dtype)
            decoded, fields = (
                [torch.from_numpy(x) for x in arrays] for arrays in (self.decoded, self.fields)
            )
            self.segment = gather.segment(decoded, fields, torch.from_numpy(self.previous))


@dataclass
class LoadedRows:
    """The loaded rows: all before row ``head`` of every column, ``steps`` of them steps."""

    steps: int = 0
    head: int = 0

    def mark(self, ring: Ring, steps: int) -> None:
        """Count all rows of ``ring`` so far as loaded, ``steps`` of them steps."""
        self.steps, self.head = steps, ring.head

    def age(self, row: np.ndarray, ring: Ring, steps: int) -> dict[str, float]:
        """Return buffer/sample_age: mean env steps collected since ``row`` [n].

        A loaded row counts as collected right before the run's first row. ``steps``: stored so far,
        loaded ones included. Empty while no row was collected.
        """
        lines = ring.head - self.head
        if not lines:
            return {}
        steps_per_line = (steps - self.steps) / lines  # of all columns, end rows left out
        ago = (ring.head - np.maximum(row, self.head)).mean()
        return {"buffer/sample_age": float(ago) * steps_per_line}

    def state_dict(self) -> dict[str, int]:
        return asdict(self)

    def load_state_dict(self, state: Any, ring: Ring, steps: int) -> None:
        """Load a ``state_dict``. None, of a version that saved none: no row is loaded.

        Raises: CheckpointError.
        """
        state = LoadedRows().state_dict() if state is None else state
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
