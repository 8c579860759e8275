"""A killed run that is resumed equals the run that was not killed: environments, collector."""

import pytest

from tests.exact import assert_exact_resume

SMALL = ("run.total_steps=240", "run.eval_every=120", "run.eval_episodes=1", "logger.every=40",
         "collector.n_sample=16", "collector.unit=step", "run.stop_value=null")  # fmt: skip
LEARN = (*SMALL, "learner.learning_starts=32", "learner.batch_size=8", "buffer.capacity=400",
         "torso.hidden=[8]")  # fmt: skip
STOPS = (70, 130)

CASES = {
    "dqn": ("policy=dqn", "env=cartpole", *LEARN),
    "dqn_one_env": ("policy=dqn", "env=cartpole", "collector.num_envs=1", *LEARN),
    "async": ("policy=dqn", "env=acrobot", "env.backend=async", "collector.num_envs=2", *LEARN),
    "ppo_lstm": ("policy=ppo", "memory=lstm", "env=pendulum", *SMALL, "torso.hidden=[8]"),
    "r2d2": ("policy=r2d2", "env=cartpole_novel", "pipeline=overlapped", *LEARN),
    "sac": ("policy=sac", "env=mountaincar_continuous", "collector.num_envs=2", *LEARN),
    "agents": ("policy=dqn", "env=relay", "bonus=rnd", *LEARN),
    "her": ("policy=dqn", "env=bitflip", "env.kwargs.bits=4", "buffer.relabel=future", *LEARN),
    "coded": ("policy=dqn", "env=cartpole", "transport=coded", "env.frame_stack=2", *LEARN),
}


@pytest.mark.parametrize("case", CASES)
def test_a_killed_run_equals_the_run_that_was_not(case, tmp_path):
    assert_exact_resume(CASES[case], STOPS, tmp_path)
