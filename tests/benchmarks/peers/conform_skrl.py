"""skrl's PPO_RNN on a probe: python conform_skrl.py PROBE CONTROL SEED.

The models follow those of its documentation: an LSTM that resets its state behind the end rows of
a sequence. Evaluations are ``Trainer.eval``, which samples actions.
"""

import skrl
import torch
from common import probe_main
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from skrl.agents.torch.ppo import PPO_CFG, PPO_RNN
from skrl.envs.wrappers.torch import wrap_env
from skrl.memories.torch import RandomMemory
from skrl.models.torch import CategoricalMixin, DeterministicMixin, Model
from skrl.trainers.torch import SequentialTrainer
from torch import nn

CANNOT = {
    "previous": "previous action and reward are no inputs",
    "mask": "PPO_RNN has no action masks",
    "weights": "no replay",
    "fresh": "an evaluation has an agent of its own",
    "odd": "minibatches whose number does not divide the sequences cut through them",
}
EVERY = {"envs": 8, "rows": 32, "sequence": 8, "batches": 4}
SETTINGS = {
    **{name: {"envs": 64, "rows": 4, "sequence": 4} for name in ("own", "stored", "burnin")},
}


class Net(CategoricalMixin, DeterministicMixin, Model):
    """Policy and value on one LSTM."""

    def __init__(self, env, sequence: int) -> None:
        Model.__init__(self, observation_space=env.observation_space,
                       action_space=env.action_space, device=env.device)  # fmt: skip
        CategoricalMixin.__init__(self, role="policy")
        DeterministicMixin.__init__(self, role="value")
        self.sequence, self.envs, self.lstm = sequence, env.num_envs, nn.LSTM(12, 16)
        self.policy, self.value = nn.Linear(16, int(env.action_space.n)), nn.Linear(16, 1)

    def get_specification(self) -> dict:
        return {"rnn": {"sequence_length": self.sequence, "sizes": [(1, self.envs, 16)] * 2}}

    def act(self, inputs: dict, *, role: str) -> tuple:
        kind = CategoricalMixin if role == "policy" else DeterministicMixin
        return kind.act(self, inputs, role=role)

    def compute(self, inputs: dict, role: str = "") -> tuple:
        rows = self.sequence if self.training else 1
        x = inputs["observations"].view(-1, rows, 12).transpose(0, 1)
        state = [s.reshape(1, -1, rows, 16)[:, :, 0].contiguous() for s in inputs["rnn"]]
        ended = inputs["terminated"] | inputs["truncated"] if self.training else x[..., 0] < 0
        kept, found = (~ended).view(1, -1, rows, 1), []
        for t in range(rows):
            h, state = self.lstm(x[t : t + 1], tuple(state))
            found.append(h)
            state = [s * kept[:, :, t] for s in state]
        h = torch.cat(found).transpose(0, 1).flatten(0, 1)
        return getattr(self, role or "policy")(h), {"rnn": state}


def score(probe: str, make, seed: int) -> float:
    s = EVERY | SETTINGS.get(probe, {})

    def trainer(timesteps: int, memory=None, **given):
        made = [lambda: make(**given)] * s["envs"]
        vector = SyncVectorEnv(made, autoreset_mode=AutoresetMode.SAME_STEP)
        env = wrap_env(recorded := RecordEpisodeStatistics(vector, 1000), verbose=False)
        if not models:
            models["policy"] = models["value"] = Net(env, s["sequence"])
        agent = PPO_RNN(models=models, memory=memory, observation_space=env.observation_space,
                        action_space=env.action_space, cfg=cfg)  # fmt: skip
        settings = {"timesteps": timesteps, "headless": True, "disable_progressbar": True}
        return SequentialTrainer(env=env, agents=agent, cfg=settings), recorded

    models, skrl.config.torch.key = {}, seed
    cfg = PPO_CFG(
        rollouts=s["rows"], learning_epochs=8, mini_batches=s["batches"], discount_factor=0.9,
        gae_lambda=0.8, learning_rate=1e-2, entropy_loss_scale=0.01, value_loss_scale=0.5,
        time_limit_bootstrap=True,
    )  # fmt: skip
    cfg.experiment.write_interval = cfg.experiment.checkpoint_interval = 0
    memory = RandomMemory(memory_size=s["rows"], num_envs=s["envs"])
    trainer(10000 // s["envs"], memory)[0].train()
    skrl.config.torch.key = seed + 1000
    evaluation, recorded = trainer(400, evaluation=True)
    evaluation.eval()
    returns = list(recorded.return_queue)
    return sum(map(float, returns)) / len(returns)


if __name__ == "__main__":
    probe_main(skrl.__version__, CANNOT, score)
