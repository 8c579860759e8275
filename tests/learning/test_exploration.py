"""Deep exploration: what finds a prize at a chain's end, and what does not in the same steps.

The chain's length and the settings all rows share were chosen on seeds 0 and 1; the seeds below
were fixed before anything was run on them.
"""

import pytest

from tests.learning.test_learning import train

pytestmark = pytest.mark.learning

SEEDS = (11, 12, 13)
STEPS = 20_000
SAME = ("policy=dqn", "env=chain", "env.length=25", "policy.target_update_every=50",
        "policy.target_theta=null", "policy.lr=1e-3", "policy.adam_eps=1e-5", "policy.gamma=0.99",
        "policy.value_rescale_eps=null", "torso=mlp",
        "learner=transitions", "learner.replay_ratio=16",
        f"run.total_steps={STEPS}", "run.eval_every=1000", "run.eval_episodes=1",
        "learner.threads=1")  # fmt: skip
GREEDY = ("explore=schedule", "explore.epsilon=0.1")
ROWS = {  # what explores -> (overrides, whether it gets there)
    "rnd": ((*GREEDY, "bonus=rnd"), True),
    "epsilon 0.1": (GREEDY, False),
}
BEST, SOLVED, BAIT = 12, 10, 25 + 9  # returns; the bait pays 1/1000 a step


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("row", ROWS)
def test_chain(tmp_path, row, seed):
    overrides, solves = ROWS[row]
    result, record = train(tmp_path, *SAME, *overrides, f"seed={seed}", episodes=1)
    if solves:
        assert SOLVED <= result["return_mean"] <= BEST
        assert record.env_steps <= STEPS + 100
    else:
        assert result["return_mean"] <= 1e-3 * BAIT + 1e-6
        assert record.env_steps >= STEPS
