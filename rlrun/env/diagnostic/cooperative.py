"""Cooperative environments of two agents: the two-step game of QMIX, and a relayed cue."""

import numpy as np
from gymnasium import spaces

from rlrun.env.diagnostic.vector import LockstepVectorEnv, SingleFromVector, require_int
from rlrun.joint import JointSpace
from rlrun.tree import Tree

PAYOFF = np.array([[0, 1], [1, 8]], np.float32)  # of the second step in state 2B


class TwoStepVectorEnv(LockstepVectorEnv):
    """Two agents, two actions, two steps: return 7 in one branch, 8 with coordination in the other.

    In the first state the first agent's action decides: A leads to state 2A, where every joint
    action is worth 7, B to state 2B, where (A, A) is worth 0, (B, B) 8 and any other 1. Both agents
    observe the index of the state, which is also the global state (one-hot). A sum of one value per
    agent cannot represent the payoffs of 2B: under full exploration it fits 6.5 at best and
    prefers 2A.
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

    def _reset_columns(self, columns: np.ndarray) -> None:
        self.state[columns] = 0

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        second = self.state > 0
        reward = np.where(self.state == 1, np.float32(7), PAYOFF[action[:, 0], action[:, 1]])
        self.state = np.where(second, self.state, 1 + action[:, 0])
        return np.where(second, reward, np.float32(0)), second

    def _observe(self) -> Tree:
        return joint_obs(np.stack([self.state] * 2, 1), np.eye(3, dtype=np.float32)[self.state])


class RelayVectorEnv(LockstepVectorEnv):
    """Both agents must recall a cue that only the first one observes, at the start.

    At t = 0 the first agent observes the cue, one of ``cues``. Its action is a message that the
    second agent observes at t = 1, the only communication. After ``delay`` more blank steps both
    observe a question. Reward 1/2 if the message equals the cue, 1/4 for each agent that answers
    the question with the cue. Return: 1 at best, 1 / cues for random agents, 1/2 + 1 / (2 cues) at
    best without memory.

    Observations are symbols: 0 to cues - 1 a cue or message, ``cues`` blank, cues + 1 the question.
    The global state is both symbols, one-hot. It contains the cue only while it is observed:
    otherwise a mixer could learn to ignore an agent where it is wrong.
    """

    def __init__(
        self,
        num_envs: int = 1,
        *,
        cues: int = 2,
        delay: int = 1,
        max_episode_steps: int | None = None,
    ) -> None:
        require_int("cues", cues, 2)
        require_int("delay", delay, 0)
        self.cues, self.length = cues, delay + 3  # steps: cue, message, delay, question
        self.symbols = np.eye(cues + 2, dtype=np.float32)
        state = spaces.Box(0, 1, (2 * (cues + 2),), np.float32)
        super().__init__(
            num_envs,
            observation_space=JointSpace(spaces.Discrete(cues + 2), state, num_agents=2),
            action_space=spaces.MultiDiscrete([cues, cues]),
            max_episode_steps=max_episode_steps,
        )
        self.cue, self.message = np.zeros(num_envs, np.int64), np.zeros(num_envs, np.int64)

    def _reset_columns(self, columns: np.ndarray) -> None:
        self.cue[columns] = [self.rngs[i].integers(self.cues) for i in columns]

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        last = self.t == self.length - 1
        self.message = np.where(self.t == 0, action[:, 0], self.message)
        correct = action == self.cue[:, None]
        sent = np.where(self.t == 0, 0.5 * correct[:, 0], 0)
        return (sent + np.where(last, 0.25 * correct.sum(1), 0)).astype(np.float32), last

    def _observe(self) -> Tree:
        obs = np.full((self.num_envs, 2), self.cues)
        obs[self.t == self.length - 1] = self.cues + 1
        obs[:, 0] = np.where(self.t == 0, self.cue, obs[:, 0])
        obs[:, 1] = np.where(self.t == 1, self.message, obs[:, 1])
        return joint_obs(obs, self.symbols[obs].reshape(self.num_envs, -1))


def joint_obs(agents: np.ndarray, state: np.ndarray) -> Tree:
    """Return the joint observation of environments whose agents [E, N] are all alive."""
    return {"agents": agents, "alive": np.ones(agents.shape, np.int8), "state": state}


class TwoStepEnv(SingleFromVector):
    vector = TwoStepVectorEnv


class RelayEnv(SingleFromVector):
    vector = RelayVectorEnv
