"""A parallel environment of PettingZoo's interface; observations say who, which episode, when."""

import numpy as np
from gymnasium import spaces


class Leaving:
    """Agent i is terminated (or truncated) by its step number ``lives[i]``; the rest goes on.

    Observation of agent i: (i, episode, t); reward: 100 i + 10 episode + t + 1 of the step from t.
    """

    def __init__(self, lives=(2, 4), ends="terminated", sizes=None, actions=None, state=False):
        self.possible_agents = [f"agent_{i}" for i in range(len(lives))]
        self.agents = []
        self.lives, self.ends = lives, [ends] * len(lives) if isinstance(ends, str) else ends
        self.sizes = sizes or [3] * len(lives)
        self.actions = actions or [3] * len(lives)
        self.episode, self.t, self.taken, self.seeds = -1, 0, [], []
        if state:
            self.state = lambda: np.array([self.episode, self.t], np.float64)

    def observation_space(self, agent):
        size = self.sizes[self.possible_agents.index(agent)]
        return spaces.Box(-1, 1e6, (size,), np.float32, seed=0)

    def action_space(self, agent):
        n = self.actions[self.possible_agents.index(agent)]
        return spaces.Discrete(n) if isinstance(n, int) else n

    def _obs(self, i):
        return np.array([i, self.episode, self.t, 7, 7], np.float32)[: self.sizes[i]]

    def reset(self, seed=None, options=None):
        self.seeds.append(seed)
        self.agents, self.episode, self.t = list(self.possible_agents), self.episode + 1, 0
        return {a: self._obs(i) for i, a in enumerate(self.agents)}, {a: {} for a in self.agents}

    def step(self, actions):
        assert set(actions) == set(self.agents), "every agent that is there acts, and nobody else"
        self.taken.append(dict(actions))
        here = [self.possible_agents.index(a) for a in self.agents]
        paid = {i: 100 * i + 10 * self.episode + self.t + 1 for i in here}
        self.t += 1
        out = [{}, {}, {}, {}, {}]
        for i in here:
            name, over = self.possible_agents[i], self.t >= self.lives[i]
            out[0][name], out[1][name] = self._obs(i), float(paid[i])
            out[2][name] = over and self.ends[i] == "terminated"
            out[3][name] = over and self.ends[i] == "truncated"
            out[4][name] = {"t": self.t}
        self.agents = [a for a in self.agents if not (out[2][a] or out[3][a])]
        return out

    def close(self):
        self.agents = []


def parallel_env(**kwargs):
    return Leaving(**kwargs)
