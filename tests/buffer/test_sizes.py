"""The size computed before allocation is the allocated size; memory, disk, refusal."""

import functools
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from rlrun.buffer import layout as layouts
from rlrun.buffer.layout import HUGE_PAGE, ArraySpec, Row, free_bytes
from rlrun.errors import ConfigError, ResourceError, StorageError
from rlrun.types import Window
from tests.buffer.make import CPU, KINDS, make_replay, plan_of, same_samples
from tests.buffer.pair import Pair, Setup
from tests.compose import changed, config
from tests.reference.replay_model import World

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def rows_of(*, obs="box", action=(), extras=(), states=0, columns=3):
    """A collected segment of no rows."""
    chunk = World([[4]] * columns, [[0]] * columns, obs=obs, states=False).chunk(0)
    kept = {name: torch.zeros(0, columns, *shape) for name, shape in extras}
    state = tuple(torch.zeros(0, columns, 7 + i) for i in range(states))
    return replace(chunk, action=torch.zeros(0, columns, *action), extras=kept, states=state)


EXAMPLES = {
    "box": {},
    "dict": {"obs": "dict", "extras": [("log_prob", ()), ("value", (2,))]},
    "tuple": {"obs": "tuple", "action": (4,), "states": 2, "columns": 1},
}
SAMPLERS = [("uniform", {}), ("prioritized", {}), ("rank", {})]


def arrays_of(thing, seen):
    """Every array that can be reached from an object of rlrun, or tensor, by its memory."""
    if isinstance(thing, np.ndarray):
        while isinstance(thing.base, np.ndarray):
            thing = thing.base
        seen[thing.ctypes.data] = thing.nbytes
    elif isinstance(thing, torch.Tensor):
        storage = thing.untyped_storage()
        seen[storage.data_ptr()] = storage.nbytes()
    elif isinstance(thing, dict | list | tuple):
        for value in thing.values() if isinstance(thing, dict) else thing:
            arrays_of(value, seen)
    elif type(thing).__module__.startswith("rlrun.buffer") and id(thing) not in seen:
        seen[id(thing)] = 0
        names = [n for kind in type(thing).__mro__ for n in getattr(kind, "__slots__", ())]
        arrays_of([getattr(thing, n, None) for n in names], seen)
        arrays_of(getattr(thing, "__dict__", {}), seen)


@pytest.mark.parametrize("table", [None, 2000])
@pytest.mark.parametrize(("kind", "changes"), SAMPLERS)
@pytest.mark.parametrize("shape", EXAMPLES.values(), ids=EXAMPLES)
def test_stated_bytes_are_owned_bytes(shape, kind, changes, table):
    """The layout's figure, and what can be reached from the replay, within 2 %."""
    window = Window(2, 3, 2) if table else Window(0, 1, 3)
    for device in (None, CPU):
        replay = make_replay(
            rows_of(**shape), rows=4001, window=window, capacity=table, kind=kind, device=device,
            **changes,
        )  # fmt: skip
        reached: dict[int, int] = {}
        arrays_of(replay, reached)
        assert sum(reached.values()) == pytest.approx(replay.layout.nbytes, rel=0.02)


def test_bytes_worked_by_hand():
    """10 whole rows a column and one more slot; 3 columns; float32 [4], int64, float32, 2 bytes."""
    chunk, slots = World([[4]] * 3, [[0]] * 3, states=False).chunk(0), 3 * 11
    chunk = replace(chunk, obs=torch.zeros(1, 3, 4), extras={})

    def size(**given):
        given = {"window": Window(0, 1, 1), "capacity": None} | given
        return make_replay(chunk, rows=11, **given).layout.nbytes

    plain, tree = slots * (16 + 8 + 4 + 1 + 1), 2 * 64 * 8
    assert size() == plain
    assert size(kind="prioritized") == plain + 4 * slots + tree
    assert size(kind="rank") <= plain + 22 * slots
    chunk = replace(chunk, states=(torch.zeros(0, 3, 8),) * 2)
    assert size(window=Window(0, 2, 1), capacity=20) == plain - slots + 20 * (7 * 8 + 1 + 2 * 8 * 4)


# -- what is too large -----------------------------------------------------------------------------

WINDOWS = [Window(0, 1, 3), Window(4, 15, 5)]
ROW = Row(
    ArraySpec((4,), np.dtype(np.float32)), ArraySpec((), np.dtype(np.int64)), {},
    (ArraySpec((16,), np.dtype(np.float32)),) * 2,
)  # fmt: skip


@functools.cache
def composed(name):
    return config("policy=r2d2", "env=cartpole", "debug=smoke", f"buffer={name}")


def sized(name, capacity, *, envs=4, **buffer):
    c = composed(name)
    buffer = changed(c.buffer, capacity=capacity, **buffer)
    return changed(c, buffer=buffer, collector=changed(c.collector, num_envs=envs))


def bytes_of(c, window):
    return layouts.make_layout(c, ROW, window, c.collector.num_envs).nbytes


def check(c, window):
    return layouts.check_size(c, layouts.make_layout(c, ROW, window, c.collector.num_envs), window)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("window", WINDOWS)
def test_a_buffer_that_fits_is_made(name, window):
    need = bytes_of(sized(name, 5000), window)
    check(sized(name, 5000, max_bytes=need), window)
    with pytest.raises(ResourceError, match=r"buffer\.capacity = 5000: .*5,000 rows"):
        check(sized(name, 5000, max_bytes=need - 1), window)


@pytest.mark.parametrize("mmap", [False, True])
def test_the_default_limit_is_a_share_of_what_is_free(mmap, monkeypatch, tmp_path):
    given, asked = {"mmap": str(tmp_path)} if mmap else {}, []
    c = sized("uniform", 5000, **given)
    need = bytes_of(c, WINDOWS[0])
    for free, fits in ((need / 0.79, True), (need / 0.81, False)):
        monkeypatch.setattr(
            layouts, "free_bytes", lambda where, free=free: asked.append(where) or free
        )
        if fits:
            check(c, WINDOWS[0])
            continue
        with pytest.raises(ResourceError, match="80 %") as e:
            check(c, WINDOWS[0])
        assert ("buffer.mmap=" in str(e.value)) == (not mmap)
    assert set(asked) == ({None, tmp_path} if mmap else {None}), "priorities stay in memory"


def test_on_a_gpu_observations_and_actions_take_at_most_a_share_of_what_is_free_there():
    c, window = sized("uniform", 5000, device="cuda"), WINDOWS[0]
    layout = layouts.make_layout(c, ROW, window, c.collector.num_envs)
    need = layout.columns * layout.rows * (16 + 8)
    layouts.check_size(c, layout, window, free=int(need / 0.79))
    with pytest.raises(ResourceError, match=r"80 % .*cuda"):
        layouts.check_size(c, layout, window, free=int(need / 0.81))


@pytest.mark.parametrize("part", range(3))
def test_the_capacity_that_is_recommended_fits(part):
    """And holds a window in every column; where no such capacity fits, none is recommended."""
    for seed in range(part, 45, 3):
        rng = np.random.default_rng(seed)
        name, window, envs = KINDS[part], WINDOWS[rng.integers(2)], int(rng.integers(1, 65))
        capacity = int(10 ** rng.uniform(2.5, 7))

        def size(rows, *given):
            return bytes_of(sized(given[0], rows, envs=given[1]), given[2])

        most = (name, envs, window)
        limit = int(size(capacity, *most) * rng.uniform(0.02, 0.999))
        with pytest.raises(ResourceError) as e:
            check(sized(name, capacity, envs=envs, max_bytes=limit), window)
        least = (sum(window) + 1) * envs
        found = re.search(r"set buffer\.capacity=(\d+)", str(e.value))
        if size(least, *most) > limit:
            assert found is None
            continue
        fits = int(found[1])
        assert fits >= least
        assert size(fits, *most) <= limit
        assert size(int(fits * 1.2) + least, *most) > limit, "much more would fit"


@linux
def test_free_memory_is_sane(tmp_path, monkeypatch):
    """Private: the limits of other machines are not those of this one."""
    total = int(re.search(r"MemTotal: *(\d+)", Path("/proc/meminfo").read_text())[1]) * 1024
    assert 0 < free_bytes(None) <= total
    assert free_bytes(tmp_path / "not" / "there" / "yet") > 0
    for meminfo, cgroup, free in (
        (10**6, [12345], 12345),  # a container's limit counts
        (99, [12345], 99),
        (None, [0], 0),  # nothing is free, which somebody does know
        (None, [], 2**63),  # nobody knows: no limit
    ):
        monkeypatch.setattr(layouts, "_meminfo", lambda meminfo=meminfo: meminfo)
        monkeypatch.setattr(layouts, "_cgroup", lambda cgroup=cgroup: iter(cgroup))
        assert free_bytes(None) == free


# -- disk ------------------------------------------------------------------------------------------


def mapped(directory):
    """Bytes of this process's memory that lie in files of ``directory``."""
    total = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        if str(directory) in line:
            start, stop = (int(x, 16) for x in line.split()[0].split("-"))
            total += stop - start
    return total


@linux
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("table", [None, 60])
def test_rows_on_disk_are_rows_in_memory(kind, table, tmp_path):
    """The same windows, keys and weights, from files of the stated size that go with the replay."""
    s = Setup(
        window=Window(2, 2, 2) if table else Window(0, 1, 3), slack=20, table=table, kind=kind,
        lengths=((5, 9), (1, 12)), obs="dict",
    )  # fmt: skip
    memory, disk = Pair(s), Pair(s)
    disk.replay = s.replay(disk.world.chunk(0), mmap=str(tmp_path / "a" / "b"))
    movable = disk.replay.layout.movable
    assert movable <= mapped(tmp_path) <= movable + 20 * 4096
    for i in range(8):
        for pair in (memory, disk):
            pair.add(11)
            pair.agree()
        one, other = (pair.replay.sample(9, i) for pair in (memory, disk))
        same_samples(one, other)
        for pair in (memory, disk):
            pair.prioritize(one.key, np.arange(9, dtype=np.float32))
    disk.load(disk.save(), crash=False)
    disk.agree_on_all()
    del disk, pair, other
    assert mapped(tmp_path) == 0
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_directory_without_room_or_rights_is_named(tmp_path):
    chunk = World([[4]], [[0]], states=False).chunk(0)
    given = {"rows": 9, "window": Window(0, 1, 1), "capacity": None}
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"buffer\.mmap = "):
        make_replay(chunk, mmap=str(tmp_path / "file"), **given)
    allocate = layouts.on_disk(tmp_path)
    with pytest.raises(StorageError, match=r"buffer\.mmap = "):
        allocate(ArraySpec((2**62,), np.dtype(np.uint8)))
    assert plan_of(chunk, **given).layout.nbytes > 0


# -- resident memory -------------------------------------------------------------------------------


@pytest.mark.parametrize("failing", [None, "mmap", "madvise"])
def test_large_arrays_are_zeros_that_can_be_written(failing, monkeypatch):
    """They are mapped apart, in huge pages where the system has them."""

    class Pages(layouts.mmap.mmap):
        def __new__(cls, *args, **kwargs):
            if failing == "mmap":
                raise OSError(12, "Cannot allocate memory")
            return super().__new__(cls, *args, **kwargs)

        def madvise(self, advice):
            if failing == "madvise":
                raise OSError(22, "Invalid argument")

    monkeypatch.setattr(layouts.mmap, "mmap", Pages)
    block = ArraySpec((3, HUGE_PAGE // 4), np.dtype(np.float32))
    array = layouts.in_memory(block)
    assert (array.shape, array.dtype) == (block.shape, block.dtype)
    assert not array.any()
    array[:] = 7
    assert not layouts.in_memory(block).any()
