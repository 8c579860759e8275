"""Deep exploration: what finds a prize at a chain's end, and what does not in the same steps.

The chains and the settings all rows share were chosen on seeds 0 to 4; nothing was chosen on the
seeds below.
"""

import pytest

from tests.learning.test_learning import train

pytestmark = pytest.mark.learning

SAME = ("experiment=dqn_chain", "run.eval_every=1000", "run.eval_episodes=1", "learner.threads=1")
LENGTH = 40  # of the preset
ONE_UP = ("run.total_steps=10000",)
NOISY = ("explore=none", "policy.noisy=1", "policy.noisy_resample=chunk", "torso.hidden=[]",
         "policy.head_hidden=[64,64]")  # fmt: skip
ROWS = {  # what explores -> overrides
    "noisy": (*ONE_UP, *NOISY),
    "rnd": (*ONE_UP, "bonus=rnd"),
}
BEST, SOLVED, BAIT = 12, 10, 1e-3 * (LENGTH + 9)  # returns


@pytest.mark.parametrize("row", ROWS)
def test_gets_to_the_end_of_the_chain(tmp_path, row):
    result, record = train(tmp_path, *SAME, *ROWS[row], "seed=11", episodes=1)
    assert SOLVED <= result["return_mean"] <= BEST
    assert record.env_steps < 10_000, "it stopped when solved"


def test_epsilon_does_not(tmp_path):
    result, record = train(tmp_path, *SAME, *ONE_UP, "seed=11", episodes=1)
    assert result["return_mean"] <= BAIT + 1e-6
    assert record.env_steps >= 10_000
