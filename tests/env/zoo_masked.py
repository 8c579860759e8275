"""A team of two of PettingZoo's interface; each agent may choose each of five cells once."""

from typing import Any

import numpy as np
from gymnasium import spaces

CELLS = 5


class Cells:
    """Raises ValueError when an agent chooses a cell that its mask forbids. Cell 3 pays 1."""

    possible_agents = ("left", "right")
    metadata: dict[str, Any] = {"name": "cells"}  # noqa: RUF012

    def observation_space(self, agent: str) -> Any:
        box = spaces.Box(0, 1, (CELLS,), np.float32)
        return spaces.Dict({"action_mask": spaces.MultiBinary(CELLS), "observation": box})

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(CELLS)

    def _obs(self) -> dict[str, Any]:
        return {
            agent: {"action_mask": (~used).astype(np.int8), "observation": used.astype(np.float32)}
            for agent, used in self.used.items()
        }

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents = list(self.possible_agents)
        self.used = {agent: np.zeros(CELLS, bool) for agent in self.agents}
        self.t = 0
        return self._obs(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, int]) -> Any:
        self.t += 1
        for agent, action in actions.items():
            if self.used[agent][action]:
                raise ValueError(f"action {action} of {agent} is forbidden")
            self.used[agent][action] = True
        reward = {agent: float(action == 3) / self.t for agent, action in actions.items()}
        over = dict.fromkeys(actions, self.t == CELLS)
        no = dict.fromkeys(actions, False)
        found = self._obs(), reward, over, no, {agent: {} for agent in actions}
        self.agents = [] if self.t == CELLS else self.agents
        return found

    def close(self) -> None:
        pass


def parallel_env(**kwargs: Any) -> Cells:
    return Cells()
