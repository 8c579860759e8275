"""One R2D2 update of rlrun against the floor: at most 1.1 times it by torch, 0.7 by the kernel.

The latter is wanted of rlrun's own default shape, on one thread; bf16 rows are of other arithmetic.
"""

from argparse import Namespace
from typing import Any

import torch
from torch import nn

from tests.benchmarks import floor as f
from tests.benchmarks.floor import DEFAULT, LARGE, Shape
from tests.benchmarks.product import cpu_has_bf16_lstm
from tests.benchmarks.rows import Row, beside

TARGET = 1.1
KERNEL_TARGET = 0.7  # at the default shape
ROWS = 60_000  # rows in the replay: rlrun's default capacity


def main(o: Namespace) -> list[Row]:
    """Rows for each shape and each thread count."""
    rows: list[Row] = []
    for threads in o.threads:
        torch.set_num_threads(threads)
        for shape in (DEFAULT,) if o.quick else (LARGE, DEFAULT):
            repeats = o.rounds if shape.lstm < 512 else min(o.rounds, 3)
            rows += measure(shape, repeats, o.seconds, threads)
    return rows


def measure(shape: Shape, repeats: int, seconds: float, threads: int) -> list[Row]:
    """The update by torch, by the kernel, and in bf16 where the CPU can."""
    policy, replay = f.make_policy(shape, threads=threads), f.make_replay(shape, rows=ROWS)
    floor = f.twin(policy, shape)
    sample = f.full_sample(replay, shape.batch)
    batch = f.plain(sample)
    assert same_numbers(shape), "the floor computes something else"
    setting: dict[str, Any] = {
        "shape": shape.name, "batch": shape.batch, "burnin": shape.burnin, "unroll": shape.unroll,
        "n": shape.nstep, "threads": threads, "params": f.parameters(policy),
    }  # fmt: skip

    functions: dict[str, Any] = {"update": lambda: policy.update(sample).priority.numpy()}
    if shape.lstm <= 128 and threads <= 2:  # where learner.backend=auto takes it
        fast = f.make_policy(shape, threads=threads, backend="numpy")
        functions["update, kernel"] = lambda: fast.update(sample).priority
    if cpu_has_bf16_lstm():
        rough = f.make_policy(shape, threads=threads, precision="bf16")
        functions["update, bf16"] = lambda: rough.update(sample).priority
    else:
        print("update, bf16: left out: torch cannot compute an LSTM in bfloat16 on this CPU")
    targets = {"update": TARGET} if shape is LARGE else {}
    if shape is DEFAULT and threads == 1:
        targets["update, kernel"] = KERNEL_TARGET
    return [
        beside(name, setting, "floor", ours, lambda: floor.update(batch).numpy(),
               (repeats, seconds), kind="cost", target=targets.get(name))
        for name, ours in functions.items()
    ]  # fmt: skip


def same_numbers(shape: Shape, *, ends: int = 0, rtol: float = 1e-4) -> bool:
    """Whether floor and rlrun agree on loss, priorities, gradient and new weights."""
    policy = f.make_policy(shape)
    with torch.no_grad():  # a target of its own, else swapping the two nets would go unseen
        for p in policy.target.parameters():
            p.mul_(0.9)
    floor = f.twin(policy, shape)
    sample = f.full_sample(f.make_replay(shape, rows=ROWS // 2), shape.batch, ends=ends)
    batch = f.plain(sample)
    ours, (loss, priority) = policy.loss(sample.segment, sample.weight), floor.loss(batch)
    same = [torch.allclose(ours.loss, loss, rtol=rtol, atol=0)]
    same += [torch.allclose(ours.priority, priority, rtol=rtol, atol=1e-5)]
    ours.loss.backward()
    loss.backward()
    grads = {n: p.grad for n, p in floor.net.named_parameters()}
    same += [_close(p.grad, grads[f.floor_name(n)], rtol) for n, p in policy.net.named_parameters()]
    policy.update(sample)
    floor.update(batch)
    for net, twin_net in ((policy.net, floor.net), (policy.target, floor.target)):
        same += _close_nets(net, twin_net, rtol)
    return all(same)


def _close_nets(net: nn.Module, twin_net: nn.Module, rtol: float) -> list[bool]:
    theirs = twin_net.state_dict()
    return [_close(w, theirs[f.floor_name(n)], rtol) for n, w in net.state_dict().items()]


def _close(a: torch.Tensor, b: torch.Tensor, rtol: float) -> bool:
    """Equal up to ``rtol`` of the largest entry."""
    return bool((a - b).abs().max() <= rtol * b.abs().max())
