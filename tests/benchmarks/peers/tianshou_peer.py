"""Tianshou's DQN with rl-zoo3's CartPole-v1 settings, and its collector with a recurrent
Q-network. Runs in Tianshou's own environment.

usage: python tianshou_peer.py dqn SEED THREADS ENV_STEPS
       python tianshou_peer.py collect ENVS

dqn prints one JSON line. ``run_training`` as it is; evaluations are made by ``training_fn``, which
is called between a learning and the next collect. Its epsilon stays for a collect, as rlrun's. The
one addition is SB3's gradient clipping, by the argument of Tianshou's optimizer that its DQN does
not pass on. The trainer learns after its first collect, so the random ones come before it. What
numba compiles in the first update is compiled before the clock starts.

collect follows the protocol of diengine.py. The network is Tianshou's ``Recurrent`` (a linear
layer, an LSTM of 64 units, a linear head); frames are stacked by 4, as in its own example.
"""

import sys
import time

import gymnasium
import numpy as np
import torch
import torch._dynamo  # a second that constructing an Adam would take from the run
from common import COLLECT, ENV, EPISODES, EVAL_SEED, Run, integers, parameters, serve
from common import DQN as S
from tianshou.algorithm import DQN
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, CollectStats, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.trainer import OffPolicyTrainerParams
from tianshou.utils.net.common import Net, Recurrent
from tianshou.utils.torch_utils import policy_within_training_step

BEFORE = S.START // COLLECT * COLLECT  # env steps of the collects that are followed by no update


class Clipped(DQN):
    def _create_policy_optimizer(self, optim):
        return self._create_optimizer(self.policy, optim, max_grad_norm=S.CLIP)


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
    net = Net(state_shape=(4,), action_shape=2, hidden_sizes=S.HIDDEN)
    policy = DiscreteQLearningPolicy(model=net, action_space=space, eps_training=1.0)
    algorithm = Clipped(
        policy=policy, optim=AdamOptimizerFactory(lr=S.LR), gamma=S.GAMMA, n_step_return_horizon=1,
        target_update_freq=S.UPDATES, is_double=False, huber_loss_delta=1.0,
    )  # fmt: skip
    buffer = VectorReplayBuffer(S.CAPACITY, 1)
    return algorithm, Collector[CollectStats](algorithm, env, buffer, exploration_noise=True)


def compile_first() -> None:
    """An update of an algorithm that is thrown away."""
    algorithm, collector = make(0)
    collector.reset()
    with policy_within_training_step(algorithm.policy):
        collector.collect(n_step=S.BATCH)
        algorithm.update(sample_size=S.BATCH, buffer=collector.buffer)


def dqn(words: list[str]) -> None:
    seed, _, env_steps = integers(words)
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
        algorithm.policy.set_eps_training(S.epsilon(BEFORE + collected))

    with policy_within_training_step(algorithm.policy):
        collector.reset()
        collector.collect(n_step=BEFORE)
    algorithm.run_training(OffPolicyTrainerParams(
        training_collector=collector, training_fn=before_collect, max_epochs=1,
        epoch_num_steps=env_steps - BEFORE, collection_step_num_env_steps=COLLECT,
        batch_size=S.BATCH, update_step_num_gradient_steps_per_sample=S.UPDATES / COLLECT,
        show_progress=False, verbose=False,
    ))  # fmt: skip
    steps = BEFORE + collector.collect_step
    run.after(steps, last=True)
    run.answer(steps, algorithm._iter, algorithm.policy.model)


def collect(words: list[str]) -> None:
    torch.set_num_threads(1)
    np.random.seed(0)
    torch.manual_seed(0)
    envs, space = int(words[0]), gymnasium.make(ENV).action_space
    net = Recurrent(layer_num=1, state_shape=(4,), action_shape=2, hidden_layer_size=64)
    policy = DiscreteQLearningPolicy(
        model=net, action_space=space, eps_training=0.1, eps_inference=0.1
    )
    algorithm = DQN(policy=policy, optim=AdamOptimizerFactory(lr=1e-3), gamma=0.99)
    buffer = VectorReplayBuffer(20_000, buffer_num=envs, stack_num=4, ignore_obs_next=True)
    collector = Collector[CollectStats](
        algorithm, environments(envs, 0), buffer, exploration_noise=True
    )
    collector.reset()

    def rate(line: str) -> dict:
        start = time.perf_counter()
        stats = collector.collect(n_step=int(line))
        return {"rate": stats.n_collected_steps / (time.perf_counter() - start)}

    serve({"parameters": parameters(net)}, rate)


if __name__ == "__main__":
    {"dqn": dqn, "collect": collect}[sys.argv[1]](sys.argv[2:])
