"""sb3-contrib's RecurrentPPO with rl-zoo3's CartPoleNoVel-v1 settings. Runs in its own environment.

usage: python recurrent_ppo_sb3.py SEED THREADS ENV_STEPS

Prints one JSON line. The settings are those of ``ppo_common`` (rl-zoo3 has the same for both
environments), the policy is MlpLstmPolicy with its defaults.
"""

import sys

import gymnasium as gym
import numpy as np
import torch
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
from ppo_sb3 import Evaluate
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy


class HideVelocities(gym.ObservationWrapper):
    """Observation: cart position and pole angle."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        whole = env.observation_space
        self.observation_space = gym.spaces.Box(whole.low[::2], whole.high[::2])

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return observation[::2]


def main() -> None:
    seed, threads, env_steps = (int(a) for a in sys.argv[1:])
    torch.set_num_threads(threads)
    run = Run()
    model = RecurrentPPO(
        "MlpLstmPolicy", make_vec_env(ENV, ENVS, seed=seed, wrapper_class=HideVelocities),
        seed=seed, device="cpu", learning_rate=lambda left: left * LR,
        clip_range=lambda left: left * CLIP, n_steps=STEPS, batch_size=BATCH, n_epochs=EPOCHS,
        gamma=GAMMA, gae_lambda=LAMBDA, ent_coef=ENTROPY, vf_coef=VALUE, max_grad_norm=NORM,
    )  # fmt: skip
    shown = make_vec_env(ENV, EPISODES, wrapper_class=HideVelocities)

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
