"""RLlib's PPO with an LSTM on a probe: python conform_rllib.py PROBE CONTROL SEED.

As documented: ``use_lstm``, connectors for previous inputs, its example's module for action masks.
"""

import ray
from common import NO_REPLAY, probe_main
from gymnasium.spaces import Dict
from gymnasium.wrappers import TransformObservation
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.connectors.env_to_module import FlattenObservations, PrevActionsPrevRewards
from ray.rllib.core.rl_module import RLModuleSpec
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.examples.rl_modules.classes.action_masking_rlm import ActionMaskingTorchRLModule
from ray.tune.registry import register_env

EVERY = {"envs": 8, "rows": 32, "sequence": 8, "batch": 128, "steps": 6000, "entropy": 0.01}
SHORT = {"rows": 4, "sequence": 4, "batch": 32, "steps": 8000, "entropy": 0.05}
SETTINGS = {
    "own": SHORT, "stored": SHORT, "burnin": SHORT, "mask": {"module": ActionMaskingTorchRLModule},
    "odd": {"envs": 3, "rows": 67, "sequence": 5, "batch": 35},
    "previous": {"batch": 32, "pipe": lambda *_: [PrevActionsPrevRewards(), FlattenObservations()]},
}  # fmt: skip


def renamed(obs) -> dict:
    return {"observations": obs["observation"], "action_mask": obs["action_mask"]}


def score(probe: str, s: dict, make, seed: int) -> float:
    def env(given):
        one, space = make(**given), make().observation_space
        return TransformObservation(one, renamed, Dict(renamed(space))) if probe == "mask" else one

    ray.init(num_cpus=1, include_dashboard=False)
    register_env("probe", env)
    episodes, shown = (50, 50) if probe == "fresh" else (200, 1)
    played = PPOConfig.overrides(explore=False, env_config={"evaluation": True},
                                 num_envs_per_env_runner=shown,
                                 metrics_num_episodes_for_smoothing=episodes)  # fmt: skip
    model = DefaultModelConfig([16], use_lstm=True, lstm_cell_size=32, max_seq_len=s["sequence"])
    algorithm = (
        PPOConfig().environment("probe").learners(num_learners=0).debugging(seed=seed)
        .env_runners(num_env_runners=0, num_envs_per_env_runner=s["envs"],
                     rollout_fragment_length=s["rows"], env_to_module_connector=s.get("pipe"))
        .training(lr=1e-2, gamma=0.9, lambda_=0.8, entropy_coeff=s["entropy"], use_kl_loss=False,
                  vf_clip_param=1e3, vf_loss_coeff=0.5, grad_clip=0.5, num_epochs=8,
                  train_batch_size_per_learner=s["envs"] * s["rows"], minibatch_size=s["batch"])
        .rl_module(model_config=model, rl_module_spec=RLModuleSpec(module_class=s.get("module")))
        .evaluation(evaluation_interval=10**6, evaluation_num_env_runners=0,
                    evaluation_duration=episodes, evaluation_config=played)
    ).build_algo()  # fmt: skip
    for _ in range(s["steps"] // (s["envs"] * s["rows"])):
        algorithm.train()
    shows = [algorithm.evaluate() for _ in range(2 if probe == "fresh" else 1)]
    return float(shows[-1]["env_runners"]["episode_return_mean"])


if __name__ == "__main__":
    probe_main(ray.__version__, {"weights": NO_REPLAY}, score, EVERY, SETTINGS)
