"""rlrun's side of the replay benchmark: filled replays, batches to add, bare gathers."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np

from tests.benchmarks.product import Chunk, Replay, Sample, Window
from tests.buffer.factory import constant, make_replay

COLUMNS = 16  # environments side by side
EPISODE = 200  # steps; the row behind them is the end row
STEPS = 16  # of a batch that is added: 16 x 16 = 256 rows
PERIOD = EPISODE + 1
NOISE = 61  # different random observations
COLD = 1 << 16  # windows whose places are known in advance, at most
FLAGS = ("first", "terminated", "truncated", "valid")
PIECE = 1 << 20  # bytes of observations made at a time while filling


@dataclass(frozen=True)
class Kind:
    """The stored rows and the window they are read by."""

    shape: tuple[int, ...]
    dtype: Any
    window: Window


TRANSITION = Window(burnin=0, learned=1, nstep=1)  # obs and next obs
KINDS = {
    "vectors": Kind((4,), np.float32, TRANSITION),
    "images": Kind((84, 84), np.uint8, TRANSITION),
    "sequences": Kind((4,), np.float32, Window(burnin=20, learned=20, nstep=5)),  # 45 rows
    "scalars": Kind((1,), np.float32, TRANSITION),
}


class Stream:
    """Endless rows of COLUMNS environments, out of step with one another.

    Observations say which row of which column they are of (``locate``), but for scalars.
    """

    def __init__(self, kind: Kind, seed: int = 0) -> None:
        g = np.random.default_rng(seed)
        self.kind = kind
        self.phase = (13 * np.arange(COLUMNS)) % PERIOD
        size = (NOISE, *kind.shape)
        floats = g.standard_normal(size, np.float32)
        self.noise = floats if kind.dtype is np.float32 else g.integers(256, size=size, dtype="u1")
        self.reward = g.random(NOISE, np.float32)

    def chunk(self, start: int, steps: int) -> Chunk:
        """Rows start..start+steps-1 of every column, as a collector hands them on."""
        row = np.arange(start, start + steps + 1)[:, None]
        clock = row + self.phase
        t, episode = clock % PERIOD, clock // PERIOD
        first = (t == 0) | (row == 0)
        step, even = t[:steps], episode[:steps] % 2 == 0
        last = step == EPISODE - 1
        return Chunk(
            obs=self._obs(row, clock),
            first=first,
            action=clock[:steps] % 2,
            reward=self.reward[clock[:steps] % NOISE],
            terminated=last & even,
            truncated=last & ~even,
            valid=step != EPISODE,
        )

    def _obs(self, row: np.ndarray, clock: np.ndarray) -> np.ndarray:
        obs: np.ndarray = self.noise[clock % NOISE]
        column = np.broadcast_to(np.arange(COLUMNS), clock.shape)
        if self.kind.dtype is np.uint8:
            obs[:, :, 0, :8] = (row * COLUMNS + column)[..., None].view(np.uint8)
        elif self.kind.shape != (1,):
            obs[..., 0], obs[..., 1] = row, column
        return obs

    def locate(self, obs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(row, column) int64 of observations [..., *shape]."""
        if self.kind.dtype is np.uint8:
            number = np.ascontiguousarray(obs[..., 0, :8]).view(np.int64)[..., 0]
            return number // COLUMNS, number % COLUMNS
        return obs[..., 0].astype(np.int64), obs[..., 1].astype(np.int64)

    def pieces(self, rows: int) -> Iterator[tuple[int, Chunk]]:
        """(start, chunk) over the first ``rows`` rows of every column."""
        row_bytes = COLUMNS * int(np.prod(self.kind.shape)) * np.dtype(self.kind.dtype).itemsize
        most = min(max(PIECE // row_bytes, 1), 1024)
        for start in range(0, rows, most):
            yield start, self.chunk(start, min(most, rows - start))


@dataclass(frozen=True)
class Filled:
    """A full replay of ``rows`` rows in all, random priorities written."""

    replay: Replay
    stream: Stream
    rows: int

    def sample(self, batch: int) -> Sample:
        return self.replay.sample(batch, 0)

    def update(self, batch: int, priority: np.ndarray) -> None:
        """Sample, then new priorities for what was drawn."""
        drawn = self.replay.sample(batch, 0)
        self.replay.prioritize(drawn.key, priority)

    def batches(self) -> Iterator[Chunk]:
        """Batches of 256 rows that follow the stored ones, prepared, for ever."""
        start = self.rows // COLUMNS
        return cycle([self.stream.chunk(start + i * STEPS, STEPS) for i in range(PERIOD)])


def filled(name: str, rows: int, *, sampler: str = "prioritized", seed: int = 0) -> Filled:
    """A replay of the named kind whose ring is full."""
    kind = KINDS[name]
    stream, per_column = Stream(kind, seed), rows // COLUMNS
    learned, g = kind.window.learned, np.random.default_rng(seed)
    changes: dict[str, Any] = {}
    if sampler != "uniform":
        changes = {"alpha": constant(0.6), "beta": constant(0.4)}
    capacity = rows // learned + rows // EPISODE + 4 * COLUMNS  # of the window table
    if kind.window == TRANSITION:
        capacity = None  # every row is a window of its own
    replay = make_replay(
        stream.chunk(0, 1), rows=per_column + 1, window=kind.window, kind=sampler,
        capacity=capacity, **changes,
    )  # fmt: skip
    for _, chunk in stream.pieces(per_column):
        keys = replay.add(chunk)
        replay.prioritize(keys, g.random(len(keys), np.float32) + 1e-3)
    return Filled(replay, stream, rows)


class Bare:
    """Bare gathers of what samples hold: numpy's ``take`` into reused output, time-major.

    The rows of a column lie one behind the other and where the rows of a batch are was worked out
    before: what a replay cannot go below. All flags of a row are one byte, or ``apart``: four bytes
    as in a ``Segment`` (first, terminated, truncated, valid).
    """

    def __init__(self, source: Filled, batch: int, *, apart: bool = False) -> None:
        """Gathers for the rows of so many samples of ``batch`` windows that caches stay cold."""
        kind, self.stream = source.stream.kind, source.stream
        self.per_column = source.rows // COLUMNS + 1
        self.store = {"obs": np.empty((COLUMNS, self.per_column, *kind.shape), kind.dtype)}
        flags = dict.fromkeys(FLAGS if apart else ["flags"], np.uint8)
        for field, dtype in {"action": np.int64, "reward": np.float32, **flags}.items():
            self.store[field] = np.empty((COLUMNS, self.per_column), dtype)
        for start, chunk in self.stream.pieces(source.rows // COLUMNS):
            self._keep(start, chunk)
        self.store = {n: x.reshape(-1, *x.shape[2:]) for n, x in self.store.items()}
        places = []
        for _ in range(max(1, min(COLD, 4 * source.rows) // batch)):
            sample = source.sample(batch)
            places.append(self.place(sample))
        self.places = cycle(places)
        self.out = {n: self._output(n, *places[0]) for n in self.store}

    def _keep(self, start: int, chunk: Chunk) -> None:
        steps = len(chunk.reward)
        fields = {"obs": chunk.obs, "action": chunk.action, "reward": chunk.reward}
        flags = {n: getattr(chunk, n)[:steps] for n in FLAGS}
        packed = sum(x.astype(np.uint8) << i for i, x in enumerate(flags.values()))
        fields |= {"flags": packed} if "flags" in self.store else flags
        for name, x in fields.items():
            for column in range(COLUMNS):
                self.store[name][column, start : start + len(x)] = x[:, column]

    def _output(self, name: str, seen: np.ndarray, step: np.ndarray) -> np.ndarray:
        store = self.store[name]
        lead = seen.shape if name == "obs" else step.shape
        return np.empty((*lead, *store.shape[1:]), store.dtype)

    def place(self, sample: Sample) -> tuple[np.ndarray, np.ndarray]:
        """Flat indices of the observations [S, B] and of the steps [S-1, B] of a sample."""
        row, column = self.stream.locate(sample.segment.obs.numpy())
        seen = column * self.per_column + row
        return seen, seen[:-1]

    def gather(self) -> dict[str, np.ndarray]:
        """The next batch; overwritten by the one after it."""
        seen, step = next(self.places)
        return self.take(seen, step)

    def take(self, seen: np.ndarray, step: np.ndarray) -> dict[str, np.ndarray]:
        """The rows at flat indices."""
        for name, store in self.store.items():
            store.take(seen if name == "obs" else step, 0, self.out[name], "clip")
        return self.out
