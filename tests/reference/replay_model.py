"""A replay in plain lists, and a world of counter episodes to fill it with.

The model keeps every row ever written and derives from the written rules (docstring of
``WindowTable``) which windows must be stored and what each must contain.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from rlrun.types import Segment, Window, tree_leaves, tree_map

TERMINATED, TRUNCATED, BOTH = range(3)  # how an episode ends
OBSERVATIONS = ("box", "scalar", "dict", "tuple")


class World:
    """Columns of episodes played on demand; an observation spells (column, episode, t).

    Column c plays episodes of lengths[c][i] steps that end as ends[c][i] says, both cycled. Numbers
    of episodes are never used twice, also not after ``restore``. What nobody may use is poison: the
    reward, action, extra and state of an end row.
    """

    def __init__(
        self, lengths: list[list[int]], ends: list[list[int]], *, obs: str = "box", states: bool
    ) -> None:
        self.lengths, self.ends, self.obs, self.states = lengths, ends, obs, states
        columns = len(lengths)
        self.number, self.t, self.cut = [0] * columns, [0] * columns, False
        self.played = [1] * columns  # the next episode's number

    def save(self) -> tuple[list[int], list[int]]:
        return list(self.number), list(self.t)

    def restore(self, saved: tuple[list[int], list[int]]) -> None:
        """As ``Collector.load_state_dict``: the next row of every column is the end row of the
        episode that was open, the row after it opens another."""
        self.number, self.t, self.cut = list(saved[0]), list(saved[1]), True

    def chunk(self, steps: int) -> Segment:
        """The next ``steps`` rows of every column."""
        columns = len(self.lengths)
        spell = np.zeros((steps + 1, columns, 3), np.int64)
        first = np.zeros((steps + 1, columns), bool)
        valid, terminated, truncated = np.zeros((3, steps, columns), bool)
        for c in range(columns):
            for row in range(steps + 1):
                number, t = self.number[c], self.t[c]
                length = self.lengths[c][number % len(self.lengths[c])]
                spell[row, c] = c, number, t
                first[row, c] = t == 0
                if row == steps:
                    break
                if t == length or (self.cut and row == 0):
                    self.number[c], self.t[c] = self.played[c], 0
                    self.played[c] += 1
                    continue
                valid[row, c] = True
                if t == length - 1:
                    ends = self.ends[c % len(self.ends)]
                    end = ends[number % len(ends)]
                    terminated[row, c] = end in (TERMINATED, BOTH)
                    truncated[row, c] = end in (TRUNCATED, BOTH)
                self.t[c] += 1
        self.cut = False
        return self._segment(spell, first, valid, terminated, truncated)

    def _segment(
        self, spell: np.ndarray, first: np.ndarray, valid: np.ndarray, *ends: np.ndarray
    ) -> Segment:
        c, number, t = (spell[:-1, :, i] for i in range(3))
        reward = np.where(valid, 100.0 * c + 10.0 * number + t + 1, np.nan).astype(np.float32)
        action = np.where(valid, 1 + (c + 2 * number + 3 * t) % 5, -7)
        extra = np.where(valid, number + t / 64, np.nan).astype(np.float32)
        state = np.where(valid, 1000.0 * number + t, np.nan).astype(np.float32)
        tensor = torch.from_numpy
        states: Any = ()
        if self.states:
            states = (tensor(np.stack([state, c.astype(np.float32)], -1)), tensor(state))
        return Segment(
            obs=tree_map(tensor, observation(self.obs, spell)),
            first=tensor(first),
            action=tensor(action),
            reward=tensor(reward),
            terminated=tensor(ends[0]),
            truncated=tensor(ends[1]),
            valid=tensor(valid),
            extras={"log_prob": tensor(extra)},
            states=states,
        )


def observation(kind: str, spell: np.ndarray) -> Any:
    """Observations of rows that spell (column, episode, t), int64 [..., 3]; of 1 to 12 bytes."""
    if kind == "box":
        return spell.astype(np.float32)
    if kind == "scalar":
        return (spell @ np.array([1000, 50, 1])).astype(np.int16)
    small = (spell @ np.array([101, 31, 1])).astype(np.uint8)
    if kind == "dict":
        return {"b": small[..., None, None] + np.arange(3, dtype=np.uint8), "a": spell}
    return (spell[..., 1:].astype(np.float32), {"c": small})


def spoil(chunk: Segment) -> None:
    """Overwrite the arrays, as a collector does after a chunk."""
    extras, states = list(chunk.extras.values()), tree_leaves(chunk.states)
    for x in (*tree_leaves(chunk.obs), chunk.action, chunk.reward, *extras, *states):
        x.fill_(77)
    for x in (chunk.first, chunk.terminated, chunk.truncated, chunk.valid):
        x.logical_not_()


class Place(NamedTuple):
    """Where a window lies; absolute rows."""

    column: int
    first: int  # first own row
    learn: int  # first learned row
    stop: int  # last row that is a step
    last: int  # last row whose observation may be shown


class Tiling(NamedTuple):
    """How windows are cut: ``overlap`` of learned spans (lossless) or of whole windows (plain)."""

    plain: bool = False
    overlap: int = 0
    residual: str | None = None


LOSSLESS = Tiling()


def plain_starts(length: int, rows: int, overlap: int, residual: str) -> list[int]:
    """First positions of the windows of a trajectory, as DI-engine's ``get_train_sample``."""
    if length < rows:
        return [0] if length else []
    starts = [s for s in range(0, length, rows - overlap) if s + rows <= length]
    if starts[-1] + rows < length and residual != "drop":
        starts.append(length - rows if residual == "last" else starts[-1] + rows - overlap)
    return starts


class Model:
    """The contents of a ``Replay``."""

    def __init__(
        self,
        window: Window,
        *,
        rows: int,
        columns: int,
        table: int | None,
        stack: int = 1,
        tiling: Tiling = LOSSLESS,
    ) -> None:
        """``rows`` a column and one more slot than that can be whole; ``table``: its capacity."""
        self.window, self.size, self.table = window, rows, table
        self.stack, self.tiling = stack, tiling
        self.reach = max(1, stack - 1)
        self.rows: list[list[dict[str, Any]]] = [[] for _ in range(columns)]
        self.behind: list[dict[str, Any]] = [{} for _ in range(columns)]
        self.open = [0] * columns  # where the trajectory begins that was last seen open
        self.made: list[Place] = []  # those alive, in the order they were complete
        self.order: dict[Place, int] = {}  # of every window that ever was
        self.learned: set[tuple[int, int]] = set()
        self.early = 0  # windows dropped for want of room in the table
        self.priority: dict[Place, float] = {}
        self.largest = 1.0
        self.late = 0

    @property
    def head(self) -> int:
        return len(self.rows[0])

    @property
    def oldest(self) -> int:
        """The observation behind the newest row takes a slot too."""
        return max(0, self.head + 1 - self.size)

    @property
    def steps(self) -> int:
        return sum(row["valid"] for column in self.rows for row in column)

    # -- adding ----------------------------------------------------------------------------------

    def add(self, chunk: Segment) -> list[Place]:
        """The new windows that are alive; a chunk longer than the ring is written in pieces."""
        steps, most = len(chunk.reward), self.size - self.window.rows - self.reach
        leaves, states = lists(chunk.obs), lists(chunk.states)
        named = {name: getattr(chunk, name) for name in FIELDS} | chunk.extras
        fields = dict(zip(named, lists(named), strict=True))
        new: list[Place] = []
        for start in range(0, steps, most):
            stop = min(start + most, steps)
            for c, rows in enumerate(self.rows):
                for t in range(start, stop):
                    row = {name: x[t][c] for name, x in fields.items()}
                    row["obs"] = [x[t][c] for x in leaves]
                    row["state"] = [x[t][c] for x in states]
                    rows.append(row)
                self.behind[c] = {"obs": [x[stop][c] for x in leaves], "first": False}
            new += self._cut()
        alive = set(self.made)
        return [place for place in new if place in alive]

    def _cut(self) -> list[Place]:
        """The windows complete by now that were not before; those without room or rows go."""
        fresh: list[tuple[int, int, int, Place]] = []
        for c in range(len(self.rows)):
            for begin, steps, closed in self._trajectories(c):
                fresh += self._windows(c, begin, steps, closed)
        young = self._young()
        whole = (x for x in fresh if x[-1] not in self.order and x[-1].first >= young)
        new = [place for *_, place in sorted(whole)]
        self._drop([place for place in self.made if place.first < young])
        self.made += new
        for place in new:
            self.order[place] = len(self.order)
            self.priority[place] = self.largest
            until = min(place.learn + self.window.learned - 1, place.stop)
            self.learned |= {(place.column, row) for row in range(place.learn, until + 1)}
        if self.table is not None:
            room = len(self.order) - self.table
            out = [place for place in self.made if self.order[place] < room]
            self.early += len(out)
            self._drop(out)
        return new

    def _trajectories(self, c: int) -> Iterator[tuple[int, int, bool]]:
        """(first row, steps, whether it is closed), from the one that was last seen open."""
        rows, row = self.rows[c], self.open[c]
        while row < len(rows):
            if not rows[row]["valid"]:
                row += 1
                continue
            begin = row
            while rows[row]["valid"] and row + 1 < len(rows):
                row += 1
            closed = not rows[row]["valid"]
            stop = row if closed else row + 1
            self.open[c] = stop if closed else begin
            yield begin, stop - begin, closed
            row = stop + (not closed)

    def _windows(
        self, c: int, begin: int, steps: int, closed: bool
    ) -> Iterator[tuple[int, int, int, Place]]:
        """(row that completes it, column, start, window) of a trajectory of ``steps`` so far."""
        w, (plain, overlap, residual) = self.window, self.tiling
        rows = w.rows
        stride = (rows if plain else w.learned) - overlap
        ahead = rows if plain else w.learned + w.nstep  # steps from the start to its completion
        if not closed:
            starts = list(range(0, steps - ahead + 1, stride))
        elif plain:
            starts = plain_starts(steps, rows, overlap, residual or "")
        else:
            useful = range(0, steps, stride)
            starts = [s for s in useful if s == 0 or s - stride + w.learned < steps]
        for start in starts:
            release = min(begin + start + ahead - 1, begin + steps)
            learn = begin + start + (w.burnin if plain else 0)
            first = begin + start - (0 if plain else min(w.burnin, start))
            grid = not plain or (start % stride == 0 and start + rows <= steps)
            release = release if grid else begin + steps
            last = min(learn - w.burnin + rows - 1, begin + steps)
            yield release, c, start, Place(c, first, learn, min(last, begin + steps - 1), last)

    # -- dying -----------------------------------------------------------------------------------

    def _young(self) -> int:
        """The first row of a window is at least this one: the rows before it must be whole."""
        return self.oldest + self.reach if self.oldest else 0

    def _drop(self, places: list[Place]) -> None:
        gone = set(places)
        self.made = [place for place in self.made if place not in gone]
        for place in gone:
            del self.priority[place]

    # -- reading ---------------------------------------------------------------------------------

    def row(self, column: int, row: int) -> dict[str, Any]:
        rows = self.rows[column]
        return rows[row] if row < len(rows) else self.behind[column]

    def shown(self, column: int, row: int) -> list[Any]:
        """The leaves of what is observed in ``row``: one frame, or the last k of its episode."""
        if self.stack == 1:
            return list(self.row(column, row)["obs"])
        frames = [row]
        while len(frames) < self.stack:
            opens = self.row(column, frames[0])["first"]
            frames.insert(0, frames[0] - (not opens))
        leaves = [self.row(column, r)["obs"] for r in frames]
        return [list(x) for x in zip(*leaves, strict=True)]

    def expect(self, place: Place) -> dict[str, list[Any]]:
        """The row of every position of a window; filler repeats its first row, null rows its last.

        ``extras`` count at valid positions only.
        """
        c, first, learn, stop, last = place
        begin, size = learn - self.window.burnin, self.window.rows
        positions = range(begin, begin + size)
        rows = [self.row(c, min(max(at, first), stop)) for at in positions]
        own = [first <= at <= stop for at in positions]
        steps = list(zip(rows, own, strict=True))[:-1]
        opens = rows[0]["first"]
        before = {"action": 0, "reward": 0.0} if opens else self.row(c, first - 1)
        shown = {at: self.shown(c, at) for at in range(first, last + 1)}
        return {
            "obs": [shown[min(max(at, first), last)] for at in positions],
            "first": [o and row["first"] for row, o in zip(rows, own, strict=True)],
            "action": [row["action"] for row, _ in steps],
            "reward": [row["reward"] if o else 0.0 for row, o in steps],
            "terminated": [o and row["terminated"] for row, o in steps],
            "truncated": [row["truncated"] or not o for row, o in steps],
            "valid": own[:-1],
            "log_prob": [row["log_prob"] if o else None for row, o in steps],
            "prev": [before["action"], before["reward"]],
            "state": self.row(c, first)["state"],
        }


FIELDS = ("first", "action", "reward", "terminated", "truncated", "valid")


def lists(tree: Any) -> list[Any]:
    """The leaves of a tree of tensors as nested lists."""
    return [x.numpy().tolist() for x in tree_leaves(tree)]


def shows(segment: Segment) -> list[dict[str, list[Any]]]:
    """The rows of every window of a sampled segment, in the form of ``Model.expect``."""
    leaves, states = lists(segment.obs), lists(segment.state)
    named = {name: getattr(segment, name) for name in FIELDS} | segment.extras
    fields = dict(zip(named, lists(named), strict=True))
    windows = []
    for i in range(segment.reward.shape[1]):
        out = {name: [row[i] for row in fields[name]] for name in FIELDS}
        out["obs"] = [[x[p][i] for x in leaves] for p in range(len(leaves[0]))]
        noted = zip(fields["log_prob"], out["valid"], strict=True)
        out["log_prob"] = [row[i] if valid else None for row, valid in noted]
        out["prev"] = [fields["prev_action"][i], fields["prev_reward"][i]]
        out["state"] = [x[i] for x in states]
        windows.append(out)
    return windows
