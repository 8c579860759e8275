"""Mixers: Q_tot of the agents' values and the global state."""

import gymnasium as gym
from torch import Tensor, nn

from rlrun.functional.mixing import qmix_total, vdn_total
from rlrun.nets.torso import flat_size, flatten, mlp
from rlrun.schema import QMIXConfig
from rlrun.types import Tree


class VDNMixer(nn.Module):
    """VDN: the sum of values; no parameters, the state is not used.

    Source: Sunehag et al. 2018.
    """

    def forward(self, q: Tensor, state: Tree) -> Tensor:
        """[*, N] -> [*]."""
        return vdn_total(q)


class QMixer(nn.Module):
    """QMIX: a network with one hidden layer whose weights are functions of the state.

    Source: Rashid et al. 2018, section 4 (hypernetworks of one linear layer; two layers with a ReLU
    for the last bias); Rashid et al. 2020, appendix (``hyper_hidden`` for those of the weights).
    """

    def __init__(self, config: QMIXConfig, state: gym.Space[object], num_agents: int) -> None:
        super().__init__()
        self.space, self.hidden = state, config.mixer_hidden
        size, hidden = flat_size(state), config.mixer_hidden
        hyper = [size, *config.hyper_hidden]
        self.w1 = mlp([*hyper, num_agents * hidden], "relu", last=False)
        self.b1 = mlp([size, hidden], "relu", last=False)
        self.w2 = mlp([*hyper, hidden], "relu", last=False)
        self.b2 = mlp([size, hidden, 1], "relu", last=False)

    def forward(self, q: Tensor, state: Tree) -> Tensor:
        """[*, N] -> [*]."""
        s = flatten(self.space, state)
        w1 = self.w1(s).unflatten(-1, (q.shape[-1], self.hidden))
        return qmix_total(q, w1, self.b1(s), self.w2(s), self.b2(s).squeeze(-1))


def make_mixer(config: QMIXConfig, state: gym.Space[object], num_agents: int) -> VDNMixer | QMixer:
    """Return the configured mixer."""
    return VDNMixer() if config.mixer == "sum" else QMixer(config, state, num_agents)
