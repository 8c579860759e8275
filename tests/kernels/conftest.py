"""The collector of a command line."""

import pytest

from rlrun.log import Log
from rlrun.run.build import make_pipeline
from rlrun.run.plan import make_plan
from tests.compose import config
from tests.kernels.make import perturb

WORDS = ("env=cartpole", "collector.num_envs=5", "collector.n_sample=200", "learner.batch_size=64",
         "torso.hidden=[9,6]", "logger.progress=off", "logger.tensorboard=false")  # fmt: skip


@pytest.fixture
def collector_of(tmp_path):
    """Makes the collector of a command line, with weights that fall at different times."""
    pipelines = []

    def make(*words):
        c = config(*WORDS, *words)
        log = Log(c.logger, tmp_path, total_steps=400, title="")
        pipelines.append((make_pipeline(make_plan(c), tmp_path, log), log))
        collector = pipelines[-1][0].parts.source.collector
        perturb(collector.policy, noise=0.5)
        return collector

    yield make
    for pipeline, log in pipelines:
        pipeline.close()
        log.close()
