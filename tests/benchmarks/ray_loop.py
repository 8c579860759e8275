"""The loop of a Ray run's driver with recorded chunks, and what its processes spend.

Driver, replay shards and learner are the real ones, with the real pacing; two actors reply for all
collectors, as fast as orders come.
"""

import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from tests.benchmarks import ray_setting as setting
from tests.benchmarks.product import Counters, RemoteBuffer, RemoteLearner, make_policy

FEEDERS = 2  # actors that stand for all collectors
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
            shard.update(roles.ask(shard, "info"))
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
