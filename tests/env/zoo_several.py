"""``zoo_example`` with agents that choose two numbers each, paid for the sum of them."""

import numpy as np
from gymnasium import spaces

from tests.env.zoo_example import Leaving


class Several(Leaving):
    """Every agent chooses out of MultiDiscrete [2, 3] and sees who it is, not how it is doing."""

    def __init__(self):
        super().__init__(lives=(3, 4), actions=[spaces.MultiDiscrete([2, 3])] * 2)

    def _obs(self, i):
        return np.full(3, i, np.float32)

    def step(self, actions):
        assert all(self.action_space(a).contains(x) for a, x in actions.items()), actions
        out = super().step(actions)
        out[1] = {a: float(x.sum()) for a, x in actions.items()}
        return out


def parallel_env():
    return Several()
