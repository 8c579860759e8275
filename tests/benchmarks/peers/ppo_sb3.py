"""Stable-Baselines3's PPO with rl-zoo3's CartPole-v1 settings. Runs in its own environment.

usage: python ppo_sb3.py SEED THREADS ENV_STEPS

Prints one JSON line. Nothing of SB3 is changed; evaluations are a callback at the start of a
rollout, so that they see the weights of the learning before it, as rlrun's do.
"""

import sys

import torch
import torch._dynamo  # a second that constructing an Adam would take from the run
from ppo_common import (
    BATCH,
    CLIP,
    ENTROPY,
    ENV,
    ENVS,
    EPISODES,
    EPOCHS,
    EVAL_SEED,
    GAMMA,
    LAMBDA,
    LR,
    NORM,
    STEPS,
    VALUE,
    Run,
)
from stable_baselines3 import PPO
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
    model = PPO(
        "MlpPolicy", make_vec_env(ENV, ENVS, seed=seed), seed=seed, device="cpu",
        learning_rate=lambda left: left * LR, clip_range=lambda left: left * CLIP, n_steps=STEPS,
        batch_size=BATCH, n_epochs=EPOCHS, gamma=GAMMA, gae_lambda=LAMBDA, ent_coef=ENTROPY,
        vf_coef=VALUE, max_grad_norm=NORM,
    )  # fmt: skip
    shown = make_vec_env(ENV, EPISODES)

    def evaluate() -> float:
        shown.seed(EVAL_SEED)
        return evaluate_policy(model, shown, n_eval_episodes=EPISODES, warn=False)[0]

    run.evaluate = evaluate
    model.learn(env_steps, callback=Evaluate(run))
    parameters = sum(p.numel() for p in model.policy.parameters())
    print(run.answer(
        model.num_timesteps, model._n_updates, parameters, threads=torch.get_num_threads()
    ))  # fmt: skip


if __name__ == "__main__":
    main()
