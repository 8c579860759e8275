"""sb3-contrib's RecurrentPPO on a probe: python conform_recurrent_ppo.py PROBE CONTROL SEED.

Prints one JSON line: the greedy return of Stable-Baselines3's ``evaluate_policy``, or why the probe
cannot be expressed. ``stored`` and ``own`` have rollouts of 4 rows, so sequences of at most 4.
"""

import importlib.util
import sys
from pathlib import Path

import sb3_contrib
import torch
from common import say
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv

FILE = Path(__file__).parents[3] / "rlrun" / "env" / "conform.py"
CANNOT = {
    "previous": "previous action and reward are no inputs",
    "mask": "RecurrentPPO has no action masks",
    "weights": "no replay",
}
EVERY = {"n_steps": 32, "batch_size": 256, "envs": 8}
SETTINGS = {
    "stored": {"n_steps": 4, "batch_size": 32, "envs": 8},
    "own": {"n_steps": 4, "batch_size": 8, "envs": 8},
    "odd": {"n_steps": 5, "batch_size": 7, "envs": 3},
}


def main(probe: str, control: bool, seed: int) -> dict:
    spec = importlib.util.spec_from_file_location("conform", FILE)
    conform = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(conform)

    def envs(number: int, *, evaluation: bool) -> DummyVecEnv:
        made = lambda: Monitor(conform.make(probe, control=control, evaluation=evaluation))  # noqa: E731
        vector = DummyVecEnv([made] * number)
        vector.seed(seed + 1000 * evaluation)
        return vector

    torch.set_num_threads(1)
    settings = dict(SETTINGS.get(probe, EVERY))
    train = envs(settings.pop("envs"), evaluation=False)
    model = sb3_contrib.RecurrentPPO(
        "MlpLstmPolicy", train, n_epochs=10, learning_rate=1e-2, gamma=0.9, gae_lambda=0.8,
        ent_coef=0.01, seed=seed, device="cpu", **settings,
        policy_kwargs={"net_arch": [16], "lstm_hidden_size": 16},
    )  # fmt: skip
    model.learn(8000)
    shown = envs(50, evaluation=True)
    for _ in range(2 if probe == "fresh" else 1):
        episodes = 50 if probe == "fresh" else 200
        score, _ = evaluate_policy(model, shown, n_eval_episodes=episodes)
    return {"score": float(score)}


if __name__ == "__main__":
    name, version = sys.argv[1], sb3_contrib.__version__
    found = {"cannot": CANNOT[name]} if name in CANNOT else None
    say((found or main(name, sys.argv[2] == "1", int(sys.argv[3]))) | {"version": version})
