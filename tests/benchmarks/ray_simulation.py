"""256 collectors on one machine: ``python -m tests.benchmarks.ray_simulation [--quick]``.

Recorded chunks instead of environments: two actors reply for all collectors, as fast as orders
come. Driver, replay shards and learner are the real ones, with the real pacing. The rates are
compared with those that ``ray_model`` predicts from unit costs for as many cores as the run got.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from tests.benchmarks import ray_model
from tests.benchmarks import ray_setting as setting
from tests.benchmarks.product import (
    Cluster,
    Counters,
    RemoteBuffer,
    RemoteLearner,
    make_policy,
    note,
)
from tests.benchmarks.ray_costs import FEEDERS, read
from tests.benchmarks.timing import machine

RATIOS = (120.0, 4.0)  # learned rows per env step: the default, and one that the shards limit


@dataclass(frozen=True)
class Measured:
    """Rates over one measured span."""

    seconds: float
    chunks: float  # a second
    rows: float
    updates: float
    sample: float  # seconds that the learner waited for a batch
    cpu: dict[str, float]  # cores that each kind of process used
    updates_per_chunk: float
    load: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print measured beside predicted, write the file."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.ray_simulation")
    parser.add_argument("--collectors", type=int, default=256)
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each replay ratio")
    parser.add_argument("--costs", type=Path, default=ray_model.RESULTS)
    parser.add_argument("--quick", action="store_true", help="one ratio, 32 collectors, 1 s")
    parser.add_argument("--json", type=Path, help="write JSON lines here")
    given = parser.parse_args(arguments)
    count = 32 if given.quick else given.collectors
    seconds, warm = (1.0, 1.0) if given.quick else (given.seconds, 15.0)
    cost, lines = ray_model.Table(read(given.costs), "small"), []
    cluster = Cluster(None, cpus=8, gpus=0, custom={})
    try:
        plan = setting.plan_of("small")
        with setting.own_logging():
            recorded = setting.Recorded.collect(plan, 40 if given.quick else 200)
        for ratio in RATIOS[1:] if given.quick else RATIOS:
            found = simulate(cluster, recorded, count, given.shards, ratio, warm, seconds)
            lines += compare(cost, found, count, given.shards, ratio)
    finally:
        cluster.close()
    print(machine())
    print("\n".join(table(lines)))
    if given.json is not None:
        head = {"machine": machine(), "collectors": count, "shards": given.shards}
        text = "".join(json.dumps(line) + "\n" for line in (head, *lines))
        given.json.write_text(text, encoding="utf-8")
    return 0


def simulate(
    cluster: Any, recorded: Any, count: int, shards: int, ratio: float, warm: float, seconds: float
) -> Measured:
    """Run the loop of the driver for ``warm`` seconds, then measure for ``seconds``."""
    import ray

    words = (f"learner.replay_ratio={ratio:g}",)
    plan = setting.plan_of("small", streams=count, shards=shards, words=words)
    given = ray.put(recorded)
    actor = ray.remote(setting.Feeder).options(num_cpus=0)
    feeders = [actor.remote(given) for _ in range(FEEDERS)]
    roles = setting.RecordedRoles(
        plan, cluster, count=count, feeders=feeders, shards=[], learner=True
    )
    try:
        loop = Loop(plan, roles)
        loop.run(warm)
        before, began = loop.state(), time.monotonic()
        loop.run(seconds)
        after, spent = loop.state(), time.monotonic() - began
    finally:
        roles.close()
        for feeder in feeders:
            ray.kill(feeder)
    chunks, rows, updates, waited = (b - a for a, b in zip(before[0], after[0], strict=True))
    cpu = {n: (after[1][n] - before[1].get(n, 0.0)) / spent for n in after[1]}
    return Measured(
        spent, chunks / spent, rows / spent, updates / spent, waited / max(updates, 1), cpu,
        updates / max(chunks, 1), os.getloadavg()[0],
    )  # fmt: skip


class Loop:
    """The driver's loop without evaluations, records and checkpoints."""

    def __init__(self, plan: Any, roles: Any) -> None:
        for shard in roles.shards:
            note(shard, roles.ask(shard, "info"))
        self.roles, self.counters, config = roles, Counters(), plan.config
        self.source = setting.source_of(plan, roles, self.counters)
        buffer = RemoteBuffer(
            roles, self.source.delivery, rounds=False, directory=Path(tempfile.gettempdir())
        )
        count = len(roles.collectors)
        every = config.pipeline.weights_every * count
        self.learner = RemoteLearner(
            config.learner, roles, self.source.traffic, policy=make_policy(plan), buffer=buffer,
            counters=self.counters, rounds=False, publish_every=every,
            max_lead=2 * count * config.collector.n_sample, stop=lambda: False,
        )  # fmt: skip

    def run(self, seconds: float) -> None:
        """Take chunks and let the learner do what they pay for."""
        end, keys = time.monotonic() + seconds, np.empty(0, np.int64)
        while time.monotonic() < end:
            before = self.counters.env_steps
            self.source.next_chunk()
            self.learner.step(self.counters.env_steps - before, keys)

    def state(self) -> tuple[tuple[float, ...], dict[str, float]]:
        """(chunks, rows, updates, seconds that the learner waited for batches; CPU seconds)."""
        c = self.counters
        counts = (c.chunks, c.env_steps, c.updates, self.learner.seconds["sample"])
        return counts, cpu_seconds()


def cpu_seconds() -> dict[str, float]:
    """CPU seconds so far of this process and of Ray's, by what they are."""
    found = {"driver": sum(psutil.Process().cpu_times()[:2])}
    for process in psutil.Process().children(recursive=True):
        try:
            title, spent = process.cmdline()[0], sum(process.cpu_times()[:2])
        except (psutil.Error, IndexError):
            continue
        names = {"Replay": "shards", "Learner": "learner", "Feeder": "feeders"}
        kind = next((kind for part, kind in names.items() if part in title), "ray")
        found[kind] = found.get(kind, 0.0) + spent
    return found


def compare(
    cost: Any, found: Measured, collectors: int, shards: int, ratio: float
) -> list[dict[str, Any]]:
    """One line for each rate: measured, predicted, their ratio."""
    cores = sum(found.cpu.values()) - found.cpu.get("ray", 0.0)
    predicted = ray_model.shared(
        cost, collectors=collectors, shards=shards, updates_per_chunk=found.updates_per_chunk,
        cores=max(cores, 0.1),
    )  # fmt: skip
    rows = found.rows / max(found.chunks, 1e-9)
    pairs = [
        ("chunks/s", found.chunks, predicted.chunks),
        ("rows/s", found.rows, predicted.chunks * rows),
        ("updates/s", found.updates, predicted.updates),
        ("sample wait, ms", 1e3 * found.sample, 1e3 * predicted.sample),
    ]
    return [
        {"ratio": ratio, "measure": name, "measured": a, "model": b, "quotient": a / max(b, 1e-9),
         "limit": predicted.limit, "cores": cores, "cpu": found.cpu, "seconds": found.seconds,
         "updates_per_chunk": found.updates_per_chunk, "load": found.load}
        for name, a, b in pairs
    ]  # fmt: skip


def table(lines: Sequence[dict[str, Any]]) -> list[str]:
    """Markdown."""
    out = ["| replay ratio | measure | measured | model | measured / model | the model's limit |"]
    out.append("| --- | --- | --- | --- | --- | --- |")
    for x in lines:
        out.append(f"| {x['ratio']:g} | {x['measure']} | {x['measured']:.4g} | {x['model']:.4g} | "
                   f"{x['quotient']:.2f} | {x['limit']}, {x['cores']:.2f} cores |")  # fmt: skip
    return out


if __name__ == "__main__":
    raise SystemExit(main())
