"""TorchRL's DQN with an LSTM on a probe: python conform_torchrl.py PROBE CONTROL SEED.

As its tutorial "Recurrent DQN": the replay buffer holds what a collector's batch has of every
environment as one sequence, which starts from its stored state.
"""

import torch
import torchrl
from common import probe_main
from tensordict.nn import TensorDictModule as Module
from tensordict.nn import TensorDictSequential as Sequential
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.data.postprocs import MultiStep
from torchrl.envs import (
    ActionMask,
    Compose,
    DTypeCastTransform,
    InitTracker,
    SerialEnv,
    TransformedEnv,
)
from torchrl.envs.libs.gym import GymWrapper
from torchrl.modules import EGreedyModule, LSTMModule, QValueModule, set_recurrent_mode
from torchrl.objectives import DQNLoss, SoftUpdate

CANNOT = {
    "previous": "previous action and reward are no inputs",
    "weights": "torchrl 0.14.1's prioritized sampler does not load with torch 2.13",
}
EVERY = {"envs": 8, "rows": 8, "batch": 16}
SETTINGS = {
    "own": {"rows": 4},
    "stored": {"envs": 1, "rows": 4},
    "odd": {"envs": 3, "rows": 5, "batch": 7},
}


def score(probe: str, make, seed: int) -> float:
    def vector(number: int, **given) -> TransformedEnv:
        made = SerialEnv(number, lambda: GymWrapper(make(**given)))
        made = TransformedEnv(made, Compose(InitTracker(), lstm.make_tensordict_primer()))
        if probe == "mask":
            made.append_transform(DTypeCastTransform(torch.int8, torch.bool, ["action_mask"]))
            made.append_transform(ActionMask())
        made.set_seed(seed + 1000 * bool(given))
        return made

    s = EVERY | SETTINGS.get(probe, {})
    masked = {"action_mask_key": "action_mask"} if probe == "mask" else {}
    lstm = LSTMModule(input_size=12, hidden_size=32, in_key="observation", out_key="embed")
    env, shown = vector(s["envs"]), vector(1, evaluation=True)
    spec = env.full_action_spec_unbatched["action"]
    head = Module(torch.nn.Linear(32, spec.shape[-1]), ["embed"], ["action_value"])
    policy = Sequential(lstm, head, QValueModule(action_space=None, spec=spec, **masked))
    policy(env.reset())
    explore = EGreedyModule(annealing_num_steps=1, eps_init=0.3, eps_end=0.3, spec=spec, **masked)
    collector = Collector(
        env, Sequential(policy, explore), frames_per_batch=s["rows"] * s["envs"],
        total_frames=5000, postproc=MultiStep(0.9, 3) if probe == "nstep" else None,
    )  # fmt: skip
    loss = DQNLoss(policy, action_space=spec, delay_value=True)
    loss.make_value_estimator(gamma=0.9)
    target, adam = SoftUpdate(loss, eps=0.95), torch.optim.Adam(policy.parameters(), lr=3e-3)
    storage = LazyTensorStorage(8000 // s["rows"])
    replay = TensorDictReplayBuffer(storage=storage, batch_size=s["batch"])
    for data in collector:
        replay.extend(data)
        for _ in range(max(1, data.numel() // 12)):
            with set_recurrent_mode(True):
                loss(replay.sample())["loss"].backward()
            adam.step()
            adam.zero_grad()
            target.step()
    with torch.no_grad():
        for _ in range(2 if probe == "fresh" else 1):
            played = [shown.rollout(100, policy) for _ in range(50 if probe == "fresh" else 200)]
    return sum(float(p["next", "reward"].sum()) for p in played) / len(played)


if __name__ == "__main__":
    probe_main(torchrl.__version__, CANNOT, score)
