"""ray/ metrics: what the roles do, what they send to each other, how old it is."""

import time
from typing import Any

from rlrun.pipeline.ray.messages import Collected
from rlrun.pipeline.ray.roles import CollectorHandle, Roles


class RoleTraffic:
    """Sums of what the roles report, between two records."""

    def __init__(self, roles: Roles) -> None:
        self.roles = roles
        self.key_frames = self.lost = 0  # so far
        self.delivery: Any = None  # of chunks, where there are shards
        self.began = time.monotonic()
        self.steps = self.chunks = 0
        self.raw = self.sent = 0  # bytes of chunks
        self.ages: list[int] = []  # env steps from the publication of weights to their chunk
        self.published: dict[int, int] = {}  # version -> env steps
        self.lags: list[float] = []  # updates
        self.coding: dict[str, float] = {}  # role -> seconds so far
        self.learning = 0.0  # seconds that the learner had work to do

    def collected(self, collector: CollectorHandle, info: Collected) -> None:
        """Count a chunk."""
        self.steps += info.stats.steps
        self.chunks += 1
        self.raw, self.sent = self.raw + info.sizes[0], self.sent + info.sizes[1]
        if info.version in self.published:
            self.ages.append(max(0, info.env_steps - self.published[info.version]))
        self.coding[collector.name] = info.seconds.get("code", 0.0)

    def note_version(self, version: int, env_steps: int) -> None:
        """Note when a version of the weights was published."""
        self.published[version] = env_steps
        while len(self.published) > 256:
            self.published.pop(next(iter(self.published)))

    def metrics(self) -> dict[str, float]:
        """ray/ metrics since the last call."""
        now = time.monotonic()
        span, roles = max(now - self.began, 1e-9), self.roles
        collectors = roles.collectors
        if roles.predictor is not None:  # the others' logs come with replies that are due anyway
            roles.write_log(roles.predictor, roles.ask(roles.predictor, "take_log"))
        found = {
            "ray/collect_steps_per_s": self.steps / span,
            "ray/collectors_busy": sum(c.busy for c in collectors) / len(collectors),
            "ray/queued_chunks": float(sum(c.waiting for c in collectors)),
            "ray/learner_busy": min(1.0, self.learning / span),
            "ray/restarts": float(sum(role.restarts for role in roles.every)),
            "ray/key_frames": float(self.key_frames),
            "ray/chunks_lost": float(self.lost),
        }
        if self.delivery is not None:
            found["ray/chunks_repeated"] = float(self.delivery.repeated)
            found["ray/chunks_damaged"] = float(self.delivery.damaged)
        if self.ages:
            found["ray/weights_age"] = sum(self.ages) / len(self.ages)
        if self.lags:
            found["ray/priority_lag"] = sum(self.lags) / len(self.lags)
        found |= self._bytes()
        self.began, self.steps, self.chunks, self.learning = now, 0, 0, 0.0
        self.ages, self.lags = [], []
        return found

    def _bytes(self) -> dict[str, float]:
        learner = self.roles.ask(self.roles.learner, "sizes")
        self.coding |= {"learner": learner[2]}
        for shard in self.roles.shards:
            self.coding[shard.name] = self.roles.ask(shard, "coding")
        found = {
            "ray/chunks_raw_bytes": float(self.raw), "ray/chunks_sent_bytes": float(self.sent),
            "ray/weights_raw_bytes": float(learner[0]),
            "ray/weights_sent_bytes": float(learner[1]),
            "ray/coding_seconds": sum(self.coding.values()),
        }  # fmt: skip
        self.raw = self.sent = 0
        return found
