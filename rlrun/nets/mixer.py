"""Mixers: the agents' values of the actions taken, and the global state, to the team's value."""

import gymnasium as gym
from torch import Tensor, nn

from rlrun.functional.mixing import qmix_total, vdn_total
from rlrun.nets.torso import flat_size, flatten, mlp
from rlrun.schema import QMIXConfig
from rlrun.types import Tree


class VDNMixer(nn.Module):
    """VDN: the sum; it has no parameters and reads no state."""

    def forward(self, q: Tensor, state: Tree) -> Tensor:
        """[*, N] -> [*]."""
        return vdn_total(q)


class QMixer(nn.Module):
    """QMIX: a network of one hidden layer whose weights other networks make of the state.

    Source: Rashid et al. 2018, section 4 (one linear layer each; the last bias two layers with a
    ReLU), Rashid et al. 2020, appendix (``hyper_hidden`` units in those of the weights).
    """

    def __init__(self, config: QMIXConfig, state: gym.Space[object], num_agents: int) -> None:
        super().__init__()
        self.space, self.hidden = state, config.mixer_hidden
        size, hidden = flat_size(state), config.mixer_hidden
        inner = [size, *config.hyper_hidden]
        self.w1 = mlp([*inner, num_agents * hidden], "relu", last=False)
        self.b1 = mlp([size, hidden], "relu", last=False)
        self.w2 = mlp([*inner, hidden], "relu", last=False)
        self.b2 = mlp([size, hidden, 1], "relu", last=False)

    def forward(self, q: Tensor, state: Tree) -> Tensor:
        """[*, N] -> [*]."""
        s = flatten(self.space, state)
        w1 = self.w1(s).unflatten(-1, (q.shape[-1], self.hidden))
        return qmix_total(q, w1, self.b1(s), self.w2(s), self.b2(s).squeeze(-1))


def make_mixer(config: QMIXConfig, state: gym.Space[object], num_agents: int) -> VDNMixer | QMixer:
    """The configured mixer."""
    return VDNMixer() if config.mixer == "sum" else QMixer(config, state, num_agents)
