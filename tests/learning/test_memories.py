"""Recurrent memories learn, in seconds, a task that needs one; without a memory nobody does.

The task is RepeatPrevious with k = 2: name the suit of the card before, best 1; guessing is -0.5.
Thresholds were fixed before the runs: 0.9, and 0 for the control. GTrXL learns it with a window of
the task's length and three times the learning rate, not with the keys of its yaml.
"""

import pytest

from tests.learning.test_learning import train

pytestmark = pytest.mark.learning

LINE = (
    "experiment=r2d2_repeat_previous", "env.k=2", "policy.head_hidden=[64]",
    "run.total_steps=6000", "run.eval_every=6000", "run.stop_value=null",
)  # fmt: skip
KEYS = {
    "lru": (), "rtu": (), "none": (),
    "gtrxl": ("memory.window=4", "policy.lr.start=3e-3"),
}  # fmt: skip


@pytest.mark.parametrize("memory", KEYS)
def test_repeats_the_previous_card(tmp_path, memory):
    result, _ = train(tmp_path, *LINE, f"memory={memory}", *KEYS[memory], episodes=20)
    assert result["return_mean"] >= 0.9 if memory != "none" else result["return_mean"] <= 0
