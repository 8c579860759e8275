"""Replay: a ring of rows, a table of windows cut from it, and a sampler over the table."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from rlrun.buffer.ring import Ring
from rlrun.buffer.sampler import Sampler
from rlrun.buffer.slicing import Cutter, Windows
from rlrun.types import Sample, Segment, Tree, Window, tree_leaves, tree_map

_COLUMNS = ("column", "learn", "burnin", "last", "ended", "release", "origin")


SCAN = 1024  # windows looked at together when old ones are buried


class Replay:
    """Stores every row once and gathers windows of S rows from it.

    Window number ``key`` (counted since the run began, never reused) lies in slot key % capacity
    of the table. It dies when the ring overwrites the row before its first one, which its first
    input (previous action and reward) comes from. Windows of unfinished stretches straddling the
    write head can therefore not exist.
    """

    def __init__(
        self,
        example: Segment,
        *,
        rows: int,
        window: Window,
        cutter: Cutter,
        close: bool,
        sampler: Sampler,
        capacity: int,
    ) -> None:
        """``example``: a collected segment that shows shapes; ``rows`` per column; ``capacity``
        windows; ``close``: the end of a chunk ends its trajectories (collector.trajectory)."""
        assert rows >= window.rows + 2, "S rows, the one before them, the observation behind them"
        self.ring = Ring(example, rows=rows)
        self.window, self.cutter, self.close, self.sampler = window, cutter, close, sampler
        self.capacity = capacity
        self.table: dict[str, np.ndarray] = {n: np.zeros(capacity, np.int64) for n in _COLUMNS}
        self.alive = np.zeros(capacity, bool)
        self.learned = np.zeros((rows, self.ring.columns), bool)  # rows some window learns
        self.states: Tree = tree_map(lambda x: self._state_store(x.numpy()), example.states)
        self.recent: Tree = None  # states before the last S rows: starts of windows yet to be cut
        self.head = self.tail = 0  # keys: next to be given, oldest that may be alive
        self.counts = {"rows": 0, "learned": 0, "early": 0, "late": 0}

    def _state_store(self, like: np.ndarray) -> np.ndarray:
        return np.zeros((self.capacity, *like.shape[2:]), like.dtype)

    def __len__(self) -> int:
        """Windows that can be sampled."""
        return int(self.alive.sum()) if self.head - self.tail > 0 else 0

    @property
    def nbytes(self) -> int:
        """Bytes of rows, window table and states."""
        arrays = (*self.table.values(), self.alive, self.learned, *tree_leaves(self.states))
        return self.ring.nbytes + sum(int(a.nbytes) for a in arrays)

    # -- writing ---------------------------------------------------------------------------------

    def add(self, chunk: Segment) -> np.ndarray:
        """Store a collected segment; the keys of the windows it completed."""
        steps, most = len(chunk.reward), self.ring.rows - self.window.rows - 1
        keys = []
        for start in range(0, steps, most):
            piece = chunk if steps <= most else _rows(chunk, start, min(start + most, steps))
            keys.append(self._add(piece, close=self.close and start + most >= steps))
        given = np.concatenate(keys)
        slots = given % self.capacity  # of a chunk longer than the ring only the end is left
        alive: np.ndarray = given[self.alive[slots] & (self._keys(slots) == given)]
        return alive

    def _add(self, chunk: Segment, *, close: bool) -> np.ndarray:
        row = self.ring.head
        steps = len(chunk.reward)
        valid = chunk.valid.numpy()
        slots = np.arange(row, row + steps) % self.ring.rows
        self.learned[slots] = False
        self._bury(oldest=max(0, row + steps + 1 - self.ring.rows))
        self.ring.write(chunk)
        windows = self.cutter.cut(chunk.first.numpy()[:steps], valid, close=close)
        self.counts["rows"] += int(valid.sum())
        states = self._with_recent(chunk.states, steps)
        return self._store(windows, states, row + steps)

    def _with_recent(self, states: Tree, steps: int) -> Tree:
        """States before the rows of this chunk and of up to S rows before it."""
        if self.recent is None:
            joined = tree_map(lambda x: x.numpy()[:steps], states)
        else:
            joined = tree_map(
                lambda old, new: np.concatenate([old, new.numpy()[:steps]]), self.recent, states
            )
        self.recent = tree_map(lambda x: x[-self.window.rows :].copy(), joined)
        return joined

    def _store(self, windows: Windows, states: Tree, end: int) -> np.ndarray:
        alive = windows.learn - windows.burnin - 1 >= self.ring.oldest - (self.ring.oldest == 0)
        windows = Windows(**{n: getattr(windows, n)[alive] for n in _COLUMNS})
        keys = np.arange(self.head, self.head + len(windows))
        keys = keys[max(0, len(keys) - self.capacity) :]
        skip = len(windows) - len(keys)
        self.counts["early"] += skip
        self._evict(self.head + len(windows) - self.capacity)
        slots = keys % self.capacity
        for name, column in self.table.items():
            column[slots] = getattr(windows, name)[skip:]
        self.alive[slots] = True
        self.head += len(windows)
        self._keep_states(windows, states, slots, skip, end)
        self._mark(windows)
        self.sampler.insert(slots)
        return keys

    def _keep_states(
        self, windows: Windows, states: Tree, slots: np.ndarray, skip: int, end: int
    ) -> None:
        if not tree_leaves(states) or not len(slots):
            return
        first = (windows.learn - windows.burnin)[skip:]
        column = windows.column[skip:]
        begin = end - len(tree_leaves(states)[0])  # the row of states[0]

        def put(store: np.ndarray, source: np.ndarray) -> None:
            store[slots] = source[first - begin, column]

        tree_map(put, self.states, states)

    def _mark(self, windows: Windows) -> None:
        """Note which rows are learned by some window, for buffer/learned_fraction."""
        row = windows.learn[:, None] + np.arange(self.window.learned)
        known = row <= (windows.last - windows.ended)[:, None]
        column = np.broadcast_to(windows.column[:, None], row.shape)[known]
        slot = row[known] % self.ring.rows
        fresh = np.unique(slot * self.ring.columns + column)
        flat = self.learned.reshape(-1)
        self.counts["learned"] += int((~flat[fresh]).sum())
        flat[fresh] = True

    def _bury(self, oldest: int) -> None:
        """Kill the windows that need a row older than ``oldest``."""
        if oldest == 0:
            return
        table, scan = self.table, self.tail
        while scan < self.head:
            slots = np.arange(scan, min(self.head, scan + SCAN)) % self.capacity
            needs = table["learn"][slots] - table["burnin"][slots] - 1
            self._kill(slots[self.alive[slots] & (needs < oldest)])
            # A window is complete at most S rows behind its first: later ones are young enough.
            if table["release"][slots[-1]] > oldest + self.window.rows:
                break
            scan += len(slots)
        while self.tail < self.head and not self.alive[self.tail % self.capacity]:
            self.tail += 1

    def _evict(self, until: int) -> None:
        """Kill windows with keys below ``until``: the table is full of younger ones."""
        if until <= self.tail:
            return
        slots = np.arange(self.tail, min(until, self.head)) % self.capacity
        live = slots[self.alive[slots]]
        self.counts["early"] += len(live)
        self._kill(live)
        self.tail = until  # keys up to it are never given where one add overfills the table

    def _kill(self, slots: np.ndarray) -> None:
        if len(slots):
            self.alive[slots] = False
            self.sampler.remove(slots)

    # -- reading ---------------------------------------------------------------------------------

    def sample(self, batch: int, env_steps: int) -> Sample:
        """``batch`` windows drawn by the sampler, with importance weights."""
        slots, weight = self.sampler.draw(batch, env_steps)
        segment = self._gather(slots)
        return Sample(segment, torch.from_numpy(weight), self._keys(slots), env_steps)

    def get(self, key: np.ndarray, env_steps: int) -> Sample:
        """The named windows (which must be alive), weight 1."""
        slots = key % self.capacity
        assert self.alive[slots].all()
        return Sample(self._gather(slots), torch.ones(len(key)), key, env_steps)

    def prioritize(self, key: np.ndarray, priority: np.ndarray) -> None:
        """Set |delta| priorities; those of windows overwritten since are counted, not used."""
        slots = key % self.capacity
        current = self.alive[slots] & (self._keys(slots) == key)
        self.counts["late"] += int((~current).sum())
        self.sampler.update(slots[current], priority[current])

    def _keys(self, slots: np.ndarray) -> np.ndarray:
        """The keys that lie in ``slots`` now."""
        newest = self.head - 1
        keys: np.ndarray = newest - (newest - slots) % self.capacity
        return keys

    def _gather(self, slots: np.ndarray) -> Segment:
        t = {n: c[slots] for n, c in self.table.items()}
        burnin, bs = t["burnin"], self.window.burnin
        partial: tuple[int, ...] = ()
        if bs > self.cutter.stride:  # otherwise windows have all of their burn-in or none
            partial = tuple(np.unique(burnin[(burnin > 0) & (burnin < bs)]).tolist())
        row = t["learn"] - bs + np.arange(self.window.rows)[:, None]
        span = (t["learn"] - burnin, t["last"] - t["ended"], t["last"])
        state = tree_map(lambda store: torch.from_numpy(store[slots]), self.states)
        return replace(self._segment(row, t["column"], *span), state=state, partial=partial)

    def _segment(
        self,
        row: np.ndarray,
        column: np.ndarray,
        first: np.ndarray,
        stop: np.ndarray,
        last: np.ndarray,
    ) -> Segment:
        """Rows ``row`` [S, B] of ``column`` [B]: steps first..stop, observations first..last."""
        ring = self.ring
        seen = ring.slots(np.clip(row, first, last), column)
        step = ring.slots(np.clip(row[:-1], first, stop), column)
        valid = (row[:-1] >= first) & (row[:-1] <= stop)
        before = ring.slots(np.maximum(first - 1, 0), column)
        opens = ring.take(ring.fields["first"], ring.slots(first, column))

        def field(name: str) -> np.ndarray:
            return ring.take(ring.fields[name], step)

        def previous(name: str) -> torch.Tensor:
            value = ring.take(ring.fields[name], before)
            value[opens] = 0
            return torch.from_numpy(value)

        extras = {n[7:]: torch.from_numpy(field(n)) for n in ring.fields if "/" in n}
        extras |= {"prev_action": previous("action"), "prev_reward": previous("reward")}
        return Segment(
            obs=tree_map(lambda store: torch.from_numpy(ring.take(store, seen)), ring.obs),
            first=torch.from_numpy((row == first) & opens),
            action=torch.from_numpy(field("action")),
            reward=torch.from_numpy(np.where(valid, field("reward"), np.float32(0))),
            terminated=torch.from_numpy(field("terminated") & valid),
            truncated=torch.from_numpy(field("truncated") | ~valid),
            valid=torch.from_numpy(valid),
            extras=extras,
        )

    def histories(self, count: int, generator: np.random.Generator) -> tuple[Segment, Segment]:
        """(windows, the rows of their trajectories before them) of at most ``count`` windows.

        Drawn uniformly among those that are not their trajectory's first and whose trajectory is
        still stored from its start; left-aligned, possibly empty.
        """
        slots = np.flatnonzero(self.alive)
        slots = slots[(self.table["origin"] >= self.ring.oldest)[slots]]
        t = {n: c[slots] for n, c in self.table.items()}
        origin = self.ring.slots(t["origin"], t["column"])
        opens = self.ring.take(self.ring.fields["first"], origin)  # not so after a collect's cut
        slots = slots[opens & (t["learn"] - t["burnin"] > t["origin"])]
        slots = generator.permutation(slots)[:count]
        t = {n: c[slots] for n, c in self.table.items()}
        first = t["learn"] - t["burnin"]
        longest = int((first - t["origin"]).max(initial=0))
        row = t["origin"] + np.arange(longest + 1)[:, None]
        history = self._segment(row, t["column"], t["origin"], first - 1, first)
        return self._gather(slots), history

    # -- accounts --------------------------------------------------------------------------------

    def metrics(self, env_steps: int) -> dict[str, float]:
        """buffer/ metrics."""
        counts = self.counts
        return {
            "buffer/windows": float(len(self)),
            "buffer/fill": min(1.0, self.ring.head / self.ring.rows),
            "buffer/learned_fraction": counts["learned"] / max(counts["rows"], 1),
            "buffer/late_priorities": float(counts["late"]),
            "buffer/early_evictions": float(counts["early"]),
            **self.sampler.metrics(env_steps),
        }

    def check(self) -> None:
        """Raises AssertionError naming the broken invariant in words."""
        slots = np.flatnonzero(self.alive)
        keys = self._keys(slots)
        needs = (self.table["learn"] - self.table["burnin"] - 1)[slots]
        assert (keys >= self.tail).all(), "a live window is older than the tail"
        assert (keys < self.head).all(), "a live window has a key not yet given"
        oldest = self.ring.oldest
        assert (needs >= oldest).all() or oldest == 0, "a window needs an overwritten row"
        assert (self.table["last"][slots] <= self.ring.head).all(), "a window reads ahead"
        assert self.cutter.row == self.ring.head, "cutter and ring count different rows"
        problem = self.sampler.check(slots)
        assert problem is None, problem

    def state_dict(self) -> dict[str, Any]:
        """Everything but slots that were never written."""
        rows, windows = min(self.ring.head + 1, self.ring.rows), min(self.head, self.capacity)
        tables = (self.table, self.alive, self.states)
        table, alive, states = tree_map(lambda store: store[:windows], tables)
        return {
            "table": table,
            "alive": alive,
            "states": states,
            "learned": self.learned[:rows],
            "recent": self.recent,
            "head": self.head,
            "tail": self.tail,
            "counts": dict(self.counts),
            "ring": self.ring.state_dict(),
            "cutter": self.cutter.state_dict(),
            "sampler": self.sampler.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in ("table", "alive", "states", "learned"):
            tree_map(lambda own, x: np.copyto(own[: len(x)], x), getattr(self, name), state[name])
        self.recent = tree_map(np.array, state["recent"]) if state["recent"] is not None else None
        self.head, self.tail = int(state["head"]), int(state["tail"])
        self.counts = {name: int(value) for name, value in state["counts"].items()}
        for name in ("ring", "cutter", "sampler"):
            getattr(self, name).load_state_dict(state[name])


def _rows(chunk: Segment, start: int, stop: int) -> Segment:
    """Rows [start, stop) of a collected segment."""

    def part(x: Any) -> Any:
        return x[start:stop]

    return replace(
        chunk,
        obs=tree_map(lambda x: x[start : stop + 1], chunk.obs),
        first=chunk.first[start : stop + 1],
        states=tree_map(part, chunk.states),
        extras={name: part(x) for name, x in chunk.extras.items()},
        **{
            n: part(getattr(chunk, n))
            for n in ("action", "reward", "terminated", "truncated", "valid")
        },
    )
