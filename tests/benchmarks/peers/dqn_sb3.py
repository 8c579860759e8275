"""Stable-Baselines3's DQN with rl-zoo3's CartPole-v1 settings. Runs in its own environment.

usage: python dqn_sb3.py SEED THREADS ENV_STEPS

Prints one JSON line. Nothing of SB3 is changed; evaluations are a callback at the start of a
collect, so that they see the weights of the learning before it, as rlrun's do.
"""

import sys

import torch
import torch._dynamo  # a second that constructing an Adam would take from the run
from dqn_common import (
    BATCH,
    CAPACITY,
    CLIP,
    COLLECT,
    ENV,
    EPISODES,
    EPS_END,
    EPS_OVER,
    EVAL_SEED,
    GAMMA,
    HIDDEN,
    LR,
    START,
    UPDATES,
    Run,
)
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy


class Evaluate(BaseCallback):
    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run = run

    def _on_rollout_start(self) -> None:
        self.run.after(self.num_timesteps)

    def _on_training_end(self) -> None:
        self.run.after(self.model.num_timesteps, last=True)

    def _on_step(self) -> bool:
        return True


def main() -> None:
    seed, threads, env_steps = (int(a) for a in sys.argv[1:])
    torch.set_num_threads(threads)
    run = Run()
    model = DQN(
        "MlpPolicy", make_vec_env(ENV, 1, seed=seed), seed=seed, device="cpu", learning_rate=LR,
        batch_size=BATCH, buffer_size=CAPACITY, learning_starts=START, gamma=GAMMA,
        target_update_interval=10, train_freq=COLLECT, gradient_steps=UPDATES, max_grad_norm=CLIP,
        exploration_fraction=EPS_OVER / env_steps, exploration_final_eps=EPS_END,
        policy_kwargs={"net_arch": HIDDEN},
    )  # fmt: skip
    shown = make_vec_env(ENV, EPISODES)

    def evaluate() -> float:
        shown.seed(EVAL_SEED)
        return evaluate_policy(model, shown, n_eval_episodes=EPISODES, warn=False)[0]

    run.evaluate = evaluate
    model.learn(env_steps, callback=Evaluate(run))
    parameters = sum(p.numel() for p in model.q_net.parameters())
    print(run.answer(
        model.num_timesteps, model._n_updates, parameters, threads=torch.get_num_threads()
    ))  # fmt: skip


if __name__ == "__main__":
    main()
