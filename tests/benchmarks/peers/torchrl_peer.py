"""torchrl's collector on CartPole with an LSTM Q-network. Runs in torchrl's own environment.

usage: python torchrl_peer.py ENVS

The protocol is that of diengine.py.
"""

import sys
import time
import warnings

import torch
from common import parameters, serve
from torch import nn

warnings.filterwarnings("ignore")


def make(envs: int):
    """(iterator over batches of 50 steps of every environment, module)."""
    from tensordict.nn import TensorDictModule as Module
    from tensordict.nn import TensorDictSequential as Sequential
    from torchrl.collectors import Collector
    from torchrl.envs import Compose, InitTracker, SerialEnv, StepCounter, TransformedEnv
    from torchrl.envs.libs.gym import GymEnv
    from torchrl.modules import MLP, EGreedyModule, LSTMModule, QValueModule

    torch.manual_seed(0)
    vector = SerialEnv(envs, lambda: GymEnv("CartPole-v1"))
    env = TransformedEnv(vector, Compose(StepCounter(), InitTracker()))
    torso = nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(),
                          nn.Linear(128, 64), nn.ReLU())  # fmt: skip
    lstm = LSTMModule(input_size=64, hidden_size=64, in_key="embed", out_key="embed")
    env.append_transform(lstm.make_tensordict_primer())
    policy = Sequential(
        Module(torso, in_keys=["observation"], out_keys=["embed"]),
        lstm,
        Module(MLP(in_features=64, out_features=2, num_cells=[64]), in_keys=["embed"],
               out_keys=["action_value"]),
        QValueModule(action_space=None, spec=env.full_action_spec_unbatched["action"]),
    )  # fmt: skip
    explore = EGreedyModule(
        annealing_num_steps=1000, spec=env.full_action_spec_unbatched["action"], eps_init=0.1
    )
    collector = Collector(
        env, Sequential(policy, explore), frames_per_batch=50 * envs, total_frames=-1
    )
    return iter(collector), policy


def main() -> None:
    torch.set_num_threads(1)
    envs = int(sys.argv[1])
    batches, policy = make(envs)
    next(batches)

    def rate(line: str) -> dict:
        done, start = 0, time.perf_counter()
        while done < int(line):
            next(batches)
            done += 50 * envs
        return {"rate": done / (time.perf_counter() - start)}

    serve({"parameters": parameters(policy)}, rate)


if __name__ == "__main__":
    main()
