"""skrl's PPO_RNN on a probe: python conform_skrl.py PROBE CONTROL SEED.

The model is skrl_lstm.py. Evaluations are greedy (``Trainer.eval`` samples actions). ``limits`` is
off in ``nstep``: a truncated row gets a value of its own beside the next episode's, more than 1.
"""

import skrl
import torch
from common import NO_PREVIOUS, NO_REPLAY, mean_return, probe_main
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from skrl.agents.torch.ppo import PPO_CFG, PPO_RNN
from skrl.envs.wrappers.torch import wrap_env
from skrl.memories.torch import RandomMemory
from skrl.trainers.torch import SequentialTrainer
from skrl_lstm import Net

CANNOT = {
    "previous": NO_PREVIOUS,
    "mask": "PPO_RNN has no action masks",
    "weights": NO_REPLAY,
    "fresh": "an evaluation has an agent of its own",
    "odd": "minibatches whose number does not divide the sequences cut through them",
}
EVERY = {"envs": 8, "rows": 32, "sequence": 8, "size": 16, "steps": 10000, "entropy": 0.01,
         "limits": True}  # fmt: skip
SHORT = {"rows": 4, "sequence": 4, "size": 32, "entropy": 0.05}
SETTINGS = {"own": SHORT, "stored": SHORT, "burnin": SHORT, "nstep": {"limits": False}}


def score(probe: str, s: dict, make, seed: int) -> float:
    skrl.config.torch.key = seed
    vector = SyncVectorEnv([make] * s["envs"], autoreset_mode=AutoresetMode.SAME_STEP)
    env = wrap_env(vector, verbose=False)
    net = Net(env, s["sequence"], s["size"])
    cfg = PPO_CFG(
        rollouts=s["rows"], learning_epochs=8, mini_batches=4, discount_factor=0.9,
        gae_lambda=0.8, learning_rate=1e-2, entropy_loss_scale=s["entropy"], value_loss_scale=0.5,
        time_limit_bootstrap=s["limits"],
    )  # fmt: skip
    cfg.experiment.write_interval = cfg.experiment.checkpoint_interval = 0
    agent = PPO_RNN(
        models={"policy": net, "value": net}, observation_space=env.observation_space,
        memory=RandomMemory(memory_size=s["rows"], num_envs=s["envs"]),
        action_space=env.action_space, cfg=cfg,
    )  # fmt: skip
    settings = {"timesteps": s["steps"] // s["envs"], "headless": True, "disable_progressbar": True}
    SequentialTrainer(env=env, agents=agent, cfg=settings).train()
    net.eval()

    def act(obs, state) -> tuple:
        state = state or [torch.zeros(1, 1, s["size"])] * 2
        with torch.no_grad():
            logits, after = net.compute({"observations": torch.tensor(obs[None]), "rnn": state})
        return logits.argmax().item(), after["rnn"]

    return mean_return(make, seed, act)


if __name__ == "__main__":
    probe_main(skrl.__version__, CANNOT, score, EVERY, SETTINGS)
