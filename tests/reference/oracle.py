"""Scripted players of the diagnostic environments, fed with what a policy sees and nothing else."""

from collections.abc import Callable

import numpy as np

from rlrun.env import Env

Player = Callable[[np.ndarray, np.ndarray], np.ndarray]  # (obs [E, *O], first [E]) -> action [E]


class Recall:
    """Names what was observed k - 1 steps ago; 0 while there is no such observation."""

    def __init__(self, k: int = 4) -> None:
        self.k, self.seen = k, []

    def __call__(self, obs: np.ndarray, first: np.ndarray) -> np.ndarray:
        self.seen = [*self.seen, np.array(obs)][-self.k :]
        return self.seen[0] if len(self.seen) == self.k else np.zeros_like(obs)


class Maze:
    """Remembers the cue, walks to the junction and turns."""

    def __call__(self, obs: np.ndarray, first: np.ndarray) -> np.ndarray:
        if not hasattr(self, "cue"):
            self.cue = np.zeros(len(obs), int)
        self.cue = np.where(first, obs[:, 1].astype(int), self.cue)
        return np.where(obs[:, 3] == 1, 1 + self.cue, 0)


def identity(obs: np.ndarray, first: np.ndarray) -> np.ndarray:
    return obs


def second_arm(obs: np.ndarray, first: np.ndarray) -> np.ndarray:
    return np.ones(len(obs), int)


def uniform(actions: int, seed: int) -> Player:
    """Uniformly random actions."""
    rng = np.random.default_rng(seed)
    return lambda obs, first: rng.integers(actions, size=len(first))


def play(env: Env, player: Player, episodes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns [episodes, E] of the first episodes of every column, and their kept is_success."""
    obs, first = env.reset(seed=seed), np.ones(env.num_envs, bool)
    total = np.zeros(env.num_envs)
    returns: list[list[float]] = [[] for _ in range(env.num_envs)]
    wins: list[list[float]] = [[] for _ in range(env.num_envs)]
    while min(map(len, returns)) < episodes:
        step = env.step(player(obs, first))
        obs, first = step.obs, step.first
        total = np.where(first, 0.0, total + step.reward)
        for i in np.flatnonzero(step.terminated | step.truncated):
            returns[i].append(float(total[i]))
            wins[i].append(float(step.info.get("is_success", np.zeros(env.num_envs))[i]))
    cut = [[column[:episodes] for column in table] for table in (returns, wins)]
    return np.array(cut[0]).T, np.array(cut[1]).T
