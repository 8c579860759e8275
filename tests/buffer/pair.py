"""A replay and its plain-list model, side by side; setups for both."""

import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from rlrun.buffer.compressed import PackedBlocks
from rlrun.buffer.replay import Replay
from rlrun.run.tensors import RingRows, RowFiles, Rows
from rlrun.types import Sample, Segment, Window, tree_map
from tests.buffer.make import CPU, KINDS, live, make_replay, priorities
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

EPS = 1e-6  # buffer.priority_eps
ROW = Window(0, 1, 1)


@dataclass(frozen=True)
class Setup:
    """A replay and what is written to it."""

    window: Window = ROW
    slack: int = 10  # slots of a column beyond the least
    table: int | None = None  # windows at most; None: windows of one row, without a limit
    kind: str = "uniform"
    stack: int = 1
    tiling: Tiling = LOSSLESS
    lengths: tuple[tuple[int, ...], ...] = ((5, 3),)
    ends: tuple[tuple[int, ...], ...] = ((0, 1, 2),)
    obs: str = "box"
    states: bool = True  # recurrent, where there is a table
    seed: int = 0
    device: str | None = None  # stands in for the GPU of buffer.device

    @property
    def rows(self) -> int:
        return self.window.rows + max(1, self.stack - 1) + 1 + self.slack

    def world(self) -> World:
        lists = [list(x) for x in self.lengths], [list(x) for x in self.ends]
        return World(*lists, obs=self.obs, states=self.states and self.table is not None)

    def replay(self, example: Segment, **given: Any) -> Replay:
        t = self.tiling
        return make_replay(
            example, rows=self.rows, window=self.window, capacity=self.table, kind=self.kind,
            overlap=t.overlap, residual=t.residual, plain=t.plain, stack=self.stack,
             seed=self.seed,
            device=None if self.device is None else torch.device(self.device), **given,
        )  # fmt: skip


def setup(draw: Any) -> Setup:
    """``draw``: a function of a number n -> 0..n-1, so that both kinds of randomness may use it."""

    def several(most: int, high: int, low: int = 0) -> tuple[int, ...]:
        return tuple(low + draw(high - low + 1) for _ in range(1 + draw(most)))

    columns, nstep, single = 1 + draw(3), 1 + draw(5), draw(3) == 0
    window = Window(0, 1, nstep) if single else Window(draw(7), 1 + draw(5), nstep)
    plain = not single and draw(3) == 0
    residual = ("last", "null_padding", "drop")[draw(3)]
    tiling = Tiling(plain, draw(window.rows), residual) if plain else LOSSLESS
    if not single and not plain and draw(3) == 0:
        tiling = Tiling(overlap=draw(window.learned))
    return Setup(
        window=window,
        slack=draw(30),
        table=None if single else (1 + draw(8) if draw(4) == 0 else 400),
        kind=KINDS[draw(3)],
        stack=1 + 2 * draw(2),
        tiling=tiling,
        lengths=tuple(several(4, (4, 18)[draw(2)], 1) for _ in range(columns)),
        ends=tuple(several(3, 2) for _ in range(columns)),
        obs=OBSERVATIONS[draw(4)],
        seed=draw(100),
        device=(None, None, "cpu")[draw(3)],
    )


@st.composite
def setups(draw: st.DrawFn) -> Setup:
    return setup(lambda n: draw(st.integers(0, n - 1)))


def frozen(rows: Rows) -> Rows:
    """The rows as they are now, unaffected by later writes to the ring."""
    if isinstance(rows, PackedBlocks):
        return PackedBlocks(list(rows.packed), rows.columns, rows.first, rows.stop, RowFiles())
    if not isinstance(rows, RingRows):
        return rows
    array = rows.array.clone() if isinstance(rows.array, torch.Tensor) else rows.array.copy()
    return RingRows(array, rows.first, rows.stop, RowFiles())


def copied(state: Any) -> Any:
    """A state dict that what goes on does not change."""

    def one(x: Any) -> Any:
        if isinstance(x, Rows):
            return frozen(x)
        if isinstance(x, torch.Tensor):
            return x.clone()
        return x.copy() if isinstance(x, np.ndarray) else copy.copy(x)

    return tree_map(one, state)


def text(window: dict[str, Any]) -> str:
    """What a window shows, comparable and sortable."""
    return repr(sorted(window.items()))


class Pair:
    """Whatever is done to the replay is done to the model; ``agree`` compares all there is."""

    def __init__(self, s: Setup) -> None:
        self.setup, self.world = s, s.world()
        self.replay = s.replay(self.world.chunk(0))
        self.model = Model(
            s.window, rows=s.rows, columns=len(s.lengths), table=s.table,
            stack=s.stack, tiling=s.tiling,
        )  # fmt: skip
        self.names: dict[int, Place] = {}  # of every window ever seen, by key

    # -- doing -----------------------------------------------------------------------------------

    def add(self, steps: int) -> np.ndarray:
        chunk = self.world.chunk(steps)
        new, keys = self.model.add(chunk), self.replay.add(chunk)
        spoil(chunk)
        assert keys.dtype == np.int64
        assert not set(keys.tolist()) & set(self.names), "a key is used again"
        shown = [text(x) for x in shows(self.replay.get(keys, 0).segment.to(CPU))]
        expected = [text(self.model.expect(place)) for place in new]
        assert sorted(shown) == sorted(expected), "add names other windows than those that are new"
        by_content = np.argsort(shown), np.argsort(expected)
        self.names |= {int(keys[i]): new[j] for i, j in zip(*by_content, strict=True)}
        return keys

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
            self.replay = replace(self.setup, seed=99).replay(self.world.chunk(0))
        if world != self.world.save():
            self.world.restore(world)
        self.replay.load_state_dict(copied(state))
        self.model, self.names = copy.deepcopy(ours)

    # -- comparing -------------------------------------------------------------------------------

    @property
    def keys(self) -> np.ndarray:
        """Keys of the windows that are alive, oldest first."""
        return live(self.replay)

    def alive(self) -> list[Place]:
        """The windows that are alive, oldest first."""
        return [self.names[key] for key in self.keys.tolist()]

    def agree(self) -> None:
        """The same windows under the same names with the same priorities; sizes and counts."""
        replay, model = self.replay, self.model
        replay.check()
        places, metrics = self.alive(), replay.metrics(0)
        assert (np.diff(self.keys) > 0).all()
        assert len(replay) == len(places)
        assert set(places) == set(model.made), "other windows are alive"
        assert replay.steps == model.steps
        assert metrics["buffer/windows"] == len(places)
        learned = metrics["buffer/learned_fraction"] * max(model.steps, 1)
        assert round(learned, 6) == len(model.learned)
        assert metrics["buffer/early_evictions"] == model.early
        if self.setup.kind != "uniform":
            assert metrics["buffer/late_priorities"] == model.late
            assert metrics["buffer/priority_max"] == model.largest
            assert priorities(replay).tolist() == [model.priority[p] for p in places]

    def agree_on_all(self) -> None:
        """A sample of size 0 is the whole of the buffer with weights 1."""
        sample = self.replay.sample(0, env_steps=0)
        self._agree_on_content(sample)
        assert (sample.weight == 1).all()
        assert sample.weight.dtype == torch.float32
        assert len(sample.key) == len(self.model.made)

    def agree_on(self, sample: Sample) -> None:
        """The sample shows what the model says, position by position, and weighs it so."""
        self._agree_on_weights(sample, self._agree_on_content(sample))

    def _agree_on_content(self, sample: Sample) -> list[Place]:
        places = [self.names[key] for key in sample.key.tolist()]
        alive = set(self.model.made)
        for i, (place, shown) in enumerate(zip(places, shows(sample.segment.to(CPU)), strict=True)):
            assert place in alive, f"window {i} of the sample is not alive"
            for name, value in self.model.expect(place).items():
                assert shown[name] == value, f"{name} of window {i}, {place}"
        if self.setup.table is not None:
            some = {p.learn - p.first for p in places} - {0, self.setup.window.burnin}
            named = set(sample.segment.partial)  # a device is not asked which there are
            assert named >= some if self.setup.device else named == some
        return places

    def _agree_on_weights(self, sample: Sample, places: list[Place]) -> None:
        weight = sample.weight.numpy(force=True)
        assert weight.dtype == np.float32
        assert (weight > 0).all()
        assert (weight <= 1).all()
        assert weight.max() == 1
        if self.setup.kind == "uniform":
            assert (weight == 1).all()
        elif self.setup.kind == "prioritized":
            mass = {place: p**0.6 for place, p in self.model.priority.items()}
            raw = np.array([mass[place] for place in places]) ** -0.4
            np.testing.assert_allclose(weight, raw / raw.max(), rtol=1e-5)
