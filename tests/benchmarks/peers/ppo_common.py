"""Settings of the PPO peers: conf/experiment/zoo_ppo_cartpole.yaml as numbers.

Imported by scripts that run in a peer's own environment: no rlrun here. Evaluations and the answer
are those of ``dqn_common``.
"""

from dqn_common import COLLECT, ENV, EPISODES, EVAL_SEED, Run

ENVS, STEPS, BATCH, EPOCHS = 8, 32, 256, 20
LR, CLIP, GAMMA, LAMBDA = 1e-3, 0.2, 0.98, 0.8  # LR and CLIP fall to 0 over the run
VALUE, ENTROPY, NORM, EPS = 0.5, 0.0, 0.5, 1e-5

assert ENVS * STEPS == COLLECT, "Run.after looks at that many env steps"
__all__ = ["ENV", "EPISODES", "EVAL_SEED", "Run"]
