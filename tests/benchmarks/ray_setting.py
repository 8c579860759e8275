"""Settings of the Ray benchmarks: two workloads, recorded chunks, roles that do nothing."""

import copy
import logging
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from tests.benchmarks import codec_data
from tests.benchmarks.product import (
    ActionCounts,
    AsyncSource,
    Cluster,
    CollectMetrics,
    CollectorHandle,
    CollectorRole,
    Delivery,
    LearnerRole,
    Order,
    Payload,
    Pump,
    Receiver,
    ReplayRole,
    Role,
    Roles,
    ShardHandle,
    Stored,
    WeightFrames,
    collector_parts,
    learner_parts,
    make_plan,
    packed,
    shard_parts,
)
from tests.compose import config

SCREENS = "rlrun-benchmarks/Screens-v0"
STREAM_ROWS = {"small": 200, "paper": 600}  # of each column of a collector's replay
WORKLOADS = {
    "small": ("policy=r2d2", "env=cartpole_novel"),
    "paper": (  # one environment an actor; 80 steps a chunk; the first priority is that of max
        "experiment=r2d2_paper", "env=gym", f"env.id={SCREENS}", "env.frame_stack=4",
        "torso=nature_cnn", "collector.num_envs=1", "collector.n_sample=80",
        "buffer.initial_priority=max",
    ),
}  # fmt: skip


class Screens(gymnasium.Env[np.ndarray, Any]):
    """Recorded 84 x 84 grey frames in a circle, episodes of 1000 steps: stepping costs nothing."""

    observation_space = gymnasium.spaces.Box(0, 255, (84, 84), np.uint8)
    action_space = gymnasium.spaces.Discrete(4)

    def __init__(self) -> None:
        self.screens, self.t = codec_data.breakout(512), 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self.screens[0], {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return self.screens[self.t % len(self.screens)], 0.0, False, self.t >= 1000, {}


def plan_of(
    workload: str, *, streams: int = 1, shards: int = 1, words: tuple[str, ...] = ()
) -> Any:
    """The plan of a run with ``streams`` collectors."""
    if SCREENS not in gymnasium.registry:
        gymnasium.register(SCREENS, Screens)
    columns = {"small": 16, "paper": 1}[workload]
    return make_plan(
        config(
            *WORKLOADS[workload], "pipeline=ray", f"pipeline.num_actors={streams}",
            f"pipeline.num_shards={shards}",
            f"buffer.capacity={streams * columns * STREAM_ROWS[workload]}", *words,
        )
    )  # fmt: skip


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


def collector_of(plan: Any) -> CollectorRole:
    """The role of a collector, in this process."""
    make = partial(collector_parts, plan, 0, math.inf)
    return CollectorRole(packed(make), 0, predictor=None, throttle=0.0)


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

    @property
    def steps(self) -> float:
        """Env steps of a chunk, on average."""
        return sum(info.stats.steps for info, _ in self.chunks) / len(self.chunks)

    def take(self, seq: int) -> tuple[Any, Any]:
        """Chunk ``seq``; the recording repeats."""
        return self.chunks[seq % len(self.chunks)]


class ShardInProcess(ReplayRole):
    """A shard outside of Ray."""

    def __init__(self, plan: Any) -> None:
        self.failed, self.blank, self.number, self.incarnation, self.late = None, False, 0, 0, 0
        self.parts = shard_parts(plan, 0)
        self.streams, self.receiver = (
            self.parts.streams,
            Receiver(self.parts.sides, self.parts.check),
        )
        self.seconds = {"add": 0.0, "sample": 0.0, "prioritize": 0.0}


# -- actors ----------------------------------------------------------------------------------------


class Feeder:
    """Collectors that have recorded everything: it replies to any order at once."""

    def __init__(self, recorded: Recorded) -> None:
        self.recorded = recorded

    def collect(self, order: Any, *frames: Any) -> tuple[Any, Any]:
        """As ``CollectorRole.collect``."""
        info, message = self.recorded.take(order.seq)
        version = order.versions[-1] if order.versions else info.version
        info = replace(info, seq=order.seq, env_steps=order.env_steps, version=version)
        return info, Payload(message, None, order.incarnation, order.since)

    def pid(self) -> int:
        """Number of this process."""
        return os.getpid()


class EmptyShard:
    """Replies to chunks and stores none; a batch is the same every time."""

    def __init__(self, batch: Any) -> None:
        self.batch = batch

    def add(self, collector: int, seq: int, payload: Any, corrupt: bool = False) -> Any:
        """As ``ReplayRole.add``."""
        return Stored(seq + 1, True, rows=1, windows=1, mass=1.0)

    def sample(self, batch: int, env_steps: int) -> Any:
        """As ``ReplayRole.sample``."""
        return self.batch

    def prioritize(self, key: Any, priority: Any, incarnation: int) -> Any:
        """As ``ReplayRole.prioritize``."""
        return None

    def cpu(self) -> float:
        """CPU seconds of this process so far."""
        return time.process_time()

    def pid(self) -> int:
        """Number of this process."""
        return os.getpid()


class RecordedRoles(Roles):
    """Many collectors that a few feeders stand for, shards, and a learner, on a cluster."""

    def __init__(
        self, plan: Any, cluster: Cluster, *, count: int, feeders: list[Any], shards: list[Any],
        learner: bool,
    ) -> None:  # fmt: skip
        """``shards``: actors, [] places the plan's real ones; ``learner``: place the real one."""
        self.config, self.cluster, self.directory = plan.config.pipeline, cluster, Path()
        self.pump, self.frames = Pump(cluster.check), WeightFrames(plan.config.transport.keep)
        self.closed, self.predictor, self.run = False, None, f"benchmark-{time.time_ns()}"
        c = self.config
        real = [
            self._place(ReplayRole, c.replay, f"replay {i}", partial(shard_parts, plan, i), i)
            for i in range(0 if shards else c.num_shards)
        ]
        self.shards = [ShardHandle(f"replay {i}", s) for i, s in enumerate(shards or real)]
        self.collectors = [
            CollectorHandle(f"collector {i}", feeders[i % len(feeders)], number=i)
            for i in range(count)
        ]
        self.evaluator = self.learner = Role("none", None)
        if learner:
            names = [self._full(shard.name) for shard in self.shards]
            actor = self._place(
                LearnerRole, c.learner, "learner", partial(learner_parts, plan, math.inf), names,
                threads=plan.threads, seed=0, prefetch=c.prefetch, throttle=0.0,
            )  # fmt: skip
            self.learner = Role("learner", actor)

    def write_log(self, role: Any, lines: Any) -> None:
        """Logs of the roles are not kept."""

    def close(self) -> None:
        """End the roles that were placed here."""
        import ray

        for role in [*self.shards, self.learner]:
            if role.handle is not None:
                ray.kill(role.handle)


def source_of(plan: Any, roles: Roles, counters: Any) -> Any:
    """The driver's source of chunks."""
    metrics = CollectMetrics(
        counters, lambda env_steps: np.zeros(1), ActionCounts(plan.row_spec.action)
    )
    delivery = Delivery(roles)
    source = AsyncSource(
        roles, metrics, keep_env=False, max_seconds=60.0, delivery=delivery, total_steps=2**62
    )
    source.traffic.delivery = delivery
    return source
