"""Tianshou's DQN with rl-zoo3's CartPole-v1 settings. Runs in Tianshou's own environment.

usage: python dqn_tianshou.py SEED THREADS ENV_STEPS

Prints one JSON line. ``run_training`` as it is; evaluations are made by ``training_fn``, which is
called between a learning and the next collect. Its epsilon stays for a collect, as rlrun's. The
one addition is SB3's gradient clipping, by the argument of Tianshou's optimizer that its DQN does
not pass on. The trainer learns after its first collect, so the random ones come before it. What
numba compiles in the first update is compiled before the clock starts.
"""

import sys

import gymnasium
import numpy as np
import torch
import torch._dynamo  # a second that constructing an Adam would take from the run
from dqn_common import (
    BATCH,
    CAPACITY,
    CLIP,
    COLLECT,
    ENV,
    EPISODES,
    EVAL_SEED,
    GAMMA,
    HIDDEN,
    LR,
    START,
    UPDATES,
    Run,
    epsilon,
)
from tianshou.algorithm import DQN
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, CollectStats, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.trainer import OffPolicyTrainerParams
from tianshou.utils.net.common import Net
from tianshou.utils.torch_utils import policy_within_training_step

BEFORE = START // COLLECT * COLLECT  # env steps of the collects that are followed by no update


class Clipped(DQN):
    def _create_policy_optimizer(self, optim):
        return self._create_optimizer(self.policy, optim, max_grad_norm=CLIP)


def environments(count: int, seed: int) -> DummyVectorEnv:
    made = DummyVectorEnv([lambda: gymnasium.make(ENV) for _ in range(count)])
    made.seed(seed)
    return made


def make(seed: int) -> tuple[Clipped, Collector]:
    """The algorithm and who collects for it."""
    np.random.seed(seed)
    torch.manual_seed(seed)
    env = environments(1, seed)
    space = gymnasium.make(ENV).action_space
    net = Net(state_shape=(4,), action_shape=2, hidden_sizes=HIDDEN)
    policy = DiscreteQLearningPolicy(model=net, action_space=space, eps_training=1.0)
    algorithm = Clipped(
        policy=policy, optim=AdamOptimizerFactory(lr=LR), gamma=GAMMA, n_step_return_horizon=1,
        target_update_freq=UPDATES, is_double=False, huber_loss_delta=1.0,
    )  # fmt: skip
    buffer = VectorReplayBuffer(CAPACITY, 1)
    return algorithm, Collector[CollectStats](algorithm, env, buffer, exploration_noise=True)


def compile_first() -> None:
    """An update of an algorithm that is thrown away."""
    algorithm, collector = make(0)
    collector.reset()
    with policy_within_training_step(algorithm.policy):
        collector.collect(n_step=BATCH)
        algorithm.update(sample_size=BATCH, buffer=collector.buffer)


def main() -> None:
    seed, threads, env_steps = (int(a) for a in sys.argv[1:])
    torch.set_num_threads(threads)
    compile_first()
    run = Run()
    algorithm, collector = make(seed)
    shown = environments(EPISODES, EVAL_SEED)
    tester = Collector[CollectStats](algorithm, shown)

    def evaluate() -> float:
        shown.seed(EVAL_SEED)
        tester.reset()
        with policy_within_training_step(algorithm.policy, enabled=False):
            return float(tester.collect(n_episode=EPISODES).returns.mean())

    run.evaluate = evaluate

    def before_collect(epoch: int, collected: int) -> None:
        run.after(BEFORE + collected)
        algorithm.policy.set_eps_training(epsilon(BEFORE + collected))

    with policy_within_training_step(algorithm.policy):
        collector.reset()
        collector.collect(n_step=BEFORE)
    algorithm.run_training(OffPolicyTrainerParams(
        training_collector=collector, training_fn=before_collect, max_epochs=1,
        epoch_num_steps=env_steps - BEFORE, collection_step_num_env_steps=COLLECT,
        batch_size=BATCH, update_step_num_gradient_steps_per_sample=UPDATES / COLLECT,
        show_progress=False, verbose=False,
    ))  # fmt: skip
    steps = BEFORE + collector.collect_step
    run.after(steps, last=True)
    parameters = sum(p.numel() for p in algorithm.policy.model.parameters())
    print(run.answer(steps, algorithm._iter, parameters, threads=torch.get_num_threads()))


if __name__ == "__main__":
    main()
