"""Deep exploration: what finds a prize at a chain's end, and what does not in the same steps.

The settings that all rows share were chosen on other seeds.
"""

import pytest

from tests.learning.test_learning import train

pytestmark = pytest.mark.learning

LENGTH = 20
SAME = ("experiment=dqn_chain", f"env.length={LENGTH}", "run.total_steps=4000",
        "run.eval_every=800", "run.eval_episodes=1", "seed=11")  # fmt: skip
NOISY = ("explore=none", "policy.noisy=1", "policy.noisy_resample=chunk", "torso.hidden=[]",
         "policy.head_hidden=[64,64]")  # fmt: skip
BEST, SOLVED, BAIT = 12, 10, 1e-3 * (LENGTH + 9)  # returns


@pytest.mark.parametrize("words", [NOISY, ("bonus=rnd",)], ids=["noisy", "rnd"])
def test_gets_to_the_end_of_the_chain(tmp_path, words):
    result, record = train(tmp_path, *SAME, *words, episodes=1)
    assert SOLVED <= result["return_mean"] <= BEST
    assert record.env_steps < 4000, "it stopped when solved"


def test_epsilon_does_not(tmp_path):
    result, record = train(tmp_path, *SAME, episodes=1)
    assert result["return_mean"] <= BAIT + 1e-6
    assert record.env_steps >= 4000
