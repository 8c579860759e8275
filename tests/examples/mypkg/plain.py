"""DQN by another name."""

from rlrun.policy.dqn import DQN


class Plain(DQN):
    pass
