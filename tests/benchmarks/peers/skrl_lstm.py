"""The recurrent model of skrl's documentation: policy and value on one LSTM.

Its state is reset behind the end rows of a sequence.
"""

import torch
from skrl.models.torch import CategoricalMixin, DeterministicMixin, Model
from torch import nn


class Net(CategoricalMixin, DeterministicMixin, Model):
    def __init__(self, env, sequence: int, size: int) -> None:
        Model.__init__(self, observation_space=env.observation_space,
                       action_space=env.action_space, device=env.device)  # fmt: skip
        CategoricalMixin.__init__(self, role="policy")
        DeterministicMixin.__init__(self, role="value")
        self.sequence, self.envs, self.size = sequence, env.num_envs, size
        self.lstm, self.value = nn.LSTMCell(12, size), nn.Linear(size, 1)
        self.policy = nn.Linear(size, int(env.action_space.n))

    def get_specification(self) -> dict:
        return {"rnn": {"sequence_length": self.sequence, "sizes": [(1, self.envs, self.size)] * 2}}

    def act(self, inputs: dict, *, role: str) -> tuple:
        kind = CategoricalMixin if role == "policy" else DeterministicMixin
        return kind.act(self, inputs, role=role)

    def compute(self, inputs: dict, role: str = "") -> tuple:
        rows = self.sequence if self.training else 1
        x = inputs["observations"].view(-1, rows, 12)
        state = [s.reshape(-1, rows, self.size)[:, 0] for s in inputs["rnn"]]
        going = torch.ones_like(x[..., :1])
        if self.training:
            going -= (inputs["terminated"] | inputs["truncated"]).view(-1, rows, 1).float()
        found = []
        for t in range(rows):
            state = self.lstm(x[:, t], state)
            found.append(state[0])
            state = [s * going[:, t] for s in state]
        h = torch.stack(found, 1).flatten(0, 1)
        return getattr(self, role or "policy")(h), {"rnn": [s[None] for s in state]}
