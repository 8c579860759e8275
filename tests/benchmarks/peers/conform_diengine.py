"""DI-engine's R2D2 on a probe: python conform_diengine.py PROBE CONTROL SEED.

``serial_pipeline`` with its cartpole settings, smaller. It needs a burn-in of a row or more, and
returns of two steps or more.
"""

import ding
import torch
from common import NO_PREVIOUS, mean_return, probe_main
from ding.entry import serial_pipeline
from ding.envs import DingEnvWrapper
from dizoo.classic_control.cartpole.config.cartpole_r2d2_config import create_config, main_config

CANNOT = {
    "weights": "one-step returns raise an error",
    "truncation": "an episode ends with one flag",
    "previous": NO_PREVIOUS,
    "mask": "drqn has no action masks",
}
EVERY = {"envs": 8, "learn": 6, "burnin": 1, "batch": 32, "nstep": 2, "whole": False}
SETTINGS = {
    "own": {"learn": 4, "whole": True}, "stored": {"learn": 4, "envs": 1}, "padding": {"learn": 9},
    "odd": {"envs": 3, "learn": 5, "batch": 7}, "burnin": {"learn": 3, "burnin": 1},
    "nstep": {"nstep": 3, "learn": 7},
}  # fmt: skip


def score(probe: str, s: dict, make, seed: int) -> float:
    one, cfg, create = make(), main_config, create_config
    cfg.env.update(collector_env_num=s["envs"], stop_value=1e9)
    p = cfg.policy
    p.update(discount_factor=0.9, nstep=s["nstep"], burnin_step=s["burnin"],
             learn_unroll_len=s["learn"], priority=probe == "weights",
             priority_IS_weight=probe == "weights")  # fmt: skip
    p.model.update(obs_shape=12, action_shape=int(one.action_space.n))
    p.model.encoder_hidden_size_list = [32, 32]
    p.learn.update(update_per_collect=8, batch_size=s["batch"], learning_rate=3e-3,
                   target_update_theta=0.05, value_rescale=probe != "weights")  # fmt: skip
    p.collect.update(n_sample=16, unroll_len=s["learn"] + s["burnin"], env_num=s["envs"])
    p.traj_len_inf = s["whole"]  # else episodes are cut every learn + burnin rows
    p.eval.evaluator.eval_freq = 10**6
    p.other.eps.update(decay=1000, start=1.0, end=1.0 if probe == "weights" else 0.1)
    p.other.replay_buffer.update(replay_buffer_size=2000, alpha=0.9, beta=1.0)
    wrapper = lambda cfg: DingEnvWrapper(make(), cfg=dict(env_wrapper="default"))  # noqa: E731
    settings = [wrapper, [{}] * s["envs"], [{}] * 8]
    policy = serial_pipeline((cfg, create), seed=seed, env_setting=settings, max_env_step=4000)

    def act(obs, state) -> tuple:
        if state is None:
            policy.eval_mode.reset([0])
        return int(policy.eval_mode.forward({0: torch.tensor(obs)})[0]["action"]), True

    return mean_return(make, seed, act)


if __name__ == "__main__":
    probe_main(ding.__version__, CANNOT, score, EVERY, SETTINGS)
