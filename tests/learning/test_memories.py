"""Every memory learns, in seconds; without one nobody does.

POPGym's RepeatPrevious Easy with k = 2: name the suit of the card before, best 1; guessing is -0.5.
Thresholds were fixed before the runs: 0.9, and 0 for the control. All other numbers here were
chosen after results and hold on seeds 0 and 1. The LSTM is that of tests/whole, the
minGRU that of experiment=pqn_memory_chain in test_learning.py. Bits of a BMRU are too coarse for
cards (0.66), so it has a bit to keep.
"""

import pytest

import rlrun
from tests.learning.test_learning import train

pytestmark = pytest.mark.learning

TASK = (
    "env=repeat_previous", "env.k=2", "run.stop_return=0.95", "run.eval_episodes=20",
    "torso=layer_norm", "torso.hidden=[32]", "policy.head_hidden=[32]", "collector.num_envs=32",
    "memory.hidden=32",
)  # fmt: skip
FRESH = (  # of both policies without a replay; answers have no consequences
    "policy.gamma=0", "env.reward_scale=51", "policy.segment_len=8", "policy.epochs=4",
    "collector.n_sample=1024", "run.total_steps=50000", "run.eval_every=4096",
)  # fmt: skip
POLICIES = {
    "r2d2": ("experiment=r2d2_repeat_previous", "policy.lr.start=3e-3", "run.total_steps=16000",
             "run.eval_every=2000"),
    "ppo": ("policy=ppo", *FRESH, "policy.gae_lambda=0", "policy.entropy_coef=0.1",
            "policy.lr.start=2e-3", "learner.batch_size=128"),
    "pqn": ("policy=pqn", *FRESH, "policy.normalize_reward=false", "collector.num_envs=32",
            "policy.q_lambda=0", "policy.lr.start=3e-3",
            "learner.batch_size=64"),
}  # fmt: skip
PAIRS = [  # policy, memory, its time scale and size
    ("ppo", "gru"), ("ppo", "rtu"), ("r2d2", "lru", "memory.readout=false"), ("pqn", "lmu"),
    ("pqn", "ffm", "memory.horizon=8"), ("pqn", "gtrxl", "memory.window=4"),
    ("ppo", "indrnn"), ("ppo", "slstm"), ("pqn", "mlstm"), ("pqn", "gated_deltanet"),
    ("pqn", "mamba2"),
]  # fmt: skip


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: "-".join(pair[:2]))
def test_names_the_card_seen_before(tmp_path, pair):
    policy, memory, *more = pair
    result, _ = train(tmp_path, *POLICIES[policy], f"memory={memory}", *TASK, *more)
    assert result["return_mean"] >= 0.9


def test_a_bistable_memory_keeps_a_bit_for_ever(tmp_path):
    """It learns 50 rows and knows the bit after 1000, for which decays below 1 are too short."""
    line = ("policy=pqn", "env=memory_chain", "memory=bmru", "env.length=50", "policy.gamma=0.999",
            "policy.q_lambda=1", "policy.lr.start=2e-3", "policy.segment_len=51",
            "policy.normalize_reward=false", "collector.num_envs=32",
            "collector.n_sample=1632", "learner.batch_size=204", "run.eval_every=5000",
            "run.total_steps=60000", "explore.epsilon.over=15000",
            "buffer.capacity=8000")  # fmt: skip
    run = rlrun.train(*line, f"run.dir={tmp_path}/run", quiet=True)
    for length in (50, 1000):
        assert rlrun.evaluate(run, overrides=[f"env.length={length}"])["return_mean"] == 1


def test_without_a_memory_nobody_does(tmp_path):
    line = (*POLICIES["pqn"], "memory=none", *TASK[:-1], "run.total_steps=16384")
    assert train(tmp_path, *line)[0]["return_mean"] <= 0
