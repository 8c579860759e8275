"""Policies of a config, and samples of rows that one of them collected."""

from pathlib import Path

from rlrun.buffer.rollout import Rollout
from rlrun.build.pipeline import make_pipeline
from rlrun.build.plan import make_plan
from rlrun.build.policy import make_policy
from rlrun.log import Log
from rlrun.types import Policy, Sample
from tests.compose import config

TINY = (
    "debug=smoke", "logger.progress=off", "logger.tensorboard=false", "learner.learning_starts=0",
    "learner.batch_size=16", "torso.hidden=[16,12]",
)  # fmt: skip


def samples_of(*words: str, directory: Path, count: int) -> list[Sample]:
    """What ``rlrun *words`` learns from in its first updates: windows, or rollouts."""
    c = config(*words, *TINY)
    samples = []
    with Log(c.logger, directory, total_steps=400, title="") as log:
        pipeline = make_pipeline(make_plan(c), directory, log)
        collector, buffer = pipeline.source.collector, pipeline.buffer
        while len(samples) < count:
            buffer.add(collector.collect())
            if isinstance(buffer, Rollout):
                sample = buffer.take(0)
                samples.append(Sample(sample.segment.map(lambda x: x.clone()), sample.weight,
                                      sample.key, 10 * len(samples)))  # fmt: skip
            elif len(buffer) >= 64:
                samples.append(buffer.sample(16, 10 * len(samples)))
        pipeline.close()
    return samples


def policy_of(*words: str) -> Policy:
    """The policy of ``rlrun *words``."""
    return make_policy(make_plan(config(*words, *TINY)))
