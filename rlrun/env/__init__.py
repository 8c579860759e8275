"""Environments as NEXT_STEP rows, and the diagnostic environments of the ``rlrun/`` namespace.

Torch-free, since config validation imports it. The import registers the ids below with Gymnasium,
each with a native vector implementation and a single environment derived from it.
"""

import gymnasium as gym

from rlrun.env.adapter import (
    Env,
    Step,
    beside_others,
    known_spaces,
    make_env,
    make_one_env,
    probe,
    probe_agents,
)
from rlrun.env.atari import ATARI_ID
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
    "probe_agents",
]

DIAGNOSTIC = {
    "rlrun/Counter-v0": ("diagnostic.counter", "Counter", None),
    "rlrun/CartPoleNoVel-v0": ("diagnostic.cartpole", "CartPoleNoVel", 500),
    "rlrun/RepeatPrevious-v0": ("diagnostic.recall", "RepeatPrevious", None),
    "rlrun/RepeatFirst-v0": ("diagnostic.cards", "RepeatFirst", None),
    "rlrun/CountRecall-v0": ("diagnostic.cards", "CountRecall", None),
    "rlrun/Autoencode-v0": ("diagnostic.cards", "Autoencode", None),
    "rlrun/HigherLower-v0": ("diagnostic.cards", "HigherLower", None),
    "rlrun/PositionOnlyCartPole-v0": ("diagnostic.positions", "PositionOnlyCartPole", None),
    "rlrun/MultiarmedBandit-v0": ("diagnostic.arms", "MultiarmedBandit", None),
    "rlrun/MemoryChain-v0": ("diagnostic.memory_chain", "MemoryChain", None),
    "rlrun/TMaze-v0": ("diagnostic.tmaze", "TMaze", None),
    "rlrun/Bandit-v0": ("diagnostic.simple", "Bandit", None),
    "rlrun/Identity-v0": ("diagnostic.simple", "Identity", None),
    "rlrun/BitFlip-v0": ("diagnostic.bitflip", "BitFlip", None),
    "rlrun/Chain-v0": ("diagnostic.chain", "Chain", None),
    "rlrun/Battleship-v0": ("diagnostic.cells", "Battleship", None),
    "rlrun/MineSweeper-v0": ("diagnostic.cells", "MineSweeper", None),
    "rlrun/BanditContinuous-v0": ("diagnostic.continuous", "BanditContinuous", None),
    "rlrun/Tracking-v0": ("diagnostic.continuous", "Tracking", None),
    "rlrun/TwoStep-v0": ("diagnostic.cooperative", "TwoStep", None),
    "rlrun/Relay-v0": ("diagnostic.cooperative", "Relay", None),
}
"""id -> (module, class, max_episode_steps); classes are <class>Env and <class>VectorEnv."""

for _id, (_module, _name, _limit) in {**DIAGNOSTIC, ATARI_ID: ("atari", "Atari", None)}.items():
    if _id not in gym.registry:
        gym.register(
            id=_id,
            entry_point=f"rlrun.env.{_module}:{_name}Env",
            vector_entry_point=f"rlrun.env.{_module}:{_name}VectorEnv",
            max_episode_steps=_limit,
            disable_env_checker=True,  # the adapter's own checks are stricter
        )
