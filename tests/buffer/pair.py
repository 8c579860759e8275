"""A replay and its plain-list model, side by side; setups for both, drawn or random."""

import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from rlrun.buffer.replay import Replay, host_replay
from rlrun.buffer.storage.layout import ArraySpec, in_memory
from rlrun.buffer.windows.cutter import Cutter
from rlrun.rundir.segments import Rows
from rlrun.types import Sample, Window, tree_map
from tests.buffer.factory import make_layout, make_sampler
from tests.reference.replay_model import (
    LOSSLESS,
    OBSERVATIONS,
    Model,
    Place,
    Tiling,
    World,
    shows,
    spoil,
)

KINDS = ("uniform", "prioritized", "rank")
RESIDUALS = ("last", "null_padding", "drop")
EPS = 1e-6  # buffer.priority_eps


def poison(dtype: np.dtype[Any]) -> Any:
    """Values that cannot be mistaken for written ones."""
    return {"f": np.nan, "i": -1, "u": 0xAB, "b": True}[dtype.kind]


def poisoned(name: str, block: ArraySpec) -> np.ndarray:
    """Arrays full of poison; flags and ``alive`` say of every slot that nothing is there."""
    array = in_memory(name, block)
    if name not in ("flags", "alive"):
        array.fill(poison(block.dtype))
    return array


ROW = Window(0, 1, 1)


@dataclass(frozen=True)
class Setup:
    """A replay and what is written to it."""

    window: Window = ROW
    slack: int = 10  # rows a column beyond the least
    table: int | None = None  # slots of the window table; None: ``SingleRowWindows``
    kind: str = "uniform"
    close: bool = False
    stack: int = 1
    tiling: Tiling = LOSSLESS
    lengths: tuple[tuple[int, ...], ...] = ((5, 3),)
    ends: tuple[tuple[int, ...], ...] = ((0, 1, 2),)
    obs: str = "box"
    states: bool = True  # recurrent, where there is a table
    weight_norm: str = "batch"
    seed: int = 0

    @property
    def rows(self) -> int:
        return self.window.rows + max(1, self.stack - 1) + 1 + self.slack


def setup(draw: Any) -> Setup:
    """``draw``: a function of a number n -> 0..n-1, so that both kinds of randomness may use it."""

    def several(most: int, high: int, low: int = 0) -> tuple[int, ...]:
        return tuple(low + draw(high - low + 1) for _ in range(1 + draw(most)))

    columns = 1 + draw(3)
    nstep = 1 + draw(5)
    cells = draw(3) == 0
    window = Window(0, 1, nstep) if cells else Window(draw(7), 1 + draw(5), nstep)
    plain = not cells and draw(3) == 0
    tiling = Tiling(plain, draw(window.rows), RESIDUALS[draw(3)]) if plain else LOSSLESS
    if not cells and not plain and draw(3) == 0:
        tiling = Tiling(overlap=draw(window.learned))
    return Setup(
        window=window,
        slack=draw(30),
        table=None if cells else (1 + draw(8) if draw(4) == 0 else 400),
        kind=KINDS[draw(3)],
        close=draw(2) == 1,
        stack=1 + 2 * draw(2),
        tiling=tiling,
        lengths=tuple(several(4, (4, 18)[draw(2)], 1) for _ in range(columns)),
        ends=tuple(several(3, 2) for _ in range(columns)),
        obs=OBSERVATIONS[draw(4)],
        weight_norm=("batch", "buffer")[draw(2)],
        seed=draw(100),
    )


@st.composite
def setups(draw: st.DrawFn) -> Setup:
    return setup(lambda n: draw(st.integers(0, n - 1)))


def random_setup(rng: np.random.Generator) -> Setup:
    return setup(lambda n: int(rng.integers(n)))


def make_pair_replay(s: Setup, example: Any) -> Replay:
    changes = {} if s.kind == "uniform" else {"weight_norm": s.weight_norm}
    layout = make_layout(
        example, rows=s.rows, window=s.window, capacity=s.table, kind=s.kind, **changes
    )
    cutter = Cutter(
        s.window,
        columns=layout.columns,
        overlap=s.tiling.overlap,
        residual=s.tiling.residual,
        plain=s.tiling.plain,
    )
    return host_replay(
        layout,
        window=s.window,
        cutter=cutter,
        close=s.close,
        sampler=make_sampler(s.kind, layout.slots, seed=s.seed, **changes),
        stack=s.stack,
        allocate=poisoned,
    )


def copied(state: Any) -> Any:
    """A state dict that what goes on does not change."""

    def one(x: Any) -> Any:
        if isinstance(x, Rows):
            return x.frozen()
        return x.copy() if isinstance(x, np.ndarray) else copy.copy(x)

    return tree_map(one, state)


class Pair:
    """Whatever is done to the replay is done to the model; ``agree`` compares all there is."""

    def __init__(self, s: Setup) -> None:
        self.setup = s
        lists = [list(x) for x in s.lengths], [list(x) for x in s.ends]
        self.world = World(*lists, obs=s.obs, states=s.states and s.table is not None)
        self.replay = make_pair_replay(s, self.world.chunk(0))
        self.model = Model(
            s.window, rows=s.rows, columns=len(s.lengths), table=s.table, close=s.close,
            stack=s.stack, tiling=s.tiling,
        )  # fmt: skip
        self.names: dict[int, Place] = {}  # of every window ever seen

    # -- doing -----------------------------------------------------------------------------------

    def add(self, steps: int) -> None:
        chunk = self.world.chunk(steps)
        new = self.model.add(chunk)
        keys = self.replay.add(chunk)
        spoil(chunk)
        places = self.places(keys)
        assert keys.dtype == np.int64
        assert sorted(places) == sorted(new), "add names other windows than those that are new"
        assert not set(keys.tolist()) & set(self.names), "a key is used again"
        self.names |= dict(zip(keys.tolist(), places, strict=True))

    def prioritize(self, keys: np.ndarray, priority: np.ndarray) -> None:
        self.replay.prioritize(keys, priority)
        alive = set(self.model.made)
        for key, value in zip(keys.tolist(), priority.astype(np.float32), strict=True):
            place = self.names.get(key)
            if place not in alive:
                self.model.late += 1
                continue
            p = float(value)
            if self.setup.kind == "prioritized":
                p = float(np.float32(p + EPS))
            self.model.priority[place] = p
            self.model.largest = max(self.model.largest, p)

    def save(self) -> Any:
        """Everything a checkpoint and its world consist of."""
        ours = copy.deepcopy((self.model, self.names))
        return copied(self.replay.state_dict()), self.world.save(), ours

    def load(self, saved: Any, *, crash: bool) -> None:
        """``crash``: into a replay of a new process. The environments begin anew."""
        state, world, ours = saved
        if crash:
            self.replay = make_pair_replay(replace(self.setup, seed=99), self.world.chunk(0))
        if world != self.world.save():
            self.world.restore(world)
        self.replay.load_state_dict(copied(state))
        self.model, self.names = copy.deepcopy(ours)

    # -- comparing -------------------------------------------------------------------------------

    def places(self, keys: np.ndarray) -> list[Place]:
        """Where windows lie that are alive."""
        slots, there = self.replay.windows.find(keys)
        assert there.all(), "a window named by its key is not found"
        return self.where(slots)

    def where(self, slots: np.ndarray) -> list[Place]:
        s = self.replay.windows.spans(slots)
        fields = (s.column, s.first, s.learn, s.stop, s.last)
        assert (s.cell == s.column * self.setup.rows + s.first % self.setup.rows).all()
        return [Place(*x) for x in zip(*(f.tolist() for f in fields), strict=True)]

    def agree(self) -> None:
        """The same windows under the same names with the same priorities; sizes and counts."""
        replay, model = self.replay, self.model
        replay.check()
        windows = replay.windows
        slots = windows.all()
        keys = windows.keys(slots)
        places = self.where(slots)
        assert set(places) == set(model.made), "other windows are alive"
        assert [self.names[key] for key in keys.tolist()] == places, "a key means another window"
        if self.setup.table is not None:
            assert places == model.made, "not oldest first"
        assert len(replay) == len(model.made)
        assert replay.rows == model.steps
        assert replay.counts["learned"] == len(model.learned)
        assert windows.early == model.early
        if self.setup.kind != "uniform":
            assert replay.counts["late"] == model.late
            mine = [model.priority[place] for place in places]
            assert self.priorities(slots).tolist() == mine, "another priority"
            assert replay.sampler.largest == model.largest

    def priorities(self, slots: np.ndarray) -> np.ndarray:
        sampler = self.replay.sampler
        return (sampler.raw if self.setup.kind == "prioritized" else sampler.priority)[slots]

    def agree_on_all(self) -> None:
        """A sample of size 0 is the whole of the buffer, oldest first, all weights 1."""
        sample = self.replay.sample(0, env_steps=0)
        self._agree_on_content(sample)
        assert (sample.weight == 1).all()
        assert sample.weight.dtype == torch.float32
        assert (np.diff(sample.key) > 0).all()
        assert len(sample.key) == len(self.model.made)

    def agree_on(self, sample: Sample) -> None:
        """The sample shows what the model says, position by position, and weighs it so."""
        self._agree_on_weights(sample, self._agree_on_content(sample))

    def _agree_on_content(self, sample: Sample) -> list[Place]:
        places = [self.names[key] for key in sample.key.tolist()]
        alive = set(self.model.made)
        for i, (place, shown) in enumerate(zip(places, shows(sample.segment), strict=True)):
            assert place in alive, f"window {i} of the sample is not alive"
            expected = self.model.expect(place)
            for name, value in expected.items():
                assert shown[name] == value, f"{name} of window {i}, {place}"
        bs, w = self.setup.window.burnin, sample.segment
        if self.setup.table is not None:
            some = {p.learn - p.first for p in places} - {0, bs}
            assert set(w.partial) == some, "partly filled burn-ins are named otherwise"
        return places

    def _agree_on_weights(self, sample: Sample, places: list[Place]) -> None:
        weight = sample.weight.numpy()
        assert weight.dtype == np.float32
        assert (weight > 0).all()
        assert (weight <= 1).all()
        if self.setup.kind == "uniform":
            assert (weight == 1).all()
        elif self.setup.kind == "prioritized":
            assert self.setup.weight_norm == "buffer" or weight.max() == 1
            mass = {place: p**0.6 for place, p in self.model.priority.items()}
            mean = sum(mass.values()) / len(mass)
            raw = [(mass[place] / mean) ** -0.4 for place in places]
            whole = (min(mass.values()) / mean) ** -0.4
            most = max(raw) if self.setup.weight_norm == "batch" else whole
            np.testing.assert_allclose(weight, np.array(raw) / most, rtol=1e-5)
