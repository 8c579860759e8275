"""The replay on a device: what ``Replay`` hands out, drawn and weighed without the host.

On CPU tensors, where its ops are the same; what only a GPU can show runs where there is one.
Against the model: test_machine. Draws, weights and priorities: test_sampling.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves as all_leaves

from rlrun.buffer.replay import Replay
from rlrun.types import Segment, Window, tree_leaves
from tests.buffer.make import KINDS, host, linear
from tests.buffer.pair import Pair, Setup, copied
from tests.reference.replay_model import LOSSLESS, Tiling

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here")
BASE = Setup(slack=20, lengths=((5, 3), (9,)), device="cpu")
SETUPS = {
    "rows": replace(BASE, window=Window(0, 1, 3)),
    "frames": replace(BASE, window=Window(0, 1, 2), stack=4, obs="dict"),
    "windows": replace(BASE, window=Window(5, 2, 2), table=64, lengths=((5, 13), (9,))),
}
SHAPES = pytest.mark.parametrize("shape", SETUPS)
OF_KIND = pytest.mark.parametrize("kind", KINDS)


def assert_same(a: Segment, b: Segment) -> None:
    for x, y in zip(a.tensors(), b.tensors(), strict=True):
        assert (x.dtype, x.shape) == (y.dtype, y.shape)
        assert x.numpy().tobytes() == y.numpy().tobytes()


def test_partial_names_every_length_there_can_be():
    """Known without reading the device; plain windows have all of their burn-in."""
    for tiling, named in ((LOSSLESS, (2, 4)), (Tiling(True, 8, "last"), ())):
        pair = Pair(replace(SETUPS["windows"], tiling=tiling))
        pair.add(40)
        assert pair.replay.sample(3, 0).segment.partial == named  # of 5 burn-in rows, 2 apart


@SHAPES
def test_all_that_is_read_rarely_is_as_in_host_memory(shape):
    """Fed the same chunks, also longer than the ring; and loaded from each other's rows."""
    s = SETUPS[shape]
    world = s.world()
    device, host, *others = (replace(s, device=d).replay(world.chunk(0)) for d in ("cpu", None) * 2)
    for steps in (30, 100, 7):
        chunk = world.chunk(steps)
        np.testing.assert_array_equal(device.add(chunk), host.add(chunk))
    read = [
        lambda r: [r.sample(0, 0).segment],
        lambda r: r.histories(5, np.random.default_rng(3)),
        lambda r: [r.random_windows(5, np.random.default_rng(3))],
        lambda r: list(r.stored(7, skip=5)),
    ]
    for function in read:
        for a, b in zip(function(host), function(device), strict=True):
            assert_same(a, b)
    for a, b in zip(host.stored_states(), device.stored_states(), strict=True):
        for x, y in zip(tree_leaves(a), tree_leaves(b), strict=True):
            np.testing.assert_array_equal(x, y)
    for one, other in zip((host, device), others, strict=True):
        other.load_rows(copied(one.state_dict()))
        for a, b in zip(other.stored(9), host.stored(9), strict=True):
            assert_same(a, b)


# -- nothing waits for the device ----------------------------------------------------------------


class Unambiguous(TorchDispatchMode):
    """Fails where several values are written to one place: on a GPU any of them may stay."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.name() == "aten::index_copy_":
            index, value = args[2].numpy(), args[3].numpy()
            last = {int(i): value[at].tobytes() for at, i in enumerate(index)}
            assert all(last[int(i)] == value[at].tobytes() for at, i in enumerate(index))
        assert func.name() not in ("aten::index_put_", "aten::scatter_", "aten::scatter_.src")
        return func(*args, **(kwargs or {}))


@OF_KIND
@SHAPES
def test_no_write_is_ambiguous(shape, kind):
    """Duplicates in a batch of priorities, and slots that die and are filled at once."""
    pair = Pair(replace(SETUPS[shape], kind=kind, weight_norm="buffer"))
    rng, keys = np.random.default_rng(0), np.empty(0, np.int64)
    with Unambiguous():
        for _ in range(12):
            keys = np.concatenate([keys, pair.replay.add(pair.world.chunk(6))])
            if len(keys):
                pair.replay.prioritize(rng.choice(keys, 12), rng.random(12))
        with pytest.raises(AssertionError):
            torch.zeros(3).index_copy_(0, torch.tensor([1, 1]), torch.tensor([1.0, 2.0]))
    pair.replay.check()


WAITS = ("_local_scalar_dense", "nonzero", "equal", "masked_select", "unique", "is_nonzero", "item")


class Guard(TorchDispatchMode):
    """Fails on ops that read from ``device`` or whose shapes depend on data, and on copies off it.

    Host numbers may go in as arguments, tensors may not: an op with one on another device copies.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device, self.ops = device, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.name().removeprefix("aten::").split(".")[0]
        assert not any(name.startswith(wait) for wait in WAITS), f"{func} waits for the device"
        tensors = [x for x in all_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        if name in ("index", "index_put", "index_put_", "_index_put_impl_"):
            indices = [x for x in all_leaves(args[1]) if isinstance(x, torch.Tensor)]
            assert not any(x.dtype == torch.bool for x in indices), f"{func} by a mask"
        out = func(*args, **kwargs)
        tensors += [x for x in all_leaves(out) if isinstance(x, torch.Tensor)]
        assert all(x.device == self.device for x in tensors), f"{func} takes or gives host tensors"
        self.ops += 1
        return out


def filled(shape: str, kind: str, device: torch.device) -> Replay:
    """Alpha of ranks moves a table that is computed on the host; it goes over without waiting."""
    alpha = {} if kind == "uniform" or device.type == "meta" else {"alpha": linear(0.9, 0.1)}
    s = replace(SETUPS[shape], kind=kind, weight_norm="buffer", device=device.type)
    world = s.world()
    replay = s.replay(world.chunk(0), **({} if kind == "rank" else alpha))
    for _ in range(8):
        replay.add(world.chunk(6))
    return replay


@pytest.mark.parametrize("device", ["cpu", "meta"])
@OF_KIND
@SHAPES
def test_sample_and_prioritize_wait_for_nothing(shape, kind, device):
    """On ``meta`` tensors there is nothing to read, and every host tensor shows."""
    where = torch.device(device)
    replay, priority = filled(shape, kind, where), torch.ones(8, device=where)
    with Guard(where) as guard:
        sample = replay.sample(8, 0)
        replay.prioritize(sample.key, priority)  # the shortcut
        replay.prioritize(sample.key.clone(), priority)
        replay.sample(8, 500)
    assert guard.ops > 50
    assert sample.segment.reward.device.type == device


@pytest.mark.parametrize(
    ("device", "wait"),
    [
        ("cpu", lambda x: x.sum().item()),
        ("cpu", lambda x: x[x > 0]),
        ("cpu", lambda x: (x > 0).nonzero()),
        ("cpu", lambda x: torch.equal(x, x)),
        ("cpu", lambda x: x.index_put_((x > 0,), torch.ones(()))),
        ("meta", lambda x: x + torch.ones(3)),
        ("meta", lambda x: torch.ones(3).to("meta")),
    ],
)
def test_the_guard_sees_what_waits(device, wait):
    x = torch.ones(3, device=device)
    with pytest.raises(AssertionError), Guard(x.device):
        wait(x)


@CUDA
@OF_KIND
@SHAPES
def test_a_gpu_holds_the_same_windows_and_is_not_waited_for(shape, kind):
    pair = Pair(replace(SETUPS[shape], kind=kind, device="cuda"))
    for step in range(12):
        pair.add(6)
        if len(pair.replay):
            sample = pair.replay.sample(16, step)
            pair.agree_on(sample)
            pair.prioritize(host(sample.key), np.linspace(0.1, 2, 16, dtype=np.float32))
        pair.agree()
    replay, priority = filled(shape, kind, torch.device("cuda")), torch.rand(8, device="cuda")
    replay.prioritize(replay.sample(8, 0).key, priority)  # kernels are loaded with a sync
    torch.cuda.set_sync_debug_mode("error")
    try:
        for step in range(0, 1000, 50):
            sample = replay.sample(8, step)
            replay.prioritize(sample.key, priority)
            replay.prioritize(sample.key.clone(), priority)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert replay.metrics(0)["buffer/late_priorities"] == 0
    replay.check()
