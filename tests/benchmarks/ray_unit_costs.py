"""Unit costs of the roles of a Ray run, each measured in this process.

Seconds are CPU time of the process, medians over repeats: other jobs of the machine disturb it
least. All computation is in one thread.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from tests.benchmarks import ray_setting as setting
from tests.benchmarks.product import (
    AutoCollectorSide,
    AutoLearnerSide,
    Order,
    Payload,
    as_segment,
    learner_parts,
    nbytes,
)
from tests.benchmarks.ray_table import Costs

CODED = ("transport=coded", "transport.weights=planes_ctx")
NO_LINK = 0.0  # bytes/s: everything is coded
STREAMS = (1, 8, 64, 256)  # of a shard


def cpu_of(function: Callable[[], object], repeats: int, calls: int = 1) -> list[float]:
    """CPU seconds of a call, ``repeats`` times the mean of ``calls``."""
    found = []
    for _ in range(repeats):
        began = time.process_time()
        for _ in range(calls):
            function()
        found.append((time.process_time() - began) / calls)
    return found


def measure(costs: Costs, workload: str, *, quick: bool, streams: Sequence[int]) -> None:
    """All costs of a workload that need no Ray."""
    torch.set_num_threads(1)
    repeats, chunks = (3, 24) if quick else (9, 48 if workload == "small" else 24)
    plan = setting.plan_of(workload)
    with setting.own_logging():
        collecting(costs, workload, plan, repeats, chunks)
        recorded = setting.Recorded.collect(plan, chunks)
        rows(costs, workload, recorded, repeats)
        for count in streams:
            replaying(costs, workload, recorded, repeats, count)
        learning(costs, workload, recorded, repeats, quick=quick)


def collecting(costs: Costs, workload: str, plan: Any, repeats: int, chunks: int) -> None:
    """Seconds of a collector an env step: inference, the environment, all else."""
    role = setting.collector_of(plan)
    role.collect(Order(0, 0, (), 0))
    seq, act, env, whole, steps = 1, [], [], [], []
    for _ in range(repeats):
        before = dict(role.collector.seconds)
        began, done = time.process_time(), 0
        for _ in range(max(1, chunks // 8)):
            info, _ = role.collect(Order(seq, 0, (), 0))
            seq, done = seq + 1, done + info.stats.steps
        whole.append((time.process_time() - began) / done)
        after = role.collector.seconds
        act.append((after["act"] - before["act"]) / done)
        env.append((after["env"] - before["env"]) / done)
        steps.append(done / max(1, chunks // 8))
    role.close()
    costs.add(workload, "collect", "s/env step", whole)
    costs.add(workload, "act (wall)", "s/env step", act)
    costs.add(workload, "env (wall)", "s/env step", env)
    costs.add(workload, "chunk_steps", "env steps", steps)


def rows(costs: Costs, workload: str, recorded: setting.Recorded, repeats: int) -> None:
    """Bytes of an env step, raw and coded, and seconds of coding them a raw byte."""
    import pickle

    config = setting.plan_of(workload, words=CODED).config.transport
    raw = sum(nbytes(message) for _, message in recorded.chunks)
    steps = sum(info.stats.steps for info, _ in recorded.chunks)
    costs.add(workload, "row_raw", "bytes", [raw / steps])
    reply = [len(pickle.dumps(info)) for info, _ in recorded.chunks]
    costs.add(workload, "reply", "bytes/chunk", reply)
    near = AutoCollectorSide(config, 0, link=NO_LINK, thin=thin_of(workload))
    far = AutoLearnerSide(config, 0, link=NO_LINK)
    encode, decode, coded = [], [], 0.0
    for _ in range(repeats):
        frames = []
        began = time.process_time()
        for _, message in recorded.chunks:
            frames.append(near.pack(message))
        encode.append((time.process_time() - began) / raw)
        began = time.process_time()
        for frame in frames:
            far.unpack(frame)
        decode.append((time.process_time() - began) / raw)
        coded = sum(map(len, frames))
    costs.add(workload, "row_coded", "bytes", [coded / steps])
    costs.add(workload, "row_encode", "s/byte", encode)
    costs.add(workload, "row_decode", "s/byte", decode)


def thin_of(workload: str) -> Any:
    """What blanks recurrent states that no window starts from, as a collector does it."""
    return setting.collector_of(setting.plan_of(workload)).parts.side.coded_side.thin


def filled(workload: str, recorded: setting.Recorded, streams: int) -> tuple[Any, list[int]]:
    """A shard whose streams hold windows, and the next chunk of each."""
    shard = setting.ShardInProcess(setting.plan_of(workload, streams=streams))
    count = 8 if workload == "small" else 4
    for number in range(streams):
        for seq in range(count):
            store(shard, recorded, number, seq)
    return shard, [count] * streams


def store(shard: Any, recorded: setting.Recorded, number: int, seq: int) -> None:
    """Add the recorded chunk ``seq`` to stream ``number``."""
    found = shard.add(number, seq, Payload(recorded.take(seq)[1], None, 0))
    assert found.accepted, found


def replaying(
    costs: Costs, workload: str, recorded: setting.Recorded, repeats: int, streams: int
) -> None:
    """Seconds of a shard with so many streams a chunk added, a batch sampled and prioritized."""
    shard, following = filled(workload, recorded, streams)
    batch = setting.plan_of(workload).config.learner.batch_size
    draws = np.random.default_rng(0)

    def add() -> None:
        number = int(draws.integers(streams))
        store(shard, recorded, number, following[number])
        following[number] += 1

    def prioritize() -> None:
        shard.prioritize(drawn[-1].key, draws.random(batch, np.float32) + 0.1, 0)

    drawn = [shard.sample(batch, 0)]  # compiles, allocates
    spent: dict[str, list[float]] = {"shard_add": [], "shard_sample": [], "shard_prioritize": []}
    for _ in range(repeats):  # in turns, as of a run: each finds the others' data in the caches
        for _ in range(4):
            each = [*cpu_of(add, 1, 2), *cpu_of(lambda: drawn.append(shard.sample(batch, 0)), 1),
                    *cpu_of(prioritize, 1)]  # fmt: skip
            for name, seconds in zip(spent, each, strict=True):
                spent[name].append(seconds)
            del drawn[:-1]
    for name, found in spent.items():
        costs.add(workload, name, "s/chunk" if name == "shard_add" else "s/batch", found, streams)
    if streams == 1:  # a batch is as large whatever the number of streams
        sample = shard.sample(batch, 0)
        arrays = sum(x.nbytes for x in as_segment(sample.segment).tensors())
        costs.add(workload, "batch_bytes", "bytes", [arrays + sample.weight.nbytes])
        frames = as_segment(sample.segment).obs
        stack = setting.plan_of(workload).config.env.frame_stack
        single = arrays - frames.nbytes * (stack - 1) / stack
        costs.add(workload, "batch_single", "bytes", [single])
        copied = cpu_of(lambda: as_segment(sample.segment), repeats)
        costs.add(workload, "batch_copy", "s/batch", copied)


def learning(
    costs: Costs, workload: str, recorded: setting.Recorded, repeats: int, *, quick: bool
) -> None:
    """Seconds of an update and of publishing, and the coding of weights between real updates."""
    words = CODED if workload == "small" else (*CODED, "learner.batch_size=2")
    plan = setting.plan_of(workload, words=words)
    parts = learner_parts(plan, NO_LINK)
    shard, _ = filled(workload, recorded, 1)
    policy, env_steps = parts.policy, 1000
    batch, count = plan.config.learner.batch_size, 16 if workload == "small" and not quick else 3

    def update() -> None:
        policy.update(shard.streams.sample(batch, env_steps))

    update()
    if workload == "small":
        sample = shard.streams.sample(batch, env_steps)
        costs.add(workload, "update", "s", cpu_of(lambda: policy.update(sample), repeats, count))
    tensors = parts.publisher.tensors(narrow=False)
    size = sum(x.nbytes for x in tensors.values())
    costs.add(workload, "weights_raw", "bytes", [size])
    copied = cpu_of(lambda: {n: np.array(x.numpy()) for n, x in tensors.items()}, repeats)
    costs.add(workload, "publish_copy", "s/version", copied)
    far = AutoCollectorSide(plan.config.transport, 0, link=NO_LINK, thin=lambda x: x)
    coded, encode, decode = [], [], []
    for _ in range(4 if quick else 8):
        for _ in range(count if workload == "small" else 1):
            update()
        began = time.process_time()
        frame = parts.side.pack(parts.publisher.tensors(narrow=True))
        encode.append((time.process_time() - began) / size)
        began = time.process_time()
        weights = far.unpack(frame)
        decode.append((time.process_time() - began) / size)
        coded.append(float(len(frame)))
    costs.add(workload, "weights_coded", "bytes", coded[2:])  # deltas to two versions
    costs.add(workload, "weights_encode", "s/byte", encode[2:])
    costs.add(workload, "weights_decode", "s/byte", decode[2:])
    actor = setting.collector_of(plan)

    def load() -> None:
        actor.parts.publisher.load(weights)
        actor.collector.actor.refresh()

    costs.add(workload, "publish_load", "s/version", cpu_of(load, repeats))
    actor.close()
