"""Teams of two, as small as what they test: the two-step game of QMIX, and a relayed cue."""

import numpy as np
from gymnasium import spaces

from rlrun.env.diagnostic.lockstep import Lockstep, Single, need_count
from rlrun.joint import JointSpace
from rlrun.tree import Tree

PAYOFF = np.array([[0, 1], [1, 8]], np.float32)  # of the second step in state 2B


class TwoStep(Lockstep):
    """Two agents, two actions, two steps: 7 for sure, or 8 for those who can tell a joint value.

    In the first state the first agent's action chooses: A leads to state 2A, where every joint
    action pays 7, B to state 2B, where (A, A) pays 0, (B, B) 8 and anything else 1. Both agents
    observe the state's number; it is the global state, too. A sum of one value per agent cannot
    represent 2B's table: under full exploration it fits 6.5 at best and prefers 2A.
    Source: Rashid et al. 2018, section 5 and table 1.
    """

    def __init__(self, num_envs: int = 1, *, max_episode_steps: int | None = None) -> None:
        super().__init__(
            num_envs,
            observation_space=JointSpace(
                spaces.Discrete(3), spaces.Box(0, 1, (3,), np.float32), num_agents=2
            ),
            action_space=spaces.MultiDiscrete([2, 2]),
            max_episode_steps=max_episode_steps,
        )
        self.state = np.zeros(num_envs, np.int64)  # 0: first, 1: 2A, 2: 2B

    def _open(self, columns: np.ndarray) -> None:
        self.state[columns] = 0

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        second = self.state > 0
        paid = np.where(self.state == 1, np.float32(7), PAYOFF[action[:, 0], action[:, 1]])
        self.state = np.where(second, self.state, 1 + action[:, 0])
        return np.where(second, paid, np.float32(0)), second

    def _observe(self) -> Tree:
        return joint_row(np.stack([self.state] * 2, 1), np.eye(3, dtype=np.float32)[self.state])


class Relay(Lockstep):
    """Two agents must both name a cue at the end that only the first one saw, at the start.

    At t = 0 the first agent sees the cue, one of ``cues``. What it does then is its word, shown to
    the second agent at t = 1: nothing else passes between them. After ``delay`` blank steps more
    both see a question. The team is paid 1/2 if the word was the cue and 1/4 for each agent that
    names the cue at the question: 1 in all, 1 / cues for random agents, 1/2 + 1 / (2 cues) at best
    without memory.

    Observations are symbols: 0 to cues - 1 shown, ``cues`` blank, cues + 1 the question. The global
    state is both symbols, one-hot. (Were the cue in it all the time, a mixer could learn to give no
    weight to an agent where it is wrong, and the agent would stay wrong.)
    """

    def __init__(
        self,
        num_envs: int = 1,
        *,
        cues: int = 2,
        delay: int = 1,
        max_episode_steps: int | None = None,
    ) -> None:
        need_count("cues", cues, 2)
        need_count("delay", delay, 0)
        self.cues, self.length = cues, delay + 3  # steps: cue, word, delay, question
        self.symbols = np.eye(cues + 2, dtype=np.float32)
        state = spaces.Box(0, 1, (2 * (cues + 2),), np.float32)
        super().__init__(
            num_envs,
            observation_space=JointSpace(spaces.Discrete(cues + 2), state, num_agents=2),
            action_space=spaces.MultiDiscrete([cues, cues]),
            max_episode_steps=max_episode_steps,
        )
        self.cue, self.word = np.zeros(num_envs, np.int64), np.zeros(num_envs, np.int64)

    def _open(self, columns: np.ndarray) -> None:
        self.cue[columns] = [self.rngs[i].integers(self.cues) for i in columns]

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        last = self.t == self.length - 1
        self.word = np.where(self.t == 0, action[:, 0], self.word)
        right = action == self.cue[:, None]
        word = np.where(self.t == 0, 0.5 * right[:, 0], 0)
        return (word + np.where(last, 0.25 * right.sum(1), 0)).astype(np.float32), last

    def _observe(self) -> Tree:
        shown = np.full((self.num_envs, 2), self.cues)
        shown[self.t == self.length - 1] = self.cues + 1
        shown[:, 0] = np.where(self.t == 0, self.cue, shown[:, 0])
        shown[:, 1] = np.where(self.t == 1, self.word, shown[:, 1])
        return joint_row(shown, self.symbols[shown].reshape(self.num_envs, -1))


def joint_row(agents: np.ndarray, state: np.ndarray) -> Tree:
    """The observation of environments whose agents [E, N] are all there."""
    return {"agents": agents, "alive": np.ones(agents.shape, np.int8), "state": state}


class TwoStepSingle(Single):
    vector = TwoStep


class RelaySingle(Single):
    vector = Relay
