"""TorchRL's DQN with an LSTM on a probe: python conform_torchrl.py PROBE CONTROL SEED.

As its tutorial "Recurrent DQN": every sequence of the replay starts from its stored state.
"""

import torch
import torchrl
from common import NO_PREVIOUS, probe_main
from tensordict import nn
from torchrl import collectors, data, envs, modules, objectives

CANNOT = {"previous": NO_PREVIOUS, "weights": "its prioritized sampler fails with torch 2.13"}
EVERY = {"envs": 8, "rows": 8, "batch": 16, "mask": {}, "after": None}
SETTINGS = {
    "own": {"rows": 4}, "stored": {"envs": 1, "rows": 4}, "odd": {"envs": 3, "rows": 5, "batch": 7},
    "mask": {"mask": {"action_mask_key": "action_mask"}},
    "nstep": {"after": data.postprocs.MultiStep(0.9, 3)},
}  # fmt: skip


def score(probe: str, s: dict, make, seed: int) -> float:
    def vector(number: int, **given) -> envs.TransformedEnv:
        parts = [envs.InitTracker(), lstm.make_tensordict_primer()]
        if s["mask"]:
            parts.append(envs.DTypeCastTransform(torch.int8, torch.bool, ["action_mask"]))
            parts.append(envs.ActionMask())
        many = envs.SerialEnv(number, lambda: envs.GymWrapper(make(**given)))
        env = envs.TransformedEnv(many, envs.Compose(*parts))
        env.set_seed(seed + 1000 * bool(given))
        return env

    lstm = modules.LSTMModule(input_size=12, hidden_size=32, in_key="observation", out_key="embed")
    env, shown = vector(s["envs"]), vector(1, evaluation=True)
    spec = env.full_action_spec_unbatched["action"]
    head = modules.QValueActor(torch.nn.Linear(32, spec.shape[-1]), in_keys=["embed"], spec=spec,
                               **s["mask"])  # fmt: skip
    policy = nn.TensorDictSequential(lstm, head)
    collector = collectors.Collector(
        env, nn.TensorDictSequential(policy, modules.EGreedyModule(spec, 0.3, 0.3, **s["mask"])),
        frames_per_batch=s["rows"] * s["envs"], total_frames=5000, postproc=s["after"],
    )  # fmt: skip
    loss = objectives.DQNLoss(policy, action_space=spec, delay_value=True)
    loss.make_value_estimator(gamma=0.9)
    target = objectives.SoftUpdate(loss, eps=0.95)
    adam = torch.optim.Adam(policy.parameters(), lr=3e-3)
    replay = data.TensorDictReplayBuffer(storage=data.LazyTensorStorage(1000))
    for batch in collector:
        replay.extend(batch)
        for _ in range(max(1, batch.numel() // 12)):
            with modules.set_recurrent_mode(True):
                loss(replay.sample(s["batch"]))["loss"].backward()
            adam.step()
            adam.zero_grad()
            target.step()
    played = [shown.rollout(100, policy)["next", "reward"].sum().item() for _ in range(200)]
    return sum(played) / len(played)


if __name__ == "__main__":
    probe_main(torchrl.__version__, CANNOT, score, EVERY, SETTINGS)
