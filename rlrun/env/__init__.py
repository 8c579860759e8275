"""Environments as NEXT_STEP rows, and the diagnostic environments of the ``rlrun/`` namespace.

Does not import torch, because config validation imports it. Importing it registers the ids below
with Gymnasium, each with a native vector implementation and a single environment derived from it.
"""

from typing import Any

import gymnasium as gym

from rlrun.env.adapter import (
    Env,
    Step,
    beside_others,
    known_spaces,
    make_env,
    make_one_env,
    probe,
)
from rlrun.env.goal import GoalFunctions, goal_functions

__all__ = [
    "DIAGNOSTIC",
    "Env",
    "GoalFunctions",
    "Step",
    "beside_others",
    "goal_functions",
    "known_spaces",
    "make_env",
    "make_one_env",
    "probe",
]

DIAGNOSTIC = {
    "tasks": (
        *("Counter", "Bandit", "Identity", "BitFlip", "Chain", "BanditContinuous", "Tracking"),
        *("TwoStep", "Relay", "Battleship", "MineSweeper"),
    ),
    "memory": (
        *("RepeatPrevious", "RepeatFirst", "CountRecall", "Autoencode", "HigherLower"),
        *("MultiarmedBandit", "MemoryChain", "TMaze", "CartPoleNoVel", "PositionOnlyCartPole"),
    ),
    "games": (
        *("Concentration", "HiddenBattleship", "HiddenMineSweeper"),
        *("LabyrinthEscape", "LabyrinthExplore", "PositionOnlyPendulum"),
    ),
    "minatar": ("MinAtarAsterix", "MinAtarBreakout", "MinAtarFreeway", "MinAtarSpaceInvaders"),
    "seaquest": ("MinAtarSeaquest",),
}
"""module of ``rlrun.env.diagnostic`` -> its tasks; task X has the id rlrun/X-v0."""


def _register(env_id: str, single: str, vector: str | None, **options: Any) -> None:
    if env_id not in gym.registry:  # the adapter's own checks are stricter than Gymnasium's
        gym.register(env_id, single, vector_entry_point=vector, disable_env_checker=True, **options)


_register("rlrun/Conform-v0", "rlrun.env.conform:make", None)
_register("rlrun/Atari-v0", "rlrun.env.atari:AtariEnv", "rlrun.env.atari:AtariVectorEnv")
for _module, _names in DIAGNOSTIC.items():
    for _name in _names:
        _register(
            f"rlrun/{_name}-v0",
            "rlrun.env.diagnostic.vector:SingleTask",
            "rlrun.env.diagnostic.vector:make_tasks",
            kwargs={"task": f"{_module}:{_name}"},
            max_episode_steps=500 if _name == "CartPoleNoVel" else None,
        )
