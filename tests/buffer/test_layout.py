"""The size computed before allocation is the allocated size; memory, disk, refusal."""

import functools
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rlrun.buffer.replay import host_replay
from rlrun.buffer.storage import layout as layouts
from rlrun.buffer.storage.layout import (
    HUGE_PAGE,
    ArraySpec,
    Layout,
    Row,
    amount,
    free_bytes,
    in_memory,
    on_disk,
    sampler_blocks,
)
from rlrun.buffer.storage.sizing import check_size, make_layout
from rlrun.buffer.windows.cutter import Cutter
from rlrun.errors import ResourceError
from rlrun.types import Segment, Window, tree_leaves
from tests.buffer.factory import make_layout as plain_layout
from tests.buffer.factory import make_sampler
from tests.buffer.pair import Pair, Setup, poisoned
from tests.compose import changed, config
from tests.reference.replay_model import World

ROOT = Path(__file__).parents[2]
GOAL = {"achieved_goal": (3,), "desired_goal": (3,), "observation": (5,)}
SMALL = ("pending", "origin", "recent", "drawn")  # numbers a column, or a few rows; not counted
linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def example(*, obs="box", action=(), extras=(), states=0, columns=3):
    """A collected segment of no rows."""
    world = World([[4]] * columns, [[0]] * columns, obs=obs, states=False)
    chunk = world.chunk(0)
    if obs == "goal":
        chunk = replace(chunk, obs={n: torch.zeros(1, columns, *s) for n, s in GOAL.items()})
    kept = {name: torch.zeros(0, columns, *shape) for name, shape in extras}
    state = tuple(torch.zeros(0, columns, 7 + i) for i in range(states))
    return replace(chunk, action=torch.zeros(0, columns, *action), extras=kept, states=state)


EXAMPLES = {
    "box": {},
    "dict": {"obs": "dict", "extras": [("log_prob", ()), ("value", (2,))]},
    "tuple": {"obs": "tuple", "action": (4,), "states": 2, "columns": 1},
    "scalar": {"obs": "scalar", "states": 1},
}
SAMPLERS = [
    ("uniform", {}),
    ("prioritized", {"weight_norm": "batch"}),
    ("prioritized", {"weight_norm": "buffer"}),
    ("rank", {"weight_norm": "batch"}),
]


def make(shape, kind, table, goals, changes, allocate=poisoned):
    segment = example(**shape)
    window = Window(2, 3, 2) if table else Window(0, 1, 3)
    layout = plain_layout(
        segment, rows=41, window=window, capacity=table, kind=kind, goals=goals, **changes
    )
    cutter = Cutter(window, columns=layout.columns, overlap=0, residual=None, plain=False)
    sampler = make_sampler(kind, layout.slots, **changes)
    return host_replay(
        layout, window=window, cutter=cutter, close=False, sampler=sampler, allocate=allocate
    )


def owner(array):
    """The array that owns the memory."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def owned(thing, path=()):
    """(attribute path, array) of every array that can be reached from an object of ours."""
    if isinstance(thing, np.ndarray):
        yield path, owner(thing)
    elif isinstance(thing, dict):
        for key, value in thing.items():
            yield from owned(value, (*path, key))
    elif isinstance(thing, list | tuple):
        for value in thing:
            yield from owned(value, path)
    elif type(thing).__module__.startswith("rlrun.buffer") and hasattr(thing, "__dict__"):
        for name, value in vars(thing).items():
            if name not in ("ring", "sets") or not path:  # once, and no samples handed out
                yield from owned(value, (*path, name))


@pytest.mark.parametrize("shape", EXAMPLES.values(), ids=EXAMPLES)
@pytest.mark.parametrize(("kind", "changes"), SAMPLERS)
@pytest.mark.parametrize("table", [None, 50])
@pytest.mark.parametrize("goals", [False, True])
def test_stated_bytes_are_owned_bytes(shape, kind, changes, table, goals):
    """The layout's figure, the sum of ``nbytes``, and what can be reached from the replay."""
    shape = shape | ({"obs": "goal"} if goals else {})
    replay = make(shape, kind, table, goals, changes)
    assert replay.nbytes == replay.layout.nbytes == sum(replay.layout.parts().values())
    reached = {}
    for path, array in owned(replay):
        if not set(SMALL) & set(path) or "fields" in path:
            reached[array.ctypes.data, array.nbytes] = array
    assert sum(array.nbytes for array in reached.values()) == replay.nbytes


def test_bytes_worked_by_hand():
    """10 whole rows a column and one more slot; 3 columns."""
    slots = 3 * 11
    row = Row(ArraySpec((4,), np.dtype(np.float32)), ArraySpec((), np.dtype(np.int64)), {}, ())
    plain = Layout(row, 3, 11, None, {})
    assert plain.nbytes == slots * (16 + 8 + 4 + 1)
    tree = 2 * 64 * 8
    assert sampler_blocks("prioritized", slots)["sum"].nbytes == tree
    for norm, trees in (("batch", 1), ("buffer", 2)):
        with_sampler = replace(plain, sampler=sampler_blocks("prioritized", slots, norm))
        assert with_sampler.nbytes == plain.nbytes + 4 * slots + trees * tree
    by_rank = replace(plain, sampler=sampler_blocks("rank", slots))
    assert by_rank.nbytes == plain.nbytes + 20 * slots
    state = (ArraySpec((8,), np.dtype(np.float32)),) * 2
    table = replace(plain, windows=20, row=replace(row, state=state))
    assert table.nbytes == plain.nbytes + 20 * (7 * 8 + 1 + 2 * 8 * 4)
    assert replace(plain, goals=True).nbytes == plain.nbytes + slots * 2 * 8


def test_the_line_that_is_printed():
    """Rows, fields, bytes; states; the rest; the sum."""
    row = Row(
        ArraySpec((3,), np.dtype(np.float32)), ArraySpec((), np.dtype(np.int64)), {},
        (ArraySpec((125,), np.dtype(np.float32)),) * 2,
    )  # fmt: skip
    flat = Layout(replace(row, state=()), 4, 250_001, None, {})
    assert flat.describe() == "buffer: 1 000 000 rows, 4 fields, 25.0 MB"
    table = Layout(row, 4, 250_001, 2000, sampler_blocks("prioritized", 2000))
    text = table.describe()
    assert text.startswith("buffer: 1 000 000 rows, 4 fields, 25.0 MB; states 2 000 ")
    assert text.endswith(" 1.0 KB; windows and priorities 154.8 KB; 27.2 MB in all")
    assert 2000 * 57 + 4 * 2000 + 2 * 2048 * 8 == 154_768
    assert table.nbytes == 1_000_004 * 25 + 154_768 + 2000 * 1000


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 KB"), (24e6, "24.0 MB"), (1.5e9, "1.5 GB")],
)
def test_bytes_for_people(nbytes, text):
    assert amount(nbytes) == text
    assert amount(7.25e12) == "7.2 TB"


# -- what is too large -----------------------------------------------------------------------------

WINDOWS = [Window(0, 1, 3), Window(4, 15, 5)]


@functools.cache
def composed(name):
    return config("policy=r2d2", "env=cartpole", "debug=smoke", f"buffer={name}")


def sized(name, capacity, *, norm="batch", envs=4, max_bytes=None, mmap=None):
    c = composed(name)
    fields = {"weight_norm": norm} if name != "uniform" else {}
    buffer = changed(c.buffer, capacity=capacity, max_bytes=max_bytes, mmap=mmap, **fields)
    return changed(c, buffer=buffer, collector=changed(c.collector, num_envs=envs))


ROW = Row(
    ArraySpec((4,), np.dtype(np.float32)), ArraySpec((), np.dtype(np.int64)), {},
    (ArraySpec((16,), np.dtype(np.float32)),) * 2,
)  # fmt: skip


def bytes_of(c, window):
    return make_layout(c, ROW, window).nbytes


@pytest.mark.parametrize("name", ["uniform", "prioritized", "rank"])
@pytest.mark.parametrize("window", WINDOWS)
def test_a_buffer_that_fits_is_made(name, window):
    c = sized(name, 5000)
    exact = changed(c, buffer=changed(c.buffer, max_bytes=bytes_of(c, window)))
    check_size(exact, make_layout(exact, ROW, window), window)
    less = changed(c, buffer=changed(c.buffer, max_bytes=bytes_of(c, window) - 1))
    with pytest.raises(ResourceError, match=r"buffer\.capacity = 5000: buffer: 5 000 rows, "):
        check_size(less, make_layout(less, ROW, window), window)


def test_the_default_limit_is_a_share_of_what_is_free(monkeypatch, tmp_path):
    import rlrun.buffer.storage.sizing as sizing

    c = sized("uniform", 5000)
    need = bytes_of(c, WINDOWS[0])
    for free, fits in ((need / 0.79, True), (need / 0.81, False)):
        asked = []
        monkeypatch.setattr(
            sizing, "free_bytes", lambda where, free=free, asked=asked: asked.append(where) or free
        )
        for mmap in (None, str(tmp_path)):
            c = sized("uniform", 5000, mmap=mmap)
            if fits:
                check_size(c, make_layout(c, ROW, WINDOWS[0]), WINDOWS[0])
                continue
            with pytest.raises(ResourceError, match="80 % of the free") as e:
                check_size(c, make_layout(c, ROW, WINDOWS[0]), WINDOWS[0])
            assert ("free disk" in str(e.value)) == (mmap is not None)
            assert ("buffer.mmap=" in str(e.value)) == (mmap is None)
        assert asked[:2] == [None, tmp_path]  # priorities stay in memory, so that is asked, too


@pytest.mark.parametrize("seed", range(60))
def test_the_capacity_that_is_recommended_fits(seed):
    """And holds a window in every column; where no such capacity fits, none is recommended."""
    rng = np.random.default_rng(seed)
    name, norm = ("uniform", "prioritized", "rank")[rng.integers(3)], ("batch", "buffer")[seed % 2]
    window, envs = WINDOWS[rng.integers(2)], int(rng.integers(1, 65))
    c = sized(name, int(10 ** rng.uniform(2.5, 7)), norm=norm, envs=envs)
    limit = int(bytes_of(c, window) * rng.uniform(0.02, 0.999))
    c = changed(c, buffer=changed(c.buffer, max_bytes=limit))
    with pytest.raises(ResourceError) as e:
        check_size(c, make_layout(c, ROW, window), window)
    least = (sum(window) + 1) * envs

    def size(capacity):
        return bytes_of(changed(c, buffer=changed(c.buffer, capacity=capacity)), window)

    found = re.search(r"set buffer\.capacity=(\d+)", str(e.value))
    if size(least) > limit:
        assert found is None
        return
    fits = int(found[1])
    assert fits >= least
    assert size(fits) <= limit
    assert size(int(fits * 1.2) + least) > limit, "much more would fit"


@linux
def test_free_memory_is_sane(tmp_path, monkeypatch):
    total = int(re.search(r"MemTotal: *(\d+)", Path("/proc/meminfo").read_text())[1]) * 1024
    assert 0 < free_bytes(None) <= total
    disk = free_bytes(tmp_path)
    assert disk > 0
    assert abs(free_bytes(tmp_path / "not" / "there" / "yet") - disk) < 2**30
    monkeypatch.setattr(layouts, "_cgroup", lambda: iter([12345]))
    assert free_bytes(None) == 12345, "a container's limit counts"
    monkeypatch.setattr(layouts, "_meminfo", lambda: 99)
    assert free_bytes(None) == 99
    monkeypatch.setattr(layouts, "_meminfo", lambda: None)
    assert free_bytes(None) == 12345
    monkeypatch.setattr(layouts, "_cgroup", lambda: iter([0]))
    assert free_bytes(None) == 0, "nothing is free, which somebody does know"
    monkeypatch.setattr(layouts, "_cgroup", lambda: iter([]))
    assert free_bytes(None) > 2**60, "nobody knows: no limit"


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
@pytest.mark.parametrize("kind", ["uniform", "prioritized", "rank"])
@pytest.mark.parametrize("table", [None, 60])
def test_rows_on_disk_are_rows_in_memory(kind, table, tmp_path):
    """The same windows, keys and weights, from files of the stated size that go with the replay."""
    setup = Setup(
        window=Window(2, 2, 2) if table else Window(0, 1, 3), slack=20, table=table, kind=kind,
        lengths=((5, 9), (1, 12)), obs="dict",
    )  # fmt: skip
    memory, disk = Pair(setup), Pair(setup)
    there = disk.replay
    disk.replay = host_replay(
        there.layout, window=setup.window, cutter=there_cutter(setup), close=False,
        sampler=make_sampler(kind, there.layout.slots, seed=setup.seed),
        allocate=on_disk(tmp_path / "a" / "b"),
    )  # fmt: skip
    del there
    arrays = [*disk.replay.ring.arrays(), *disk.replay.windows.arrays()]
    assert all(isinstance(owner(x), np.memmap) for x in arrays if x.nbytes)
    whole = disk.replay.layout
    owners = {id(owner(x)): owner(x).nbytes for x in arrays}
    assert sum(owners.values()) == whole.nbytes - whole.parts()["sampler"]
    assert mapped(tmp_path) == sum(-(-n // 4096) * 4096 for n in owners.values())
    for i in range(8):
        for pair in (memory, disk):
            pair.add(11)
            pair.agree()
        one, other = (pair.replay.sample(9, i) for pair in (memory, disk))
        assert (one.key == other.key).all()
        assert torch.equal(one.weight, other.weight)
        for x, y in zip(parts(one.segment), parts(other.segment), strict=True):
            assert x.numpy().tobytes() == y.numpy().tobytes()
        for pair in (memory, disk):
            pair.prioritize(one.key, np.arange(9, dtype=np.float32))
    saved = disk.save()
    disk.load(saved, crash=False)
    disk.agree_on_all()
    del arrays, disk, pair
    assert mapped(tmp_path) == 0
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def there_cutter(setup):
    columns = len(setup.lengths)
    return Cutter(setup.window, columns=columns, overlap=0, residual=None, plain=False)


def parts(s):
    flags = (s.first, s.terminated, s.truncated, s.valid)
    return [*tree_leaves((s.obs, s.extras, s.state)), s.action, s.reward, *flags]


# -- resident memory -------------------------------------------------------------------------------

FILL, MORE, T, COLUMNS = 60_000, 1_000_000, 250, 4


def resident():
    """Bytes of this process in memory."""
    return int(re.search(r"VmRSS:\s*(\d+)", Path("/proc/self/status").read_text())[1]) * 1024


def grow(kind, table):
    """Bytes by which memory grows over 1e6 rows after the first fill, with samples in between."""
    world = World([[60, 9]] * COLUMNS, [[0, 1]] * COLUMNS, states=table is not None)
    chunks: list[Segment] = [world.chunk(T) for _ in range(FILL // COLUMNS // T)]
    window = Window(4, 10, 2) if table else Window(0, 1, 3)
    layout = plain_layout(
        chunks[0], rows=FILL // COLUMNS + 1, window=window, capacity=table, kind=kind
    )
    setup = SimpleNamespace(lengths=range(COLUMNS), window=window)
    replay = host_replay(
        layout, window=window, cutter=there_cutter(setup), close=False,
        sampler=make_sampler(kind, layout.slots),
    )  # fmt: skip

    def write(rows):
        for i in range(rows // COLUMNS // T):
            replay.add(chunks[i % len(chunks)])
            sample = replay.sample(32, i)
            replay.prioritize(sample.key, np.full(32, 0.5 + i % 7, np.float32))

    write(2 * FILL)
    before = resident()
    write(MORE)
    return resident() - before


def test_large_arrays_are_zeros_that_can_be_written():
    """They are mapped apart, in huge pages where the system has them."""
    block = ArraySpec((3, HUGE_PAGE // 4), np.dtype(np.float32))
    array = in_memory("x", block)
    assert array.shape == block.shape
    assert array.dtype == block.dtype
    assert not array.any()
    array[:] = 7
    assert not in_memory("x", block).any()


@pytest.mark.parametrize("failing", ["mmap", "madvise"])
def test_large_arrays_without_huge_pages(failing, monkeypatch):
    class Pages(layouts.mmap.mmap):
        def __new__(cls, *args, **kwargs):
            if failing == "mmap":
                raise OSError(12, "Cannot allocate memory")
            return super().__new__(cls, *args, **kwargs)

        def madvise(self, advice):
            raise OSError(22, "Invalid argument")

    monkeypatch.setattr("rlrun.buffer.storage.layout.mmap.mmap", Pages)
    array = in_memory("x", ArraySpec((HUGE_PAGE,), np.dtype(np.uint8)))
    assert array.flags.owndata
    assert not array.any()


@linux
def test_memory_does_not_grow_after_the_first_fill():
    """Less than 1 MB per 1e6 rows, in a process of its own."""
    cases = [("uniform", None), ("prioritized", None), ("rank", None), ("prioritized", 9000)]
    code = f"from tests.buffer.test_layout import grow; print(*[grow(*c) for c in {cases}])"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    growth = [int(x) for x in done.stdout.split()]
    assert len(growth) == len(cases)
    assert max(growth) < 1_000_000, dict(zip(map(str, cases), growth, strict=True))
