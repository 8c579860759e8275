"""The rows of several agents that act at once: their spaces, and one agent's part of them.

A joint row belongs to one environment of N agents. Its observation is a dict: ``agents`` [N, *O],
one agent's space N times; ``alive`` [N], 1 where an agent's value counts (0: it has left or not
yet joined, with an observation of zeros); ``state`` [*S], the global state, read by training and
never by acting. Its action is [N, *A], its reward the team's. Torch-free.
"""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space


class JointSpace(spaces.Dict):
    """The observations of ``num_agents`` agents and their global state."""

    def __init__(self, agent: gym.Space[Any], state: gym.Space[Any], num_agents: int) -> None:
        super().__init__(
            {
                "agents": batch_space(agent, num_agents),
                "alive": spaces.MultiBinary(num_agents),
                "state": state,
            }
        )
        self.agent, self.num_agents = agent, num_agents


def joint_actions(agents: list[gym.Space[Any]]) -> gym.Space[Any] | None:
    """The joint action space of N agents; None where their spaces cannot be joined.

    MultiDiscrete [N], or [N, K] of agents with K discrete actions each, or Box [N, *A].
    """
    counts = [int(a.n) for a in agents if isinstance(a, spaces.Discrete) and a.start == 0]
    if len(counts) == len(agents):
        return spaces.MultiDiscrete(counts)
    several = [a for a in agents if isinstance(a, spaces.MultiDiscrete) and not a.start.any()]
    if len(several) == len(agents) and len({a.nvec.shape for a in several}) == 1:
        nvec = np.stack([a.nvec for a in several])
        return spaces.MultiDiscrete(nvec) if nvec.ndim == 2 else None
    boxes = [a for a in agents if isinstance(a, spaces.Box)]
    same = {(a.shape, a.dtype) for a in boxes}
    if len(boxes) < len(agents) or len(same) > 1:
        return None
    low, high = (np.stack([getattr(a, end) for a in boxes]) for end in ("low", "high"))
    return spaces.Box(low, high, dtype=boxes[0].dtype.type)


def agent_action(joint: gym.Space[Any]) -> gym.Space[Any] | None:
    """The action space of each agent of a joint space; None where they differ."""
    if isinstance(joint, spaces.MultiDiscrete) and joint.nvec.ndim == 1:
        same = (joint.nvec == joint.nvec[0]).all()
        return spaces.Discrete(int(joint.nvec[0])) if same else None
    if isinstance(joint, spaces.MultiDiscrete):
        same = (joint.nvec == joint.nvec[0]).all()
        return spaces.MultiDiscrete(joint.nvec[0]) if same else None
    if isinstance(joint, spaces.Box) and joint.shape:
        same = (joint.low == joint.low[0]).all() and (joint.high == joint.high[0]).all()
        box = spaces.Box(joint.low[0], joint.high[0], dtype=joint.dtype.type)
        return box if same else None
    return None


class AgentSpace(spaces.Dict):
    """One agent's observation and its number, one-hot [N], which identifies its columns."""

    def __init__(self, observation: gym.Space[Any], num_agents: int) -> None:
        number = spaces.Box(0, 1, (num_agents,), np.float32)
        super().__init__({"agent": number, "observation": observation})
        self.num_agents = num_agents
