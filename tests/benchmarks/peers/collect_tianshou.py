"""Tianshou's collector on CartPole with a recurrent Q-network. Runs in Tianshou's own environment.

usage: python collect_tianshou.py ENVS

The protocol is that of collect_diengine.py. The network is Tianshou's ``Recurrent`` (a linear
layer, an LSTM of 64 units, a linear head); frames are stacked by 4, as in its own example.
"""

import json
import sys
import time

import gymnasium as gym
import numpy as np
import torch


def make(envs: int):
    """A started collector."""
    from tianshou.algorithm import DQN
    from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.data import Collector, CollectStats, VectorReplayBuffer
    from tianshou.env import DummyVectorEnv
    from tianshou.utils.net.common import Recurrent

    np.random.seed(0)
    torch.manual_seed(0)
    space = gym.make("CartPole-v1").action_space
    vector = DummyVectorEnv([lambda: gym.make("CartPole-v1") for _ in range(envs)])
    vector.seed(0)
    net = Recurrent(layer_num=1, state_shape=(4,), action_shape=2, hidden_layer_size=64)
    policy = DiscreteQLearningPolicy(
        model=net, action_space=space, eps_training=0.1, eps_inference=0.1
    )
    algorithm = DQN(policy=policy, optim=AdamOptimizerFactory(lr=1e-3), gamma=0.99)
    buffer = VectorReplayBuffer(20_000, buffer_num=envs, stack_num=4, ignore_obs_next=True)
    collector = Collector[CollectStats](algorithm, vector, buffer, exploration_noise=True)
    collector.reset()
    return collector, net


def main() -> None:
    torch.set_num_threads(1)
    collector, net = make(int(sys.argv[1]))
    print(json.dumps({"parameters": sum(p.numel() for p in net.parameters())}), flush=True)
    for line in sys.stdin:
        wanted = int(line)
        start = time.perf_counter()
        stats = collector.collect(n_step=wanted)
        rate = stats.n_collected_steps / (time.perf_counter() - start)
        print(json.dumps({"rate": rate}), flush=True)


if __name__ == "__main__":
    main()
