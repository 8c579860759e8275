"""Tianshou's DQN, trained or resumed: python killed_tianshou.py SEED STEPS EVERY.

As its documentation and test_c51.py do: ``save_checkpoint_fn`` writes the algorithm and pickles the
replay, ``resume_from_log`` reads the counters from TensorBoard's files.
"""

import pickle
from pathlib import Path

import gymnasium as gym
import tianshou
import torch
from common import ENV, Killed, cartpole_state, note, serve_trainings
from tianshou.algorithm import DQN
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.trainer import OffPolicyTrainerParams
from tianshou.utils import TensorboardLogger
from tianshou.utils.net.common import Net
from torch.utils.tensorboard import SummaryWriter

MODEL, REPLAY = Path("checkpoint.pth"), Path("train_buffer.pkl")


def train(seed: int, steps: int, every: int) -> None:
    envs, resume = DummyVectorEnv([lambda: gym.make(ENV)]), MODEL.exists()
    envs.seed(seed)
    net = Net(state_shape=(4,), action_shape=2, hidden_sizes=Killed.HIDDEN)
    policy = DiscreteQLearningPolicy(model=net, action_space=envs.action_space[0])
    algorithm = DQN(policy=policy, optim=AdamOptimizerFactory(lr=Killed.LR), gamma=Killed.GAMMA,
                    target_update_freq=Killed.TARGET)  # fmt: skip
    collector = Collector(algorithm, envs, VectorReplayBuffer(Killed.CAPACITY, 1),
                          exploration_noise=True)  # fmt: skip

    def write(event: str, step: int) -> None:
        weights, rows = algorithm.state_dict(), collector.buffer[collector.buffer.sample_indices(0)]
        note(event, step, optimizer=weights.pop(algorithm._STATE_DICT_KEY_OPTIMIZERS),
             weights=weights, replay=[rows.obs, rows.act, rows.rew], counters=[step],
             environment=cartpole_state(envs.workers[0].env))  # fmt: skip

    def save(epoch: int, env_step: int, gradient_step: int) -> str:
        torch.save({"model": algorithm.state_dict()}, MODEL)
        with REPLAY.open("wb") as file:
            pickle.dump(collector.buffer, file)
        write("saved", env_step)
        return str(MODEL)

    def before(epoch: int, env_step: int) -> None:
        nonlocal resume
        if resume:
            write("resumed", env_step)
        resume = False
        policy.set_eps_training(max(Killed.EPS_END, 1 - env_step / Killed.EPS_OVER))

    if resume:
        algorithm.load_state_dict(torch.load(MODEL, weights_only=False)["model"])
        collector.buffer = pickle.loads(REPLAY.read_bytes())
    algorithm.run_training(OffPolicyTrainerParams(
        training_collector=collector, max_epochs=steps // every, epoch_num_steps=every,
        batch_size=Killed.BATCH, collection_step_num_env_steps=Killed.COLLECT,
        logger=TensorboardLogger(SummaryWriter("tensorboard"), save_interval=1),
        update_step_num_gradient_steps_per_sample=Killed.UPDATES / Killed.COLLECT,
        save_checkpoint_fn=save, resume_from_log=resume, training_fn=before, verbose=False,
        show_progress=False, test_in_training=False,
    ))  # fmt: skip
    write("done", steps)


if __name__ == "__main__":
    serve_trainings(tianshou.__version__, train)
