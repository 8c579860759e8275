"""sb3-contrib's RecurrentPPO on a probe: python conform_recurrent_ppo.py PROBE CONTROL SEED.

``stored``, ``own`` and ``burnin`` have rollouts of 4 rows, so sequences of at most 4.
"""

from functools import partial

import sb3_contrib
from common import NO_PREVIOUS, NO_REPLAY, probe_main
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv

CANNOT = {
    "previous": NO_PREVIOUS,
    "mask": "RecurrentPPO has no action masks",
    "weights": NO_REPLAY,
    "odd": "a last minibatch of one row (7 of 15) has a normalised advantage of NaN",
}
EVERY = {"n_steps": 32, "batch_size": 256, "envs": 8, "learning_rate": 1e-2}
SETTINGS = {
    "stored": {"n_steps": 4, "batch_size": 32, "envs": 8},
    "burnin": {"n_steps": 4, "batch_size": 64, "envs": 64, "learning_rate": 3e-3},
    "own": {"n_steps": 4, "batch_size": 8, "envs": 8},
}


def score(probe: str, settings: dict, make, seed: int) -> float:
    def envs(number: int, *, evaluation: bool) -> DummyVecEnv:
        vector = DummyVecEnv([lambda: Monitor(make(evaluation=evaluation))] * number)
        vector.seed(seed + 1000 * evaluation)
        return vector

    train = envs(settings.pop("envs"), evaluation=False)
    model = sb3_contrib.RecurrentPPO(
        "MlpLstmPolicy", train, n_epochs=10, gamma=0.9, gae_lambda=0.8,
        ent_coef=0.01, seed=seed, device="cpu", **settings,
        policy_kwargs={"net_arch": [16], "lstm_hidden_size": 16},
    )  # fmt: skip
    model.learn(8000)
    evaluate = partial(evaluate_policy, model, envs(50, evaluation=True))
    if probe == "fresh":
        evaluate(n_eval_episodes=50)
    return float(evaluate(n_eval_episodes=50 if probe == "fresh" else 200)[0])


if __name__ == "__main__":
    probe_main(sb3_contrib.__version__, CANNOT, score, EVERY, SETTINGS)
