"""Rows on a device: what ``Replay`` hands out is what one in host memory hands out, there.

On CPU tensors, where its ops are the same; what only a GPU can show runs where there is one.
Against the model: test_machine.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves as all_leaves

from rlrun.types import Window, tree_leaves
from tests.buffer.make import KINDS
from tests.buffer.pair import Setup, copied

CUDA = pytest.param(
    "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")
)
BASE = Setup(slack=20, lengths=((5, 3), (9,)))
SHAPES = {
    "rows": replace(BASE, window=Window(0, 1, 3)),
    "frames": replace(BASE, window=Window(0, 1, 2), stack=4, obs="dict"),
    "windows": replace(BASE, window=Window(5, 2, 2), table=64, lengths=((5, 13), (9,))),
}


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_replay_in_host_memory_bit_for_bit(shape, kind, device):
    """Draws, weights, priorities, what is read rarely; longer chunks than the ring; loaded rows."""
    s = replace(SHAPES[shape], kind=kind)
    world = s.world()
    one, other, *more = (replace(s, device=d).replay(world.chunk(0)) for d in (None, device) * 2)

    def agree(x: Any, y: Any) -> None:
        assert type(x) is type(y)
        x, y = (a.numpy(force=True) if isinstance(a, torch.Tensor) else a for a in (x, y))
        assert (x.dtype, x.shape, x.tobytes()) == (y.dtype, y.shape, y.tobytes())

    def segments(x: Any, y: Any) -> None:
        for a, b in zip(x, y, strict=True):
            for c, d in zip(a.tensors(), b.tensors(), strict=True):
                agree(c, d)

    for step, steps in enumerate((30, 6, 100, 7, 9)):
        chunk = world.chunk(steps)
        agree(one.add(chunk), other.add(chunk))
        x, y = (replay.sample(16, step) for replay in (one, other))
        assert y.segment.action.device.type == y.weight.device.type == device
        segments([x.segment], [y.segment])
        agree(x.weight, y.weight)
        agree(x.key, y.key)
        priority = torch.linspace(0.1, 2, 16)
        one.prioritize(x.key, priority)
        other.prioritize(y.key, priority.to(device))
    for read in (
        lambda r: [r.sample(0, 0).segment],
        lambda r: r.histories(5, np.random.default_rng(3)),
        lambda r: [r.random_windows(5, np.random.default_rng(3))],
        lambda r: list(r.stored(7, skip=5)),
    ):
        segments(read(one), read(other))
    assert one.metrics(9) == other.metrics(9)
    for a, b in zip(one.stored_states(), other.stored_states(), strict=True):
        for c, d in zip(tree_leaves(a), tree_leaves(b), strict=True):
            agree(c, d)
    for replay, empty in zip((one, other), more[::-1], strict=True):  # on the other device
        empty.load_state_dict(copied(replay.state_dict()))
        segments(list(empty.stored(9)), list(one.stored(9)))


class Guard(TorchDispatchMode):
    """Fails on ops that read from ``device``, and on writes of several values to one place."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().removeprefix("aten::").split(".")[0]
        waits = ("_local_scalar_dense", "nonzero", "equal", "masked_select", "unique", "item")
        assert not name.startswith(waits), f"{func} waits for the device"
        assert name not in ("index_put_", "scatter_"), f"{func} by a mask, or ambiguous"
        if name == "_to_copy" and args[0].device.type == "meta":
            raise AssertionError(f"{func} copies from the device")
        out = func(*args, **(kwargs or {}))
        found = [x for x in all_leaves((args, out)) if isinstance(x, torch.Tensor)]
        meta = {x.device.type == "meta" for x in found}
        assert name == "_to_copy" or len(meta) == 1, f"{func} mixes host and device"
        return out


@pytest.mark.parametrize("shape", SHAPES)
def test_adding_and_sampling_wait_for_nothing(shape):
    """On ``meta`` tensors there is nothing to read, and every host tensor shows."""
    s = replace(SHAPES[shape], device="meta")
    world = s.world()
    replay = s.replay(world.chunk(0))
    chunks = [world.chunk(6) for _ in range(9)]
    with Guard():
        for chunk in chunks:
            replay.add(chunk)
        sample = replay.sample(8, 0)
        replay.prioritize(sample.key, np.ones(8, np.float32))
    assert sample.segment.reward.device.type == "meta"


@pytest.mark.parametrize(
    "wait",
    [
        lambda x: torch.ones(2).sum().item(),
        lambda x: torch.equal(x, x),
        lambda x: x.index_put_((torch.zeros(1, dtype=torch.long, device="meta"),), x[:1]),
        lambda x: x + torch.ones(3),
    ],
)
def test_the_guard_sees_what_waits(wait):
    with pytest.raises((AssertionError, RuntimeError)), Guard():
        wait(torch.ones(3, device="meta"))
