"""``pipeline=ray``: what its roles spend, and what a run of many collectors reaches.

``ray_costs``: seconds of each role of a run an env step, a chunk, a batch, a version of the
weights: the numbers of ``ray_model``. Roles are measured in this process, what Ray adds with actors
that do nothing. Seconds are CPU time unless the name says wall; medians, one thread.

``ray_simulation``: 256 collectors on one machine. Two actors reply for all of them with recorded
chunks, as fast as orders come; driver, shards and learner are the real ones, with the real pacing.
The rates are compared with those that ``ray_model`` predicts for as many cores as the run got.
With ``--sittings N`` the costs are measured anew before and after each of N simulations, and their
means are used: hosts change their speed in minutes.

``ray_link``: the codec on a slow link, env steps/s with and without it. Every collector's link is a
sleep for each byte that it sends. Rows are frames of 84 x 84 bytes.
"""

import copy
import json
import logging
import math
import os
import pickle
import statistics
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import psutil

from tests.benchmarks import codec_data, product, ray_model, runs
from tests.benchmarks.product import Order, Payload, as_segment
from tests.benchmarks.ray_model import PROCESSES, Costs, Table, read
from tests.benchmarks.rows import Row, machine, make_row
from tests.compose import config

WORKLOADS = {
    "small": ("policy=r2d2", "env=cartpole_novel"),
    "paper": (  # one environment an actor; 80 steps a chunk; the first priority is that of max
        "experiment=r2d2_paper", "env=gym", f"env.id={codec_data.SCREENS}", "env.frame_stack=4",
        "torso=nature_cnn", "collector.num_envs=1", "collector.n_sample=80",
        "buffer.initial_priority=max",
    ),
}  # fmt: skip
ROWS = {"small": 16 * 200, "paper": 600}  # of a collector's replay
COLLECTORS = {  # 4096 collectors' image chunks would fill this machine's object store
    "small": (16, 256, 4096),
    "paper": (16, 256),
}
STREAMS = (1, 8, 64, 256)  # of a shard
CODED = ("transport=coded", "transport.weights=planes_ctx")
NO_LINK = 0.0  # bytes/s: everything is coded
FEEDERS = 2  # actors that stand for all collectors
RATIOS = (120.0, 4.0)  # learned rows per env step: the default, and one that the shards limit
CALIBRATED = 16  # collectors of the run whose processes are compared with the sum of their parts
_cluster: list[Any] = []  # a process starts Ray once


def cluster() -> Any:
    """This process's Ray."""
    if not _cluster:
        _cluster.append(product.Cluster(None, cpus=8, gpus=0, custom={}))
    return _cluster[0]


def close() -> None:
    """End it."""
    while _cluster:
        _cluster.pop().close()


def plan_of(workload: str, *, streams: int = 1, words: tuple[str, ...] = ()) -> Any:
    """The plan of a run with ``streams`` collectors."""
    return product.make_plan(config(
        *WORKLOADS[workload], "pipeline=ray", f"pipeline.num_actors={streams}",
        f"buffer.capacity={streams * ROWS[workload]}", *words,
    ))  # fmt: skip


@contextmanager
def own_logging() -> Iterator[None]:
    """Roles of this process change the logging of the whole process; undo that."""
    root = logging.getLogger()
    level, handlers = root.level, [*root.handlers]
    try:
        yield
    finally:
        root.setLevel(level)
        for handler in [h for h in root.handlers if h not in handlers]:
            root.removeHandler(handler)
        logging.captureWarnings(False)


def collector_of(plan: Any) -> Any:
    """The role of a collector, in this process."""
    make = partial(product.collector_parts, plan, 0, math.inf)
    return product.CollectorRole(product.packed(make), 0, predictor=None, throttle=0.0)


@dataclass(frozen=True, slots=True)
class Recorded:
    """Chunks as a collector replied: (``Collected``, rows)."""

    chunks: list[tuple[Any, Any]]

    @classmethod
    def collect(cls, plan: Any, count: int) -> "Recorded":
        """Collect ``count`` successive chunks."""
        role, chunks = collector_of(plan), []
        for seq in range(count):
            info, payload = role.collect(Order(seq, 0, (), 0))
            assert payload is not None, info
            chunks.append((copy.deepcopy(info), copy.deepcopy(payload.message)))
        role.close()
        return cls(chunks)

    def take(self, seq: int) -> tuple[Any, Any]:
        """Chunk ``seq``; the recording repeats."""
        return self.chunks[seq % len(self.chunks)]


class ShardInProcess(product.ReplayRole):
    """A shard outside of Ray, whose streams hold windows."""

    def __init__(self, workload: str, recorded: Recorded, streams: int) -> None:
        self.failed, self.blank, self.number, self.incarnation, self.late = None, False, 0, 0, 0
        self.parts = product.shard_parts(plan_of(workload, streams=streams), 0)
        self.streams = self.parts.streams
        self.receiver = product.Receiver(self.parts.sides, self.parts.check)
        self.seconds = {"add": 0.0, "sample": 0.0, "prioritize": 0.0}
        self.recorded, self.following = recorded, [0] * streams
        for number in range(streams):
            for _ in range(8 if workload == "small" else 4):
                self.store(number)

    def store(self, number: int) -> None:
        """Add the next recorded chunk to stream ``number``."""
        seq = self.following[number]
        found = self.add(number, seq, Payload(self.recorded.take(seq)[1], None, 0))
        assert found.accepted, found
        self.following[number] += 1


# -- actors ----------------------------------------------------------------------------------------


class Actor:
    """What a benchmark asks of its actors."""

    def pid(self) -> int:
        return os.getpid()

    def cpu(self) -> float:
        """CPU seconds of this process so far."""
        return time.process_time()


class Feeder(Actor):
    """Collectors that have recorded everything: it replies to any order at once."""

    def __init__(self, recorded: Recorded) -> None:
        self.recorded = recorded

    def collect(self, order: Any, *frames: Any) -> tuple[Any, Any]:
        """As ``CollectorRole.collect``."""
        info, message = self.recorded.take(order.seq)
        version = order.versions[-1] if order.versions else info.version
        info = replace(info, seq=order.seq, env_steps=order.env_steps, version=version)
        return info, Payload(message, None, order.incarnation, order.since)


class EmptyShard(Actor):
    """Replies to chunks and stores none; a batch is the same every time. As ``ReplayRole``."""

    def __init__(self, batch: Any) -> None:
        self.batch = batch

    def add(self, collector: int, seq: int, payload: Any, corrupt: bool = False) -> Any:
        return product.Stored(seq + 1, True, rows=1, windows=1, mass=1.0)

    def sample(self, batch: int, env_steps: int) -> Any:
        return self.batch

    def prioritize(self, key: Any, priority: Any, incarnation: int) -> Any:
        return None


def actors(kind: type, given: Any, count: int) -> list[Any]:
    """``count`` started actors with one argument."""
    import ray

    shared, actor = ray.put(given), ray.remote(kind).options(num_cpus=0)
    made = [actor.remote(shared) for _ in range(count)]
    ray.get([x.pid.remote() for x in made])
    return made


class RecordedRoles(product.Roles):
    """Many collectors that a few feeders stand for, shards, and a learner, on a cluster."""

    def __init__(
        self, plan: Any, *, count: int, feeders: list[Any], shards: list[Any], learner: bool
    ) -> None:
        """``shards``: actors, [] places the plan's real ones; ``learner``: place the real one."""
        self.config, self.cluster, self.directory = plan.config.pipeline, cluster(), Path()
        self.pump = product.Pump(self.cluster.check)
        self.frames = product.WeightFrames(plan.config.transport.keep)
        self.closed, self.predictor, self.run = False, None, f"benchmark-{time.time_ns()}"
        c, parts = self.config, product.shard_parts
        real = [
            self._place(product.ReplayRole, c.replay, f"replay {i}", partial(parts, plan, i), i)
            for i in range(0 if shards else c.num_shards)
        ]
        self.shards = [product.ShardHandle(f"replay {i}", s) for i, s in enumerate(shards or real)]
        self.collectors = [
            product.CollectorHandle(f"collector {i}", feeders[i % len(feeders)], number=i)
            for i in range(count)
        ]
        self.evaluator = self.learner = product.Role("none", None)
        if learner:
            names = [self._full(shard.name) for shard in self.shards]
            made = partial(product.learner_parts, plan, math.inf)
            actor = self._place(
                product.LearnerRole, c.learner, "learner", made, names, threads=plan.threads,
                seed=0, prefetch=c.prefetch, throttle=0.0,
            )  # fmt: skip
            self.learner = product.Role("learner", actor)

    def write_log(self, role: Any, lines: Any) -> None:
        """Logs of the roles are not kept."""

    def close(self) -> None:
        """End the roles that were placed here."""
        import ray

        for role in [*self.shards, self.learner]:
            if role.handle is not None:
                ray.kill(role.handle)


def source_of(plan: Any, roles: Any, counters: Any) -> Any:
    """The driver's source of chunks."""
    actions = product.ActionCounts(plan.row_spec.action)
    metrics = product.CollectMetrics(counters, lambda env_steps: np.zeros(1), actions)
    delivery = product.Delivery(roles)
    source = product.AsyncSource(
        roles, metrics, keep_env=False, max_seconds=60.0, delivery=delivery, total_steps=2**62
    )
    source.traffic.delivery = delivery
    return source


# -- costs of the roles ----------------------------------------------------------------------------


def cpu_of(function: Callable[[], object], repeats: int, calls: int = 1) -> list[float]:
    """CPU seconds of a call, ``repeats`` times the mean of ``calls``."""
    found = []
    for _ in range(repeats):
        began = time.process_time()
        for _ in range(calls):
            function()
        found.append((time.process_time() - began) / calls)
    return found


def of_roles(costs: Costs, workload: str, *, quick: bool, streams: Sequence[int]) -> None:
    """All costs of a workload that need no Ray."""
    repeats, chunks = (3, 24) if quick else (9, 48 if workload == "small" else 24)
    plan, add = plan_of(workload), partial(costs.add, workload)
    with own_logging():
        role, done, found = collector_of(plan), 0, list[float]()
        role.collect(Order(0, 0, (), 0))
        count = max(1, chunks // 8)
        for i in range(repeats):
            began, steps = time.process_time(), 0
            for k in range(count):
                steps += role.collect(Order(1 + i * count + k, 0, (), 0))[0].stats.steps
            found.append((time.process_time() - began) / steps)
            done += steps
        role.close()
        add("collect", "s/env step", found)
        add("chunk_steps", "env steps", [done / repeats / count])
        recorded = Recorded.collect(plan, chunks)
        of_rows(add, workload, recorded, repeats)
        for size in streams:
            of_replay(add, workload, recorded, repeats, size)
        of_learner(add, workload, recorded, repeats, quick=quick)


def of_rows(add: Any, workload: str, recorded: Recorded, repeats: int) -> None:
    """Bytes of an env step, raw and coded, and seconds of decoding them a raw byte."""
    transport = plan_of(workload, words=CODED).config.transport
    raw = sum(product.nbytes(message) for _, message in recorded.chunks)
    steps = sum(info.stats.steps for info, _ in recorded.chunks)
    add("row_raw", "bytes", [raw / steps])
    add("reply", "bytes/chunk", [len(pickle.dumps(info)) for info, _ in recorded.chunks])
    role = collector_of(plan_of(workload))  # thin blanks states that no window starts from
    thin = role.parts.side.coded_side.thin
    near = product.AutoCollectorSide(transport, 0, link=NO_LINK, thin=thin)
    far, decode, frames = product.AutoLearnerSide(transport, 0, link=NO_LINK), [], list[bytes]()
    for _ in range(repeats):
        frames = [near.pack(message) for _, message in recorded.chunks]
        decode += cpu_of(lambda: [far.unpack(frame) for frame in frames], 1)  # noqa: B023
    add("row_coded", "bytes", [sum(map(len, frames)) / steps])
    add("row_decode", "s/byte", [seconds / raw for seconds in decode])


def of_replay(add: Any, workload: str, recorded: Recorded, repeats: int, streams: int) -> None:
    """Seconds of a shard with so many streams a chunk added, a batch sampled and prioritized."""
    shard, draws = ShardInProcess(workload, recorded, streams), np.random.default_rng(0)
    conf = plan_of(workload).config
    batch = conf.learner.batch_size
    drawn = [shard.sample(batch, 0)]  # compiles, allocates
    parts: dict[str, tuple[Callable[[], object], int]] = {
        "shard_add": (lambda: shard.store(int(draws.integers(streams))), 2),
        "shard_sample": (lambda: drawn.append(shard.sample(batch, 0)), 1),
        "shard_prioritize": (lambda: shard.prioritize(
            drawn[-1].key, draws.random(batch, np.float32) + 0.1, 0), 1),
    }  # fmt: skip
    spent: dict[str, list[float]] = {name: [] for name in parts}
    for _ in range(4 * repeats):  # in turns, as of a run: each finds others' data in the caches
        for name, (function, calls) in parts.items():
            spent[name] += cpu_of(function, 1, calls)
        del drawn[:-1]
    for name, found in spent.items():
        add(name, "s/chunk" if name == "shard_add" else "s/batch", found, streams)
    if streams == 1:  # a batch is as large whatever the number of streams
        sample = shard.sample(batch, 0)
        segment, stack = as_segment(sample.segment), conf.env.frame_stack
        arrays = sum(x.nbytes for x in segment.tensors())
        add("batch_bytes", "bytes", [arrays + sample.weight.nbytes])
        add("batch_single", "bytes", [arrays - segment.obs.nbytes * (stack - 1) / stack])


def of_learner(add: Any, workload: str, recorded: Recorded, repeats: int, *, quick: bool) -> None:
    """Seconds of an update, and the size of weights between real updates."""
    small = workload == "small"
    plan = plan_of(workload, words=CODED if small else (*CODED, "learner.batch_size=2"))
    parts, shard = product.learner_parts(plan, NO_LINK), ShardInProcess(workload, recorded, 1)
    policy, batch = parts.policy, plan.config.learner.batch_size
    count = 16 if small and not quick else 3

    def update() -> None:
        policy.update(shard.streams.sample(batch, 1000))

    update()
    if small:
        sample = shard.streams.sample(batch, 1000)
        add("update", "s", cpu_of(lambda: policy.update(sample), repeats, count))
    size = sum(x.nbytes for x in parts.publisher.tensors(narrow=False).values())
    add("weights_raw", "bytes", [size])
    coded = []
    for _ in range(4 if quick else 8):
        for _ in range(count if small else 1):
            update()
        coded.append(float(len(parts.side.pack(parts.publisher.tensors(narrow=True)))))
    add("weights_coded", "bytes", coded[2:])  # deltas to two versions


# -- costs of Ray ----------------------------------------------------------------------------------


def over_ray(costs: Costs, workload: str, sizes: Sequence[int], *, quick: bool) -> None:
    """What Ray and the driver add to a chunk and to a batch."""
    import ray

    plan, add = plan_of(workload), partial(costs.add, workload)
    size = plan.config.learner.batch_size
    with own_logging():
        recorded = Recorded.collect(plan, 12)
        batch = ShardInProcess(workload, recorded, 1).sample(size, 0)
    feeders, (shard,) = actors(Feeder, recorded, FEEDERS), actors(EmptyShard, batch, 1)
    try:
        for count in sizes:
            of_driver(add, plan, feeders, shard, count, quick=quick)
        of_batches(add, size, shard, 3 if quick else 15)
    finally:
        for each in (*feeders, shard):
            ray.kill(each)


def of_driver(
    add: Any, plan: Any, feeders: list[Any], shard: Any, count: int, *, quick: bool
) -> None:
    """Seconds of the driver a chunk: order, reply, add, acknowledgement, counting."""
    import ray

    roles = RecordedRoles(plan, count=count, feeders=feeders, shards=[shard], learner=False)
    source = source_of(plan, roles, product.Counters())
    pids = [os.getpid(), *ray.get([x.pid.remote() for x in (*feeders, shard)])]

    def now() -> list[float]:
        return [time.thread_time(), *(sum(psutil.Process(p).cpu_times()[:2]) for p in pids)]

    chunks = 40 if quick else max(200, count)  # replies come in bursts of up to all collectors
    for _ in range(chunks // 2):
        source.next_chunk()
    found: list[list[float]] = []
    for _ in range(3 if quick else 5 if count <= 256 else 1):
        began = now()
        for _ in range(chunks):
            source.next_chunk()
        found.append([(y - x) / chunks for x, y in zip(began, now(), strict=True)])
    main_thread, process, *fed, store = zip(*found, strict=True)
    source.paused = True
    while roles.pump.handles:
        roles.pump.run(1.0)
    add("driver", "s/chunk", main_thread, count)
    add("driver_threads", "s/chunk", process, count)
    add("ray_collect", "s/chunk", [sum(each) for each in zip(*fed, strict=True)], count)
    add("ray_add", "s/chunk", store, count)


def of_batches(add: Any, size: int, shard: Any, repeats: int) -> None:
    """CPU seconds a batch and its priorities on their way: of the shard, of the learner.

    The calls are those of ``ShardReader``: priorities are sent, their reply is read a batch later.
    """
    import ray

    values, written = np.ones(size, np.float32), [ray.put(None)]

    def one() -> tuple[float, float]:
        began = time.process_time()
        found: Any = ray.get(shard.sample.remote(size, 0))
        as_segment(found.segment)
        middle = time.process_time()
        ray.get(written[0])
        written[0] = shard.prioritize.remote(found.key, values, found.incarnation)
        return middle - began, time.process_time() - middle

    one()
    send, receive, back = [], [], []
    for _ in range(repeats):
        before = ray.get(shard.cpu.remote())
        there, again = zip(*(one() for _ in range(4)), strict=True)
        ray.get(written[0])
        send.append((ray.get(shard.cpu.remote()) - before) / 4)
        receive.append(statistics.mean(there))
        back.append(statistics.mean(again))
    add("ray_send", "s/batch", send)
    add("ray_receive", "s/batch", receive)
    add("ray_priorities", "s/batch", back)


def in_a_run(costs: Costs, *, quick: bool) -> None:
    """What each process of a small run spends, as a multiple of the costs of its parts.

    Alone and in a loop, a part finds its data in the caches and never waits to be woken up.
    """
    with own_logging():
        recorded = Recorded.collect(plan_of("small"), 40)
    warm, seconds = (1.0, 1.0) if quick else (10.0, 10.0)
    cost, found, parts = Table(costs, "small"), dict[str, float](), dict[str, float]()
    for ratio in RATIOS[1:] if quick else RATIOS:
        run = simulate(recorded, CALIBRATED, ratio, warm, seconds)
        for kind, names in PROCESSES.items():
            chunk, update = (sum(cost(name, CALIBRATED) for name in x) for x in names)
            found[kind] = found.get(kind, 0.0) + run.cpu[kind]
            parts[kind] = parts.get(kind, 0.0) + run.chunks * chunk + run.updates * update
    for kind in PROCESSES:
        costs.add("small", f"in_run_{kind}", "x", [found[kind] / parts[kind]])


def measured(workloads: Sequence[str], sizes: Sequence[int], *, quick: bool = False) -> Costs:
    """All costs of workloads for some numbers of collectors (none: those of the model)."""
    costs = Costs()
    cluster()
    for workload in workloads:
        counts = sizes or COLLECTORS[workload][: 1 if quick else None]
        over_ray(costs, workload, counts, quick=quick)
        of_roles(costs, workload, quick=quick, streams=sizes or STREAMS[: 2 if quick else None])
    if "small" in workloads:
        in_a_run(costs, quick=quick)
    return costs


def ray_costs(o: Namespace) -> int:
    """Measure, print a table, write ``--out``: other costs in it stay."""
    costs = measured(["small"] if o.quick else [*WORKLOADS], o.collectors or (), quick=o.quick)
    for r in [dict(zip(FIELDS, FIELDS, strict=True)), *costs.rows]:
        cells = (f"{x:.4g}" if isinstance(x, float) else str(x) for x in map(r.get, FIELDS))
        print("".join(f"{cell:<{width}}" for cell, width in zip(cells, WIDTHS, strict=True)))
    if o.out is not None:
        write(costs, o.out)
    return 0


FIELDS = ("workload", "name", "size", "median", "min", "max", "unit")
WIDTHS = (10, 20, 6, 12, 12, 12, 1)


def write(costs: Costs, path: Path) -> None:
    """JSON lines: machine and versions of each sitting, then one cost each."""
    import ray

    old = runs.json_lines(path)
    heads = [x for x in old if "machine" in x]
    heads.append({"machine": machine(), "ray": ray.__version__})
    rows = {(x["workload"], x["name"], x["size"]): x for x in old if "name" in x}
    rows |= {(x["workload"], x["name"], x["size"]): x for x in costs.rows}
    path.write_text("".join(json.dumps(line) + "\n" for line in (*heads, *rows.values())))


# -- simulation ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """Rates over one measured span."""

    chunks: float  # a second
    rows: float
    updates: float
    sample: float  # seconds that the learner waited for a batch
    cpu: dict[str, float]  # cores that each kind of process used


def simulate(recorded: Recorded, count: int, ratio: float, warm: float, seconds: float) -> Measured:
    """Run the loop of the driver for ``warm`` seconds, then measure for ``seconds``.

    Driver, replay shard and learner are the real ones; without evaluations, records, checkpoints.
    """
    import ray

    plan = plan_of("small", streams=count, words=(f"learner.replay_ratio={ratio:g}",))
    feeders = actors(Feeder, recorded, FEEDERS)
    roles = RecordedRoles(plan, count=count, feeders=feeders, shards=[], learner=True)
    counters, conf = product.Counters(), plan.config
    try:
        for shard in roles.shards:
            shard.update(roles.ask(shard, "info"))
        source = source_of(plan, roles, counters)
        buffer = product.RemoteBuffer(
            roles, source.delivery, rounds=False, directory=Path(tempfile.gettempdir())
        )
        learner = product.RemoteLearner(
            conf.learner, roles, source.traffic, policy=product.make_policy(plan), buffer=buffer,
            counters=counters, rounds=False, publish_every=conf.pipeline.weights_every * count,
            max_lead=2 * count * conf.collector.n_sample, stop=lambda: False,
        )  # fmt: skip

        def run(span: float) -> tuple[list[float], dict[str, float]]:
            """(chunks, rows, updates, seconds waited for batches; CPU seconds), all in all."""
            end, keys = time.monotonic() + span, np.empty(0, np.int64)
            while time.monotonic() < end:
                before = counters.env_steps
                source.next_chunk()
                learner.step(counters.env_steps - before, keys)
            counts = [counters.chunks, counters.env_steps, counters.updates]
            return [*counts, learner.seconds["sample"]], cpu_seconds()

        before, began = run(warm), time.monotonic()
        after, spent = run(seconds), time.monotonic() - began
    finally:
        roles.close()
        for feeder in feeders:
            ray.kill(feeder)
    chunks, rows, updates, waited = (b - a for a, b in zip(before[0], after[0], strict=True))
    cpu = {n: (after[1][n] - before[1].get(n, 0.0)) / spent for n in after[1]}
    rates = (x / spent for x in (chunks, rows, updates))
    return Measured(*rates, waited / max(updates, 1), cpu)


def cpu_seconds() -> dict[str, float]:
    """CPU seconds so far of this process and of Ray's, by what they are."""
    found = {"driver": sum(psutil.Process().cpu_times()[:2])}
    names = {"Replay": "shards", "Learner": "learner", "Feeder": "feeders"}
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error, IndexError):
            title, spent = process.cmdline()[0], sum(process.cpu_times()[:2])
            kind = next((kind for part, kind in names.items() if part in title), "ray")
            found[kind] = found.get(kind, 0.0) + spent
    return found


def ray_simulation(o: Namespace) -> list[Row]:
    """Rates measured, beside those that the model predicts; a value for each sitting."""
    count = 32 if o.quick else (o.collectors or [256])[0]
    span = (1.0, 1.0) if o.quick else (15.0, o.duration)
    cluster()
    sizes = sorted({CALIBRATED, count})
    with own_logging():
        recorded = Recorded.collect(plan_of("small"), 40 if o.quick else 200)
    found: dict[tuple[float, str, str], list[tuple[float, float]]] = {}
    for _ in range(max(o.sittings, 1)):
        before = measured(["small"], sizes) if o.sittings else read(o.costs or ray_model.COSTS)
        ratios = RATIOS[1:] if o.quick else RATIOS
        runs_of = {ratio: simulate(recorded, count, ratio, *span) for ratio in ratios}
        after = measured(["small"], sizes) if o.sittings else before
        pairs = zip(before.rows, after.rows, strict=True)
        means = [{**x, "median": (x["median"] + y["median"]) / 2} for x, y in pairs]
        for ratio, run in runs_of.items():
            for (name, unit), pair in compare(Table(Costs(means), "small"), run, count).items():
                found.setdefault((ratio, name, unit), []).append(pair)
    return [
        make_row(name, {"collectors": count, "ratio": ratio}, "the model", unit,
                 *zip(*pairs, strict=True), kind="speedup", higher=True)
        for (ratio, name, unit), pairs in found.items()
    ]  # fmt: skip


def compare(cost: Table, run: Measured, collectors: int) -> dict[tuple[str, str], Any]:
    """(measured, predicted for as many cores) of each rate."""
    cores = sum(run.cpu.values()) - run.cpu.get("ray", 0.0)
    model = ray_model.shared(
        cost, collectors=collectors, shards=1, updates_per_chunk=run.updates / run.chunks,
        cores=max(cores, 0.1),
    )  # fmt: skip
    print(f"the model's limit: {model.limit}, {cores:.2f} cores; cores used: {run.cpu}")
    return {
        ("chunks", "chunks/s"): (run.chunks, model.chunks),
        ("rows", "rows/s"): (run.rows, model.chunks * run.rows / run.chunks),
        ("updates", "updates/s"): (run.updates, model.updates),
        ("sample wait", "ms"): (1e3 * run.sample, 1e3 * model.sample),
    }


# -- link ------------------------------------------------------------------------------------------

FAULTS = "RLRUN_RAY_FAULTS"  # environment variable that slows links down
LINKS = (100.0, 1000.0)  # Mbit/s
LINK_WORDS = (
    "policy=dqn", "torso=nature_cnn", "env=gym", "env.backend=sync", "env.frame_stack=4",
    f"env.id=tests.benchmarks.codec_data:{codec_data.SCREENS}", "pipeline=ray",
    "pipeline.num_actors=1", "collector.num_envs=8", "collector.n_sample=256",
    "buffer.capacity=20000", "learner.replay_ratio=0.05", "learner.learning_starts=256",
    "learner.batch_size=4", "run.eval_episodes=1", "eval.max_episode_steps=10", "logger.every=512",
    "logger.progress=off", "logger.tensorboard=false", "run.checkpoint_every=1000000",
    "run.stop_value=null",
)  # fmt: skip


def ray_link(o: Namespace) -> list[Row]:
    """Env steps/s over every link and by every transport."""
    rows, steps = list[Row](), o.env_steps or (1536 if o.quick else 20_000)
    for mbps in LINKS[: 1 if o.quick else None]:
        kinds = {kind: [f"transport={kind}"] for kind in ("raw", "coded", "auto")}
        kinds["auto"] += [f"transport.link_mbps={mbps:g}"]
        speeds: dict[str, float] = {}
        for kind in ("auto",) if o.quick else kinds:
            speeds[kind], share = speed(mbps, kinds[kind], steps)
            setting = {"Mbit/s": mbps, "env_steps": steps, "sent_of_raw": round(share, 4)}
            raw = [speeds["raw"]] if "raw" in speeds else []
            rows.append(make_row(f"link, {kind}", setting, "raw", "env steps/s", [speeds[kind]],
                                 raw, kind="speedup", higher=True))  # fmt: skip
    return rows


def speed(mbps: float, words: list[str], steps: int) -> tuple[float, float]:
    """Env steps/s after the first record, and bytes sent per raw byte."""
    faults = {FAULTS: json.dumps({"throttle": mbps * 125_000}), "RLRUN_TRUST": "tests"}
    with tempfile.TemporaryDirectory() as directory, mock.patch.dict(os.environ, faults):
        total = [f"run.total_steps={steps}", f"run.eval_every={steps}", f"run.dir={directory}/run"]
        with mock.patch.object(runs, "in_process", False):  # a process starts Ray once
            runs.rlrun(*LINK_WORDS, *words, *total, threads=None)
        lines = runs.json_lines(Path(directory, "run", "timings.jsonl"))
    first, last = lines[1], lines[-1]
    seconds = last["time/wall_seconds"] - first["time/wall_seconds"]
    raw, sent = (sum(x[f"ray/chunks_{k}_bytes"] for x in lines) for k in ("raw", "sent"))
    return (last["env_steps"] - first["env_steps"]) / seconds, sent / raw
