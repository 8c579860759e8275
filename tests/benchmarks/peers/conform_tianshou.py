"""Tianshou's recurrent DQN on a probe: python conform_tianshou.py PROBE CONTROL SEED.

As its test_drqn.py: the network is ``Recurrent``, and a batch holds stacks of the buffer's last
``stack_num`` observations. Stacks start from zero states.
"""

import tianshou
from common import NO_PREVIOUS, probe_main
from tianshou.algorithm import DQN
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, PrioritizedVectorReplayBuffer, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.trainer import OffPolicyTrainerParams
from tianshou.utils.net.common import Recurrent

CANNOT = {
    "previous": NO_PREVIOUS,
    "stored": "stacks start from zero states",
    "own": "stacks start from zero states",
    "mask": "a stack has a mask for each of its rows, which the policy cannot add to its values",
}
EVERY = {"envs": 8, "stack": 6, "batch": 32, "nstep": 1, "explore": 0.3, "priority": {}}
SETTINGS = {
    "burnin": {"stack": 4}, "odd": {"envs": 3, "stack": 5, "batch": 7}, "nstep": {"nstep": 3},
    "weights": {"explore": 1.0, "priority": {"alpha": 0.9, "beta": 1.0}},
}  # fmt: skip


def score(probe: str, s: dict, make, seed: int) -> float:
    one, envs = make(), DummyVectorEnv([make] * s["envs"])
    shown = DummyVectorEnv([lambda: make(evaluation=True)] * 50)
    envs.seed(seed)
    shown.seed(seed + 1000)
    net = Recurrent(layer_num=1, state_shape=one.observation_space.shape,
                    action_shape=one.action_space.n, hidden_layer_size=32)  # fmt: skip
    policy = DiscreteQLearningPolicy(model=net, action_space=one.action_space,
                                     eps_training=s["explore"], eps_inference=0.0)  # fmt: skip
    algorithm = DQN(policy=policy, optim=AdamOptimizerFactory(lr=3e-3), gamma=0.9,
                    n_step_return_horizon=s["nstep"], target_update_freq=50)  # fmt: skip
    replay = PrioritizedVectorReplayBuffer if s["priority"] else VectorReplayBuffer
    buffer = replay(8000, buffer_num=s["envs"], stack_num=s["stack"], ignore_obs_next=True,
                    **s["priority"])  # fmt: skip
    train = Collector(algorithm, envs, buffer, exploration_noise=True)
    algorithm.run_training(OffPolicyTrainerParams(
        training_collector=train, max_epochs=1, epoch_num_steps=5000, batch_size=s["batch"],
        collection_step_num_env_steps=8 * s["envs"], test_in_training=False, show_progress=False,
        update_step_num_gradient_steps_per_sample=0.25, verbose=False,
    ))  # fmt: skip
    test = Collector(algorithm, shown)
    for _ in range(2 if probe == "fresh" else 1):
        test.reset()
        result = test.collect(n_episode=50 if probe == "fresh" else 200)
    return float(result.returns.mean())


if __name__ == "__main__":
    probe_main(tianshou.__version__, CANNOT, score, EVERY, SETTINGS)
