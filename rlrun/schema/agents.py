"""Agents of an environment: columns of their own, or joint rows."""

from dataclasses import dataclass, field
from typing import Literal

from rlrun.schema.ranges import Ranged
from rlrun.schema.readers import read_when

_JOINT = read_when("agents=joint", fix="use policy=qmix or policy=vdn")


@dataclass(frozen=True)
class AgentsConfig(Ranged):
    """shared, separate: every agent a column of its own. joint: one row for all of them."""

    name: Literal["shared", "separate", "joint"]
    agent_id: bool
    team_reward: Literal["mean", "sum"] = field(metadata=_JOINT)
    state: Literal["env", "concat"] = field(metadata=_JOINT)
