"""Every recurrent memory learns, in seconds, a task that needs one; without a memory nobody does.

The task is RepeatPrevious with k = 2: name the suit of the card before, best 1; guessing is -0.5.
Thresholds were fixed before the runs: 0.9, and 0 for the control.
"""

import pytest

from tests.learning.test_learning import train

pytestmark = pytest.mark.learning

R2D2 = ("experiment=r2d2_repeat_previous", "run.total_steps=6000", "run.eval_every=6000")
PPO = (
    "policy=ppo", "env=repeat_previous", "torso.hidden=[64]", "collector.num_envs=32",
    "policy.gamma=0.5", "policy.gae_lambda=0.5", "policy.lr.start=3e-3", "run.total_steps=30000",
    "run.eval_every=30000",
)  # fmt: skip
TASK = ("env.k=2", "policy.head_hidden=[64]", "run.stop_value=null")


@pytest.mark.parametrize("memory", ["lru", "ffm", "rtu", "lmu", "gtrxl", "none"])
@pytest.mark.parametrize("line", [R2D2, PPO], ids=["r2d2", "ppo"])
def test_repeats_the_previous_card(tmp_path, line, memory):
    result, _ = train(tmp_path, *line, f"memory={memory}", *TASK, episodes=20)
    assert result["return_mean"] >= 0.9 if memory != "none" else result["return_mean"] <= 0
