"""Stable-Baselines3 and sb3-contrib's RecurrentPPO as rl-zoo3 runs them, in their own environment.

usage: python sb3.py dqn|ppo|recurrent_ppo SEED THREADS ENV_STEPS
       python sb3.py control ALGO ENV_ID SEED THREADS ENV_STEPS EPISODES

The first on CartPole-v1, recurrent_ppo without velocities. control: SAC or TD3 with SB3's defaults
and what rl-zoo3 changes for HalfCheetah (10000 random steps, TD3: noise 0.1, nets of 400 and 300);
its score is the mean return of EPISODES greedy episodes of the final weights on seeds that training
did not use.

Prints one JSON line. Nothing of SB3 is changed; evaluations are a callback at the start of a
collect, so that they see the weights of the learning before it, as rlrun's do.
"""

import sys
import time

import gymnasium as gym
import numpy as np
from common import COLLECT, DQN, ENV, EPISODES, EVAL_SEED, PPO, Run, integers, say
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

STARTS = {"learning_starts": 10_000}
SETTINGS = {  # rl-zoo3's hyperparams of HalfCheetah, what is not SB3's default
    "sac": STARTS, "td3": STARTS | {"policy_kwargs": {"net_arch": [400, 300]}},
}  # fmt: skip


class HideVelocities(gym.ObservationWrapper):
    """Observation: cart position and pole angle."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        whole = env.observation_space
        self.observation_space = gym.spaces.Box(whole.low[::2], whole.high[::2])

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return observation[::2]


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


def make_dqn(seed: int, env_steps: int):
    from stable_baselines3 import DQN as Algorithm

    return Algorithm(
        "MlpPolicy", make_vec_env(ENV, 1, seed=seed), seed=seed, device="cpu",
        learning_rate=DQN.LR, batch_size=DQN.BATCH, buffer_size=DQN.CAPACITY,
        learning_starts=DQN.START, gamma=DQN.GAMMA, target_update_interval=10, train_freq=COLLECT,
        gradient_steps=DQN.UPDATES, max_grad_norm=DQN.CLIP,
        exploration_fraction=DQN.EPS_OVER / env_steps, exploration_final_eps=DQN.EPS_END,
        policy_kwargs={"net_arch": DQN.HIDDEN},
    )  # fmt: skip


def make_ppo(seed: int, *, recurrent: bool):
    if recurrent:
        from sb3_contrib import RecurrentPPO as Algorithm
    else:
        from stable_baselines3 import PPO as Algorithm
    wrapper = HideVelocities if recurrent else None
    return Algorithm(
        "MlpLstmPolicy" if recurrent else "MlpPolicy",
        make_vec_env(ENV, PPO.ENVS, seed=seed, wrapper_class=wrapper), seed=seed, device="cpu",
        learning_rate=lambda left: left * PPO.LR, clip_range=lambda left: left * PPO.CLIP,
        n_steps=PPO.STEPS, batch_size=PPO.BATCH, n_epochs=PPO.EPOCHS, gamma=PPO.GAMMA,
        gae_lambda=PPO.LAMBDA, ent_coef=PPO.ENTROPY, vf_coef=PPO.VALUE, max_grad_norm=PPO.NORM,
    )  # fmt: skip


def control(algo: str, env_id: str, *words: str) -> None:
    import stable_baselines3
    from stable_baselines3.common.noise import NormalActionNoise

    seed, threads, env_steps, episodes = integers([*words])
    env = make_vec_env(env_id, 1, seed=seed)
    settings = dict(SETTINGS[algo])
    if algo != "sac":
        size = env.action_space.shape[0]
        settings["action_noise"] = NormalActionNoise(np.zeros(size), 0.1 * np.ones(size))
    make = getattr(stable_baselines3, algo.upper())
    model = make("MlpPolicy", env, seed=seed, device="cpu", **settings)
    began = time.perf_counter()
    model.learn(env_steps)
    wall = time.perf_counter() - began
    shown = make_vec_env(env_id, min(episodes, 10), seed=EVAL_SEED)
    score, _ = evaluate_policy(model, shown, n_eval_episodes=episodes, warn=False)
    say({
        "algo": algo, "env": env_id, "seed": seed, "env_steps": model.num_timesteps, "wall": wall,
        "updates": model._n_updates, "score": float(score), "threads": threads,
    })  # fmt: skip


def main() -> None:
    name = sys.argv[1]
    seed, _, env_steps = integers(sys.argv[2:])
    recurrent = name == "recurrent_ppo"
    if recurrent:
        import sb3_contrib  # noqa: F401  # before the clock starts
    run = Run()
    model = make_dqn(seed, env_steps) if name == "dqn" else make_ppo(seed, recurrent=recurrent)
    shown = make_vec_env(ENV, EPISODES, wrapper_class=HideVelocities if recurrent else None)

    def evaluate() -> float:
        shown.seed(EVAL_SEED)
        return evaluate_policy(model, shown, n_eval_episodes=EPISODES, warn=False)[0]

    run.evaluate = evaluate
    model.learn(env_steps, callback=Evaluate(run))
    net = model.q_net if name == "dqn" else model.policy
    run.answer(model.num_timesteps, model._n_updates, net)


if __name__ == "__main__":
    if sys.argv[1] == "control":
        control(*sys.argv[2:])
    else:
        main()
