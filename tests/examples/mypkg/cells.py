"""A memory of one's own: a vanilla recurrent network (Elman 1990)."""

import torch
from torch import nn

from rlrun.nets.memory import Cell


class Elman(Cell):
    def __init__(self, config, features):
        super().__init__(config, features)
        self.core = nn.Linear(features + config.hidden, config.hidden)

    def initial_state(self, batch, device):
        return (torch.zeros(batch, self.size, device=device),)

    def step(self, x, state):
        h = self.core(torch.cat([x, state[0]], -1)).tanh()
        return h, (h,)
