"""Every memory learns with every policy, in seconds, one of two tasks; without one nobody does.

POPGym's RepeatPrevious Easy, k = 4: name the suit of the card three before, best 1; guessing is
-0.5. The T-maze: turn to the side that was seen 11 rows before; guessing succeeds half the time.
Thresholds were fixed before the runs: 0.9, and 0 for the control; a success rate of 0.95, and 0.55.
All other numbers here were chosen after results, and hold on seeds 0 to 2: learning rates, batch
sizes, numbers of steps, layer normalisation (without it the minGRU ends between 0 and 0.86), PPO's
entropy bonus (with 0.01 an RTU on one of three seeds ends at 0.46), and the time scales.

The minGRU has k = 2. Its gate does not see its state, so one layer of it is a bank of leaky sums
and position has to be told from sizes: Feng et al. 2024 find the same of one layer (selective
copying). R2D2 with it solves k = 4 after 60,000 rows in a minute, too long for here; the score row
``repeat_mingru`` has it.
"""

import pytest

from tests.learning.test_learning import train

pytestmark = pytest.mark.learning

NETWORK = ("torso=layer_norm", "torso.hidden=[64]", "policy.head_hidden=[64]",
           "collector.num_envs=32")  # fmt: skip
TASK = ("env=repeat_previous", "run.stop_value=0.95", "run.eval_episodes=20", *NETWORK)
FRESH = (  # of both policies without a replay; answers have no consequences
    "policy.gamma=0", "env.reward_scale=51", "policy.segment_len=8", "policy.epochs=4",
    "collector.n_sample=1024",
)  # fmt: skip
POLICIES = {
    "r2d2": (
        "experiment=r2d2_repeat_previous", "policy.lr.start=3e-3", "run.total_steps=24000",
        "run.eval_every=3000",
    ),
    "ppo": (
        "policy=ppo", *FRESH, "policy.gae_lambda=0", "policy.entropy_coef=0.1",
        "policy.lr.start=2e-3", "learner.batch_size=128", "run.total_steps=80000",
        "run.eval_every=6144",
    ),
    "pqn": (
        "policy=pqn", *FRESH, "policy.q_lambda=0", "policy.lr.start=3e-3",
        "learner.batch_size=64", "run.total_steps=60000", "run.eval_every=4096",
    ),
}  # fmt: skip
SUMS = ("memory.hidden=64", "memory.readout=false")  # the heads have the layer
CELLS = {
    "lstm": (), "gru": (), "lru": SUMS, "lmu": (), "rtu": ("memory.hidden=64",),
    "mingru": ("env.k=2", "memory.forget_bias=0", *SUMS),
    "ffm": ("memory.horizon=8", "memory.hidden=64"),
    "gtrxl": ("memory.window=6", "memory.hidden=32"),
    "none": ("run.total_steps=12000",),
}  # fmt: skip


IN_MAZE = {  # the cheaper task of a pair; the others name cards
    ("r2d2", "lstm"), ("r2d2", "ffm"), ("pqn", "lstm"),
    *(("ppo", memory) for memory in ("lstm", "gru", "lru", "mingru", "ffm", "none")),
}  # fmt: skip
IN_CARDS = [(p, m) for p in POLICIES for m in CELLS if (p, m) not in IN_MAZE]


@pytest.mark.parametrize(("policy", "memory"), IN_CARDS)
def test_names_the_card_seen_before(tmp_path, policy, memory):
    words = (*POLICIES[policy], *TASK, f"memory={memory}", *CELLS[memory])
    result, _ = train(tmp_path, *words, episodes=50)
    assert result["return_mean"] >= 0.9 if memory != "none" else result["return_mean"] <= 0


MAZE = ("env=tmaze", "env.length=10", "run.stop_value=0.7", "run.eval_episodes=20", *NETWORK)
ROLLOUTS = ("policy.segment_len=32", "policy.epochs=4", "collector.n_sample=1024",
            "run.total_steps=61440", "run.eval_every=2048")  # fmt: skip
MAZE_POLICIES = {
    "r2d2": (
        "policy=r2d2", "policy.learn_unroll_len=20", "policy.burnin_step=0",
        "policy.adam_eps=1e-5", "policy.lr.start=1e-3", "learner.replay_ratio=60",
        "run.total_steps=20000", "run.eval_every=1000",
    ),
    "ppo": (
        "policy=ppo", *ROLLOUTS, "learner.batch_size=128", "policy.gamma=0.95",
        "policy.gae_lambda=0.95", "policy.entropy_coef=0.02", "policy.lr.start=2e-3",
    ),
    "pqn": (
        "policy=pqn", *ROLLOUTS, "learner.batch_size=64", "policy.gamma=0.9",
        "policy.q_lambda=1.0", "policy.lr.start=1e-3", "explore.epsilon.end=0.1",
        "explore.epsilon.over=10000",
    ),
}  # fmt: skip
MAZE_CELLS = {
    "lstm": (), "gru": (), "mingru": SUMS,
    "lru": ("memory.r_min=0.9", "memory.max_phase=0.1", *SUMS),
    "ffm": ("memory.horizon=64", "memory.hidden=64"), "none": ("run.total_steps=16384",),
}  # fmt: skip


@pytest.mark.parametrize(("policy", "memory"), sorted(IN_MAZE))
def test_remembers_the_cue_of_a_tmaze(tmp_path, policy, memory):
    words = (*MAZE_POLICIES[policy], *MAZE, f"memory={memory}", *MAZE_CELLS[memory])
    result, _ = train(tmp_path, *words, episodes=200)
    assert result["success"] >= 0.95 if memory != "none" else result["success"] <= 0.55
