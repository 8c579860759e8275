"""One R2D2 update of rlrun against the floor: at most 1.1 times it by torch, 0.7 by the kernel.

The latter is wanted of rlrun's own default shape, on one thread; bf16 rows are of other arithmetic.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from tests.benchmarks.floor import Shape, plain
from tests.benchmarks.product import R2D2, cpu_has_bf16_lstm
from tests.benchmarks.shapes import (
    DEFAULT,
    LARGE,
    PEERS,
    SHORT,
    WIDER,
    floor_name,
    full_sample,
    make_policy,
    make_replay,
    parameters,
    twin,
)
from tests.benchmarks.timing import Row, calls_for, interleaved, time_calls, timing_row

TARGET = 1.1
KERNEL_TARGET = 0.7  # at the default shape
WITH_TARGET = (SHORT, PEERS, WIDER, LARGE)
ROWS = 60_000  # rows in the replay: rlrun's default capacity


def measure(
    *,
    threads: tuple[int, ...],
    repeats: int,
    seconds: float,
    shapes: Sequence[Shape] = (*WITH_TARGET, DEFAULT),
) -> list[Row]:
    """Rows for each shape, with and without replay, for each thread count."""
    before = torch.get_num_threads()
    rows: list[Row] = []
    try:
        for count in threads:
            torch.set_num_threads(count)
            for shape in shapes:
                target = TARGET if shape in WITH_TARGET else None
                few = repeats if shape.lstm < 512 else min(repeats, 3)
                rows += measure_shape(
                    shape, repeats=few, seconds=seconds, threads=count, target=target
                )
    finally:
        torch.set_num_threads(before)
    return rows


def measure_shape(
    shape: Shape, *, repeats: int, seconds: float, threads: int, target: float | None
) -> list[Row]:
    """The update alone, with ``sample`` before and ``prioritize`` after it, and in bf16
    where the CPU can.

    Each measurement fills about ``seconds``. The floor never samples: the second row is what a
    learner of rlrun pays in all, over the same bare update of a batch that lies ready.
    """
    policy, replay = make_policy(shape, threads=threads), make_replay(shape, rows=ROWS)
    floor = twin(policy, shape)
    sample = full_sample(replay, shape.batch)
    batch = plain(sample)
    assert same_numbers(shape), "the floor computes something else"
    setting: dict[str, Any] = {
        "shape": shape.name, "batch": shape.batch, "burnin": shape.burnin, "unroll": shape.unroll,
        "n": shape.nstep, "threads": threads, "params": parameters(policy),
    }  # fmt: skip

    def ours() -> object:
        update = policy.update(sample)
        assert update.priority is not None
        return update.priority.numpy()

    def with_replay() -> None:
        drawn = replay.sample(shape.batch, 0)
        update = policy.update(drawn)
        assert update.priority is not None
        replay.prioritize(drawn.key, update.priority.numpy())

    def bare() -> object:
        return floor.update(batch).numpy()

    rows = []
    calls = calls_for(bare, seconds)
    measured = {"update": ours, "update+replay": with_replay}
    if shape.lstm <= 128 and threads <= 2:  # where learner.backend=auto takes it
        fast = make_policy(shape, threads=threads, backend="numpy")
        measured["update, kernel"] = lambda: fast.update(sample).priority
    rough = _in_bf16(shape, threads)
    if rough is not None:
        measured["update, bf16"] = lambda: rough.update(sample).priority
    for name, function in measured.items():
        time_calls(function, 3)
        pairs = interleaved(
            lambda f=function: time_calls(f, calls), lambda: time_calls(bare, calls), repeats
        )
        goal = target if name == "update" else None
        if name == "update, kernel" and shape is DEFAULT and threads == 1:
            goal = KERNEL_TARGET
        rows.append(timing_row(name, setting, "floor", pairs, kind="cost", target=goal))
    return rows


def _in_bf16(shape: Shape, threads: int) -> R2D2 | None:
    """The policy that computes in bfloat16; None, with a line that says why, if the CPU cannot."""
    if cpu_has_bf16_lstm():
        return make_policy(shape, threads=threads, precision="bf16")
    print("update, bf16: left out: torch cannot compute an LSTM in bfloat16 on this CPU")
    return None


def same_numbers(shape: Shape, *, ends: int = 0, rtol: float = 1e-4) -> bool:
    """Return whether floor and rlrun agree on loss, priorities, gradient and new weights."""
    policy = make_policy(shape)
    with torch.no_grad():  # a target of its own, else swapping the two nets would go unseen
        for p in policy.target.parameters():
            p.mul_(0.9)
    floor = twin(policy, shape)
    sample = full_sample(make_replay(shape, rows=ROWS // 2), shape.batch, ends=ends)
    batch = plain(sample)
    ours, (loss, priority) = policy.loss(sample.segment, sample.weight), floor.loss(batch)
    same = [torch.allclose(ours.loss, loss, rtol=rtol, atol=0)]
    same += [torch.allclose(ours.priority, priority, rtol=rtol, atol=1e-5)]
    ours.loss.backward()
    loss.backward()
    grads = {n: p.grad for n, p in floor.net.named_parameters()}
    same += [_close(p.grad, grads[floor_name(n)], rtol) for n, p in policy.net.named_parameters()]
    policy.update(sample)
    floor.update(batch)
    for net, twin_net in ((policy.net, floor.net), (policy.target, floor.target)):
        same += _close_nets(net, twin_net, rtol)
    return all(same)


def _close_nets(net: nn.Module, twin_net: nn.Module, rtol: float) -> list[bool]:
    theirs = twin_net.state_dict()
    return [_close(w, theirs[floor_name(n)], rtol) for n, w in net.state_dict().items()]


def _close(a: torch.Tensor | None, b: torch.Tensor | None, rtol: float) -> bool:
    """Equal up to ``rtol`` of the largest entry."""
    assert a is not None
    assert b is not None
    return bool((a - b).abs().max() <= rtol * b.abs().max())
