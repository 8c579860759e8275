"""Tiny runs, each trained once by ``rlrun.train`` for all tests."""

import pytest

from rlrun import Run, train
from tests.once import made_once

SMOKE = ("debug=smoke", "run.total_steps=200", "run.eval_every=200", "logger.tensorboard=false")
RUNS = {
    "r2d2": ("policy=r2d2", "env=cartpole", "memory.hidden=16"),
    "dqn": ("policy=dqn", "env=cartpole", "env.frame_stack=3", "policy.value_rescale_eps=1e-3"),
    "ppo": ("policy=ppo", "env=pendulum", "memory=gru", "policy.normalize_obs=true",
            "policy.prev_inputs=true"),
    "sac": ("policy=sac", "env=pendulum"),
}  # fmt: skip


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """The run of a name in ``RUNS``."""

    def run(name):
        def make(path):
            train(*RUNS[name], *SMOKE, f"run.dir={path}/run", quiet=True)

        return Run(made_once(tmp_path_factory, f"api_{name}", make) / "run")

    return run
