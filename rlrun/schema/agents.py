"""How an environment of several agents is shown to a policy."""

from dataclasses import dataclass
from typing import Literal

from rlrun.schema.ranges import need


@dataclass(frozen=True)
class AgentsConfig:
    """shared, separate: every agent a column of its own. joint: one row for all of them."""

    name: Literal["shared", "separate", "joint"]
    agent_id: bool
    team_reward: Literal["mean", "sum"]
    state: Literal["env", "concat"]

    def __post_init__(self) -> None:
        why = "agents=shared has it; set it to false (agents=joint: policy.agent_id)"
        need(self.name == "shared" or not self.agent_id, "agent_id", self.agent_id, why)
