"""Every memory learns, in seconds, a task that needs one; without a memory nobody does.

The task is RepeatPrevious with k = 2: name the suit of the card before, best 1; guessing is -0.5.
Thresholds were fixed before the runs: 0.9, and 0 for the control. All other numbers here were
chosen after results, and hold on seeds 0 to 2: learning rates, batch sizes, numbers of steps,
layer normalisation (without it the minGRU ends between 0 and 0.86), PPO's entropy bonus (with 0.01
an RTU on one of three seeds ends at 0.46), and in CELLS the time scales of the task.
"""

import pytest

from tests.learning.test_learning import train

pytestmark = pytest.mark.learning

TASK = (
    "env=repeat_previous", "env.k=2", "run.stop_value=null", "torso=layer_norm",
    "torso.hidden=[64]", "policy.head_hidden=[64]", "collector.num_envs=32",
)  # fmt: skip
FRESH = (  # of both policies without a replay; answers have no consequences
    "policy.gamma=0", "env.reward_scale=51", "policy.segment_len=8", "policy.epochs=4",
    "collector.n_sample=1024",
)  # fmt: skip
POLICIES = {
    "r2d2": (8000, "experiment=r2d2_repeat_previous", "policy.lr.start=3e-3"),
    "ppo": (
        16000, "policy=ppo", *FRESH, "policy.gae_lambda=0", "policy.entropy_coef=0.1",
        "policy.lr.start=2e-3", "learner.batch_size=128",
    ),
    "pqn": (
        12000, "policy=pqn", *FRESH, "policy.q_lambda=0", "policy.lr.start=3e-3",
        "learner.batch_size=64",
    ),
}  # fmt: skip
CELLS = {
    "lstm": (), "gru": (), "lru": (), "lmu": (), "rtu": (), "none": (),
    "mingru": ("memory.forget_bias=0",),
    "ffm": ("memory.horizon=4",),
    "gtrxl": ("memory.window=4", "memory.hidden=32"),
}  # fmt: skip


@pytest.mark.parametrize("memory", CELLS)
@pytest.mark.parametrize("policy", POLICIES)
def test_repeats_the_previous_card(tmp_path, policy, memory):
    steps, *words = POLICIES[policy]
    length = (f"run.total_steps={steps}", f"run.eval_every={steps}")
    words += [*TASK, *length, f"memory={memory}", *CELLS[memory]]
    result, _ = train(tmp_path, *words, episodes=20)
    assert result["return_mean"] >= 0.9 if memory != "none" else result["return_mean"] <= 0
