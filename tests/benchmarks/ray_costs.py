"""Unit costs of a Ray run: ``python -m tests.benchmarks.ray_costs [--quick] [--json FILE]``.

What each role of pipeline=ray spends on an env step, a chunk, a batch, a version of the weights:
the numbers of ``ray_model``. Roles are measured in this process, what Ray adds with actors that do
nothing. Seconds are CPU time unless the name says wall; medians.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from tests.benchmarks import ray_setting as setting
from tests.benchmarks.product import Cluster, Counters, as_segment
from tests.benchmarks.ray_loop import FEEDERS, RATIOS, simulate
from tests.benchmarks.ray_table import PROCESSES, Costs, Table
from tests.benchmarks.ray_unit_costs import STREAMS, filled, measure
from tests.benchmarks.timing import machine

COLLECTORS = {  # 4096 collectors' image chunks would fill this machine's object store
    "small": (16, 256, 4096),
    "paper": (16, 256),
}
CALIBRATED = 16  # collectors of the run whose processes are compared with the sum of their parts


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print a table, write the file."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.ray_costs")
    parser.add_argument("--quick", action="store_true", help="small workload, few repeats")
    parser.add_argument("--json", type=Path, help="write JSON lines here; other costs in it stay")
    parser.add_argument("--workload", choices=["small", "paper"], help="only this one")
    parser.add_argument("--part", choices=["ray", "roles"], help="only what Ray adds, or the roles")
    parser.add_argument(
        "--sizes", type=int, nargs="+", help="of collectors, and streams of a shard"
    )
    given = parser.parse_args(arguments)
    costs, loads = Costs(), [os.getloadavg()[0]]
    workloads = (given.workload,) if given.workload else ("small", "paper")
    workloads = ("small",) if given.quick else workloads
    streams = given.sizes or STREAMS[: 2 if given.quick else None]
    cluster = None if given.part == "roles" else Cluster(None, cpus=8, gpus=0, custom={})
    try:
        for workload in workloads:
            if cluster is not None:
                over_ray(costs, workload, cluster, quick=given.quick, sizes=given.sizes)
            if given.part != "ray":
                measure(costs, workload, quick=given.quick, streams=streams)
            loads.append(os.getloadavg()[0])
        if given.part is None and "small" in workloads:
            in_a_run(costs, cluster, quick=given.quick)
    finally:
        if cluster is not None:
            cluster.close()
    print(machine())
    print("\n".join(table(costs)))
    if given.json is not None:
        write(costs, given.json, loads)
    return 0


def in_a_run(costs: Costs, cluster: Any, *, quick: bool) -> None:
    """What each process of a small run spends, as a multiple of the costs of its parts.

    Alone and in a loop, a part finds its data in the caches and never waits to be woken up.
    """
    with setting.own_logging():
        recorded = setting.Recorded.collect(setting.plan_of("small"), 40)
    warm, seconds = (1.0, 1.0) if quick else (10.0, 10.0)
    cost, found, parts = Table(costs, "small"), dict[str, float](), dict[str, float]()
    for ratio in RATIOS[1:] if quick else RATIOS:
        run = simulate(cluster, recorded, CALIBRATED, 1, ratio, warm, seconds)
        for kind, (of_chunk, of_update) in PROCESSES.items():
            chunk, update = (
                sum(cost(name, CALIBRATED) for name in x) for x in (of_chunk, of_update)
            )
            found[kind] = found.get(kind, 0.0) + run.cpu[kind]
            parts[kind] = parts.get(kind, 0.0) + run.chunks * chunk + run.updates * update
    for kind in PROCESSES:
        costs.add("small", f"in_run_{kind}", "x", [found[kind] / parts[kind]])


def over_ray(
    costs: Costs, workload: str, cluster: Any, *, quick: bool, sizes: Sequence[int] | None
) -> None:
    """What Ray and the driver add to a chunk and to a batch."""
    import ray

    plan = setting.plan_of(workload)
    with setting.own_logging():
        recorded = setting.Recorded.collect(plan, 12)
        batch_size = plan.config.learner.batch_size
        batch = filled(workload, recorded, 1)[0].sample(batch_size, 0)
    given = ray.put(recorded)
    actor = ray.remote(setting.Feeder).options(num_cpus=0)
    feeders = [actor.remote(given) for _ in range(FEEDERS)]
    shard = ray.remote(setting.EmptyShard).options(num_cpus=0).remote(ray.put(batch))
    ray.get([x.pid.remote() for x in (*feeders, shard)])
    try:
        for count in sizes or COLLECTORS[workload][: 1 if quick else None]:
            driving(costs, workload, plan, cluster, feeders, shard, count, quick=quick)
        batches(costs, workload, batch_size, shard, 3 if quick else 15)
    finally:
        for each in (*feeders, shard):
            ray.kill(each)


def driving(
    costs: Costs, workload: str, plan: Any, cluster: Any, feeders: list[Any], shard: Any,
    count: int, *, quick: bool,
) -> None:  # fmt: skip
    """Seconds of the driver a chunk: order, reply, add, acknowledgement, counting."""
    import ray

    roles = setting.RecordedRoles(
        plan, cluster, count=count, feeders=feeders, shards=[shard], learner=False
    )
    source = setting.source_of(plan, roles, Counters())
    pids = [os.getpid(), *ray.get([x.pid.remote() for x in (*feeders, shard)])]
    chunks = 40 if quick else max(200, count)  # replies come in bursts of up to all collectors
    for _ in range(chunks // 2):
        source.next_chunk()
    found: list[list[float]] = []
    for _ in range(3 if quick else 5 if count <= 256 else 1):
        began = time.thread_time(), time.perf_counter(), *map(cpu_seconds, pids)
        for _ in range(chunks):
            source.next_chunk()
        ended = time.thread_time(), time.perf_counter(), *map(cpu_seconds, pids)
        found.append([(y - x) / chunks for x, y in zip(began, ended, strict=True)])
    main_thread, wall, process, *fed, store = zip(*found, strict=True)
    feed = [sum(each) for each in zip(*fed, strict=True)]
    source.paused = True
    while roles.pump.handles:
        roles.pump.run(1.0)
    costs.add(workload, "driver", "s/chunk", main_thread, count)
    costs.add(workload, "driver_threads", "s/chunk", process, count)
    costs.add(workload, "driver_wall", "s/chunk (wall)", wall, count)
    costs.add(workload, "ray_collect", "s/chunk", feed, count)
    costs.add(workload, "ray_add", "s/chunk", store, count)


def cpu_seconds(pid: int) -> float:
    """CPU seconds of a process so far."""
    return float(sum(psutil.Process(pid).cpu_times()[:2]))


def batches(costs: Costs, workload: str, size: int, shard: Any, repeats: int) -> None:
    """Seconds a batch and its priorities on their way: of the shard, of the learner, of the clock.

    The calls are those of ``ShardReader``: priorities are sent, their reply is read a batch later.
    """
    import ray

    values = np.ones(size, np.float32)
    written = ray.put(None)

    def one() -> Any:
        nonlocal written
        began, clock = time.process_time(), time.perf_counter()
        found: Any = ray.get(shard.sample.remote(size, 0))
        as_segment(found.segment)
        middle, came = time.process_time(), time.perf_counter()
        ray.get(written)
        written = shard.prioritize.remote(found.key, values, found.incarnation)
        return middle - began, time.process_time() - middle, came - clock

    one()
    send, receive, back, latency = [], [], [], []
    for _ in range(repeats):
        before: Any = ray.get(shard.cpu.remote())
        spent = [one() for _ in range(4)]
        ray.get(written)
        after: Any = ray.get(shard.cpu.remote())
        send.append((after - before) / len(spent))
        for name, each in ((receive, 0), (back, 1), (latency, 2)):
            name.append(statistics.mean(x[each] for x in spent))
    costs.add(workload, "ray_send", "s/batch", send)
    costs.add(workload, "ray_receive", "s/batch", receive)
    costs.add(workload, "ray_priorities", "s/batch", back)
    costs.add(workload, "ray_latency", "s/batch (wall)", latency)


def table(costs: Costs) -> list[str]:
    """Aligned lines."""
    lines = [
        f"{'workload':9}{'cost':20}{'size':>6}  {'median':>10}  {'least':>10}  {'most':>10}  unit"
    ]
    for r in costs.rows:
        size = r["size"] or ""
        lines.append(f"{r['workload']:9}{r['name']:20}{size:>6}  {r['median']:10.4g}  "
                     f"{r['min']:10.4g}  {r['max']:10.4g}  {r['unit']}")  # fmt: skip
    return lines


def write(costs: Costs, path: Path, loads: list[float]) -> None:
    """JSON lines: machine, versions and load of each sitting, then one cost each.

    A cost that is in the file already is replaced, others stay.
    """
    import ray

    old = [json.loads(x) for x in path.read_text("utf-8").splitlines()] if path.exists() else []
    heads = [x for x in old if "machine" in x]
    heads.append({"machine": machine(), "ray": ray.__version__, "load": loads})
    rows = {(x["workload"], x["name"], x["size"]): x for x in old if "name" in x}
    rows |= {(x["workload"], x["name"], x["size"]): x for x in costs.rows}
    text = "".join(json.dumps(line) + "\n" for line in (*heads, *rows.values()))
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main())
