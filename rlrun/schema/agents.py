"""How an environment of several agents is shown to a policy."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class AgentsConfig:
    """shared, separate: every agent a column of its own. joint: one row for all of them."""

    name: Literal["shared", "separate", "joint"]
    agent_id: bool
    team_reward: Literal["mean", "sum"]
    state: Literal["env", "concat"]
