"""Stable-Baselines3's SAC, TD3 and DDPG as rl-zoo3 runs them. Runs in its own environment.

usage: python control_sb3.py ALGO ENV_ID SEED THREADS ENV_STEPS [EPISODES]

Settings are SB3's defaults with what rl-zoo3 changes for HalfCheetah (SAC, TD3: 10000 random
steps, TD3 and DDPG: noise 0.1, nets of 400 and 300) or for Pendulum (step size 1e-3). Prints one
JSON line: wall seconds of learning, env steps per second, and the mean return of EPISODES greedy
episodes of the final weights on seeds that training did not use.
"""

import json
import sys
import time

import numpy as np
import torch
from stable_baselines3 import DDPG, SAC, TD3
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.noise import NormalActionNoise

EVAL_SEED = 1_000_000
SETTINGS = {  # rl-zoo3's hyperparams, what is not SB3's default
    "HalfCheetah": {
        "sac": {"learning_starts": 10_000},
        "td3": {"learning_starts": 10_000, "policy_kwargs": {"net_arch": [400, 300]}},
        "ddpg": {"learning_starts": 10_000, "policy_kwargs": {"net_arch": [400, 300]}},
    },
    "Pendulum": {
        "sac": {"learning_rate": 1e-3},
        "td3": {"learning_rate": 1e-3, "gamma": 0.98, "learning_starts": 10_000,
                "policy_kwargs": {"net_arch": [400, 300]}},
        "ddpg": {"learning_rate": 1e-3, "gamma": 0.98, "learning_starts": 10_000,
                 "policy_kwargs": {"net_arch": [400, 300]}},
    },
}  # fmt: skip


def main() -> None:
    algo, env_id = sys.argv[1:3]
    seed, threads, env_steps = (int(a) for a in sys.argv[3:6])
    episodes = int(sys.argv[6]) if len(sys.argv) > 6 else 50
    torch.set_num_threads(threads)
    env = make_vec_env(env_id, 1, seed=seed)
    settings = dict(SETTINGS.get(env_id.partition("-")[0], {}).get(algo, {}))
    if algo != "sac":
        size = env.action_space.shape[0]
        settings["action_noise"] = NormalActionNoise(np.zeros(size), 0.1 * np.ones(size))
    model = {"sac": SAC, "td3": TD3, "ddpg": DDPG}[algo](
        "MlpPolicy", env, seed=seed, device="cpu", **settings
    )
    began = time.perf_counter()
    model.learn(env_steps)
    wall = time.perf_counter() - began
    shown = make_vec_env(env_id, min(episodes, 10), seed=EVAL_SEED)
    score, _ = evaluate_policy(model, shown, n_eval_episodes=episodes, warn=False)
    print(json.dumps({
        "algo": algo, "env": env_id, "seed": seed, "env_steps": model.num_timesteps,
        "updates": model._n_updates, "wall": wall, "steps_per_second": env_steps / wall,
        "score": float(score), "threads": threads,
    }))  # fmt: skip


if __name__ == "__main__":
    main()
